package db

import (
	"context"
	"database/sql"
	"time"

	"doorward.dev/doorward/internal/fault"
)

const (
	// pollEvery is how often Watch asks for changes made by other processes, whatever they announced.
	pollEvery = 500 * time.Millisecond
	// readTime bounds one question for the revision.
	readTime = time.Second
	// reloadTime bounds what Watch calls: a connection that hangs must not keep it for ever.
	reloadTime = 30 * time.Second
	// staleAfter is how old the newest known state may be that calls are decided by.
	staleAfter = 2 * time.Second
)

// Changed raises the revision within tx, and on PostgreSQL tells the other replicas when it commits. When the
// transaction has committed, call Announce so that this process reloads at once.
func (d *DB) Changed(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE revision SET n = n + 1 WHERE id = 1`)
	if err == nil && d.postgres {
		_, err = tx.ExecContext(ctx, `NOTIFY `+channel)
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// TxChange is Tx for a change of what calls are decided by: it raises the
// revision and announces it after the commit.
func (d *DB) TxChange(ctx context.Context, fn func(tx *sql.Tx) error) error {
	err := d.Tx(ctx, func(tx *sql.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return d.Changed(ctx, tx)
	})
	if err == nil {
		d.Announce()
	}
	return err
}

// Announce wakes everybody who waits for a change in this process.
func (d *DB) Announce() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
}

// News is closed at the next announced change. Take it before reading what
// may change, so that no change falls between reading and waiting. A change by another process
// is announced here by Watch, within a second.
func (d *DB) News() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Watch calls fn, one call at a time, after every announced change and
// whenever the revision is higher than before (another process); changes since
// Open count too. Several changes may be told by one call. When fn fails it is called again, until it has taken the change
// in. Watch returns when ctx ends.
func (d *DB) Watch(ctx context.Context, fn func(ctx context.Context) error) error {
	l := &listener{config: d.config}
	defer l.close()
	taken, told := d.opened, d.opened
	d.saw(d.now())
	for ctx.Err() == nil {
		news, asked := d.News(), d.now()
		n, err := d.newest(ctx, l)
		moved := err == nil && n != taken
		if moved {
			if n != told {
				// Another process may have made the change: tell all who wait in this one. Where it was
				// announced already, they look once more for nothing.
				told = n
				d.Announce()
			}
			if err = d.reload(ctx, fn); err == nil {
				taken = n
			}
		}
		if err == nil {
			d.saw(asked)
		}
		if moved && err == nil {
			continue // what came meanwhile is read at once
		}
		d.wait(ctx, l, news)
	}
	return nil
}

func (d *DB) reload(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTime)
	defer cancel()
	return fn(ctx)
}

// newest reads the revision. On PostgreSQL the listener does, on its own connection.
func (d *DB) newest(ctx context.Context, l *listener) (int64, error) {
	if !d.postgres {
		return d.revision(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return l.revision(ctx)
}

// wait returns at the next news, when it is time to poll, or when ctx ends.
func (d *DB) wait(ctx context.Context, l *listener, news <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, pollEvery)
	defer cancel()
	if l.wait(ctx) { // our own changes come this way too
		return
	}
	select {
	case <-ctx.Done():
	case <-news:
	}
}

// saw keeps when this process knew the newest state of the database.
func (d *DB) saw(at time.Time) {
	if d.postgres {
		d.seen.Store(int64(max(1, at.Sub(d.began))))
	}
}

// Current refuses while this process may not know what others have changed: for two seconds the revision could not be read,
// or what changed could not be loaded. It costs one look at the clock. A SQLite database has no others.
func (d *DB) Current() error {
	seen := d.seen.Load()
	if seen == 0 || d.now().Sub(d.began)-time.Duration(seen) <= staleAfter {
		return nil
	}
	return fault.New(fault.Unavailable, "the database does not answer, so what is allowed is not known now; try again").Why("DATABASE_UNAVAILABLE")
}

func (d *DB) revision(ctx context.Context) (int64, error) {
	var n int64
	if err := d.Read.QueryRowContext(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&n); err != nil {
		return 0, unavailable(err)
	}
	return n, nil
}
