package auth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Session of a person who signed in.
type Session struct {
	ID        string `json:"id"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt int64  `json:"expires_at"` // at the latest; unused it ends SessionIdle after the last request
}

// How long a session lives: without use, and at most.
const (
	SessionIdle = 12 * time.Hour
	SessionLife = 7 * 24 * time.Hour

	seenEvery = 5 * time.Minute // a request that comes sooner does not write
)

// beginSession makes a session of a person whose password is still the one that was checked.
func (a *Auth) beginSession(ctx context.Context, personID, password string) (cookie string, s Session, err error) {
	cookie, now := newKey(""), a.now()
	s = Session{ID: db.NewID(), CreatedAt: now.UnixMicro(), ExpiresAt: now.Add(SessionLife).UnixMicro()}
	err = a.db.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM session WHERE expires_at <= $1 OR seen_at <= $2`,
			now.UnixMicro(), now.Add(-SessionIdle).UnixMicro()); err != nil {
			return written(err, "")
		}
		// The update takes hold of the row: a change of password or role that is under way ends this session too.
		done, err := tx.ExecContext(ctx, `UPDATE person SET password = password WHERE id = $1 AND password = $2 AND disabled_at = 0`, personID, password)
		if err != nil {
			return written(err, "")
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return badCredentials()
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO session (id, person_id, hash, created_at, seen_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			s.ID, personID, sessionDigest(cookie), s.CreatedAt, s.CreatedAt, s.ExpiresAt)
		return written(err, "")
	})
	return cookie, s, err
}

func sessionDigest(cookie string) string {
	sum := sha256.Sum256([]byte(cookie))
	return hex.EncodeToString(sum[:])
}

// AuthenticateSession finds the person of a session, with the role as it is now. Unlike Authenticate it asks the database:
// it is for the administrative interface, where an end must hold at once and no call passes. Errors are
// fault.Unauthenticated with the reason SESSION_INVALID, or that the database cannot be read.
func (a *Auth) AuthenticateSession(ctx context.Context, cookie string) (*Caller, Session, error) {
	var s Session
	var seen int64
	var role string
	c := new(Caller)
	if cookie == "" || len(cookie) > maxKey {
		return nil, s, invalidSession()
	}
	err := a.db.Read.QueryRowContext(ctx, `SELECT s.id, s.created_at, s.expires_at, s.seen_at, p.id, p.workspace_id, p.name, p.role
		FROM session s JOIN person p ON p.id = s.person_id WHERE s.hash = $1 AND p.disabled_at = 0`, sessionDigest(cookie)).
		Scan(&s.ID, &s.CreatedAt, &s.ExpiresAt, &seen, &c.PersonID, &c.WorkspaceID, &c.PersonName, &role)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, s, invalidSession()
	}
	if err != nil {
		return nil, s, unreadable(err)
	}
	now := a.now()
	if now.UnixMicro() >= s.ExpiresAt || now.UnixMicro() >= time.UnixMicro(seen).Add(SessionIdle).UnixMicro() {
		return nil, s, invalidSession()
	}
	if now.Sub(time.UnixMicro(seen)) >= seenEvery {
		err := a.db.Tx(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE session SET seen_at = $1 WHERE id = $2 AND seen_at < $1`, now.UnixMicro(), s.ID)
			return written(err, "")
		})
		if err != nil {
			return nil, s, err
		}
	}
	c.KeyID = s.ID
	c.Role, _ = ParseRole(role)
	return c, s, nil
}

func invalidSession() error {
	return fault.New(fault.Unauthenticated, "the session has ended; sign in again").Why("SESSION_INVALID")
}

// EndSession ends one session; ending it again changes nothing.
func (a *Auth) EndSession(ctx context.Context, id string) error {
	return a.db.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM session WHERE id = $1`, id)
		return written(err, "")
	})
}

func endSessions(ctx context.Context, tx *sql.Tx, personID string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM session WHERE person_id = $1`, personID)
	return written(err, "")
}
