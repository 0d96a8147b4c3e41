// Package db owns the database: SQLite (one writer, many readers) or
// PostgreSQL, migrations, and the news that something changed. It knows no
// table but revision and setting; SQL stands in the packages that own the rows.
package db

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"doorward.dev/doorward/internal/fault"
)

// DB is an open database. Write has one connection on SQLite: never query it
// while holding a transaction from it, pass the transaction on. Read is safe
// for any number of concurrent readers. On PostgreSQL both are one pool.
type DB struct {
	Write *sql.DB
	Read  *sql.DB

	postgres bool
	lock     *os.File        // held on the data folder of a SQLite database, nil else
	config   *pgx.ConnConfig // of PostgreSQL, for the listener
	opened   int64           // revision when the database was opened

	now   func() time.Time
	began time.Time
	seen  atomic.Int64 // when the newest state was known, counted from began; 0: not watched, or SQLite

	mu      sync.Mutex
	changed chan struct{} // closed at the next announcement
}

// Open opens the database of a URL (empty: SQLite file doorward.db in dir,
// created with mode 0600; "postgres://…") and migrates it to the newest schema.
// A SQLite database that another process has open this way is refused with
// fault.Conflict, one of a newer schema than this program knows with fault.Config.
func Open(ctx context.Context, url, dir string) (*DB, error) {
	d, err := openPools(url, dir, false)
	if err != nil {
		return nil, err
	}
	err = d.complete(ctx)
	if err == nil {
		err = d.migrateTo(ctx, 0)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d.ready(ctx)
}

// OpenExisting opens the database for reading commands: it never creates and
// never migrates, writes through it fail, and it works beside a running server.
func OpenExisting(ctx context.Context, url, dir string) (*DB, error) {
	d, err := openPools(url, dir, true)
	if err != nil {
		return nil, err
	}
	err = d.complete(ctx)
	if err == nil {
		err = d.checkVersion(ctx)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d.ready(ctx)
}

// OpenStopped is OpenExisting of a database that is about to be moved: on SQLite it keeps others from opening it, and is
// refused with fault.Conflict while one has it open. Nobody can tell that of PostgreSQL.
func OpenStopped(ctx context.Context, url, dir string) (*DB, error) {
	d, err := OpenExisting(ctx, url, dir)
	if err != nil || d.postgres {
		return d, err
	}
	if d.lock, err = lockDir(dir); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func openPools(url, dir string, readOnly bool) (*DB, error) {
	switch {
	case url == "":
		return openSQLite(dir, readOnly)
	case isPostgresURL(url):
		return openPostgres(url, readOnly)
	}
	scheme, _, _ := strings.Cut(url, ":")
	return nil, fault.New(fault.Config, "database url has the scheme %q: leave it empty for SQLite in the data folder, or give postgres://…", scheme)
}

// ready reads the revision that Watch starts from: what changes after this is news.
func (d *DB) ready(ctx context.Context) (*DB, error) {
	n, err := d.revision(ctx)
	if err != nil {
		d.Close()
		return nil, err
	}
	d.opened, d.changed = n, make(chan struct{})
	d.now, d.began = time.Now, time.Now()
	return d, nil
}

// IsPostgres tells the few places that must know (locks, durability) which database this is.
func (d *DB) IsPostgres() bool { return d.postgres }

// Close closes both pools and gives the data folder free.
func (d *DB) Close() error {
	err := d.Write.Close()
	if d.Read != d.Write {
		err = errors.Join(err, d.Read.Close())
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// Tx runs fn in one write transaction. An error of fn rolls back and is
// returned as it is; a failure of the database itself is fault.Unavailable.
func (d *DB) Tx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := d.Write.BeginTx(ctx, nil)
	if err != nil {
		return unavailable(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, else the first error counts
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return unavailable(err)
	}
	return nil
}

// startLock is the key of the advisory lock of Alone, any number that nobody else takes.
const startLock = 0x646f6f7277617264

// Alone runs fn while no other replica is in Alone: what starts of several replicas must do one after the other. On
// SQLite there is no other, since the data folder is locked.
func (d *DB) Alone(ctx context.Context, fn func() error) error {
	if !d.postgres {
		return fn()
	}
	conn, err := d.Write.Conn(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, int64(startLock)); err != nil {
		return unavailable(err)
	}
	err = fn()
	// Without ctx: a connection that goes back to the pool must not hold the lock.
	if _, uerr := conn.ExecContext(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(startLock)); err == nil && uerr != nil {
		err = unavailable(uerr)
	}
	return err
}

func unavailable(err error) error {
	return fault.Wrap(fault.Unavailable, err, "the database does not answer; try again")
}

// Setting reads a named setting; create makes and stores it when it is missing.
// Of two processes that create at once, both get the value that was stored first.
func (d *DB) Setting(ctx context.Context, name string, create func() (string, error)) (string, error) {
	const read = `SELECT value FROM setting WHERE name = $1`
	var value string
	err := d.Read.QueryRowContext(ctx, read, name).Scan(&value)
	if err == nil {
		return value, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", unavailable(err)
	}
	made, err := create()
	if err != nil {
		return "", err
	}
	err = d.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, name, made); err != nil {
			return unavailable(err)
		}
		if err := tx.QueryRowContext(ctx, read, name).Scan(&value); err != nil {
			return unavailable(err)
		}
		return nil
	})
	return value, err
}

// NewID returns a UUIDv7.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// View runs fn in a read transaction: all its queries see one state of the database.
func (d *DB) View(ctx context.Context, fn func(tx *sql.Tx) error) error {
	o := &sql.TxOptions{ReadOnly: true}
	if d.postgres {
		o.Isolation = sql.LevelRepeatableRead // SQLite has no weaker one
	}
	tx, err := d.Read.BeginTx(ctx, o)
	if err != nil {
		return unavailable(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return fn(tx)
}

// IsUnique reports whether err is the refusal of a row that exists already.
func IsUnique(err error) bool {
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		return lite.Code() == sqliteUnique || lite.Code() == sqlitePrimaryKey
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505"
}

// Extended result codes of SQLite, and never to change: SQLITE_CONSTRAINT_UNIQUE and _PRIMARYKEY.
const (
	sqliteUnique     = 2067
	sqlitePrimaryKey = 1555
)
