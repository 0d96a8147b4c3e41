// Package db owns the database: SQLite (one writer, many readers) or
// PostgreSQL, migrations, and the news that something changed. It knows no
// table but revision and setting; SQL stands in the packages that own the rows.
package db

import (
	"context"
	"database/sql"
)

// DB is an open database. Write has one connection on SQLite: never query it
// while holding a transaction from it, pass the transaction on. Read is safe
// for any number of concurrent readers.
type DB struct {
	Write *sql.DB
	Read  *sql.DB
}

// Open opens the database of a URL (empty: SQLite file doorward.db in dir,
// created with mode 0600; "postgres://…") and migrates it to the newest schema.
func Open(ctx context.Context, url, dir string) (*DB, error) { panic("pending") }

// OpenExisting opens the database for reading commands: it never creates and never migrates.
func OpenExisting(ctx context.Context, url, dir string) (*DB, error) { panic("pending") }

// Close closes both pools.
func (d *DB) Close() error { panic("pending") }

// Tx runs fn in one write transaction.
func (d *DB) Tx(ctx context.Context, fn func(tx *sql.Tx) error) error { panic("pending") }

// Changed raises the revision within tx; when the transaction has committed,
// call Announce so that this process reloads at once.
func Changed(ctx context.Context, tx *sql.Tx) error { panic("pending") }

// TxChange is Tx for a change of what calls are decided by: it raises the
// revision and announces it after the commit.
func (d *DB) TxChange(ctx context.Context, fn func(tx *sql.Tx) error) error { panic("pending") }

// Watch calls fn, one call at a time, after every announced change and
// whenever polling finds a higher revision (another process). It returns when ctx ends.
func (d *DB) Watch(ctx context.Context, fn func(ctx context.Context)) error { panic("pending") }

// Setting reads a named setting; create makes and stores it when it is missing.
func (d *DB) Setting(ctx context.Context, name string, create func() (string, error)) (string, error) {
	panic("pending")
}

// NewID returns a UUIDv7.
func NewID() string { panic("pending") }
