package audit

import (
	"context"
	"database/sql"
	"log/slog"
	"math/rand/v2"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// The states of an attestation.
const (
	LocalOnly = "LOCAL_ONLY" // signed here; no anchor is set up
	Pending   = "PENDING"    // on its way to an anchor
	Anchored  = "ANCHORED"   // an anchor has its checkpoint, or a later one, which holds it too
	Skipped   = "SKIPPED"    // the anchor was taken away before it came through
	Failed    = "FAILED"     // given up; a later checkpoint that comes through makes it ANCHORED
)

const (
	anchorTime     = 30 * time.Second // of one attempt
	anchorAttempts = 20               // then FAILED
	anchorRetry    = time.Second      // after the first failure, doubled after each
	anchorRetryMax = 5 * time.Minute
)

// attest adds the entries of stops.
func attest(ctx context.Context, tx *sql.Tx, size int64, stops []Event) error {
	for _, e := range stops {
		if _, err := tx.ExecContext(ctx, `INSERT INTO attestation (seq, id, at, trace_id, workspace_id, hash, size)
			VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (seq) DO NOTHING`, e.Seq, e.ID, e.At, e.TraceID, e.WorkspaceID, e.Hash, size); err != nil {
			return unwritable(err)
		}
	}
	return nil
}

func (k *keeper) queueAnchors(ctx context.Context, tx *sql.Tx, c Checkpoint) error {
	for _, p := range k.posts {
		if _, err := tx.ExecContext(ctx, `INSERT INTO audit_anchor (size, anchor, status, at) VALUES ($1, $2, $3, $4) ON CONFLICT (size, anchor) DO NOTHING`,
			c.Size, p.anchor.Name(), Pending, c.At); err != nil {
			return unwritable(err)
		}
	}
	return nil
}

// skipAnchors ends what waits for anchors that are no longer set up.
func skipAnchors(ctx context.Context, d *db.DB, have []Anchor, now int64) error {
	query, args := `UPDATE audit_anchor SET status = $1, at = $2 WHERE status = $3`, []any{Skipped, now, Pending}
	for _, a := range have {
		args = append(args, a.Name())
		query += ` AND anchor <> $` + itoa(len(args))
	}
	if _, err := d.Write.ExecContext(ctx, query, args...); err != nil {
		return unwritable(err)
	}
	return nil
}

// poster brings checkpoints to one anchor. What waits stands in the database and so outlives the process. Only
// the newest is sent: it holds all before it.
type poster struct {
	l      *Log
	anchor Anchor
	log    *slog.Logger
	wake   chan struct{}
	retry  time.Duration
}

func newPoster(l *Log, a Anchor, log *slog.Logger) *poster {
	p := &poster{l: l, anchor: a, log: log, wake: make(chan struct{}, 1), retry: l.o.anchorRetry}
	if p.retry <= 0 {
		p.retry = anchorRetry
	}
	return p
}

func (p *poster) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *poster) run(ctx context.Context) {
	wait := p.retry
	for {
		sent, err := p.post(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn("a checkpoint of the record could not be anchored", "anchor", p.anchor.Name(), "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait/2 + rand.N(wait)): //nolint:gosec // not a secret
			}
			wait = min(2*wait, anchorRetryMax)
			continue
		case sent:
			wait = p.retry
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
	}
}

// post sends the newest waiting checkpoint, if there is one.
func (p *poster) post(ctx context.Context) (sent bool, err error) {
	d, name := p.l.o.DB, p.anchor.Name()
	waiting, err := checkpoints(ctx, d.Read, `WHERE size = (SELECT MAX(size) FROM audit_anchor WHERE anchor = $1 AND status = $2)`, name, Pending)
	if err != nil || len(waiting) == 0 {
		return false, err
	}
	keys, err := Keys(ctx, d)
	if err != nil {
		return false, err
	}
	c, err := OpenCheckpoint(waiting[0].note, keys)
	var reference string
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, anchorTime)
		defer cancel()
		reference, err = p.anchor.Anchor(limited, c)
	}
	if ctx.Err() != nil {
		return false, ctx.Err() // it stays as it is and is sent again after the next start
	}
	if err != nil {
		return false, p.failed(ctx, waiting[0].size, err)
	}
	if _, err := d.Write.ExecContext(ctx, `UPDATE audit_anchor SET status = $1, reference = $2, attempts = attempts + 1, error = '', at = $3
		WHERE anchor = $4 AND size <= $5 AND status IN ($6, $7)`, Anchored, cut(clean(reference), maxField), p.l.o.Now().UnixMicro(), name, c.Size, Pending, Failed); err != nil {
		return false, unwritable(err)
	}
	return true, nil
}

