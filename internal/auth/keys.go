package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// KeyInfo is a key as lists show it.
type KeyInfo struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Prefix    string `json:"prefix"`
	AgentID   string `json:"agent_id,omitempty"`
	PersonID  string `json:"person_id,omitempty"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt int64  `json:"expires_at,omitempty"`
	RevokedAt int64  `json:"revoked_at,omitempty"`
}

const (
	agentPrefix  = "agent_"
	personPrefix = "dw_"
	keyBytes     = 32 // of randomness
	shownPrefix  = 12 // bytes of a key that lists show
	maxName      = 100
)

func newKey(prefix string) string {
	var b [keyBytes]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// CreateKey makes a key for an agent ("agent_…") or a person ("dw_…") and returns it, the only time it is shown.
// expiresAt is in unix microseconds, 0: never.
func (a *Auth) CreateKey(ctx context.Context, ws, agentID, personID, name string, expiresAt int64) (key string, info KeyInfo, err error) {
	now := a.now().UnixMicro()
	switch {
	case (agentID == "") == (personID == ""):
		return "", info, fault.New(fault.InvalidParams, "a key belongs to one agent or one person: give exactly one of agent_id and person_id")
	case expiresAt != 0 && expiresAt <= now:
		return "", info, fault.New(fault.InvalidParams, "the key would have expired already; give expires_at in the future, or 0 for never")
	case len(name) > maxName:
		return "", info, fault.New(fault.InvalidParams, "the key's name is longer than %d bytes", maxName)
	}
	key = newKey(personPrefix)
	if agentID != "" {
		key = newKey(agentPrefix)
	}
	info = KeyInfo{ID: db.NewID(), Name: name, Prefix: key[:shownPrefix], AgentID: agentID, PersonID: personID, CreatedAt: now, ExpiresAt: expiresAt}
	err = a.change(ctx, func(tx *sql.Tx) error {
		if err := checkOwner(ctx, tx, ws, agentID, personID); err != nil {
			return err
		}
		return insertKey(ctx, tx, ws, key, info)
	})
	if err != nil {
		return "", KeyInfo{}, err
	}
	return key, info, nil
}

// checkOwner makes sure that the owner of a new key exists in the workspace and can still use it.
func checkOwner(ctx context.Context, tx *sql.Tx, ws, agentID, personID string) error {
	if agentID != "" {
		g, err := agentTx(ctx, tx, ws, agentID)
		if err == nil && len(transitions[g.State]) == 0 {
			return fault.New(fault.Conflict, "the agent is %s, which is final: it gets no keys", g.State)
		}
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM person WHERE id = $1 AND workspace_id = $2`, personID, ws).Scan(&n); err != nil {
		return unreadable(err)
	}
	if n == 0 {
		return fault.New(fault.NotFound, "no such person in this workspace")
	}
	return nil
}

func insertKey(ctx context.Context, tx *sql.Tx, ws, key string, k KeyInfo) error {
	sum := sha256.Sum256([]byte(key))
	_, err := tx.ExecContext(ctx, `INSERT INTO api_key (id, workspace_id, name, prefix, hash, agent_id, person_id, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		k.ID, ws, k.Name, k.Prefix, hex.EncodeToString(sum[:]), orNull(k.AgentID), orNull(k.PersonID), k.CreatedAt, k.ExpiresAt)
	return written(err, "this key exists already; use another one")
}

func orNull(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

// Keys lists the keys of a workspace, also revoked and expired ones, oldest first.
func (a *Auth) Keys(ctx context.Context, ws string) ([]KeyInfo, error) {
	rows, err := a.db.Read.QueryContext(ctx, `SELECT id, name, prefix, COALESCE(agent_id, ''), COALESCE(person_id, ''), created_at, expires_at, revoked_at
		FROM api_key WHERE workspace_id = $1 ORDER BY created_at, id`, ws)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	keys := []KeyInfo{}
	for rows.Next() {
		var k KeyInfo
		if err := rows.Scan(&k.ID, &k.Name, &k.Prefix, &k.AgentID, &k.PersonID, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt); err != nil {
			return nil, unreadable(err)
		}
		keys = append(keys, k)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return keys, nil
}

// RevokeKey ends a key for good. Revoking it again changes nothing.
func (a *Auth) RevokeKey(ctx context.Context, ws, id string) error {
	return a.change(ctx, func(tx *sql.Tx) error {
		var revoked int64
		err := tx.QueryRowContext(ctx, `SELECT revoked_at FROM api_key WHERE id = $1 AND workspace_id = $2`, id, ws).Scan(&revoked)
		if errors.Is(err, sql.ErrNoRows) {
			return fault.New(fault.NotFound, "no such key in this workspace")
		}
		if err != nil {
			return unreadable(err)
		}
		if revoked != 0 {
			return nil
		}
		_, err = tx.ExecContext(ctx, `UPDATE api_key SET revoked_at = $1 WHERE id = $2`, a.now().UnixMicro(), id)
		return written(err, "")
	})
}

// change is a change of the database that this process decides by at once:
// when it returns nil, the snapshot has it.
func (a *Auth) change(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if err := a.db.TxChange(ctx, fn); err != nil {
		return err
	}
	// The change is made; that the caller went away must not keep it from the snapshot.
	return a.Reload(context.WithoutCancel(ctx))
}

// written gives an error of a write its class; exists is the message for a row that exists already.
func written(err error, exists string) error {
	switch {
	case err == nil:
		return nil
	case exists != "" && db.IsUnique(err):
		return fault.New(fault.Conflict, "%s", exists)
	}
	return fault.Wrap(fault.Unavailable, err, "the database cannot be written; try again")
}

// checkName refuses names that cannot be shown in a line.
func checkName(what, name string) error {
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return fault.New(fault.InvalidParams, "the %s needs a name without spaces around it", what)
	case len(name) > maxName || !printable(name):
		return fault.New(fault.InvalidParams, "the %s's name must be at most %d bytes of UTF-8 without control characters", what, maxName)
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}
