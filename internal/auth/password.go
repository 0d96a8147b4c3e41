package auth

import (
	"context"
	"database/sql"
	"sync"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"

	"doorward.dev/doorward/internal/fault"
)

// What checking one password costs (OWASP's figures for argon2id), and how many are checked at once: together they bound the memory.
var hashCost = &argon2id.Params{Memory: 19 << 10, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

const (
	parallelHashes = 2
	minPassword    = 12  // characters
	maxPassword    = 256 // bytes
)

// nobody is the stored password of people who have none or do not exist, so that they take as long to refuse as others.
var nobody = sync.OnceValues(func() (string, error) { return argon2id.CreateHash(newKey(""), hashCost) })

// hashed waits for its turn and runs fn.
func (a *Auth) hashed(ctx context.Context, fn func() error) error {
	select {
	case a.hashing <- struct{}{}:
	case <-ctx.Done():
		return fault.Wrap(fault.Cancelled, ctx.Err(), "the request was cancelled")
	}
	defer func() { <-a.hashing }()
	return fn()
}

// matches checks a password against what is stored, in the same time whether there is something or not.
func (a *Auth) matches(ctx context.Context, password, stored string) (match bool, err error) {
	known := stored != ""
	if !known {
		if stored, err = nobody(); err != nil {
			return false, fault.Wrap(fault.Internal, err, "passwords cannot be checked")
		}
	}
	err = a.hashed(ctx, func() error {
		var err error
		if match, err = argon2id.ComparePasswordAndHash(password, stored); err != nil {
			return fault.Wrap(fault.Internal, err, "the stored password cannot be read; set a new one")
		}
		return nil
	})
	return match && known, err
}

// SetPassword gives a person of the workspace a password and ends all of that person's sessions.
func (a *Auth) SetPassword(ctx context.Context, ws, personID, password string) error {
	switch {
	case !utf8.ValidString(password) || len(password) > maxPassword:
		return fault.New(fault.InvalidParams, "the password must be UTF-8 of at most %d bytes", maxPassword)
	case utf8.RuneCountInString(password) < minPassword:
		return fault.New(fault.InvalidParams, "the password must have at least %d characters", minPassword)
	}
	var hash string
	err := a.hashed(ctx, func() (err error) {
		hash, err = argon2id.CreateHash(password, hashCost)
		return err
	})
	if err != nil {
		return fault.From(err)
	}
	return a.db.Tx(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `UPDATE person SET password = $1 WHERE id = $2 AND workspace_id = $3`, hash, personID, ws)
		if err != nil {
			return written(err, "")
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return fault.New(fault.NotFound, "no such person in this workspace")
		}
		return endSessions(ctx, tx, personID)
	})
}

// HasPassword reports whether password is the one of the person. It is for a person who changes it; attempts are counted as in SignIn.
func (a *Auth) HasPassword(ctx context.Context, personID, password, address string) error {
	limits := []signInLimit{{"password " + personID, maxPerAccount}, {"address " + network(address), maxPerAddress}}
	if err := a.reserve(ctx, limits); err != nil {
		return err
	}
	var stored string
	if err := a.db.Read.QueryRowContext(ctx, `SELECT password FROM person WHERE id = $1`, personID).Scan(&stored); err != nil {
		return unreadable(err)
	}
	match, err := a.matches(ctx, password, stored)
	switch {
	case err != nil:
		return err
	case !match:
		return fault.New(fault.Forbidden, "the current password is wrong").Why(ReasonCredentials)
	}
	return a.giveBack(ctx, limits)
}
