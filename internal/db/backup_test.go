package db_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/testkit"
)

// nasty is text that is easily spoilt on the way.
const nasty = "line\nnext\ttab \"quoted\" \\ <html>&amp; \u2028 ü 日本 😀 \x01 {\"base64\":\"eA==\"}"

// fillSome puts rows with every kind of value into a new database.
func fillSome(t *testing.T, d *db.DB) {
	t.Helper()
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := d.Write.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ('w', 'default', $1, 9007199254740993)`, nasty)
	exec(`INSERT INTO person (id, workspace_id, name, role, created_at, disabled_at) VALUES ('p', 'w', 'owner', 'owner', 1, 77)`)
	exec(`INSERT INTO agent (id, workspace_id, name, state, created_at) VALUES ('a', 'w', 'one', 'ACTIVE', -1)`)
	exec(`INSERT INTO api_key (id, workspace_id, prefix, hash, person_id, created_at) VALUES ('k', 'w', 'dw', 'h', 'p', 1)`) // agent_id is NULL
	exec(`INSERT INTO server (id, workspace_id, name, transport, state, created_at, updated_at) VALUES ('s', 'w', 'srv', 'http', 'ACTIVE', 1, 1)`)
	for n := range 150 { // more than one INSERT
		exec(`INSERT INTO tool (id, server_id, name, definition, fingerprint, action, risk, present, first_seen_at, last_seen_at)
			VALUES ($1, 's', $1, $2, 'f', 'read', 'LOW', $3, 1, 1)`, fmt.Sprintf("t%03d", n), nasty, n%2 == 0)
	}
	exec(`INSERT INTO policy (id, workspace_id, mcp_tool_id, action, created_at, condition) VALUES ('r1', 'w', 't001', 'ALLOW', 1, 'true')`)
	exec(`INSERT INTO policy (id, workspace_id, mcp_tool_id, action, created_at, condition) VALUES ('r2', 'w', 't001', 'DENY', 1, 'true')`)
	exec(`UPDATE revision SET n = 41`)
}

func backup(t *testing.T, d *db.DB) []byte {
	t.Helper()
	d.SetClock(new(clock).time)
	var out bytes.Buffer
	if _, err := d.Backup(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// target is a place for a new database.
type target struct{ name, url, dir string }

func targets(t *testing.T) []target {
	return []target{{"sqlite", "", filepath.Join(t.TempDir(), "data")}, {"postgres", testkit.PostgresURL(t), ""}}
}

// same compares two backups but for the order of rows, which is by the database's own order of text.
func same(a, b []byte) bool {
	lines := func(b []byte) []string {
		l := strings.Split(string(b), "\n")
		l = l[:len(l)-2] // the trailer has the sum of the order
		slices.Sort(l)
		return l
	}
	return slices.Equal(lines(a), lines(b))
}

func TestBackupGoesFromAnyToAny(t *testing.T) {
	for _, from := range targets(t) {
		source := open(t, from.url, from.dir)
		fillSome(t, source)
		file := backup(t, source)
		if err := db.CheckBackup(bytes.NewReader(file)); err != nil {
			t.Fatalf("%s: %v", from.name, err)
		}
		for _, to := range targets(t) {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				d, counts, err := db.Restore(t.Context(), to.url, to.dir, bytes.NewReader(file))
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				if !slices.Contains(counts, db.Count{Table: "tool", Rows: 150}) {
					t.Errorf("counts %v", counts)
				}
				if _, err := db.OpenExisting(t.Context(), to.url, to.dir); reason(err) != "DATABASE_INCOMPLETE" {
					t.Errorf("before it was checked: %v", err)
				}
				if err := d.Restored(t.Context()); err != nil {
					t.Fatal(err)
				}
				if again := backup(t, d); !same(file, again) {
					t.Errorf("restored\n%s\nfrom\n%s", again, file)
				}
				d.Close()
				open(t, to.url, to.dir).Close() // serves
				if _, _, err := db.Restore(t.Context(), to.url, to.dir, bytes.NewReader(file)); !fault.Is(err, fault.Conflict) {
					t.Errorf("into a used database: %v", err)
				}
			})
		}
	}
}

// TestOldBackups: a backup of any schema that was ever kept here restores into today's, and its record verifies.
func TestOldBackups(t *testing.T) {
	files, err := filepath.Glob("testdata/backup-schema*.ndjson")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range targets(t) {
			d, counts, err := db.Restore(t.Context(), to.url, to.dir, bytes.NewReader(file))
			if err != nil {
				t.Fatalf("%s into %s: %v", name, to.name, err)
			}
			if v, err := audit.Verify(t.Context(), d, audit.Known{}); err != nil || !v.Whole || v.Rows < 5 || v.Checkpoints < 1 {
				t.Errorf("%s into %s: %+v, %v (%v)", name, to.name, v, err, counts)
			}
			d.Close()
		}
	}
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return fault.From(err).Reason
}

// TestBackupKeepsAllTables compares what a backup holds with what the migrations make.
func TestBackupKeepsAllTables(t *testing.T) {
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	want := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(b), "-- +goose Down")
		for _, m := range regexp.MustCompile(`(?mi)^\s*(CREATE|DROP) TABLE (?:IF (?:NOT )?EXISTS )?"?(\w+)`).FindAllStringSubmatch(up, -1) {
			if want[m[2]] = true; strings.EqualFold(m[1], "drop") {
				delete(want, m[2])
			}
		}
	}
	for _, to := range targets(t) {
		d := open(t, to.url, to.dir)
		counts, err := d.Backup(t.Context(), new(bytes.Buffer))
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, c := range counts {
			have[c.Table] = true
			if !want[c.Table] {
				t.Errorf("%s: the backup has table %s, which no migration makes", to.name, c.Table)
			}
		}
		for name := range want {
			if !have[name] {
				t.Errorf("%s: table %s is not in the backup", to.name, name)
			}
		}
	}
}

