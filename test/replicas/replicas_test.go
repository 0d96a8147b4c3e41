// Package replicas drives several built binaries on one PostgreSQL from outside, as callers behind a load balancer see them.
package replicas

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// cluster is some replicas on one database.
type cluster struct {
	url      string // of the database
	replicas []*testkit.Gateway
}

// dataFolder is a data folder with a given sealing key.
func dataFolder(t *testing.T, key string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.key"), []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newSealingKey() string {
	key := make([]byte, 32)
	rand.Read(key) //nolint:errcheck // it never fails
	return hex.EncodeToString(key)
}

// start starts n replicas on an empty database at the same moment.
func start(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{url: testkit.PostgresURL(t), replicas: make([]*testkit.Gateway, n)}
	key := newSealingKey()
	testkit.Binary(t)
	var wg sync.WaitGroup
	for i := range n {
		data := dataFolder(t, key)
		wg.Go(func() {
			c.replicas[i] = testkit.Start(t, testkit.Options{Data: data, Env: []string{"DOORWARD_DATABASE=" + c.url, "DOORWARD_BUILTINS_ADMIT=true"}})
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// query reads one value from the database.
func (c *cluster) query(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	d, err := sql.Open("pgx", c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// verify checks the record, without asking a replica.
func (c *cluster) verify(t *testing.T) {
	t.Helper()
	if out, code := c.replicas[0].CLI("audit", "verify", "--database", c.url); code != 0 {
		t.Errorf("audit verify: exit %d\n%s", code, out)
	}
}

// TestStartTogether: replicas that start at the same moment on an empty database make one workspace, one owner and each built-in
// server once, and what is set on one holds on the others.
func TestStartTogether(t *testing.T) {
	c := start(t, 3)
	for what, query := range map[string]string{
		"workspaces": `SELECT COUNT(*) FROM workspace`, "people": `SELECT COUNT(*) FROM person`, "servers": `SELECT COUNT(*) FROM server WHERE state = 'ACTIVE'`,
		"registrations": `SELECT COUNT(*) FROM audit_events WHERE method = 'server.register'`, "keys of the record": `SELECT COUNT(*) FROM setting WHERE name = 'audit_keys' AND value NOT LIKE '%' || chr(10) || '%'`,
	} {
		if n := c.query(t, query); n != 1 {
			t.Errorf("there are %d %s, want 1", n, what)
		}
	}
	for i, g := range c.replicas {
		if r := g.Client("/mcp", testkit.Modern).Call("host__get_system_stats", `{}`); r.Error != nil || r.IsError() {
			t.Errorf("replica %d: %v", i, r)
		}
	}
	// A session of one replica is a session of the others: it is signed data, not memory.
	legacy := c.replicas[0].Client("/mcp", testkit.Legacy)
	for i, g := range c.replicas {
		legacy.URL = g.URL + "/mcp"
		if r := legacy.Call("host__get_system_stats", `{}`); r.Error != nil || r.IsError() {
			t.Errorf("replica %d, session of replica 0: %v", i, r)
		}
	}
	if n := c.query(t, `SELECT COUNT(*) FROM audit_events WHERE kind = 'call' AND status = 'ok'`); n != 6 {
		t.Errorf("%d calls in the record, want 6", n)
	}
	c.verify(t)
}

// TestAnotherKeyIsRefused: a replica that has another sealing key could not open what the others sealed.
func TestAnotherKeyIsRefused(t *testing.T) {
	c := start(t, 1)
	cmd := exec.CommandContext(t.Context(), testkit.Binary(t), "serve", "--data", dataFolder(t, newSealingKey()), "--listen", "127.0.0.1:0", "--database", c.url)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "sealing key") || strings.Contains(string(out), "postgres@") {
		t.Errorf("%v\n%s", err, out)
	}
}
