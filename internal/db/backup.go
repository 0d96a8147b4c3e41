package db

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"doorward.dev/doorward/internal/fault"
)

// A backup is one text file, the same for both databases: a header, then for each table a line with its name and its rows as
// JSON arrays, then a trailer with the SHA-256 of all lines before it.
//
//	{"doorward_backup":1,"schema":5,"at":"2026-11-30T12:00:00Z","tables":[{"name":"workspace","columns":["id",…]},…]}
//	{"table":"workspace"}
//	["0193…","default","Default",1790000000000000]
//	{"rows":1,"sha256":"…"}
type header struct {
	Format int         `json:"doorward_backup"`
	Schema int64       `json:"schema"`
	At     time.Time   `json:"at"`
	Tables []tableHead `json:"tables"`
}

type tableHead struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
}

type section struct {
	Table string `json:"table"`
}

type trailer struct {
	Rows   int64  `json:"rows"`
	SHA256 string `json:"sha256"`
}

// bytesOf is text that is not UTF-8, which JSON cannot hold.
type bytesOf struct {
	Base64 []byte `json:"base64"`
}

const backupFormat = 1

// Count is how many rows of a table were written or read.
type Count struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
}

// Backup writes the whole database as of one moment, beside whoever uses it.
func (d *DB) Backup(ctx context.Context, w io.Writer) (counts []Count, err error) {
	schema, err := d.schemaVersion(ctx)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewWriterSize(w, 1<<20)
	b := &backup{sum: sha256.New()}
	b.to = json.NewEncoder(io.MultiWriter(buffered, b.sum))
	b.to.SetEscapeHTML(false)
	err = d.View(ctx, func(tx *sql.Tx) error {
		tables, err := d.tables(ctx, tx)
		if err != nil {
			return err
		}
		h := header{Format: backupFormat, Schema: schema, At: d.now().UTC().Truncate(time.Second)}
		for _, t := range tables {
			th := tableHead{Name: t.name}
			for _, c := range t.columns {
				th.Columns = append(th.Columns, c.name)
			}
			h.Tables = append(h.Tables, th)
		}
		if err := b.line(h); err != nil {
			return err
		}
		for _, t := range tables {
			before := b.rows
			if err := b.table(ctx, tx, &t); err != nil {
				return err
			}
			counts = append(counts, Count{t.name, b.rows - before})
		}
		return b.line(trailer{b.rows, hex.EncodeToString(b.sum.Sum(nil))})
	})
	if err != nil {
		return nil, err
	}
	if err := buffered.Flush(); err != nil {
		return nil, unwritten(err)
	}
	return counts, nil
}

type backup struct {
	to   *json.Encoder
	sum  hash.Hash
	rows int64
}

func unwritten(err error) error {
	return fault.Wrap(fault.Unavailable, err, "the backup cannot be written")
}

func (b *backup) line(v any) error {
	if err := b.to.Encode(v); err != nil {
		return unwritten(err)
	}
	return nil
}

func (b *backup) table(ctx context.Context, tx *sql.Tx, t *table) error {
	if err := b.line(section{t.name}); err != nil {
		return err
	}
	query := `SELECT ` + t.names() + ` FROM ` + quote(t.name)
	if len(t.key) > 0 {
		query += ` ORDER BY ` + strings.Join(t.key, ", ")
	}
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return unavailable(err)
	}
	defer rows.Close()
	to, row := targets(t), make([]any, len(t.columns))
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return fault.Wrap(fault.Internal, err, "a row of table %s cannot be read", t.name)
		}
		for i := range to {
			row[i] = portable(to[i])
		}
		if err := b.line(row); err != nil {
			return err
		}
		b.rows++
	}
	if err := rows.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// targets are what a row is scanned into.
func targets(t *table) []any {
	to := make([]any, len(t.columns))
	for i, c := range t.columns {
		switch c.kind {
		case text:
			to[i] = new(sql.NullString)
		case number:
			to[i] = new(sql.NullInt64)
		case boolean:
			to[i] = new(sql.NullBool)
		}
	}
	return to
}

// portable is a scanned value as it stands in the file.
func portable(v any) any {
	switch v := v.(type) {
	case *sql.NullString:
		if v.Valid && !utf8.ValidString(v.String) {
			return bytesOf{[]byte(v.String)}
		}
		if v.Valid {
			return v.String
		}
	case *sql.NullInt64:
		if v.Valid {
			return v.Int64
		}
	case *sql.NullBool:
		if v.Valid {
			return v.Bool
		}
	}
	return nil
}

// schemaVersion is the number of the last migration that was applied.
func (d *DB) schemaVersion(ctx context.Context) (n int64, err error) {
	if err := d.Read.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version`).Scan(&n); err != nil {
		return 0, unavailable(err)
	}
	return n, nil
}