func TestTextThatIsNoTextSurvivesOnSQLite(t *testing.T) {
	d := open(t, "", t.TempDir())
	if _, err := d.Write.ExecContext(t.Context(), `INSERT INTO setting (name, value) VALUES ('raw', CAST(x'ff00fe' AS TEXT))`); err != nil {
		t.Fatal(err)
	}
	file := backup(t, d)
	r, _, err := db.Restore(t.Context(), "", filepath.Join(t.TempDir(), "new"), bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !bytes.Equal(file, backup(t, r)) {
		t.Error("the bytes changed")
	}
	if _, _, err := db.Restore(t.Context(), testkit.PostgresURL(t), "", bytes.NewReader(file)); err == nil || !strings.Contains(err.Error(), "setting") {
		t.Errorf("PostgreSQL cannot hold it: %v", err)
	}
}

// TestDamagedBackup: whatever is wrong with the file, the target is not used; what is found before the end leaves it untouched.
func TestDamagedBackup(t *testing.T) {
	d := open(t, "", t.TempDir())
	fillSome(t, d)
	file := backup(t, d)
	lines := bytes.SplitAfter(file, []byte("\n"))
	at := func(i int, line string) []byte {
		l := slices.Clone(lines)
		l[i] = []byte(line)
		return slices.Concat(l...)
	}
	find := func(prefix string) int {
		return slices.IndexFunc(lines, func(l []byte) bool { return bytes.HasPrefix(l, []byte(prefix)) })
	}
	last, row := len(lines)-2, find(`["t001"`)
	for name, bad := range map[string][]byte{
		"empty": nil, "another file": []byte("SQLite format 3\x00"), "JSON of another kind": []byte("{}\n"),
		"newer format":       []byte(`{"doorward_backup":2,"schema":1}` + "\n"),
		"newer schema":       at(0, strings.Replace(string(lines[0]), `"schema":`, `"schema":99`, 1)),
		"no schema":          []byte(`{"doorward_backup":1}` + "\n"),
		"cut before trailer": slices.Concat(lines[:last]...), "cut in a line": file[:len(file)/2], "cut in the trailer": file[:len(file)-10],
		"more behind": append(slices.Clone(file), 'x'), "row removed": at(row, ""), "row twice": at(row, string(lines[row])+string(lines[row])),
		"row changed":  at(row, strings.Replace(string(lines[row]), "LOW", "OWL", 1)),
		"row too long": at(row, strings.Replace(string(lines[row]), "[", "[1,", 1)), "wrong type": at(row, strings.Replace(string(lines[row]), `"t001"`, "1", 1)),
		"empty line":    at(row, "\n"),
		"unknown table": at(find(`{"table":"workspace"`), `{"table":"workspace; DROP TABLE person"}`+"\n"), "table twice": at(find(`{"table":"agent"`), string(lines[find(`{"table":"workspace"`)])),
		"row of no table": at(1, `["x"]`+"\n"),
		"unknown column":  at(0, strings.Replace(string(lines[0]), `"slug"`, `"slug\" , (SELECT 1)"`, 1)),
	} {
		for _, kind := range []string{"sqlite", "postgres"} {
			if kind == "postgres" && !slices.Contains([]string{"cut in a line", "row changed", "wrong type"}, name) {
				continue // what is found before a database is opened, or in the same way
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				to := target{dir: filepath.Join(t.TempDir(), "data")}
				if kind == "postgres" {
					to.url = testkit.PostgresURL(t)
				}
				_, _, err := db.Restore(t.Context(), to.url, to.dir, bytes.NewReader(bad))
				if f := fault.From(err); f == nil || f.Class != fault.InvalidParams && f.Class != fault.Unavailable {
					t.Fatalf("%v", err)
				}
				for which, openIt := range map[string]func(context.Context, string, string) (*db.DB, error){"serve": db.Open, "read": db.OpenExisting} {
					d, err := openIt(t.Context(), to.url, to.dir)
					if err == nil && which == "read" {
						t.Errorf("what was half restored can be read")
					}
					if err == nil { // untouched: a new and empty one
						var n int
						if err := d.Read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM workspace`).Scan(&n); err != nil || n != 0 {
							t.Errorf("%d workspaces, %v", n, err)
						}
						d.Close()
						break
					}
				}
			})
		}
		if db.CheckBackup(bytes.NewReader(bad)) == nil && !strings.Contains("row too long, wrong type, unknown table, unknown column, table twice, row of no table", name) {
			t.Errorf("%s: the check finds nothing", name)
		}
	}
}

func TestMigrateBothWays(t *testing.T) {
	for _, to := range targets(t) {
		t.Run(to.name, func(t *testing.T) {
			if _, _, err := db.Migrate(t.Context(), to.url, to.dir, 0); err == nil {
				t.Error("a database that is not there was migrated")
			}
			d := open(t, to.url, to.dir)
			fillSome(t, d)
			if to.url == "" {
				if _, _, err := db.Migrate(t.Context(), to.url, to.dir, 1); !fault.Is(err, fault.Conflict) {
					t.Errorf("while it is in use: %v", err)
				}
			}
			d.Close()
			newest, now, err := db.Migrate(t.Context(), to.url, to.dir, 1)
			if err != nil || now != 1 || newest < 5 {
				t.Fatal(newest, now, err)
			}
			steps, err := db.Migrations(t.Context(), to.url, to.dir)
			if err != nil || !steps[0].Applied || steps[1].Applied {
				t.Errorf("%v, %v", steps, err)
			}
			if _, err := db.OpenExisting(t.Context(), to.url, to.dir); !fault.Is(err, fault.Config) {
				t.Errorf("an old schema: %v", err)
			}
			if from, now, err := db.Migrate(t.Context(), to.url, to.dir, 0); err != nil || from != 1 || now != newest {
				t.Fatal(from, now, err)
			}
			d = open(t, to.url, to.dir)
			// What only the newer schema can say must not turn into more than it allowed.
			for what, query := range map[string]string{
				"conditional ALLOW rules that hold always": `SELECT COUNT(*) FROM policy WHERE action = 'ALLOW'`,
				"keys of disabled people that work again":  `SELECT COUNT(*) FROM api_key WHERE revoked_at = 0`,
				"rules that deny and are gone (minus one)": `SELECT 1 - COUNT(*) FROM policy WHERE action = 'DENY'`,
				"tools lost on the way (minus 150)":        `SELECT 150 - COUNT(*) FROM tool`,
				"changes that a replica would not hear of": `SELECT 41 - MIN(n) FROM revision WHERE n < 41`,
			} {
				var n *int
				if err := d.Read.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != nil && *n != 0 {
					t.Errorf("%s: %v, %v", what, n, err)
				}
			}
		})
	}
}
