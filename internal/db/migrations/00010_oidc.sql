-- Identities that others vouch for: people of an OpenID Connect provider, clients of an OAuth authorization server. As in 00001: times are unix microseconds.
-- +goose Up
ALTER TABLE person ADD COLUMN oidc_email TEXT NOT NULL DEFAULT ''; -- an invitation: the first sign-in with this verified address is linked, once
CREATE UNIQUE INDEX person_invited ON person (workspace_id, oidc_email) WHERE oidc_email <> '';

CREATE TABLE person_identity (
  issuer     TEXT NOT NULL,
  subject    TEXT NOT NULL,
  person_id  TEXT NOT NULL REFERENCES person(id) ON DELETE CASCADE,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX person_identity_person ON person_identity (person_id);

CREATE TABLE agent_oauth (
  id           TEXT PRIMARY KEY,
  workspace_id TEXT NOT NULL REFERENCES workspace(id) ON DELETE CASCADE,
  issuer       TEXT NOT NULL,
  client_id    TEXT NOT NULL,
  agent_id     TEXT NOT NULL, -- no foreign key, as for api_key: a binding of an agent that is gone grants nothing and names it
  created_at   BIGINT NOT NULL,
  UNIQUE (issuer, client_id)
);
CREATE INDEX agent_oauth_agent ON agent_oauth (agent_id);

-- +goose Down
DROP TABLE agent_oauth;
DROP TABLE person_identity;
DROP INDEX person_invited;
ALTER TABLE person DROP COLUMN oidc_email;
