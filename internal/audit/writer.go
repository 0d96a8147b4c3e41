package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

const (
	maxBatch      = 256              // rows of one transaction
	wide          = 8                // rows of one INSERT when there are enough
	batchTime     = 30 * time.Second // a PostgreSQL that hangs must not hold callers for ever
	defaultLinger = 2 * time.Millisecond
)

// Log is the record of one database. Create with New, run Run, then Write from any goroutine.
type Log struct {
	o                  Options
	sqlite             sqliteWriter // on SQLite
	insert, many       *sql.Stmt    // on PostgreSQL
	setHead, storeBody *sql.Stmt
	used               *sql.Stmt // counters of limits
	store, drop        *sql.Stmt

	mu      sync.Mutex
	queue   []*entry
	callers int  // lately, as far as the writer saw
	enough  int  // rows for which the writer wakes
	busy    bool // somebody is committing and owns what is below of the writer only
	ending  bool // Run waits for the end of who is committing
	stopped bool
	running bool
	wake    chan struct{} // capacity 1: the first row came, enough rows came, or Run must end

	batches atomic.Int64 // committed
	keeper  *keeper      // nil without checkpoints

	// Of the writer only: of Run, or of a caller that commits its own row.
	head      head
	headKnown bool
	fullSync  bool // the connection may be at synchronous=FULL
	args      []any
}

// entry is a row on its way; pooled with its channel.
type entry struct {
	event     *Event
	power     bool
	content   [sha256.Size]byte
	argsRef   string // of the bodies, where they are stored by content
	resultRef string
	refused   *Exhausted // it did not get its slots
	done      chan error // capacity 1
}

var entries = sync.Pool{New: func() any { return &entry{done: make(chan error, 1)} }}

