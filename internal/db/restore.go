package db

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

const (
	maxLine   = 256 << 20 // bytes of one row
	rowsAtOne = 64        // of one INSERT
)

// Restore fills an empty database (as for Open) from a backup: it migrates to the schema of the backup, fills all tables in one
// transaction, checks the trailer and migrates on to the newest schema. Until Restored is called the
// database is marked as incomplete, and nobody opens it; so is one whose restore was killed.
func Restore(ctx context.Context, url, dir string, r io.Reader) (d *DB, counts []Count, err error) {
	in := newBackupReader(r)
	h, err := in.header()
	if err != nil {
		return nil, nil, err
	}
	if d, err = create(ctx, url, dir, h.Schema); err != nil { // before this line nothing is touched
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	if err = d.Tx(ctx, func(tx *sql.Tx) error {
		counts, err = d.fill(ctx, tx, h, in)
		return err
	}); err != nil {
		return d, nil, err
	}
	if err = d.migrateTo(ctx, 0); err != nil {
		return d, nil, err
	}
	d, err = d.ready(ctx)
	return d, counts, err
}

// Restored says that what Restore filled was checked and may be used.
func (d *DB) Restored(ctx context.Context) error {
	if _, err := d.Write.ExecContext(ctx, `DROP TABLE `+incomplete); err != nil {
		return unavailable(err)
	}
	return nil
}

// CheckBackup reads a backup to its end and says whether it is whole.
func CheckBackup(r io.Reader) error {
	in := newBackupReader(r)
	if _, err := in.header(); err != nil {
		return err
	}
	for {
		line, err := in.next()
		if err != nil {
			return err
		}
		if line[0] == '[' {
			in.sum.Write(line)
			in.rows++
		} else if done, err := in.end(line); done || err != nil {
			return err
		}
	}
}

// create opens a database that has no tables, marks it and migrates it to a schema.
func create(ctx context.Context, url, dir string, schema int64) (*DB, error) {
	if url == "" {
		if _, err := os.Stat(filepath.Join(dir, sqliteFile)); err == nil {
			return nil, fault.New(fault.Conflict, "there is a database in %s already: give an empty data folder, or move %s away with its -wal and -shm", dir, sqliteFile)
		}
	}
	d, err := openPools(url, dir, false)
	if err != nil {
		return nil, err
	}
	if err := d.claim(ctx); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.migrateTo(ctx, schema); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// claim marks an empty database.
func (d *DB) claim(ctx context.Context) error {
	if err := d.complete(ctx); err != nil {
		return err
	}
	return d.Tx(ctx, func(tx *sql.Tx) error {
		query := `SELECT COUNT(*) FROM sqlite_schema`
		if d.postgres {
			query = `SELECT COUNT(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace`
		}
		var n int
		if err := tx.QueryRowContext(ctx, query).Scan(&n); err != nil {
			return unavailable(err)
		}
		if n > 0 {
			return fault.New(fault.Conflict, "the database is not empty: give a new one")
		}
		if _, err := tx.ExecContext(ctx, `CREATE TABLE `+incomplete+` (started_at TEXT NOT NULL)`); err != nil {
			return unavailable(err)
		}
		return nil
	})
}

// complete refuses a database into which a restore has not ended.
func (d *DB) complete(ctx context.Context) error {
	query := `SELECT COUNT(*) FROM sqlite_schema WHERE name = '` + incomplete + `'`
	if d.postgres {
		query = `SELECT COUNT(*) FROM pg_class WHERE relname = '` + incomplete + `' AND relnamespace = current_schema()::regnamespace`
	}
	var n int
	if err := d.Read.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return unavailable(err)
	}
	if n > 0 {
		return fault.New(fault.Conflict, "a restore or copy into this database runs or was broken off, so it is not whole: remove the database and restore into a new one").
			Why("DATABASE_INCOMPLETE")
	}
	return nil
}

// backupReader reads lines, bounded, and sums them up.
type backupReader struct {
	from *bufio.Reader
	sum  hash.Hash
	n    int   // number of the line, for messages
	rows int64 // so far
}

func newBackupReader(r io.Reader) *backupReader {
	return &backupReader{from: bufio.NewReaderSize(r, 1<<20), sum: sha256.New()}
}

func (b *backupReader) bad(format string, args ...any) error {
	return fault.New(fault.InvalidParams, "line %d of the backup: "+format, append([]any{b.n}, args...)...)
}

// next reads a line; it is valid until the next one.
func (b *backupReader) next() (line []byte, err error) {
	b.n++
	for {
		part, err := b.from.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, b.bad("it is longer than %d bytes", maxLine)
		case err == nil && len(line) > 1:
			return line, nil
		case err == nil:
			return nil, b.bad("it is empty")
		case !errors.Is(err, bufio.ErrBufferFull):
			if !errors.Is(err, io.EOF) {
				return nil, fault.Wrap(fault.Unavailable, err, "the backup cannot be read")
			}
			return nil, b.bad("the backup ends here, without its trailer: it is not whole")
		}
	}
}

