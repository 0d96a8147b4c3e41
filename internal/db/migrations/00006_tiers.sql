-- What an operator says of a tool besides its rules, and of the scripts an agent may run.
-- +goose Up
ALTER TABLE tool ADD COLUMN tier    TEXT    NOT NULL DEFAULT ''; -- a word of policy.ParseTier; empty: by the action class; an unknown word denies
ALTER TABLE tool ADD COLUMN confirm BOOLEAN NOT NULL DEFAULT FALSE; -- calls need the two-step confirmation
ALTER TABLE agent ADD COLUMN script_allowlist TEXT NOT NULL DEFAULT ''; -- JSON array of slugs; empty: every script

-- +goose Down
ALTER TABLE agent DROP COLUMN script_allowlist;
ALTER TABLE tool DROP COLUMN confirm;
ALTER TABLE tool DROP COLUMN tier;
