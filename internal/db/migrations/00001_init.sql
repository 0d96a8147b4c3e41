-- One SQL text serves SQLite and PostgreSQL. Times are unix microseconds (0 or NULL: never),
-- ids are UUIDv7 text, booleans are BOOLEAN, bytes are base64 text.
-- BIGINT PRIMARY KEY becomes INTEGER PRIMARY KEY on SQLite (see migrate.go).
-- +goose Up
CREATE TABLE workspace (
  id         TEXT PRIMARY KEY,
  slug       TEXT NOT NULL UNIQUE,
  name       TEXT NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE TABLE person (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  name         TEXT NOT NULL,
  role         TEXT NOT NULL, -- viewer, editor, admin, owner
  created_at   BIGINT NOT NULL,
  UNIQUE (workspace_id, name)
);

CREATE TABLE agent (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  name         TEXT NOT NULL,
  description  TEXT NOT NULL DEFAULT '',
  state        TEXT NOT NULL, -- PENDING_APPROVAL, ACTIVE, PAUSED, SUSPENDED, REVOKED, REJECTED
  allowlist    TEXT NOT NULL DEFAULT '[]', -- JSON array of patterns; empty grants nothing
  capability   TEXT NOT NULL DEFAULT '{}', -- JSON capability model, action class -> rule word
  stopped_at   BIGINT NOT NULL DEFAULT 0,  -- emergency stop; checked before every other state
  stop_reason  TEXT NOT NULL DEFAULT '',
  created_at   BIGINT NOT NULL,
  UNIQUE (workspace_id, name)
);

CREATE TABLE api_key (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  name         TEXT NOT NULL DEFAULT '',
  prefix       TEXT NOT NULL,        -- shown in lists; the key itself is shown once
  hash         TEXT NOT NULL UNIQUE, -- hex SHA-256 of the key
  agent_id     TEXT,                 -- exactly one of agent_id and person_id; no foreign key: a dangling reference
  person_id    TEXT,                 -- must deny and name itself, not vanish
  created_at   BIGINT NOT NULL,
  expires_at   BIGINT NOT NULL DEFAULT 0,
  revoked_at   BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE server (
  id               TEXT PRIMARY KEY,
  workspace_id     TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  name             TEXT NOT NULL,
  description      TEXT NOT NULL DEFAULT '',
  connector_type   TEXT NOT NULL DEFAULT 'custom',
  transport        TEXT NOT NULL, -- stdio, http, sse, ws, builtin
  command          TEXT NOT NULL DEFAULT '',
  args             TEXT NOT NULL DEFAULT '[]', -- JSON array
  cwd              TEXT NOT NULL DEFAULT '',
  server_url       TEXT NOT NULL DEFAULT '',
  secrets          TEXT NOT NULL DEFAULT '',   -- sealed JSON {"env":{},"headers":{},"args":[],"server_url":""}
  origin           TEXT NOT NULL DEFAULT 'database', -- database, config, builtin
  origin_path      TEXT NOT NULL DEFAULT '',
  state            TEXT NOT NULL, -- PENDING_APPROVAL, ACTIVE, PAUSED, BLOCKED
  state_reason     TEXT NOT NULL DEFAULT '',
  scan_id          TEXT NOT NULL DEFAULT '', -- last scan that succeeded
  scan_at          BIGINT NOT NULL DEFAULT 0,
  scan_error       TEXT NOT NULL DEFAULT '', -- of the last scan, empty when it succeeded
  settings         TEXT NOT NULL DEFAULT '{}', -- JSON: timeouts and the like
  created_at       BIGINT NOT NULL,
  updated_at       BIGINT NOT NULL,
  UNIQUE (workspace_id, name)
);

CREATE TABLE tool (
  id                    TEXT PRIMARY KEY,
  server_id             TEXT NOT NULL REFERENCES server(id) ON DELETE CASCADE,
  name                  TEXT NOT NULL,
  position              BIGINT NOT NULL DEFAULT 0,
  definition            TEXT NOT NULL,            -- the last seen definition, byte for byte
  fingerprint           TEXT NOT NULL,            -- of definition
  action                TEXT NOT NULL,            -- class: read, write, delete, send, execute, unknown
  risk                  TEXT NOT NULL,            -- LOW, MEDIUM, HIGH, CRITICAL
  category              TEXT NOT NULL DEFAULT '',
  present               BOOLEAN NOT NULL,         -- in the last complete list of the server
  admitted_fingerprint  TEXT NOT NULL DEFAULT '', -- empty: never admitted
  admitted_definition   TEXT NOT NULL DEFAULT '',
  admitted_at           BIGINT NOT NULL DEFAULT 0,
  admitted_by           TEXT NOT NULL DEFAULT '',
  first_seen_at         BIGINT NOT NULL,
  last_seen_at          BIGINT NOT NULL,
  UNIQUE (server_id, name)
);

CREATE TABLE policy (
  id                TEXT PRIMARY KEY,
  workspace_id      TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  mcp_tool_id       TEXT REFERENCES tool(id) ON DELETE CASCADE,
  agent_id          TEXT REFERENCES agent(id) ON DELETE CASCADE,
  action            TEXT NOT NULL, -- ALLOW, LOG_ONLY, REQUIRE_APPROVAL, DENY; an unknown word blocks
  reason            TEXT NOT NULL DEFAULT '',
  is_auto_generated BOOLEAN NOT NULL DEFAULT FALSE,
  created_by        TEXT NOT NULL DEFAULT '',
  created_at        BIGINT NOT NULL
);
CREATE INDEX policy_tool ON policy (mcp_tool_id);
CREATE INDEX policy_agent ON policy (agent_id);

CREATE TABLE approval (
  id            TEXT PRIMARY KEY,
  workspace_id  TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  agent_id      TEXT NOT NULL DEFAULT '',
  person_id     TEXT NOT NULL DEFAULT '', -- the requester, when a person called
  server_id     TEXT NOT NULL,
  tool_id       TEXT NOT NULL,
  server_name   TEXT NOT NULL,
  tool_name     TEXT NOT NULL,
  fingerprint   TEXT NOT NULL,
  args_digest   TEXT NOT NULL,            -- of the canonical arguments
  arguments     TEXT NOT NULL DEFAULT '', -- redacted, for the person who decides
  policy_id     TEXT NOT NULL DEFAULT '',
  reason        TEXT NOT NULL DEFAULT '', -- why it was held
  trace_id      TEXT NOT NULL,
  status        TEXT NOT NULL,            -- PENDING, APPROVED, DENIED, EXPIRED, CONSUMED
  created_at    BIGINT NOT NULL,
  expires_at    BIGINT NOT NULL,
  decided_at    BIGINT NOT NULL DEFAULT 0,
  decided_by    TEXT NOT NULL DEFAULT '', -- person id
  decide_reason TEXT NOT NULL DEFAULT '',
  consumed_at   BIGINT NOT NULL DEFAULT 0,
  consumed_by   TEXT NOT NULL DEFAULT ''  -- trace id of the call that used it
);
CREATE INDEX approval_open ON approval (workspace_id, status, created_at);
CREATE INDEX approval_match ON approval (tool_id, args_digest, status);
-- One open approval per call, also when two replicas hold the same call at once.
CREATE UNIQUE INDEX approval_one_open ON approval (workspace_id, agent_id, person_id, tool_id, fingerprint, args_digest)
  WHERE status = 'PENDING';

-- The record. Rows are only ever added; each carries the hash of the one before it.
-- A call with side effects has two rows, intent then outcome, with one trace_id.
CREATE TABLE audit_events (
  seq           BIGINT PRIMARY KEY,
  id            TEXT NOT NULL,
  at            BIGINT NOT NULL,
  kind          TEXT NOT NULL,            -- intent, call, admin, stop
  trace_id      TEXT NOT NULL,
  workspace_id  TEXT NOT NULL,
  agent_id      TEXT NOT NULL DEFAULT '',
  person_id     TEXT NOT NULL DEFAULT '',
  task_id       TEXT NOT NULL DEFAULT '',
  key_id        TEXT NOT NULL DEFAULT '',
  door          TEXT NOT NULL DEFAULT '', -- mcp, mcp_server, proxy, tools, stdio, rest, cli
  method        TEXT NOT NULL DEFAULT '', -- tools/call, resources/read, server.approve, …
  server_id     TEXT NOT NULL DEFAULT '',
  server_name   TEXT NOT NULL DEFAULT '',
  tool_id       TEXT NOT NULL DEFAULT '',
  tool_name     TEXT NOT NULL DEFAULT '',
  fingerprint   TEXT NOT NULL DEFAULT '',
  decision      TEXT NOT NULL DEFAULT '', -- ALLOW, LOG_ONLY, REQUIRE_APPROVAL, DENY
  stage         TEXT NOT NULL DEFAULT '', -- the stage that decided
  rule_id       TEXT NOT NULL DEFAULT '',
  reason        TEXT NOT NULL DEFAULT '', -- the true reason, also where the caller learns less
  approval_id   TEXT NOT NULL DEFAULT '',
  status        TEXT NOT NULL,            -- ok, tool_error, upstream_error, denied, held, cancelled, timeout, unknown, started
  error_class   TEXT NOT NULL DEFAULT '',
  latency_us    BIGINT NOT NULL DEFAULT 0,
  args_digest   TEXT NOT NULL DEFAULT '', -- hex SHA-256 of the arguments as received
  args_size     BIGINT NOT NULL DEFAULT 0,
  args_body     TEXT NOT NULL DEFAULT '', -- redacted; an excerpt ending in the mark of audit.Truncated when too large
  result_digest TEXT NOT NULL DEFAULT '',
  result_size   BIGINT NOT NULL DEFAULT 0,
  result_body   TEXT NOT NULL DEFAULT '',
  prev_hash     TEXT NOT NULL,
  hash          TEXT NOT NULL
);
CREATE INDEX audit_events_trace ON audit_events (trace_id);

CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

-- One row; every change of what calls are decided by adds one, so that replicas see it.
CREATE TABLE revision (
  id BIGINT PRIMARY KEY,
  n  BIGINT NOT NULL
);
INSERT INTO revision (id, n) VALUES (1, 1);

-- +goose Down
DROP TABLE revision;
DROP TABLE setting;
DROP TABLE audit_events;
DROP TABLE approval;
DROP TABLE policy;
DROP TABLE tool;
DROP TABLE server;
DROP TABLE api_key;
DROP TABLE agent;
DROP TABLE person;
DROP TABLE workspace;
