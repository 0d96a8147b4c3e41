package auth

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// OAuthClient binds a client of an authorization server to the agent that it calls as.
type OAuthClient struct {
	ID          string `json:"id"`
	WorkspaceID string `json:"-"`
	Issuer      string `json:"issuer"`
	ClientID    string `json:"client_id"`
	AgentID     string `json:"agent_id"`
	CreatedAt   int64  `json:"created_at"`
}

const maxIssuer = 500 // bytes

// BindOAuthClient lets a client of an issuer call as an agent of the workspace. A client is bound once.
func (a *Auth) BindOAuthClient(ctx context.Context, ws, issuer, clientID, agentID string) (OAuthClient, error) {
	if issuer == "" || len(issuer) > maxIssuer || !printable(issuer) || clientID == "" || len(clientID) > maxSubject || !printable(clientID) {
		return OAuthClient{}, fault.New(fault.InvalidParams, "issuer and client_id must be given, without control characters, at most %d and %d bytes", maxIssuer, maxSubject)
	}
	k := OAuthClient{ID: db.NewID(), WorkspaceID: ws, Issuer: issuer, ClientID: clientID, AgentID: agentID, CreatedAt: a.now().UnixMicro()}
	err := a.change(ctx, func(tx *sql.Tx) error {
		if err := checkOwner(ctx, tx, ws, agentID, ""); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO agent_oauth (id, workspace_id, issuer, client_id, agent_id, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			k.ID, ws, k.Issuer, k.ClientID, k.AgentID, k.CreatedAt)
		return written(err, "this client is bound to an agent already; remove that first")
	})
	if err != nil {
		return OAuthClient{}, err
	}
	return k, nil
}

// OAuthClients lists the bindings of a workspace, oldest first.
func (a *Auth) OAuthClients(ctx context.Context, ws string) ([]OAuthClient, error) {
	return readClients(a.db.Read.QueryContext(ctx, `SELECT `+clientColumns+` FROM agent_oauth WHERE workspace_id = $1 ORDER BY id`, ws))
}

// UnbindOAuthClient removes a binding: tokens of the client are refused from here on.
func (a *Auth) UnbindOAuthClient(ctx context.Context, ws, id string) error {
	return a.change(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `DELETE FROM agent_oauth WHERE id = $1 AND workspace_id = $2`, id, ws)
		if err != nil {
			return written(err, "")
		}
		n, err := done.RowsAffected()
		if err == nil && n == 0 {
			return fault.New(fault.NotFound, "no such OAuth client in this workspace")
		}
		return written(err, "")
	})
}

const clientColumns = `id, workspace_id, issuer, client_id, agent_id, created_at`

func readClients(rows *sql.Rows, err error) ([]OAuthClient, error) {
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	list := []OAuthClient{}
	for rows.Next() {
		var k OAuthClient
		if err := rows.Scan(&k.ID, &k.WorkspaceID, &k.Issuer, &k.ClientID, &k.AgentID, &k.CreatedAt); err != nil {
			return nil, unreadable(err)
		}
		list = append(list, k)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return list, nil
}

// identity is what an issuer calls somebody.
type identity struct{ issuer, name string }

// loadIdentities loads which clients are which agents, and which subjects are which people.
func (s *snapshot) loadIdentities(ctx context.Context, tx *sql.Tx) error {
	clients, err := readClients(tx.QueryContext(ctx, `SELECT `+clientColumns+` FROM agent_oauth`))
	if err != nil {
		return err
	}
	for _, k := range clients {
		s.clients[identity{k.Issuer, k.ClientID}] = k
	}
	rows, err := tx.QueryContext(ctx, `SELECT issuer, subject, person_id FROM person_identity`)
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		var who identity
		var person string
		if err := rows.Scan(&who.issuer, &who.name, &person); err != nil {
			return unreadable(err)
		}
		s.linked[who] = person
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}
