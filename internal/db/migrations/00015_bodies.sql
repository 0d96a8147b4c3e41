-- Large arguments and results of the record, each once, however many rows have it. The column of the row holds the digest then.
-- +goose Up
CREATE TABLE audit_body (
  digest TEXT PRIMARY KEY, -- @sha256: and 64 hex digits, of body
  body   TEXT NOT NULL,    -- redacted
  seq    BIGINT NOT NULL   -- a row that has it; none has it that is audit.bodyLag later
);

-- +goose Down
UPDATE audit_events SET args_body = COALESCE((SELECT body FROM audit_body WHERE digest = args_body), args_body),
  result_body = COALESCE((SELECT body FROM audit_body WHERE digest = result_body), result_body)
  WHERE args_body LIKE '@sha256:%' OR result_body LIKE '@sha256:%';
DROP TABLE audit_body;
