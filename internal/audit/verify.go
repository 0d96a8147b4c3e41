package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Verdict is the result of Verify.
type Verdict struct {
	Rows        int64  `json:"rows"`
	FirstSeq    int64  `json:"first_seq"` // 1, or higher once old rows were removed
	Whole       bool   `json:"whole"`
	BadSeq      int64  `json:"bad_seq,omitempty"` // first row that does not fit
	Why         string `json:"why,omitempty"`
	Head        string `json:"head"`        // hash of the last good row
	Checkpoints int64  `json:"checkpoints"` // checked, with signature and root
	Signed      int64  `json:"signed_to"`   // last row that a checkpoint covers
	// Counter names a counter of a limit that is not what the rows used; the next start makes it anew from them. Empty: all are.
	Counter string `json:"counter,omitempty"`
}

// Known is what whoever verifies kept elsewhere. It is what makes a record that was wholly rewritten, together with
// everything in its database, show.
type Known struct {
	Keys        []string // public keys that checkpoints may be signed with; none: those in the database
	Checkpoints []string // signed notes, which the record must still fit
}

// verifyPage bounds how long one read keeps SQLite from tidying its log beside a running server.
const verifyPage = 1000

// verification is one walk over the record.
type verification struct {
	Verdict
	ctx    context.Context
	d      *db.DB
	keys   []string
	seq    int64 // last row walked
	last   int64 // last row when the walk began
	tree   tree
	done   []node                 // nodes completed by the rows of this page
	ahead  []stored               // next checkpoints
	more   bool                   // there may be checkpoints after those
	known  map[int64][]Checkpoint // by size, kept elsewhere
	begins string                 // note of the checkpoint that the record begins after
	kept   tally                  // counters of limits when the walk began
	made   tally                  // the same, made from the rows walked
	newest int64                  // time of the last row when the walk began
}

// Verify walks the whole chain: every seq present, every hash right, every checkpoint signed and the root of exactly the rows
// before it, and the table ending where the stored head says. It may run beside a writer: it
// looks at what was there when it began. An error means that the record could not be read, not that it is bad.
func Verify(ctx context.Context, d *db.DB, known Known) (Verdict, error) {
	v := &verification{ctx: ctx, d: d, keys: known.Keys}
	if len(v.keys) == 0 {
		var err error
		if v.keys, err = Keys(ctx, d); err != nil {
			return Verdict{}, err
		}
	}
	var end *head
	err := d.View(ctx, func(tx *sql.Tx) (err error) { // all as of one moment
		if end, v.last, err = extent(ctx, tx); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, `SELECT COALESCE((SELECT at FROM audit_events WHERE seq = $1), 0)`, v.last).Scan(&v.newest); err != nil {
			return unreadable(err)
		}
		v.kept, err = keptCounters(ctx, tx)
		return err
	})
	if err != nil {
		return Verdict{}, err
	}
	v.Whole = true
	if err := v.begin(); err != nil || !v.Whole {
		return v.Verdict, err
	}
	if err := v.expect(known.Checkpoints); err != nil {
		return v.Verdict, err
	}
	for v.Whole && v.seq < v.last {
		before := v.seq
		if err := v.page(); err != nil {
			return v.Verdict, err
		}
		if v.Whole && v.seq == before {
			v.bad(before+1, "the row is missing")
		}
		if !v.Whole {
			if err := v.removedMeanwhile(); err != nil {
				return v.Verdict, err
			}
		}
	}
	if !v.Whole {
		return v.Verdict, nil
	}
	err = v.ending(end)
	v.Counter = v.kept.differs(v.made, v.newest)
	return v.Verdict, err
}

func (v *verification) bad(seq int64, why string) { v.Whole, v.BadSeq, v.Why = false, seq, why }

