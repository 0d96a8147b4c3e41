package audit

import (
	"context"
	"errors"

	"golang.org/x/mod/sumdb/tlog"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Proof shows that one row is in the record that a checkpoint signs, without the rest of the record.
type Proof struct {
	Event      Event            `json:"event"`
	Checkpoint Checkpoint       `json:"checkpoint"`
	Hashes     tlog.RecordProof `json:"proof"` // from the leaf to the root, base64
	Keys       []string         `json:"keys"`  // what the record says its public keys are
}

// Prove makes the proof of a row against the newest checkpoint; fault.NotFound when no checkpoint covers it yet.
func Prove(ctx context.Context, d *db.DB, e Event) (Proof, error) {
	keys, err := Keys(ctx, d)
	if err != nil {
		return Proof{}, err
	}
	c, _, err := newest(ctx, d.Read, keys)
	if err != nil {
		return Proof{}, err
	}
	if c.Size < e.Seq {
		return Proof{}, fault.New(fault.NotFound, "no checkpoint covers the row yet; the next one is written within half a minute")
	}
	hashes, err := tlog.ProveRecord(c.Size, e.Seq-1, nodes{ctx, d.Read})
	if errors.Is(err, errGone) {
		return Proof{}, fault.Wrap(fault.Conflict, err, "the row cannot be proved: a part of the record is missing; verify says which")
	}
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Event: e, Checkpoint: c, Hashes: hashes, Keys: keys}
	if err := p.Check(keys); err != nil {
		return Proof{}, fault.Wrap(fault.Conflict, err, "the row is not the one that was signed; verify says more")
	}
	return p, nil
}

// Check checks everything that a proof says, with keys that the reader trusts: the hash of the row is that of its
// content, the checkpoint is signed, and the row is in it.
func (p *Proof) Check(keys []string) error {
	e := &p.Event
	if e.Hash != link(e.PrevHash, e.Seq, e.content()) {
		return fault.New(fault.InvalidParams, "the hash of the row does not fit its content")
	}
	c, err := OpenCheckpoint(p.Checkpoint.Note, keys)
	if err != nil {
		return err
	}
	root, err := tlog.ParseHash(c.Root)
	if err != nil {
		return fault.New(fault.InvalidParams, "the checkpoint has no root")
	}
	l, err := leaf(e.Hash)
	if err == nil {
		err = tlog.CheckRecord(p.Hashes, c.Size, root, e.Seq-1, l)
	}
	if err != nil {
		return fault.Wrap(fault.InvalidParams, err, "the row is not in the record that the checkpoint signs")
	}
	return nil
}

// Row returns the row of that number; fault.NotFound when the workspace has no such row.
func Row(ctx context.Context, d *db.DB, workspaceID string, seq int64) (Event, error) {
	found, err := rows(ctx, d, `SELECT `+selected+` FROM audit_events WHERE seq = $1 AND workspace_id = $2`, seq, workspaceID)
	if err != nil {
		return Event{}, err
	}
	if len(found) == 0 {
		return Event{}, fault.New(fault.NotFound, "no audit event with this number in this workspace")
	}
	return found[0], nil
}
