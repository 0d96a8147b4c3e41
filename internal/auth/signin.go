package auth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// The reasons of refused sign-ins.
const (
	ReasonCredentials = "INVALID_CREDENTIALS"
	ReasonLocked      = "SIGN_IN_LOCKED"
)

// How many failed attempts within signInWindow lock what. The pair comes first, so that a stranger who guesses does not
// lock the owner of the account out at once; the account bounds strangers with many addresses.
const (
	maxPerPair    = 5
	maxPerAccount = 20
	maxPerAddress = 30
	signInWindow  = 15 * time.Minute
)

type signInLimit struct {
	subject string
	most    int64
}

// SignedIn is what came of a sign-in. Of one that was refused it holds what is known for the record: the workspace
// and the person, where they exist.
type SignedIn struct {
	Cookie      string // the secret of the session, shown this once
	Session     Session
	WorkspaceID string
	Person      Person
	Note        string // what else it changed, for the record
}

// SignIn checks a password and begins a session. workspace is a slug. Unknown, disabled and wrong are one answer in the same time:
// fault.Unauthenticated, INVALID_CREDENTIALS; after too many failures fault.TooMany, SIGN_IN_LOCKED, with retry_after in seconds.
func (a *Auth) SignIn(ctx context.Context, workspace, name, password, address string) (SignedIn, error) {
	var in SignedIn
	if len(name) > maxName || len(workspace) > maxName || len(password) > maxPassword {
		return in, badCredentials()
	}
	account, from := workspace+"/"+strings.ToLower(name), network(address)
	limits := []signInLimit{{"pair " + account + " " + from, maxPerPair}, {"account " + account, maxPerAccount}, {"address " + from, maxPerAddress}}
	if err := a.reserve(ctx, limits); err != nil {
		return in, err
	}
	var stored string
	err := a.db.Read.QueryRowContext(ctx, `SELECT w.id, p.id, p.name, p.role, p.created_at, p.disabled_at, p.password
		FROM workspace w JOIN person p ON p.workspace_id = w.id WHERE w.slug = $1 AND p.name = $2`, workspace, name).
		Scan(&in.WorkspaceID, &in.Person.ID, &in.Person.Name, &in.Person.Role, &in.Person.CreatedAt, &in.Person.DisabledAt, &stored)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return in, unreadable(err)
	}
	match, err := a.matches(ctx, password, stored)
	if err != nil {
		return in, err
	}
	if _, known := ParseRole(in.Person.Role); !match || !known || in.Person.DisabledAt != 0 {
		return in, badCredentials()
	}
	if in.Cookie, in.Session, err = a.beginSession(ctx, in.Person.ID, stored); err != nil {
		return in, err
	}
	return in, a.giveBack(ctx, limits)
}

func badCredentials() error {
	return fault.New(fault.Unauthenticated, "name or password is wrong").Why(ReasonCredentials)
}

// network is what counts as one address: an IPv6 customer has a whole /64.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "unknown"
	}
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		return ip.String()
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return "unknown"
	}
	return p.String()
}

func subjectDigest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// reserve counts an attempt as failed before it is made, so that many at once are not more than one after the other.
// What is locked stays so until signInWindow has passed since its first failure; attempts meanwhile do not prolong it.
func (a *Auth) reserve(ctx context.Context, limits []signInLimit) error {
	now := a.now()
	return a.db.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM signin_failure WHERE first_at <= $1`, now.Add(-signInWindow).UnixMicro()); err != nil {
			return written(err, "")
		}
		for _, l := range limits {
			var n, first int64
			err := tx.QueryRowContext(ctx, `INSERT INTO signin_failure (subject, failures, first_at) VALUES ($1, 1, $2)
				ON CONFLICT (subject) DO UPDATE SET failures = signin_failure.failures + 1 RETURNING failures, first_at`,
				subjectDigest(l.subject), now.UnixMicro()).Scan(&n, &first)
			if err != nil {
				return written(err, "")
			}
			if n > l.most {
				wait := time.UnixMicro(first).Add(signInWindow).Sub(now)
				return fault.New(fault.TooMany, "too many failed sign-ins; try again in %s", wait.Round(time.Second)).
					Why(ReasonLocked).With("retry_after", int64(wait/time.Second)+1)
			}
		}
		return nil
	})
}

// giveBack takes the reservation of an attempt that succeeded back, and no failure of others.
func (a *Auth) giveBack(ctx context.Context, limits []signInLimit) error {
	return a.db.Tx(ctx, func(tx *sql.Tx) error {
		for _, l := range limits {
			if _, err := tx.ExecContext(ctx, `UPDATE signin_failure SET failures = failures - 1 WHERE subject = $1 AND failures > 0`, subjectDigest(l.subject)); err != nil {
				return written(err, "")
			}
		}
		return nil
	})
}