// begin puts the walk where the record begins: at nothing, or after the signed checkpoint that stands for removed rows.
func (v *verification) begin() error {
	c, err := start(v.ctx, v.d.Read, v.keys)
	if err != nil {
		if isUnreadable(err) {
			return err
		}
		v.bad(1, "the checkpoint that the record begins after is not signed with a known key, so rows may be missing before the first")
		return nil
	}
	v.begins, v.seq, v.Head, v.FirstSeq, v.Rows = c.Note, c.Size, c.Chain, c.Size+1, 0
	v.tree, v.ahead, v.more = tree{}, nil, true
	v.Checkpoints, v.Signed, v.done, v.made = 0, c.Size, nil, tally{}
	if c.Size == 0 {
		return nil
	}
	v.last = max(v.last, c.Size)
	if v.tree, err = (nodes{v.ctx, v.d.Read}).tree(c.Size); err != nil && !errors.Is(err, errGone) {
		return err
	}
	if err != nil || v.tree.root().String() != c.Root {
		v.bad(c.Size+1, "the stored tree of the removed rows is not the one that was signed")
	}
	return nil
}

// removedMeanwhile begins anew when rows were removed, in order, while they were walked.
func (v *verification) removedMeanwhile() error {
	c, err := start(v.ctx, v.d.Read, v.keys)
	if isUnreadable(err) {
		return err
	}
	if err != nil || c.Note == v.begins || c.Size <= v.seq {
		return nil
	}
	v.Whole, v.BadSeq, v.Why = true, 0, ""
	return v.begin()
}

// expect opens the checkpoints that were kept elsewhere.
func (v *verification) expect(notes []string) error {
	v.known = map[int64][]Checkpoint{}
	for _, text := range notes {
		c, err := OpenCheckpoint(text, v.keys)
		if err != nil {
			return err
		}
		v.known[c.Size] = append(v.known[c.Size], c)
	}
	return nil
}

// extent reads the stored head (nil: missing or damaged) and the last seq, in one statement and so at one moment.
func extent(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (*head, int64, error) {
	var text sql.NullString
	var last int64
	err := q.QueryRowContext(ctx, `SELECT (SELECT value FROM setting WHERE name = 'audit_head'), (SELECT COALESCE(MAX(seq), 0) FROM audit_events)`).Scan(&text, &last)
	if err != nil {
		return nil, 0, unreadable(err)
	}
	if h, err := parseHead(text.String); err == nil {
		return &h, last, nil
	}
	return nil, last, nil
}

// page checks the next page of rows, up to the first bad one.
func (v *verification) page() error {
	if err := v.rows(); err != nil || !v.Whole {
		return err
	}
	done := v.done
	v.done = v.done[:0]
	for _, n := range done { // at most four on a page
		var have string
		err := v.d.Read.QueryRowContext(v.ctx, `SELECT hash FROM audit_tree WHERE level = $1 AND n = $2`, n.level, n.n).Scan(&have)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			// The keeper has not been here yet, or proofs fail and say so; the rows are good.
		case err != nil:
			return unreadable(err)
		case have != n.hash.String():
			v.bad(n.n<<n.level+1, "the stored tree over the rows from here on is not theirs: they, or the tree, were rewritten")
			return nil
		}
	}
	return nil
}

