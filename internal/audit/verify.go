package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"doorward.dev/doorward/internal/db"
)

// Verdict is the result of Verify.
type Verdict struct {
	Rows   int64  `json:"rows"`
	Whole  bool   `json:"whole"`
	BadSeq int64  `json:"bad_seq,omitempty"` // first row that does not fit
	Why    string `json:"why,omitempty"`
	Head   string `json:"head"` // hash of the last good row
}

// verifyPage bounds how long one read keeps SQLite from tidying its log beside a running server.
const verifyPage = 1000

// Verify walks the whole chain: every seq present, every hash right, and the
// table ending where the stored head says. It may run beside a writer: it
// looks at what was there when it began. An error means that the record could not be read, not that it is bad.
func Verify(ctx context.Context, d *db.DB) (Verdict, error) {
	end, last, err := extent(ctx, d)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Whole: true, Head: genesis}
	for v.Whole && v.Rows < last {
		before := v.Rows
		if err := verifyRows(ctx, d, &v, last); err != nil {
			return v, err
		}
		if v.Whole && v.Rows == before {
			v.bad(before+1, "the row is missing")
		}
	}
	if !v.Whole {
		return v, nil
	}
	switch {
	case end == nil && v.Rows > 0:
		v.bad(v.Rows, "the stored head of the chain is missing or damaged, so rows after this one may be missing")
	case end == nil:
	case end.seq > v.Rows:
		v.bad(v.Rows+1, fmt.Sprintf("the row is missing: the record ends here, but rows up to %d were written", end.seq))
	case end.seq < v.Rows:
		v.bad(end.seq+1, "the row was not written by doorward: the stored head of the chain ends before it")
	case end.hash != v.Head:
		v.bad(v.Rows, "the hash of the last row is not the one of the stored head of the chain")
	}
	return v, nil
}

func (v *Verdict) bad(seq int64, why string) { v.Whole, v.BadSeq, v.Why = false, seq, why }

// extent reads the stored head (nil: missing or damaged) and the last seq, in one statement and so at one moment.
func extent(ctx context.Context, d *db.DB) (*head, int64, error) {
	var text sql.NullString
	var last int64
	err := d.Read.QueryRowContext(ctx, `SELECT (SELECT value FROM setting WHERE name = 'audit_head'), (SELECT COALESCE(MAX(seq), 0) FROM audit_events)`).Scan(&text, &last)
	if err != nil {
		return nil, 0, unreadable(err)
	}
	if h, err := parseHead(text.String); err == nil {
		return &h, last, nil
	}
	return nil, last, nil
}

// verifyRows checks the next page of rows, up to the first bad one.
func verifyRows(ctx context.Context, d *db.DB, v *Verdict, last int64) error {
	// No lower bound on the first page: a row numbered below 1 is bad too.
	query, args := `SELECT `+columns+` FROM audit_events WHERE seq <= $1`, []any{last}
	if v.Rows > 0 {
		query, args = query+` AND seq > $2`, append(args, v.Rows)
	}
	found, err := d.Read.QueryContext(ctx, query+` ORDER BY seq LIMIT `+itoa(verifyPage), args...)
	if err != nil {
		return unreadable(err)
	}
	defer found.Close()
	for found.Next() {
		var e Event
		if err := found.Scan(e.fields()...); err != nil {
			// A column of another type than was written: the next row in order does not fit.
			v.bad(v.Rows+1, "the row cannot be read: "+err.Error())
			return nil
		}
		if why := e.misfit(v); why != nil {
			v.bad(min(e.Seq, v.Rows+1), why.Error())
			return nil
		}
		v.Rows, v.Head = e.Seq, e.Hash
	}
	if err := found.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

// misfit says why the row does not follow the rows walked so far, nil when it does.
func (e *Event) misfit(v *Verdict) error {
	switch {
	case e.Seq > v.Rows+1:
		return errors.New("the row is missing")
	case e.Seq != v.Rows+1:
		return errors.New("the row has a number below the first")
	case e.PrevHash != v.Head:
		return errors.New("its previous hash is not the hash of the row before it")
	case e.Hash != link(e.PrevHash, e.Seq, e.content()):
		return errors.New("its hash does not fit its content: the row was changed")
	}
	return nil
}
