package db

import (
	"bytes"
	"context"
	"embed"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"doorward.dev/doorward/internal/fault"
)

//go:embed migrations/*.sql
var migrations embed.FS

func (d *DB) provider() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	if !d.postgres {
		return goose.NewProvider(goose.DialectSQLite3, d.Write, sqliteText{files})
	}
	// Replicas that start together must not migrate together.
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, d.Write, files, goose.WithSessionLocker(locker))
}

// migrateTo migrates up to a schema, 0 for the newest.
func (d *DB) migrateTo(ctx context.Context, version int64) error {
	p, err := d.provider()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "migrations cannot be read")
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "the database cannot be opened")
	}
	if current > target || version > target {
		return newer(max(current, version), target)
	}
	if version > 0 {
		target = version
	}
	if _, err := p.UpTo(ctx, target); err != nil {
		return fault.Wrap(fault.Unavailable, err, "the database cannot be migrated to schema %d", target)
	}
	return nil
}

// checkVersion accepts exactly the schema this program knows, without writing.
func (d *DB) checkVersion(ctx context.Context) error {
	target := newestSchema()
	var current int64
	if err := d.Read.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version`).Scan(&current); err != nil {
		return fault.Wrap(fault.Unavailable, err, "this is not a database of doorward, or it cannot be read")
	}
	switch {
	case current > target:
		return newer(current, target)
	case current < target:
		return fault.New(fault.Config, "the database has schema %d, this doorward needs %d: start doorward serve once to migrate it", current, target)
	}
	return nil
}

// newestSchema is the highest migration this program has.
func newestSchema() (n int64) {
	files, _ := fs.Glob(migrations, "migrations/*.sql") // the pattern is good
	for _, f := range files {
		number, _, _ := strings.Cut(path.Base(f), "_")
		v, _ := strconv.ParseInt(number, 10, 64)
		n = max(n, v)
	}
	return n
}

// Migration is one step of the schema.
type Migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// Migrations lists the steps this program knows, and which of them a database has.
func Migrations(ctx context.Context, url, dir string) (all []Migration, err error) {
	d, err := openPools(url, dir, true)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	p, err := d.provider()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "migrations cannot be read")
	}
	applied := map[int64]bool{}
	rows, err := d.Read.QueryContext(ctx, `SELECT version_id FROM goose_db_version WHERE is_applied`)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "this is not a database of doorward, or it cannot be read")
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, unavailable(err)
		}
		applied[n] = true
	}
	for _, s := range p.ListSources() {
		all = append(all, Migration{s.Version, path.Base(s.Path), applied[s.Version]})
		delete(applied, s.Version)
	}
	delete(applied, 0) // goose's own beginning
	for n := range applied {
		all = append(all, Migration{n, "of a newer doorward", true})
	}
	return all, rows.Err()
}

// Migrate moves an existing database that nobody uses to a schema, 0 for the newest, up or down. On SQLite one that is in
// use is refused with fault.Conflict.
func Migrate(ctx context.Context, url, dir string, to int64) (from, now int64, err error) {
	if url == "" {
		if _, err := os.Stat(filepath.Join(dir, sqliteFile)); err != nil {
			return 0, 0, fault.Wrap(fault.NotFound, err, "no database in %s: give the data folder of doorward serve with --data", dir)
		}
	}
	d, err := openPools(url, dir, false)
	if err != nil {
		return 0, 0, err
	}
	defer d.Close()
	if err := d.complete(ctx); err != nil {
		return 0, 0, err
	}
	p, err := d.provider()
	if err != nil {
		return 0, 0, fault.Wrap(fault.Internal, err, "migrations cannot be read")
	}
	if from, err = d.schemaVersion(ctx); err != nil {
		return 0, 0, fault.Wrap(fault.Unavailable, err, "this is not a database of doorward, or it cannot be read")
	}
	if to == 0 {
		to = newestSchema()
	}
	if from > newestSchema() {
		return from, from, newer(from, newestSchema())
	}
	if to >= from {
		err = d.migrateTo(ctx, to)
	} else if _, err = p.DownTo(ctx, to); err != nil {
		err = fault.Wrap(fault.Unavailable, err, "the database cannot be migrated down to schema %d", to)
	}
	if err != nil {
		return from, from, err
	}
	now, err = d.schemaVersion(ctx)
	return from, now, err
}

func newer(current, target int64) error {
	return fault.New(fault.Config, "the database has schema %d, this doorward knows only %d: use the newer doorward it was last opened with", current, target)
}

// sqliteText is the migrations with the one word that SQLite spells its own
// way: only a column of type INTEGER PRIMARY KEY is the number of the row
// itself. As BIGINT it would be a second tree to write for every audit row, a page more for every commit.
type sqliteText struct{ fs.FS }

func (s sqliteText) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return f, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	return textFile{f, bytes.NewReader(bytes.ReplaceAll(text, []byte("BIGINT PRIMARY KEY"), []byte("INTEGER PRIMARY KEY")))}, nil
}

// textFile is a file with other content.
type textFile struct {
	fs.File
	text *bytes.Reader
}

func (f textFile) Read(p []byte) (int, error) { return f.text.Read(p) }
