package audit

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"doorward.dev/doorward/internal/db"
)

// What a batch with reservations asks of limit_counter: each by the primary key. The sum is made by the database: an hour may have
// 3600 places, and to bring them all here costs ten times as much.
const (
	usedSlotSQL  = `SELECT CAST(COALESCE(SUM(n), 0) AS BIGINT) FROM limit_counter WHERE slot = $1 AND at >= $2 AND at <= $3`
	storeSlotSQL = `INSERT INTO limit_counter (slot, at, n, seen) VALUES ($1, $2, $3, $4)
 ON CONFLICT (slot, at) DO UPDATE SET n = limit_counter.n + excluded.n, seen = excluded.seen RETURNING n`
	dropSlotSQL = `DELETE FROM limit_counter WHERE slot = $1 AND at < $2`
)

// counters is limit_counter within the transaction of a batch. used and store give a number back: of the slots in use, and of the place.
type counters struct {
	used, store func(args ...any) (int64, error)
	drop        func(args ...any) error
}

// known is a counter as it was before a batch, for rows whose time sees the same places of it.
type known struct {
	name        string
	since, upTo int64
}

// reserve takes the slots of the rows that want some, in the order of the rows, and returns the rows to write. It asks once for
// each counter of the batch, so many calls of one task share that as they share the transaction. Whoever comes here
// is alone: on SQLite as the only writer, on PostgreSQL with the lock of the head.
func (l *Log) reserve(batch []*entry, in counters) ([]*entry, error) {
	if !slices.ContainsFunc(batch, func(en *entry) bool { return len(en.event.Reserve) > 0 }) {
		return batch, nil
	}
	before, added := map[known]int64{}, tally{}
	write := make([]*entry, 0, len(batch))
	for _, en := range batch {
		if err := en.reserve(before, added, in); err != nil {
			return nil, err
		}
		if en.refused != nil {
			continue
		}
		for _, s := range en.event.Reserve {
			added.use(s.name(), s.Window, en.event.At)
		}
		write = append(write, en)
	}
	for name, places := range added {
		w := windowOf(name)
		for place, a := range places {
			n, err := in.store(name, place, a.n, a.seen)
			if err == nil && n == a.n && w != Task { // a new place
				err = in.drop(name, w.stale(a.seen))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return write, nil
}

// reserve finds out whether every slot of a row is free.
func (en *entry) reserve(before map[known]int64, added tally, in counters) error {
	for _, s := range en.event.Reserve {
		k := known{s.name(), s.Window.since(en.event.At), s.Window.until(en.event.At)}
		used, asked := before[k]
		if !asked {
			var err error
			if used, err = in.used(k.name, k.since, k.upTo); err != nil {
				return err
			}
			before[k] = used
		}
		if used += added.used(k.name, s.Window, en.event.At); used >= s.Limit {
			en.refused = &Exhausted{s, used}
			return nil
		}
	}
	return nil
}

// Used is how many slots of each counter are in use now.
func Used(ctx context.Context, d *db.DB, now time.Time, slots []Slot) ([]int64, error) {
	used := make([]int64, len(slots))
	for i, s := range slots {
		at := now.UnixMicro()
		if err := d.Read.QueryRowContext(ctx, usedSlotSQL, s.name(), s.Window.since(at), s.Window.until(at)).Scan(&used[i]); err != nil {
			return nil, unreadable(err)
		}
	}
	return used, nil
}

// recount makes limit_counter anew where it does not hold what the rows of the record used: what is counted is what was
// written, also after a restore of an older copy or a hand at the database. It reads the index of the rows that used a slot, and of those
// only the ones after seq, among which all are that may still count.
func (l *Log) recount(ctx context.Context, tx *sql.Tx, after int64) error {
	now := l.o.Now().UnixMicro()
	if err := l.forgetCounters(ctx, tx); err != nil {
		return err
	}
	have, err := keptCounters(ctx, tx)
	if err != nil {
		return err
	}
	found, err := tx.QueryContext(ctx, `SELECT at, slots FROM audit_events WHERE slots <> '' AND seq > $1 ORDER BY seq`, after)
	if err != nil {
		return unreadable(err)
	}
	defer found.Close()
	made := tally{}
	for found.Next() {
		var at int64
		var slots string
		if err := found.Scan(&at, &slots); err != nil {
			return unreadable(err)
		}
		if at >= now-kept {
			made.row(slots, at)
		}
	}
	if err := errors.Join(found.Err(), found.Close()); err != nil {
		return unreadable(err)
	}
	if have.differs(made, now) == "" {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM limit_counter`); err != nil {
		return unwritable(err)
	}
	for name, places := range made {
		for place, c := range places {
			if _, err := tx.ExecContext(ctx, storeSlotSQL, name, place, c.n, c.seen); err != nil {
				return unwritable(err)
			}
		}
	}
	return nil
}

// kept is KeepAtLeast in the unit of the rows.
const kept = int64(KeepAtLeast / time.Microsecond)

// forgetCounters removes counters that can count no more: no task lives that long.
func (l *Log) forgetCounters(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM limit_counter WHERE seen < $1`, l.o.Now().UnixMicro()-kept); err != nil {
		return unwritable(err)
	}
	return nil
}

// keptCounters reads limit_counter.
func keptCounters(ctx context.Context, q interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}) (tally, error) {
	found, err := q.QueryContext(ctx, `SELECT slot, at, n, seen FROM limit_counter`)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	t := tally{}
	for found.Next() {
		var name string
		var place int64
		var c tallied
		if err := found.Scan(&name, &place, &c.n, &c.seen); err != nil {
			return nil, unreadable(err)
		}
		if t[name] == nil {
			t[name] = map[int64]tallied{}
		}
		t[name][place] = c
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	return t, nil
}
