-- What a task is about, in words that rules may ask for.
-- +goose Up
ALTER TABLE task ADD COLUMN labels TEXT NOT NULL DEFAULT '[]'; -- JSON array

-- +goose Down
ALTER TABLE task DROP COLUMN labels;
