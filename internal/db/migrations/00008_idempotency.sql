-- Keys of confirmed calls (SC-87): a key runs a call once, and gives its result again.
-- +goose Up
CREATE TABLE mcp_idempotency_keys (
  workspace_id TEXT   NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  task_id      TEXT   NOT NULL,            -- of a caller without a task: agent:<id> or person:<id>
  tool_name    TEXT   NOT NULL,            -- server/tool
  key          TEXT   NOT NULL,
  input_hash   TEXT   NOT NULL,            -- of the canonical arguments
  status       TEXT   NOT NULL,            -- claimed (nothing ran yet), running, done, unknown (may have run)
  trace_id     TEXT   NOT NULL,            -- of the call that claimed it
  failed       BOOLEAN NOT NULL DEFAULT FALSE, -- result is the server's JSON-RPC error
  result       TEXT   NOT NULL DEFAULT '', -- as it was answered
  created_at   BIGINT NOT NULL,
  changed_at   BIGINT NOT NULL,
  PRIMARY KEY (workspace_id, task_id, tool_name, key)
);
CREATE INDEX mcp_idempotency_keys_age ON mcp_idempotency_keys (created_at);

-- +goose Down
DROP TABLE mcp_idempotency_keys;