func (p *poster) failed(ctx context.Context, size int64, cause error) error {
	why := cut(clean(p.l.o.Redactor.RedactString(fault.From(cause).Error())), maxField)
	if _, err := p.l.o.DB.Write.ExecContext(ctx, `UPDATE audit_anchor SET attempts = attempts + 1, error = $1, at = $2,
		status = CASE WHEN attempts + 1 >= $3 THEN $4 ELSE status END WHERE anchor = $5 AND size <= $6 AND status = $7`,
		why, p.l.o.Now().UnixMicro(), anchorAttempts, Failed, p.anchor.Name(), size, Pending); err != nil {
		return unwritable(err)
	}
	return cause
}

// Attestation is a stop with the state of its proof outside of this database.
type Attestation struct {
	Seq        int64         `json:"seq"`
	ID         string        `json:"id"`
	At         int64         `json:"at"`
	TraceID    string        `json:"trace_id"`
	Hash       string        `json:"integrity_hash"`
	Checkpoint int64         `json:"checkpoint"` // size of the one that covers it
	Status     string        `json:"status"`
	Anchors    []AnchorState `json:"anchors"`
}

// AnchorState is a checkpoint at one anchor.
type AnchorState struct {
	Anchor    string `json:"anchor"`
	Status    string `json:"status"`
	Reference string `json:"reference,omitempty"`
	Attempts  int64  `json:"attempts"`
	Error     string `json:"error,omitempty"`
	At        int64  `json:"at"`
}

// Attestations lists the stops of a workspace, newest first; before is a seq cursor, 0 the newest.
func Attestations(ctx context.Context, d *db.DB, workspaceID string, before int64, limit int) ([]Attestation, error) {
	query, args := `SELECT seq, id, at, trace_id, hash, size FROM attestation WHERE workspace_id = $1`, []any{workspaceID}
	if before > 0 {
		query, args = query+` AND seq < $2`, append(args, before)
	}
	found, err := d.Read.QueryContext(ctx, query+` ORDER BY seq DESC LIMIT `+itoa(pageSize(limit)), args...)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	list := []Attestation{}
	for found.Next() {
		var a Attestation
		if err := found.Scan(&a.Seq, &a.ID, &a.At, &a.TraceID, &a.Hash, &a.Checkpoint); err != nil {
			return nil, unreadable(err)
		}
		a.Hash = "sha256:" + a.Hash
		list = append(list, a)
	}
	if err := found.Err(); err != nil || len(list) == 0 {
		return list, err
	}
	states, err := anchorStates(ctx, d, list[len(list)-1].Checkpoint, list[0].Checkpoint)
	for i := range list {
		list[i].Anchors = states[list[i].Checkpoint]
		list[i].Status, _ = attestationStatus(list[i].Anchors)
	}
	return list, err
}

// anchorStates reads what became of the checkpoints from one size to another.
func anchorStates(ctx context.Context, d *db.DB, from, to int64) (map[int64][]AnchorState, error) {
	found, err := d.Read.QueryContext(ctx, `SELECT size, anchor, status, reference, attempts, error, at FROM audit_anchor
		WHERE size >= $1 AND size <= $2 ORDER BY size, anchor`, from, to)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	states := map[int64][]AnchorState{}
	for found.Next() {
		var size int64
		var s AnchorState
		if err := found.Scan(&size, &s.Anchor, &s.Status, &s.Reference, &s.Attempts, &s.Error, &s.At); err != nil {
			return nil, unreadable(err)
		}
		states[size] = append(states[size], s)
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	return states, nil
}

// attestationStatus is the best that any anchor did, and where to find it there.
func attestationStatus(states []AnchorState) (status, reference string) {
	rank := map[string]int{LocalOnly: 0, Skipped: 1, Failed: 2, Pending: 3, Anchored: 4}
	status = LocalOnly
	for _, s := range states {
		if rank[s.Status] > rank[status] {
			status, reference = s.Status, s.Reference
		}
	}
	return status, reference
}

func pageSize(limit int) int {
	if limit <= 0 {
		limit = defaultLimit
	}
	return min(limit, maxLimit)
}
