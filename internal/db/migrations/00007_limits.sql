-- Limits of calls. A row of the record that uses a limit names the counters it used, and the counters are kept beside it in
-- the same transaction, so that no call ever counts rows.
-- +goose Up
ALTER TABLE audit_events ADD COLUMN slots TEXT NOT NULL DEFAULT ''; -- counters that the row used a slot of, parted by spaces
-- Only rows that used a slot stand in it: the counters are made anew from them at each start.
CREATE INDEX audit_events_slots ON audit_events (seq) WHERE slots <> '';

CREATE TABLE limit_counter (
  slot TEXT   NOT NULL, -- task:…, day:… or hour:…; see internal/audit/slots.go
  at   BIGINT NOT NULL, -- 0 for a task, the beginning of the day (UTC), the end of the second for an hour
  n    BIGINT NOT NULL,
  seen BIGINT NOT NULL, -- time of the last row that was counted
  PRIMARY KEY (slot, at)
);

-- What operators allow at most, beside the budgets of the tiers.
CREATE TABLE call_limit (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  mcp_tool_id  TEXT REFERENCES tool(id) ON DELETE CASCADE,  -- NULL: all tools
  agent_id     TEXT REFERENCES agent(id) ON DELETE CASCADE, -- NULL: whoever calls
  per          TEXT NOT NULL, -- day, hour, task; an unknown word lets nothing through
  n            BIGINT NOT NULL,
  reason       TEXT NOT NULL DEFAULT '',
  created_by   TEXT NOT NULL DEFAULT '',
  created_at   BIGINT NOT NULL
);

-- +goose Down
DROP TABLE call_limit;
DROP TABLE limit_counter;
DROP INDEX audit_events_slots;
ALTER TABLE audit_events DROP COLUMN slots;
