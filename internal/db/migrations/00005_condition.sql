-- A rule may hold for some calls only: condition is CEL (docs/conditions.md), empty for all calls.
-- +goose Up
ALTER TABLE policy ADD COLUMN condition TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE policy DROP COLUMN condition;