func (v *verification) rows() error {
	// No lower bound on the first page: a row numbered below the first is bad too.
	query, args := `SELECT `+selected+` FROM audit_events WHERE seq <= $1`, []any{v.last}
	if v.Rows > 0 {
		query, args = query+` AND seq > $2`, append(args, v.seq)
	}
	found, err := v.d.Read.QueryContext(v.ctx, query+` ORDER BY seq LIMIT `+itoa(verifyPage), args...)
	if err != nil {
		return unreadable(err)
	}
	defer found.Close()
	for found.Next() {
		var e Event
		if err := found.Scan(e.fields()...); err != nil {
			// A column of another type than was written: the next row in order does not fit.
			v.bad(v.seq+1, "the row cannot be read: "+err.Error())
			return nil
		}
		if why := v.misfit(&e); why != nil {
			v.bad(min(e.Seq, v.seq+1), why.Error())
			return nil
		}
		h, err := leaf(e.Hash)
		if err != nil {
			v.bad(e.Seq, err.Error())
			return nil
		}
		v.done = v.tree.add(h, v.done)
		v.Rows, v.seq, v.Head = v.Rows+1, e.Seq, e.Hash
		if e.At >= v.newest-kept {
			v.made.row(e.Slots, e.At)
		}
		if err := v.signed(); err != nil || !v.Whole {
			return err
		}
	}
	if err := found.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

// misfit says why the row does not follow the rows walked so far, nil when it does.
func (v *verification) misfit(e *Event) error {
	switch {
	case e.Seq > v.seq+1:
		return errors.New("the row is missing")
	case e.Seq != v.seq+1:
		return errors.New("the row has a number below the first")
	case e.PrevHash != v.Head:
		return errors.New("its previous hash is not the hash of the row before it")
	case e.Hash != link(e.PrevHash, e.Seq, e.content()):
		return errors.New("its hash does not fit its content: the row was changed")
	}
	return nil
}

// signed compares the rows walked so far with the checkpoint of just so many, where there is one.
func (v *verification) signed() error {
	if err := v.lookAhead(); err != nil {
		return err
	}
	if len(v.ahead) > 0 && v.ahead[0].size == v.seq {
		c, err := OpenCheckpoint(v.ahead[0].note, v.keys)
		if err != nil || c.Size != v.seq {
			v.bad(v.Signed+1, fmt.Sprintf("the checkpoint of the rows up to %d is not signed with a known key", v.seq))
			return nil
		}
		v.ahead = v.ahead[1:]
		v.fits(c, "checkpoint")
		v.Checkpoints++
	}
	for _, c := range v.known[v.seq] {
		if v.Whole {
			v.fits(c, "checkpoint kept elsewhere")
		}
	}
	return nil
}

func (v *verification) fits(c Checkpoint, what string) {
	if c.Root != v.tree.root().String() || c.Chain != v.Head {
		v.bad(v.Signed+1, fmt.Sprintf("the rows from here to %d, or some of them, are not those of the signed %s: they were rewritten", c.Size, what))
		return
	}
	v.Signed = c.Size
}

// lookAhead reads the next checkpoints when those read before are used up.
func (v *verification) lookAhead() error {
	if len(v.ahead) > 0 || !v.more {
		return nil
	}
	var err error
	v.ahead, err = checkpoints(v.ctx, v.d.Read, `WHERE size >= $1 ORDER BY size LIMIT `+itoa(verifyPage), v.seq)
	v.more = len(v.ahead) == verifyPage
	return err
}

// ending checks that the record ends where it should.
func (v *verification) ending(end *head) error {
	if err := v.lookAhead(); err != nil {
		return err
	}
	for size := range v.known {
		if size > v.seq {
			v.bad(v.seq+1, fmt.Sprintf("the row is missing: the record ends here, but a checkpoint kept elsewhere covers %d rows", size))
			return nil
		}
	}
	if len(v.ahead) > 0 {
		// It may be a new one of rows that came during the walk: ask for the last row again.
		if _, last, err := extent(v.ctx, v.d.Read); err != nil {
			return err
		} else if last < v.ahead[0].size {
			v.bad(v.seq+1, fmt.Sprintf("the row is missing: the record ends here, but a checkpoint covers %d rows", v.ahead[0].size))
			return nil
		}
	}
	switch {
	case end == nil && v.seq > 0:
		v.bad(v.seq, "the stored head of the chain is missing or damaged, so rows after this one may be missing")
	case end == nil:
	case end.seq > v.seq:
		v.bad(v.seq+1, fmt.Sprintf("the row is missing: the record ends here, but rows up to %d were written", end.seq))
	case end.seq < v.seq:
		v.bad(end.seq+1, "the row was not written by doorward: the stored head of the chain ends before it")
	case end.hash != v.Head:
		v.bad(v.seq, "the hash of the last row is not the one of the stored head of the chain")
	}
	return nil
}

func isUnreadable(err error) bool { return fault.Is(err, fault.Unavailable) }
