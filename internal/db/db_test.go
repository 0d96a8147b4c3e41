package db_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, url, dir string) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), url, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// eachDatabase runs a test on SQLite and, where a server answers, on PostgreSQL.
// reopen opens the same database for reading.
func eachDatabase(t *testing.T, test func(t *testing.T, d *db.DB, url, dir string)) {
	t.Run("sqlite", func(t *testing.T) {
		dir := t.TempDir()
		test(t, open(t, "", dir), "", dir)
	})
	t.Run("postgres", func(t *testing.T) {
		url := testkit.PostgresURL(t)
		test(t, open(t, url, ""), url, "")
	})
}

func TestFilesArePrivateWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "data")
	d := open(t, "", dir)
	if _, err := d.Setting(t.Context(), "x", func() (string, error) { return "y", nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, "doorward.db": 0o600, "doorward.db-wal": 0o600, "doorward.db-shm": 0o600, "doorward.lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}

func TestExistingFileLosesRightsOfOthers(t *testing.T) {
	dir := t.TempDir()
	open(t, "", dir).Close()
	path := filepath.Join(dir, "doorward.db")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, "", dir)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %o", info.Mode().Perm())
	}
}

func TestSecondServerIsRefusedAndReadersAreNot(t *testing.T) {
	dir := t.TempDir()
	d := open(t, "", dir)
	if _, err := db.Open(t.Context(), "", dir); !fault.Is(err, fault.Conflict) {
		t.Fatalf("second Open: %v, want a conflict", err)
	}
	r, err := db.OpenExisting(t.Context(), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Write.ExecContext(t.Context(), `INSERT INTO setting (name, value) VALUES ('a', 'b')`); err == nil {
		t.Error("a reading command could write")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, "", dir) // free again
}

func TestReopenKeepsData(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *db.DB, url, dir string) {
		first, err := d.Setting(t.Context(), "id", func() (string, error) { return "one", nil })
		if err != nil || first != "one" {
			t.Fatal(first, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := open(t, url, dir).Setting(t.Context(), "id", func() (string, error) { return "two", nil })
		if err != nil || again != "one" {
			t.Errorf("got %q, %v", again, err)
		}
	})
}

func TestOpenExistingNeverCreates(t *testing.T) {
	dir := t.TempDir()
	if _, err := db.OpenExisting(t.Context(), "", dir); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("made %v", files)
	}
}

func TestOpenExistingReadsAfterACrash(t *testing.T) {
	// What a killed server leaves: the database and a WAL that was never checkpointed.
	dir, left := t.TempDir(), t.TempDir()
	d := open(t, "", dir)
	if _, err := d.Setting(t.Context(), "k", func() (string, error) { return "v", nil }); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"doorward.db", "doorward.db-wal"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := db.OpenExisting(t.Context(), "", left)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	v, err := r.Setting(t.Context(), "k", func() (string, error) { return "", errors.New("missing") })
	if err != nil || v != "v" {
		t.Errorf("got %q, %v", v, err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *db.DB, url, dir string) {
		if _, err := d.Write.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, TRUE)`); err != nil {
			t.Fatal(err)
		}
		d.Close()
		for name, openIt := range map[string]func(context.Context, string, string) (*db.DB, error){"Open": db.Open, "OpenExisting": db.OpenExisting} {
			if _, err := openIt(t.Context(), url, dir); !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), "99999") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestBadURLs(t *testing.T) {
	for _, url := range []string{"mysql://u:hunter22@h/d", "postgres://u:hunter22@h:notaport/d", "nonsense"} {
		_, err := db.Open(t.Context(), url, t.TempDir())
		if !fault.Is(err, fault.Config) {
			t.Errorf("%s: %v", url, err)
		} else if strings.Contains(err.Error(), "hunter22") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestTxRollsBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *db.DB, _, _ string) {
		insert := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `INSERT INTO setting (name, value) VALUES ($1, $2)`, "n", "v")
			return err
		}
		boom := errors.New("boom")
		if err := d.Tx(t.Context(), func(tx *sql.Tx) error { return errors.Join(insert(tx), boom) }); !errors.Is(err, boom) {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = d.Tx(t.Context(), func(tx *sql.Tx) error { _ = insert(tx); panic("x") })
		}()
		var n int
		if err := d.Read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM setting WHERE name = 'n'`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows, %v", n, err)
		}
		if err := d.Tx(t.Context(), insert); err != nil {
			t.Errorf("the connection did not come back: %v", err)
		}
	})
}

func TestForeignKeysHold(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *db.DB, _, _ string) {
		_, err := d.Write.ExecContext(t.Context(), `INSERT INTO person (id, workspace_id, name, role, created_at) VALUES ('p', 'none', 'n', 'owner', 1)`)
		if err == nil {
			t.Error("a person of no workspace was stored")
		}
	})
}

func TestWatchTellsOwnAndForeignChanges(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *db.DB, _, _ string) {
		nothing := func(*sql.Tx) error { return nil }
		// A change before Watch starts is told too.
		if err := d.TxChange(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		told, ended := make(chan struct{}, 100), make(chan error, 1)
		go func() { ended <- d.Watch(ctx, func(context.Context) error { told <- struct{}{}; return nil }) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		wait := func(what string) {
			t.Helper()
			select {
			case <-told:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s was not told", what)
			}
		}
		wait("the change before Watch")
		if err := d.TxChange(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		wait("an own change")
		// As another process does: no announcement here.
		news := d.News()
		if err := d.Tx(t.Context(), func(tx *sql.Tx) error { return d.Changed(t.Context(), tx) }); err != nil {
			t.Fatal(err)
		}
		wait("a foreign change")
		select {
		case <-news:
		case <-time.After(10 * time.Second):
			t.Error("a foreign change was not announced")
		}
		// A change that was rolled back is no news.
		if err := d.TxChange(t.Context(), func(*sql.Tx) error { return errors.New("no") }); err == nil {
			t.Error("the error was lost")
		}
		select {
		case <-told:
			t.Error("a rolled back change was told")
		default:
		}
	})
}

func TestIDsAreOrdered(t *testing.T) {
	last := ""
	for range 1000 {
		id := db.NewID()
		if len(id) != 36 || id[14] != '7' || id <= last {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
}
