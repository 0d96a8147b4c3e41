-- Tamper evidence of audit_events: a Merkle tree over the row hashes, signed checkpoints of it, and where those were anchored.
-- +goose Up

-- Nodes of the tree over 256, 65,536, … whole rows (level 8, 16, …). What lies below is computed from the rows.
CREATE TABLE audit_tree (
  level BIGINT NOT NULL,
  n     BIGINT NOT NULL, -- counted from 0 on its level
  hash  TEXT NOT NULL,   -- base64
  PRIMARY KEY (level, n)
);

CREATE TABLE audit_checkpoint (
  size    BIGINT PRIMARY KEY, -- rows it covers: seq 1 to size
  at      BIGINT NOT NULL,
  note    TEXT NOT NULL,      -- the signed note
  first   BIGINT NOT NULL,    -- min_at and max_at are those of the rows first to size, so that a
  min_at  BIGINT NOT NULL,    -- search by time reads only parts of the record, also after a step of the clock
  max_at  BIGINT NOT NULL
);

-- A checkpoint on its way to a place outside of this database.
CREATE TABLE audit_anchor (
  size      BIGINT NOT NULL,
  anchor    TEXT NOT NULL,            -- file, webhook
  status    TEXT NOT NULL,            -- PENDING, ANCHORED, FAILED, SKIPPED
  reference TEXT NOT NULL DEFAULT '', -- where to find it there
  attempts  BIGINT NOT NULL DEFAULT 0,
  error     TEXT NOT NULL DEFAULT '', -- of the last attempt
  at        BIGINT NOT NULL,          -- of the last change
  PRIMARY KEY (size, anchor)
);
CREATE INDEX audit_anchor_open ON audit_anchor (anchor, status, size);

-- Emergency stops, for attestation; they outlive their rows. The state of one is that of its checkpoint.
CREATE TABLE attestation (
  seq          BIGINT PRIMARY KEY, -- of the row of kind stop
  id           TEXT NOT NULL,
  at           BIGINT NOT NULL,
  trace_id     TEXT NOT NULL,
  workspace_id TEXT NOT NULL,
  hash         TEXT NOT NULL,      -- of the row
  size         BIGINT NOT NULL     -- of the checkpoint that covers it
);

-- +goose Down
DROP TABLE attestation;
DROP TABLE audit_anchor;
DROP TABLE audit_checkpoint;
DROP TABLE audit_tree;
