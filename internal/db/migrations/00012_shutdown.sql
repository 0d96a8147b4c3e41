-- The emergency shutdown of a whole workspace.
-- +goose Up
ALTER TABLE workspace ADD COLUMN stopped_at  BIGINT NOT NULL DEFAULT 0; -- 0: it is not shut down
ALTER TABLE workspace ADD COLUMN stop_reason TEXT   NOT NULL DEFAULT '';
ALTER TABLE workspace ADD COLUMN stopped_by  TEXT   NOT NULL DEFAULT ''; -- person

-- +goose Down
ALTER TABLE workspace DROP COLUMN stopped_by;
ALTER TABLE workspace DROP COLUMN stop_reason;
ALTER TABLE workspace DROP COLUMN stopped_at;
