-- Approvals that nobody decided get a second role's attention, and what happens to approvals is told to the outside.
-- +goose Up
ALTER TABLE approval ADD COLUMN escalated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE approval ADD COLUMN decision_trace_id TEXT NOT NULL DEFAULT ''; -- of the decision, in the record
-- What the sweeper looks for; decided rows, which are the many, are not in these.
CREATE INDEX approval_ends ON approval (expires_at) WHERE status IN ('PENDING', 'APPROVED');
CREATE INDEX approval_escalates ON approval (created_at) WHERE status = 'PENDING' AND escalated_at = 0;

-- One message on its way through one channel. Rows are added in the transaction of what they tell.
CREATE TABLE notification (
  id          TEXT PRIMARY KEY,
  kind        TEXT NOT NULL,            -- approval.created, approval.decided, approval.escalated, approval.expired
  approval_id TEXT NOT NULL,
  channel     TEXT NOT NULL,            -- webhook, webhook:escalation, email:<address>
  body        TEXT NOT NULL,            -- the event as JSON
  attempts    BIGINT NOT NULL DEFAULT 0,
  next_at     BIGINT NOT NULL,          -- of the next attempt; while one runs, when it counts as lost
  status      TEXT NOT NULL,            -- PENDING, SENT, FAILED
  error       TEXT NOT NULL DEFAULT '', -- of the last attempt
  created_at  BIGINT NOT NULL
);
CREATE INDEX notification_due ON notification (channel, status, next_at);
CREATE INDEX notification_approval ON notification (approval_id);

-- +goose Down
DROP TABLE notification;
DROP INDEX approval_escalates;
DROP INDEX approval_ends;
ALTER TABLE approval DROP COLUMN decision_trace_id;
ALTER TABLE approval DROP COLUMN escalated_at;
