package db

import (
	"bytes"
	"context"
	"embed"
	"io"
	"io/fs"

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

func (d *DB) migrate(ctx context.Context) error {
	p, err := d.provider()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "migrations cannot be read")
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "the database cannot be opened")
	}
	if current > target {
		return newer(current, target)
	}
	if _, err := p.Up(ctx); err != nil {
		return fault.Wrap(fault.Unavailable, err, "the database cannot be migrated to schema %d", target)
	}
	return nil
}

// checkVersion accepts exactly the schema this program knows, without writing.
func (d *DB) checkVersion(ctx context.Context) error {
	p, err := d.provider()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "migrations cannot be read")
	}
	sources := p.ListSources()
	target := sources[len(sources)-1].Version
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
