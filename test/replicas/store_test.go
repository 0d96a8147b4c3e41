package replicas

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

// TestMoveToPostgres: what was made on SQLite serves on PostgreSQL: keys, rules, approvals, sealed secrets, the record.
func TestMoveToPostgres(t *testing.T) {
	f := testkit.NewFake(t, testkit.ToolDef("work", "Works."), testkit.ToolDef("ask", "Asks first."))
	old := testkit.Start(t, testkit.Options{})
	id := old.AddHTTP("fake", f.URL, map[string]string{"X-Secret": "s3cret-of-the-server"}).ID
	old.ApproveWith(id, func(tool testkit.Tool) string {
		return map[string]string{"work": "ALLOW", "ask": "REQUIRE_APPROVAL"}[tool.Name]
	})
	c := old.Client("/mcp/fake", testkit.Modern)
	for i := range 20 {
		if r := c.Call("work", fmt.Sprintf(`{"id":%d,"text":"ü \u0000 😀"}`, i)); r.Error != nil {
			t.Fatal(r)
		}
	}
	old.Decide(c.Call("ask", `{"n":1}`).Error.Data.ApprovalID, "approve")
	old.Stop()

	url := testkit.PostgresURL(t)
	out, code := old.CLI("--json", "store", "copy", "--from", old.Data, "--to", url)
	if code != 0 {
		t.Fatalf("store copy: exit %d\n%s", code, out)
	}
	var report struct {
		Tables []struct {
			Table string
			Rows  int
		}
		Record struct{ Whole bool }
	}
	testkit.Decode(t, []byte(out), &report)
	d := old.DB()
	defer d.Close()
	for _, table := range report.Tables {
		var n int
		if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+table.Table).Scan(&n); err != nil || n != table.Rows {
			t.Errorf("%s: %d rows were copied of %d (%v)", table.Table, table.Rows, n, err)
		}
	}
	if len(report.Tables) < 17 || !report.Record.Whole {
		t.Errorf("%s", out)
	}

	key, err := os.ReadFile(filepath.Join(old.Data, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	g := testkit.Start(t, testkit.Options{Data: dataFolder(t, strings.TrimSpace(string(key))), Env: []string{"DOORWARD_DATABASE=" + url}})
	c = g.Client("/mcp/fake", testkit.Modern)
	if r := c.Call("work", `{"id":20}`); r.Error != nil || r.IsError() {
		t.Errorf("after the move: %v", r)
	}
	if got := f.Requests("tools/call"); got[len(got)-1].Header.Get("X-Secret") != "s3cret-of-the-server" {
		t.Error("the sealed header did not come along")
	}
	if r := c.Call("ask", `{"n":1}`); r.Error != nil { // what was approved before the move
		t.Errorf("the approval did not come along: %v", r)
	}
	if r := c.Call("ask", `{"n":1}`); r.Error == nil {
		t.Error("the approval was used twice")
	}
	if out, code := g.CLI("audit", "verify", "--database", url); code != 0 {
		t.Errorf("audit verify: exit %d\n%s", code, out)
	}
}

// TestBackupUnderLoad: a backup of PostgreSQL made while calls run is of one moment; it restores into SQLite and verifies there.
func TestBackupUnderLoad(t *testing.T) {
	c := start(t, 2)
	stop, calls := make(chan struct{}), new(sync.WaitGroup)
	for _, g := range c.replicas {
		client := g.Client("/mcp", testkit.Modern)
		for range 4 {
			calls.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("host__get_system_stats", "{}")); err != nil || r.Error != nil {
							t.Errorf("%v %v", r, err)
							return
						}
					}
				}
			})
		}
	}
	g := c.replicas[0]
	dir := t.TempDir()
	for i := range 3 {
		file := filepath.Join(dir, fmt.Sprintf("%d.ndjson", i))
		if out, code := g.CLI("backup", file, "--database", c.url); code != 0 {
			t.Fatalf("backup: exit %d\n%s", code, out)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		if out, code := g.CLI("restore", file, "--data", filepath.Join(dir, fmt.Sprint(i))); code != 0 {
			t.Errorf("restore: exit %d\n%s", code, out)
		}
	}
	close(stop)
	calls.Wait()
}

// TestKilledRestore: a restore that was killed leaves a database that nobody can use by mistake.
func TestKilledRestore(t *testing.T) {
	c := start(t, 1)
	g := c.replicas[0]
	for range 5 {
		g.Client("/mcp", testkit.Modern).Call("host__get_system_stats", "{}")
	}
	file := filepath.Join(t.TempDir(), "backup")
	if out, code := g.CLI("backup", file, "--database", c.url); code != 0 {
		t.Fatalf("backup: exit %d\n%s", code, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	url := testkit.PostgresURL(t)
	cmd := exec.Command(testkit.Binary(t), "restore", "-", "--database", url)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(text[:len(text)-1]); err != nil { // all but the last byte: it waits for it
		t.Fatal(err)
	}
	empty := &cluster{url: url}
	testkit.Eventually(t, 20*time.Second, "the restore has begun", func() bool {
		return empty.query(t, `SELECT COUNT(*) FROM pg_class WHERE relname = 'doorward_incomplete'`) == 1
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	in.Close()
	for _, args := range [][]string{
		{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0"}, {"audit", "verify"}, {"backup", "-"}, {"restore", file}, {"migrate", "up"},
	} {
		if out, code := g.CLI(append(args, "--database", url)...); code != 5 || !strings.Contains(out, "broken off") {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
}
