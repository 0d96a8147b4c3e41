package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// store says which database: the given one, else the one that serve would open.
type store struct {
	Config   string  `help:"YAML file with the settings, which name the database as for serve." env:"DOORWARD_CONFIG" placeholder:"FILE"`
	Data     *string `help:"The SQLite database in this data folder." placeholder:"DIR"`
	Database *string `help:"This PostgreSQL database." placeholder:"URL"`
}

func (s *store) place() (url, dir string, err error) {
	switch {
	case s.Database != nil && s.Data != nil:
		return "", "", fault.New(fault.InvalidParams, "give --data or --database, not both")
	case s.Database != nil:
		return *s.Database, "", nil
	case s.Data != nil:
		return "", *s.Data, nil
	}
	cfg, err := config.Load(config.Source{File: s.Config, Environ: os.Environ()})
	if err != nil {
		return "", "", err
	}
	return cfg.Database, cfg.Data, nil
}

type backupCmd struct {
	store
	File string `arg:"" help:"New file to write, or - for standard output."`
}

// Run writes a backup beside a running Doorward. The file appears under its name when it is whole.
func (c *backupCmd) Run(e *env) error {
	url, dir, err := c.place()
	if err != nil {
		return err
	}
	d, err := db.OpenExisting(e.ctx, url, dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if c.File == "-" {
		_, err := d.Backup(e.ctx, e.stdout)
		return err
	}
	var counts []db.Count
	err = newFile(c.File, func(f *os.File) (err error) {
		counts, err = d.Backup(e.ctx, f)
		return err
	})
	if err != nil {
		return err
	}
	e.print("backed_up", total(counts), len(counts), c.File)
	e.print("keep_key")
	return e.showCounts(counts, nil)
}

func total(counts []db.Count) (n int64) {
	for _, c := range counts {
		n += c.Rows
	}
	return n
}

// newFile writes a file of mode 0600 that nobody sees half; an existing one is not replaced.
func newFile(path string, write func(*os.File) error) error {
	cannot := func(err error) error {
		if errors.Is(err, fs.ErrExist) {
			return fault.New(fault.Conflict, "%s exists already: give another name", path)
		}
		return fault.Wrap(fault.Config, err, "%s cannot be written", path)
	}
	if _, err := os.Lstat(path); err == nil {
		return cannot(fs.ErrExist)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part-*") // CreateTemp makes mode 0600
	if err != nil {
		return cannot(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return cannot(err)
	}
	if err := os.Link(f.Name(), path); err != nil {
		return cannot(err)
	}
	return nil
}

type restoreCmd struct {
	store
	File string `arg:"" help:"Backup to read, or - for standard input."`
}

// Run fills an empty database. A file is read twice: what is damaged is found before anything is made.
func (c *restoreCmd) Run(e *env) error {
	url, dir, err := c.place()
	if err != nil {
		return err
	}
	in := e.stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return fault.Wrap(fault.Config, err, "cannot read %s", c.File)
		}
		defer f.Close()
		if err := db.CheckBackup(f); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fault.Wrap(fault.Config, err, "cannot read %s twice; give it on standard input", c.File)
		}
		in = f
	}
	d, counts, err := db.Restore(e.ctx, url, dir, in)
	if err != nil {
		return err
	}
	defer d.Close()
	return e.restored(d, counts)
}

// restored verifies the record of a database that was filled; only when it is whole the database may be used.
func (e *env) restored(d *db.DB, counts []db.Count) error {
	v, err := audit.Verify(e.ctx, d, audit.Known{})
	if err != nil {
		return err
	}
	if !v.Whole {
		e.print("record_broken", v.BadSeq, v.Why, v.Rows)
		return fault.New(fault.Conflict, "the record is not whole at row %d, so the new database stays closed", v.BadSeq)
	}
	if err := d.Restored(e.ctx); err != nil {
		return err
	}
	e.print("restored", total(counts), len(counts))
	e.print("record_whole", v.Rows, v.Head)
	e.print("record_signed", v.Checkpoints, v.Signed)
	e.print("bring_key")
	return e.showCounts(counts, &v)
}

