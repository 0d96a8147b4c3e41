package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// head is the last row of the chain, kept in setting audit_head and written in
// the transaction of the row: a table that ends before its head was cut.
type head struct {
	seq  int64
	hash string
}

const setHeadSQL = `UPDATE setting SET value = $1 WHERE name = 'audit_head'`

func itoa(n int) string { return strconv.Itoa(n) }

func (h head) String() string { return strconv.FormatInt(h.seq, 10) + " " + h.hash }

func parseHead(text string) (head, error) {
	number, hash, ok := strings.Cut(text, " ")
	seq, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || seq < 0 || len(hash) != len(genesis) {
		return head{}, fmt.Errorf("setting audit_head is damaged: %q", text)
	}
	return head{seq, hash}, nil
}

// readHead reads the head; lock keeps other replicas from adding rows until tx ends.
func readHead(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, lock bool) (head, error) {
	query := `SELECT value FROM setting WHERE name = 'audit_head'`
	if lock {
		query += ` FOR UPDATE`
	}
	var text string
	if err := q.QueryRowContext(ctx, query).Scan(&text); err != nil {
		return head{}, err
	}
	return parseHead(text)
}

// startHead makes sure that there is a head. Where it and the table disagree, somebody was at
// the database; the chain goes on from the higher of both, so that the gap stays for Verify to see.
func (l *Log) startHead(ctx context.Context, tx *sql.Tx) error {
	last := head{0, genesis}
	err := tx.QueryRowContext(ctx, `SELECT seq, hash FROM audit_events ORDER BY seq DESC LIMIT 1`).Scan(&last.seq, &last.hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return unwritable(err)
	}
	if len(last.hash) != len(genesis) {
		last.hash = genesis // not of this writer: Verify names the row
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO setting (name, value) VALUES ('audit_head', $1) ON CONFLICT (name) DO NOTHING`, last.String()); err != nil {
		return unwritable(err)
	}
	at, err := readHead(ctx, tx, l.o.DB.IsPostgres())
	if err != nil && !strings.Contains(err.Error(), "damaged") {
		return unwritable(err)
	}
	if err != nil || at.seq < last.seq {
		at = last
		if _, err := tx.ExecContext(ctx, setHeadSQL, at.String()); err != nil {
			return unwritable(err)
		}
	}
	l.head, l.headKnown = at, true
	return nil
}
