package auth

import (
	"context"
	"database/sql"
	"errors"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// minGivenKey is the length of the shortest key that may be given at the first start.
const minGivenKey = 24

// errExists ends the bootstrap transaction of a database that has a workspace.
var errExists = errors.New("there is a workspace")

// Bootstrap creates, in an empty database, the default workspace, an owner and one ACTIVE agent named "default" with
// allowlist ["*"], and a key for each: the given ones, or new ones. created is false when there was a workspace already.
// A given key must be 24 to 256 printable ASCII characters, else fault.Config.
func (a *Auth) Bootstrap(ctx context.Context, adminKey, agentKey string) (created bool, admin, agent string, err error) {
	admin, agent = adminKey, agentKey
	if admin == "" {
		admin = newKey(personPrefix)
	}
	if agent == "" {
		agent = newKey(agentPrefix)
	}
	err = a.change(ctx, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM workspace`).Scan(&n); err != nil {
			return unreadable(err)
		}
		if n > 0 {
			return errExists
		}
		return a.bootstrapTx(ctx, tx, admin, agent)
	})
	if errors.Is(err, errExists) {
		return false, "", "", nil
	}
	if err != nil {
		return false, "", "", err
	}
	return true, admin, agent, nil
}

func (a *Auth) bootstrapTx(ctx context.Context, tx *sql.Tx, admin, agent string) error {
	if err := checkGivenKey("admin", admin); err != nil {
		return err
	}
	if err := checkGivenKey("agent", agent); err != nil {
		return err
	}
	if admin == agent {
		return fault.New(fault.Config, "the first admin key and the first agent key are the same; give two")
	}
	ws, now := db.NewID(), a.now().UnixMicro()
	// The unique slug makes a second replica that starts now fail instead of creating a second workspace.
	if _, err := tx.ExecContext(ctx, `INSERT INTO workspace (id, slug, name, created_at) VALUES ($1, 'default', 'Default', $2)`, ws, now); err != nil {
		if db.IsUnique(err) {
			return errExists
		}
		return written(err, "")
	}
	owner := Person{ID: db.NewID(), Name: "owner", Role: Owner.String(), CreatedAt: now}
	if err := insertPerson(ctx, tx, ws, owner); err != nil {
		return err
	}
	all, err := ParsePattern(anything)
	if err != nil {
		return err
	}
	first := Agent{ID: db.NewID(), WorkspaceID: ws, Name: "default", Description: "made at the first start", State: StateActive, Allowlist: []Pattern{all}, CreatedAt: now}
	if err := insertAgent(ctx, tx, first); err != nil {
		return err
	}
	if err := insertKey(ctx, tx, ws, admin, KeyInfo{ID: db.NewID(), Name: "first admin key", Prefix: admin[:shownPrefix], PersonID: owner.ID, CreatedAt: now}); err != nil {
		return err
	}
	return insertKey(ctx, tx, ws, agent, KeyInfo{ID: db.NewID(), Name: "first agent key", Prefix: agent[:shownPrefix], AgentID: first.ID, CreatedAt: now})
}

func checkGivenKey(whose, key string) error {
	if len(key) < minGivenKey || len(key) > maxKey {
		return fault.New(fault.Config, "the first %s key has %d characters; give %d to %d random ones, or none to have one made", whose, len(key), minGivenKey, maxKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return fault.New(fault.Config, "the first %s key has a space or a character that is not ASCII: it cannot stand in a header", whose)
		}
	}
	return nil
}
