-- A rule may hold for some calls only: condition is CEL (docs/conditions.md), empty for all calls.
-- +goose Up
ALTER TABLE policy ADD COLUMN condition TEXT NOT NULL DEFAULT '';

-- +goose Down
-- A rule that allowed some calls must not come to allow all.
DELETE FROM policy WHERE condition <> '' AND action IN ('ALLOW', 'LOG_ONLY');
ALTER TABLE policy DROP COLUMN condition;