// New reads the head of the chain and returns the log.
func New(ctx context.Context, o Options) (*Log, error) {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.Linger <= 0 {
		o.Linger = defaultLinger
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Redactor == nil {
		o.Redactor = new(secret.Redactor)
	}
	l := &Log{o: o, wake: make(chan struct{}, 1)}
	f := Filter{From: o.Now().Add(-KeepAtLeast).UnixMicro()}
	if err := f.narrow(ctx, o.DB); err != nil {
		return nil, err
	}
	err := o.DB.Tx(ctx, func(tx *sql.Tx) error {
		if err := l.startHead(ctx, tx); err != nil {
			return err
		}
		return l.recount(ctx, tx, f.After) // under the lock of the head
	})
	if err != nil {
		return nil, err
	}
	if o.DB.IsPostgres() {
		for _, p := range []struct {
			stmt **sql.Stmt
			text string
		}{
			{&l.insert, insertSQL(1, true)}, {&l.many, insertSQL(wide, true)}, {&l.setHead, setHeadSQL}, {&l.storeBody, storeBodySQL},
			{&l.used, usedSlotSQL}, {&l.store, storeSlotSQL}, {&l.drop, dropSlotSQL},
		} {
			if *p.stmt, err = o.DB.Write.PrepareContext(ctx, p.text); err != nil {
				return nil, unwritable(err)
			}
		}
	}
	if o.Box != nil {
		if l.keeper, err = newKeeper(ctx, l); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func unwritable(err error) *fault.Error {
	return fault.Wrap(fault.Unavailable, err, "the audit record cannot be written, so nothing is done; try again").Why("AUDIT_UNAVAILABLE")
}

// Write adds a row and returns when it is as durable as asked. An error means
// that the row is not in the record: the caller must fail closed. The end of
// ctx does not take a row back: the outcome of a call belongs in the record also when its caller has gone. *Exhausted is the
// error of a row that wanted slots of a limit (Event.Reserve) which is used up.
// Write takes e until it returns and fills its digests, bodies, Seq, ID and hashes.
func (l *Log) Write(ctx context.Context, e *Event, d Durability) error {
	l.prepare(e)
	n := entries.Get().(*entry)
	n.event, n.power, n.content, n.refused = e, d == Power || l.o.PowerSafe, e.content(), nil
	n.argsRef, n.resultRef = reference(e.ArgsBody), reference(e.ResultBody)
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return unwritable(errors.New("the log has ended"))
	}
	if l.alone() {
		l.busy = true
		l.mu.Unlock()
		err := l.commitOwn(n)
		n.event = nil
		entries.Put(n)
		l.told(e)
		return err
	}
	l.queue = append(l.queue, n)
	waiting := len(l.queue)
	wake := waiting == 1 || waiting == l.enough
	l.mu.Unlock()
	if wake {
		l.poke()
	}
	err := <-n.done
	n.event = nil
	entries.Put(n)
	l.told(e)
	return err
}

// told lets the keeper know of a stop, which is attested at once.
func (l *Log) told(e *Event) {
	if e.Kind == Stop && l.keeper != nil {
		l.keeper.poke()
	}
}

// alone reports whether a caller has no company and may commit its own row: handing it to the writer and being woken
// again costs more than half of the commit. Run must have begun, so that rows are only accepted while it works.
func (l *Log) alone() bool {
	return l.running && !l.busy && !l.ending && l.callers <= 1 && len(l.queue) == 0
}

// commitOwn writes one row in the goroutine of its caller.
func (l *Log) commitOwn(n *entry) error {
	l.commit([]*entry{n})
	l.estimate(1)
	l.mu.Lock()
	wake := l.ending || len(l.queue) > 0
	l.mu.Unlock()
	if wake {
		l.poke()
	}
	return <-n.done
}

func (l *Log) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run owns the one writer and the keeper of checkpoints; it returns when ctx has ended and all accepted rows are written and signed.
func (l *Log) Run(ctx context.Context) error {
	if l.keeper == nil {
		return l.run(ctx)
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var kept sync.WaitGroup
	kept.Go(func() { l.keeper.run(keeping) })
	err := l.run(ctx)
	stop()
	kept.Wait()
	return err
}

func (l *Log) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.poke)()
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var spare []*entry
	for {
		batch, ended := l.take(ctx, timer, spare)
		if ended {
			return l.close()
		}
		for rest := batch; len(rest) > 0; {
			n := min(len(rest), maxBatch)
			l.commit(rest[:n])
			rest = rest[n:]
		}
		l.estimate(len(batch))
		clear(batch)
		spare = batch[:0]
	}
}

// take waits for rows and takes all there are. Rows cost a fraction when they share a
// transaction, so under load it waits, but at most Linger, until as many rows are there as
// callers were lately; a caller alone never waits.
func (l *Log) take(ctx context.Context, timer *time.Timer, spare []*entry) (batch []*entry, ended bool) {
	lingered := false
	l.mu.Lock()
	for {
		n := len(l.queue)
		ending := ctx.Err() != nil
		l.ending = ending
		switch {
		case l.busy: // a caller commits its own row and wakes us when there is more to do
			n = 0
		case n == 0 && ending:
			l.stopped = true
			l.mu.Unlock()
			return nil, true
		case n > 0 && (n >= l.enough || lingered || ending):
			batch, l.queue, l.busy = l.queue, spare, true
			if lingered {
				l.callers = n // fewer than thought
			}
			l.enough = 1 // while the writer is busy nobody needs to wake it twice
			l.mu.Unlock()
			return batch, false
		}
		if n == 0 {
			l.mu.Unlock()
			<-l.wake
		} else {
			l.mu.Unlock()
			timer.Reset(l.o.Linger)
			select {
			case <-l.wake:
			case <-timer.C:
				lingered = true
			}
		}
		l.mu.Lock()
	}
}

// estimate ends a commit and keeps how many callers there are: those whose rows were just written and those that
// came meanwhile, falling slowly, since it sees only callers that are here.
func (l *Log) estimate(written int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
	seen := written + len(l.queue)
	l.callers = max(seen, l.callers-(l.callers+7)/8)
	l.enough = min(l.callers, maxBatch)
}

// commit writes one batch in one transaction and tells each of its callers.
func (l *Log) commit(batch []*entry) {
	err := l.write(batch)
	if err != nil {
		l.headKnown = false // the commit may have happened or not: ask before the next batch
		err = unwritable(err)
	}
	for _, n := range batch {
		if err == nil && n.refused != nil {
			n.done <- n.refused
		} else {
			n.done <- err
		}
	}
}

func (l *Log) write(batch []*entry) error {
	at, err := l.writeBatch(batch)
	if err != nil {
		return err
	}
	l.head, l.headKnown = at, true
	l.batches.Add(1)
	if l.keeper != nil && at.seq-l.keeper.size.Load() >= checkpointRows {
		l.keeper.poke()
	}
	return nil
}

func (l *Log) writeBatch(batch []*entry) (head, error) {
	ctx := context.Background() // also while shutting down: accepted rows are written
	if !l.o.DB.IsPostgres() {
		return l.writeSQLite(ctx, batch)
	}
	ctx, cancel := context.WithTimeout(ctx, batchTime)
	defer cancel()
	return l.writePostgres(ctx, batch)
}

// writePostgres writes one batch in one transaction. Another replica may have written meanwhile: the
// head is locked and read anew.
func (l *Log) writePostgres(ctx context.Context, batch []*entry) (at head, err error) {
	tx, err := l.o.DB.Write.BeginTx(ctx, nil)
	if err != nil {
		return at, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, else the first error counts
	if at, err = readHead(ctx, tx, true); err != nil {
		return at, err
	}
	if batch, err = l.reserve(batch, l.postgresCounters(ctx, tx)); err != nil {
		return at, err
	}
	one, many := tx.StmtContext(ctx, l.insert), tx.StmtContext(ctx, l.many)
	body := tx.StmtContext(ctx, l.storeBody)
	at, err = l.insertAll(at, batch, func(args ...any) error {
		_, err := body.ExecContext(ctx, args...)
		return err
	}, func(wide bool, args []any) error {
		stmt := one
		if wide {
			stmt = many
		}
		_, err := stmt.ExecContext(ctx, args...)
		return err
	})
	if err != nil {
		return at, err
	}
	if _, err := tx.StmtContext(ctx, l.setHead).ExecContext(ctx, at.String()); err != nil {
		return at, err
	}
	return at, tx.Commit()
}

func (l *Log) postgresCounters(ctx context.Context, tx *sql.Tx) counters {
	number := func(stmt *sql.Stmt) func(args ...any) (int64, error) {
		return func(args ...any) (n int64, err error) {
			err = tx.StmtContext(ctx, stmt).QueryRowContext(ctx, args...).Scan(&n)
			return n, err
		}
	}
	return counters{used: number(l.used), store: number(l.store), drop: func(args ...any) error {
		_, err := tx.StmtContext(ctx, l.drop).ExecContext(ctx, args...)
		return err
	}}
}

// Batches is how many transactions have been committed; with the number of rows it tells how well they share.
func (l *Log) Batches() int64 { return l.batches.Load() }

// synchronous makes the next commit of a SQLite connection as durable as the
// batch asks. It cannot be set within a transaction. A commit with FULL makes all rows before it
// durable too. (PostgreSQL's default is power-safe already.)
func (l *Log) synchronous(ctx context.Context, conn *sql.Conn, batch []*entry) error {
	power := false
	for _, n := range batch {
		power = power || n.power
	}
	pragma := "PRAGMA synchronous=NORMAL"
	if power {
		// Set it each time: the pool may have opened a new connection meanwhile.
		pragma = "PRAGMA synchronous=FULL"
	} else if !l.fullSync {
		return nil
	}
	_, err := conn.ExecContext(ctx, pragma)
	l.fullSync = power || err != nil
	return err
}

// insertAll chains the rows of a batch behind at and inserts them, several at once where there are enough.
func (l *Log) insertAll(at head, batch []*entry, body func(args ...any) error, insert func(many bool, args []any) error) (head, error) {
	for len(batch) > 0 {
		n := 1
		if len(batch) >= wide {
			n = wide
		}
		l.args = l.args[:0]
		for _, en := range batch[:n] {
			e := en.event
			e.Seq, e.PrevHash = at.seq+1, at.hash
			e.Hash = link(e.PrevHash, e.Seq, en.content)
			at = head{e.Seq, e.Hash}
			if err := en.bodies(body); err != nil {
				return at, err
			}
			l.args = e.values(l.args, cmp.Or(en.argsRef, e.ArgsBody), cmp.Or(en.resultRef, e.ResultBody))
		}
		if err := insert(n == wide, l.args); err != nil {
			return at, err
		}
		batch = batch[n:]
	}
	clear(l.args[:cap(l.args)]) // keep no bodies alive
	return at, nil
}

func (l *Log) close() error {
	if !l.o.DB.IsPostgres() {
		return l.sqlite.close(l.o.DB.Write)
	}
	return errors.Join(l.insert.Close(), l.many.Close(), l.setHead.Close(), l.storeBody.Close(), l.used.Close(), l.store.Close(), l.drop.Close())
}