func (e *env) showCounts(counts []db.Count, v *audit.Verdict) error {
	if e.json {
		return json.NewEncoder(e.stdout).Encode(struct {
			Tables []db.Count     `json:"tables"`
			Record *audit.Verdict `json:"record,omitempty"`
		}{counts, v})
	}
	rows := [][]string{{"TABLE", "ROWS"}}
	for _, c := range counts {
		rows = append(rows, []string{c.Table, fmt.Sprint(c.Rows)})
	}
	e.table(rows)
	return nil
}

type storeCopyCmd struct {
	From string `help:"Data folder or postgres:// URL to read. Its Doorward must be stopped." required:"" placeholder:"DIR|URL"`
	To   string `help:"Empty data folder or empty postgres:// database to fill." required:"" placeholder:"DIR|URL"`
}

// Run is backup and restore in one, without a file.
func (c *storeCopyCmd) Run(e *env) error {
	url, dir := placeOf(c.From)
	source, err := db.OpenStopped(e.ctx, url, dir)
	if err != nil {
		return err
	}
	defer source.Close()
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	r, w := io.Pipe()
	read := make(chan error, 1)
	var had []db.Count
	go func() {
		var err error
		had, err = source.Backup(ctx, w)
		w.CloseWithError(err)
		read <- err
	}()
	url, dir = placeOf(c.To)
	d, counts, err := db.Restore(ctx, url, dir, r)
	r.CloseWithError(err)
	if rerr := <-read; rerr != nil && !errors.Is(rerr, err) { // the cause, where reading failed first
		err = rerr
	}
	if d != nil {
		defer d.Close()
	}
	if err != nil {
		return err
	}
	for i := range had {
		if i >= len(counts) || had[i] != counts[i] {
			return fault.New(fault.Internal, "table %s has another number of rows than its source", had[i].Table)
		}
	}
	return e.restored(d, counts)
}

func placeOf(text string) (url, dir string) {
	if strings.Contains(text, "://") {
		return text, ""
	}
	return "", text
}

type migrateUpCmd struct{ store }

// Run brings the schema up to what this program needs, as serve does.
func (c *migrateUpCmd) Run(e *env) error { return e.migrate(&c.store, 0) }

type migrateDownCmd struct {
	store
	To  int64 `help:"Schema to go back to; the numbers are in migrate status." required:"" placeholder:"N"`
	Yes bool  `help:"Yes, drop what the newer schema holds."`
}

// Run goes back to an older schema. What only the newer one can hold is lost.
func (c *migrateDownCmd) Run(e *env) error {
	if c.To < 1 {
		return fault.New(fault.InvalidParams, "schema 1 is the first")
	}
	if !c.Yes {
		return fault.New(fault.InvalidParams, "tables and columns newer than schema %d are dropped with what they hold: make a backup, stop every replica, then add --yes", c.To)
	}
	url, dir, err := c.place()
	if err != nil {
		return err
	}
	steps, err := db.Migrations(e.ctx, url, dir)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if s.Version >= c.To && s.Applied {
			return e.migrate(&c.store, c.To)
		}
	}
	return fault.New(fault.InvalidParams, "the database is older than schema %d", c.To)
}

func (e *env) migrate(s *store, to int64) error {
	url, dir, err := s.place()
	if err != nil {
		return err
	}
	from, now, err := db.Migrate(e.ctx, url, dir, to)
	if err != nil {
		return err
	}
	if e.json {
		return json.NewEncoder(e.stdout).Encode(map[string]int64{"from": from, "schema": now})
	}
	e.print("migrated", from, now)
	return nil
}

type migrateStatusCmd struct{ store }

// Run lists the steps without changing anything.
func (c *migrateStatusCmd) Run(e *env) error {
	url, dir, err := c.place()
	if err != nil {
		return err
	}
	steps, err := db.Migrations(e.ctx, url, dir)
	if err != nil {
		return err
	}
	if e.json {
		return json.NewEncoder(e.stdout).Encode(map[string]any{"migrations": steps})
	}
	rows := [][]string{{"SCHEMA", "STEP", "APPLIED"}}
	for _, s := range steps {
		applied := "no"
		if s.Applied {
			applied = "yes"
		}
		rows = append(rows, []string{fmt.Sprint(s.Version), s.Name, applied})
	}
	e.table(rows)
	return nil
}
