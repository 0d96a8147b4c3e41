package audit

import (
	"context"
	"database/sql"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// KeepAtLeast is the age below which rows are never removed: limits count the rows of today and yesterday.
const KeepAtLeast = 48 * time.Hour

// pruneStep is how many rows one transaction removes, so that the writer never waits long.
const pruneStep = 16 * block

// Pruned says what Prune did.
type Pruned struct {
	Removed  int64 `json:"removed"`
	FirstSeq int64 `json:"first_seq"` // the record begins here now
}

// Prune removes rows from the beginning of the record, in order, as long as they are older than before, in whole blocks of the
// tree and never beyond a checkpoint. A signed checkpoint stays in their place as the new beginning, so Verify
// and the proofs of later rows go on working. Each transaction leaves a whole record, so a broken run may just be repeated.
func (l *Log) Prune(ctx context.Context, before time.Time) (Pruned, error) {
	if before.After(l.o.Now().Add(-KeepAtLeast)) {
		return Pruned{}, fault.New(fault.InvalidParams, "rows of the last 48 hours are never removed: limits are counted from them")
	}
	newest, err := l.Checkpoint(ctx)
	if err != nil {
		return Pruned{}, err
	}
	keys, err := Keys(ctx, l.o.DB)
	if err != nil {
		return Pruned{}, err
	}
	c, err := start(ctx, l.o.DB.Read, keys)
	if err != nil {
		return Pruned{}, err
	}
	if err := l.o.DB.Tx(ctx, func(tx *sql.Tx) error { return l.forgetCounters(ctx, tx) }); err != nil {
		return Pruned{}, err
	}
	p := Pruned{FirstSeq: c.Size + 1}
	for {
		to, err := l.pruneTo(ctx, p.FirstSeq, min(newest.Size, p.FirstSeq-1+pruneStep), before)
		if err != nil || to < p.FirstSeq {
			return p, err
		}
		if err := l.pruneRows(ctx, to); err != nil {
			return p, err
		}
		p.Removed, p.FirstSeq = p.Removed+to-p.FirstSeq+1, to+1
	}
}

// pruneTo is the last row to remove: the end of a block before the first row, from first to last, that has to stay.
func (l *Log) pruneTo(ctx context.Context, first, last int64, before time.Time) (int64, error) {
	var stays int64
	err := l.o.DB.Read.QueryRowContext(ctx, `SELECT COALESCE(MIN(seq), 0) FROM audit_events WHERE seq >= $1 AND seq <= $2 AND at >= $3`,
		first, last, before.UnixMicro()).Scan(&stays)
	if err != nil {
		return 0, unreadable(err)
	}
	if stays > 0 {
		last = stays - 1
	}
	return last / block * block, nil
}

func (l *Log) pruneRows(ctx context.Context, to int64) error {
	t, err := (nodes{ctx, l.o.DB.Read}).tree(to)
	if err != nil {
		return err
	}
	return l.o.DB.Tx(ctx, func(tx *sql.Tx) error {
		var chain string
		if err := tx.QueryRowContext(ctx, `SELECT hash FROM audit_events WHERE seq = $1`, to).Scan(&chain); err != nil {
			return unreadable(err)
		}
		c, err := signCheckpoint(l.keeper.signer, to, t.root(), chain, l.o.Now().UnixMicro())
		if err != nil {
			return err
		}
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, []any{startSetting, c.Note}},
			{`DELETE FROM audit_events WHERE seq <= $1`, []any{to}},
			{forgetBodiesSQL, []any{to}},
			{`DELETE FROM audit_checkpoint WHERE size <= $1 AND size < (SELECT MAX(size) FROM audit_checkpoint)`, []any{to}},
			{`DELETE FROM audit_anchor WHERE size <= $1 AND status <> 'PENDING' AND size NOT IN (SELECT size FROM attestation)`, []any{to}},
		} {
			if _, err := tx.ExecContext(ctx, q.query, q.args...); err != nil {
				return unwritable(err)
			}
		}
		return nil
	})
}
