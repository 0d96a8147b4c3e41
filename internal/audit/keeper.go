package audit

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"

	"doorward.dev/doorward/internal/fault"
)

const (
	defaultCheckpointEvery = 30 * time.Second
	checkpointRows         = 1 << 16 // so many new rows are a checkpoint before their time, and as many are read for one at most
	lastCheckpoint         = 5 * time.Second
)

// keeper grows the tree behind the writer and signs checkpoints of it. It reads the rows from the database, so that
// it covers those of other replicas too and the writer has no work with it.
type keeper struct {
	l      *Log
	signer note.Signer
	log    *slog.Logger
	every  time.Duration
	wake   chan struct{} // capacity 1: enough rows came, or a stop
	size   atomic.Int64  // of tree, for the writer
	posts  []*poster
	otlp   *exporter // nil: there is no collector

	mu   sync.Mutex
	tree tree // of the newest checkpoint
}

func newKeeper(ctx context.Context, l *Log) (*keeper, error) {
	signer, err := openSigner(ctx, l.o.DB, l.o.Box)
	if err != nil {
		return nil, err
	}
	k := &keeper{l: l, signer: signer, log: l.o.Log, every: l.o.CheckpointEvery, wake: make(chan struct{}, 1)}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.every <= 0 {
		k.every = defaultCheckpointEvery
	}
	for _, a := range l.o.Anchors {
		k.posts = append(k.posts, newPoster(l, a, k.log))
	}
	if l.o.OTLP != nil {
		if k.otlp, err = newExporter(ctx, l); err != nil {
			return nil, err
		}
	}
	return k, skipAnchors(ctx, l.o.DB, l.o.Anchors, l.o.Now().UnixMicro())
}

// run writes checkpoints until ctx ends, then a last one, so that an orderly end leaves no row unsigned.
func (k *keeper) run(ctx context.Context) {
	var posts sync.WaitGroup
	for _, p := range k.posts {
		posts.Go(func() { p.run(ctx) })
	}
	if k.otlp != nil {
		posts.Go(func() { k.otlp.run(ctx) })
	}
	if k.l.o.Keep > 0 {
		posts.Go(func() { k.keepRetaining(ctx) })
	}
	defer posts.Wait()
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		k.try(ctx)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCheckpoint)
			defer cancel()
			k.try(last)
			return
		case <-tick.C:
		case <-k.wake:
		}
	}
}

func (k *keeper) try(ctx context.Context) {
	if _, err := k.checkpoint(ctx); err != nil && ctx.Err() == nil {
		k.log.Error("the record has no new checkpoint; doorward audit verify says more", "error", err)
	}
}

// poke asks for a checkpoint soon.
func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Checkpoint covers all rows that are there now and returns the newest checkpoint.
func (l *Log) Checkpoint(ctx context.Context) (Checkpoint, error) {
	if l.keeper == nil {
		return Checkpoint{}, fault.New(fault.Unavailable, "this record is kept without checkpoints")
	}
	return l.keeper.checkpoint(ctx)
}

func (k *keeper) checkpoint(ctx context.Context) (Checkpoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		c, more, err := k.step(ctx)
		if err != nil {
			k.tree = tree{size: -1} // read it anew
			return c, err
		}
		k.size.Store(k.tree.size)
		if !more {
			return c, nil
		}
	}
}

// batch is what one checkpoint adds.
type batch struct {
	first, minAt, maxAt int64
	chain               string // hash of the last row
	done                []node
	stops               []Event
}

// step covers the next rows with one checkpoint; more says that there may be further ones.
func (k *keeper) step(ctx context.Context) (c Checkpoint, more bool, err error) {
	if c, err = k.catchUp(ctx); err != nil {
		return c, false, err
	}
	b, err := k.read(ctx)
	if err != nil || b.first == 0 {
		return c, false, err
	}
	if c, err = signCheckpoint(k.signer, k.tree.size, k.tree.root(), b.chain, k.l.o.Now().UnixMicro()); err != nil {
		return c, false, err
	}
	err = k.l.o.DB.Tx(ctx, func(tx *sql.Tx) error {
		if err := c.store(ctx, tx, b.first, b.minAt, b.maxAt, b.done); err != nil {
			return err
		}
		if err := attest(ctx, tx, c.Size, b.stops); err != nil {
			return err
		}
		return k.queueAnchors(ctx, tx, c)
	})
	for _, p := range k.posts {
		p.poke()
	}
	return c, k.tree.size-b.first+1 == checkpointRows, err
}

// catchUp makes the tree that of the newest checkpoint, which another replica may have written. It signs nothing
// on top of a record that does not fit its own checkpoint.
func (k *keeper) catchUp(ctx context.Context) (Checkpoint, error) {
	keys, err := Keys(ctx, k.l.o.DB)
	if err != nil {
		return Checkpoint{}, err
	}
	read := k.l.o.DB.Read
	c, _, err := newest(ctx, read, keys)
	if err != nil || c.Size == k.tree.size {
		return c, err
	}
	if c.Size == 0 {
		k.tree = tree{}
		return c, nil
	}
	if k.tree, err = (nodes{ctx, read}).tree(c.Size); err != nil {
		return c, err
	}
	if k.tree.root().String() != c.Root {
		return c, fault.New(fault.Internal, "the rows up to %d are not those that were signed", c.Size)
	}
	return c, nil
}

// read grows the tree by the rows after it.
func (k *keeper) read(ctx context.Context) (b batch, err error) {
	// Few columns and one target: this runs for every row that is ever written.
	var e Event
	var isStop int
	to := []any{&e.Seq, &e.At, &isStop, &e.Hash}
	found, err := k.l.o.DB.Read.QueryContext(ctx, `SELECT seq, at, CASE WHEN kind = 'stop' THEN 1 ELSE 0 END, hash FROM audit_events
		WHERE seq > $1 ORDER BY seq LIMIT $2`, k.tree.size, checkpointRows)
	if err != nil {
		return b, unreadable(err)
	}
	defer found.Close()
	for found.Next() {
		if err := found.Scan(to...); err != nil {
			return b, unreadable(err)
		}
		h, err := leaf(e.Hash)
		if err == nil && e.Seq != k.tree.size+1 {
			err = errors.New("a row is missing")
		}
		if err != nil {
			return b, fault.Wrap(fault.Internal, err, "the record is damaged at row %d", k.tree.size+1)
		}
		if b.first == 0 {
			b.first, b.minAt, b.maxAt = e.Seq, e.At, e.At
		}
		b.minAt, b.maxAt, b.chain = min(b.minAt, e.At), max(b.maxAt, e.At), e.Hash
		b.done = k.tree.add(h, b.done)
		if isStop == 1 {
			b.stops = append(b.stops, Event{Seq: e.Seq})
		}
	}
	if err := found.Err(); err != nil {
		return b, unreadable(err)
	}
	for i := range b.stops {
		s := &b.stops[i]
		if err := k.l.o.DB.Read.QueryRowContext(ctx, `SELECT id, at, trace_id, workspace_id, hash FROM audit_events WHERE seq = $1`, s.Seq).
			Scan(&s.ID, &s.At, &s.TraceID, &s.WorkspaceID, &s.Hash); err != nil {
			return b, unreadable(err)
		}
	}
	return b, nil
}