func (b *backupReader) header() (h header, err error) {
	line, err := b.next()
	if err != nil {
		return h, err
	}
	b.sum.Write(line)
	known := newestSchema()
	switch err := json.Unmarshal(line, &h); {
	case err != nil || h.Format == 0:
		return h, b.bad("this is no backup of doorward")
	case h.Format != backupFormat:
		return h, b.bad("the backup has format %d, this doorward reads %d: use a newer doorward", h.Format, backupFormat)
	case h.Schema < 1 || h.Schema > known:
		return h, b.bad("the backup has schema %d, this doorward knows 1 to %d: use a newer doorward", h.Schema, known)
	}
	return h, nil
}

// end takes a line that is no row: a trailer must be right and the last; done says that it was one.
func (b *backupReader) end(line []byte) (done bool, err error) {
	var t trailer
	if err := json.Unmarshal(line, &t); err != nil {
		return false, b.bad("it is not JSON")
	}
	if t.SHA256 == "" {
		b.sum.Write(line)
		return false, nil
	}
	switch {
	case t.SHA256 != hex.EncodeToString(b.sum.Sum(nil)):
		return false, b.bad("the sum of the lines before is another one: the backup was changed or damaged")
	case t.Rows != b.rows:
		return false, b.bad("there are %d rows, not %d", b.rows, t.Rows)
	}
	if _, err := b.from.ReadByte(); !errors.Is(err, io.EOF) {
		return false, b.bad("something follows the trailer")
	}
	return true, nil
}

