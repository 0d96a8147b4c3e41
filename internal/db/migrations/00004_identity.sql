-- Who acts: tasks, passwords, sessions. As in 00001: times are unix microseconds.
-- +goose Up
CREATE TABLE task (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  title        TEXT NOT NULL,
  agent_id     TEXT NOT NULL DEFAULT '', -- empty: the task may only read; no foreign key, as for api_key
  project_id   TEXT NOT NULL DEFAULT '',
  person_id    TEXT NOT NULL,            -- on whose behalf it acts
  hash         TEXT NOT NULL UNIQUE,     -- hex SHA-256 of the token
  created_at   BIGINT NOT NULL,
  expires_at   BIGINT NOT NULL,
  ended_at     BIGINT NOT NULL DEFAULT 0 -- finished before it expired
);
CREATE INDEX task_recent ON task (expires_at);
CREATE INDEX task_workspace ON task (workspace_id, created_at);

ALTER TABLE person ADD COLUMN password    TEXT   NOT NULL DEFAULT ''; -- argon2id in the PHC form; empty: no sign-in by password
ALTER TABLE person ADD COLUMN disabled_at BIGINT NOT NULL DEFAULT 0;

CREATE TABLE session (
  id         TEXT PRIMARY KEY,
  person_id  TEXT NOT NULL REFERENCES person(id) ON DELETE CASCADE,
  hash       TEXT NOT NULL UNIQUE, -- hex SHA-256 of the cookie
  created_at BIGINT NOT NULL,
  seen_at    BIGINT NOT NULL,
  expires_at BIGINT NOT NULL       -- at the latest; an idle session ends before
);
CREATE INDEX session_person ON session (person_id);
CREATE INDEX session_expiry ON session (expires_at);

-- Failed sign-ins, counted by account, address, and both. The subject is a digest: a name that was typed may be a password.
CREATE TABLE signin_failure (
  subject    TEXT PRIMARY KEY,
  failures   BIGINT NOT NULL,
  first_at   BIGINT NOT NULL
);

-- +goose Down
DROP TABLE signin_failure;
DROP TABLE session;
-- Who was disabled must not come back.
UPDATE api_key SET revoked_at = (SELECT disabled_at FROM person p WHERE p.id = api_key.person_id)
  WHERE revoked_at = 0 AND person_id IN (SELECT id FROM person WHERE disabled_at > 0);
ALTER TABLE person DROP COLUMN disabled_at;
ALTER TABLE person DROP COLUMN password;
DROP TABLE task;
