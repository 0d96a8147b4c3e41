package db

import (
	"context"
	"database/sql"
	"time"
)

// Changed raises the revision within tx; when the transaction has committed,
// call Announce so that this process reloads at once.
func Changed(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `UPDATE revision SET n = n + 1 WHERE id = 1`); err != nil {
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
		return Changed(ctx, tx)
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
// is announced here by Watch, within a second or so.
func (d *DB) News() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Watch calls fn, one call at a time, after every announced change and
// whenever polling finds a higher revision (another process); changes since
// Open count too. Several changes may be told by one call. It returns when
// ctx ends. A reload that fails within fn is fn's to repeat: it is not called again for the same change.
func (d *DB) Watch(ctx context.Context, fn func(ctx context.Context)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last := d.opened
	for {
		news := d.News()
		// A failed read is not lost: the revision stays unequal and the next tick asks again.
		if n, err := d.revision(ctx); err == nil && n != last {
			last = n
			// Another process may have made the change: tell all who wait in this one. Where it was
			// announced already, they look once more for nothing.
			d.Announce()
			fn(ctx)
			continue // what came meanwhile is read at once
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		case <-tick.C:
		}
	}
}

func (d *DB) revision(ctx context.Context) (int64, error) {
	var n int64
	if err := d.Read.QueryRowContext(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&n); err != nil {
		return 0, unavailable(err)
	}
	return n, nil
}