// fill replaces the content of all tables by that of the backup.
func (d *DB) fill(ctx context.Context, tx *sql.Tx, h header, in *backupReader) (counts []Count, err error) {
	tables, err := d.tables(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := fits(h, tables); err != nil {
		return nil, err
	}
	for i := len(tables) - 1; i >= 0; i-- { // a migration may have put rows in
		if _, err := tx.ExecContext(ctx, `DELETE FROM `+quote(tables[i].name)); err != nil {
			return nil, unavailable(err)
		}
	}
	var now *filling
	finish := func() error {
		if now == nil {
			return nil
		}
		counts = append(counts, Count{now.t.name, now.rows})
		return now.flush(ctx, tx)
	}
	for {
		line, err := in.next()
		if err != nil {
			return nil, err
		}
		if line[0] == '[' && now != nil {
			in.sum.Write(line)
			in.rows++
			if err := now.add(ctx, tx, in, line); err != nil {
				return nil, err
			}
			continue
		}
		done, err := in.end(line)
		if err == nil {
			err = finish()
		}
		if err != nil {
			return nil, err
		}
		if done {
			return counts, nil
		}
		if now, err = startFilling(h, tables, counts, in, line); err != nil {
			return nil, err
		}
		now.numbered = d.postgres
	}
}

// fits refuses a backup whose tables are not those of its schema.
func fits(h header, tables []table) error {
	wrong := func(name string) error {
		return fault.New(fault.InvalidParams, "the backup does not fit schema %d: table %.100q has other columns or is missing", h.Schema, name)
	}
	if len(h.Tables) != len(tables) {
		return fault.New(fault.InvalidParams, "the backup has %d tables, schema %d has %d", len(h.Tables), h.Schema, len(tables))
	}
	for _, t := range tables {
		i := slices.IndexFunc(h.Tables, func(th tableHead) bool { return th.Name == t.name })
		if i < 0 || len(h.Tables[i].Columns) != len(t.columns) {
			return wrong(t.name)
		}
		for _, c := range t.columns {
			if !slices.Contains(h.Tables[i].Columns, c.name) {
				return wrong(t.name)
			}
		}
	}
	return nil
}

// filling is the table that is being filled, with its columns in the order of the backup.
type filling struct {
	t    table
	args []any // of rows that wait for an INSERT
	rows int64
	// numbered: $1 and so on. To SQLite those are names, each looked for among all others: a tenth of the speed.
	numbered bool
}

func startFilling(h header, tables []table, done []Count, in *backupReader, line []byte) (*filling, error) {
	var s section
	if err := json.Unmarshal(line, &s); err != nil || s.Table == "" {
		return nil, in.bad("it is neither a table, a row nor the trailer")
	}
	i := slices.IndexFunc(tables, func(t table) bool { return t.name == s.Table })
	if i < 0 || slices.ContainsFunc(done, func(c Count) bool { return c.Table == s.Table }) {
		return nil, in.bad("table %.100q is unknown or comes twice", s.Table)
	}
	f := &filling{t: table{name: s.Table}}
	for _, th := range h.Tables {
		if th.Name != s.Table {
			continue
		}
		for _, name := range th.Columns {
			at := slices.IndexFunc(tables[i].columns, func(c column) bool { return c.name == name })
			f.t.columns = append(f.t.columns, tables[i].columns[at])
		}
	}
	return f, nil
}

func (f *filling) add(ctx context.Context, tx *sql.Tx, in *backupReader, line []byte) error {
	var row []json.RawMessage
	if err := json.Unmarshal(line, &row); err != nil || len(row) != len(f.t.columns) {
		return in.bad("a row of table %s has %d values", f.t.name, len(f.t.columns))
	}
	for i, c := range f.t.columns {
		v, ok := value(c.kind, row[i])
		if !ok {
			return in.bad("column %s of table %s cannot hold %.100s", c.name, f.t.name, row[i])
		}
		f.args = append(f.args, v)
	}
	f.rows++
	if len(f.args) == rowsAtOne*len(f.t.columns) {
		return f.flush(ctx, tx)
	}
	return nil
}

// value reads one value of the backup.
func value(k kind, raw json.RawMessage) (v any, ok bool) {
	if string(raw) == "null" {
		return nil, true
	}
	var err error
	switch {
	case k == text && raw[0] == '{':
		var b bytesOf
		err = json.Unmarshal(raw, &b)
		v = string(b.Base64)
	case k == text:
		var s string
		err = json.Unmarshal(raw, &s)
		v = s
	case k == number:
		v, err = strconv.ParseInt(string(raw), 10, 64)
	case k == boolean:
		var b bool
		err = json.Unmarshal(raw, &b)
		v = b
	}
	return v, err == nil
}

// flush inserts the rows that wait. database/sql keeps no statement of a transaction, but pgx does, by its text.
func (f *filling) flush(ctx context.Context, tx *sql.Tx) error {
	if len(f.args) == 0 {
		return nil
	}
	var q bytes.Buffer
	q.WriteString(`INSERT INTO ` + quote(f.t.name) + ` (` + f.t.names() + `) VALUES `)
	for n := range f.args {
		switch {
		case n == 0:
			q.WriteByte('(')
		case n%len(f.t.columns) == 0:
			q.WriteString("), (")
		default:
			q.WriteString(", ")
		}
		if f.numbered {
			q.WriteString("$" + strconv.Itoa(n+1))
		} else {
			q.WriteByte('?')
		}
	}
	q.WriteByte(')')
	if _, err := tx.ExecContext(ctx, q.String(), f.args...); err != nil {
		why := "the database refuses rows of table %s"
		if strings.Contains(err.Error(), "SQLSTATE 22021") {
			why = "PostgreSQL cannot hold text in table %s that SQLite holds: bytes that are not UTF-8, or NUL"
		}
		return fault.Wrap(fault.Unavailable, err, why, f.t.name)
	}
	f.args = f.args[:0]
	return nil
}
