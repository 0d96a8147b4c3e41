// Package replicas drives several built binaries on one PostgreSQL from outside, as callers behind a load balancer see them.
package replicas

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// confirmation is the secret of confirmations, which all replicas must share.
const confirmation = "thirty-two bytes that all replicas share"

// cluster is some replicas on one database.
type cluster struct {
	url, key string // of the database, and for sealing
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
	c := &cluster{url: testkit.PostgresURL(t), key: newSealingKey(), replicas: make([]*testkit.Gateway, n)}
	testkit.Binary(t)
	var wg sync.WaitGroup
	for i := range n {
		data := dataFolder(t, c.key)
		wg.Go(func() {
			c.replicas[i] = testkit.Start(t, testkit.Options{Data: data, Env: []string{"DOORWARD_DATABASE=" + c.url, "DOORWARD_BUILTINS_ADMIT=true", "SUPACLOUD_MCP_CONFIRMATION_SECRET=" + confirmation}})
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// open opens the database, beside the replicas.
func (c *cluster) open(t *testing.T) *sql.DB {
	t.Helper()
	d, err := sql.Open("pgx", c.url)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// query reads one value from the database.
func (c *cluster) query(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	d := c.open(t)
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

// viaLine starts a replica whose way to the database can break.
func viaLine(t *testing.T, url, key string) (*testkit.Gateway, *testkit.Line) {
	t.Helper()
	line, through := testkit.NewLine(t, url)
	return testkit.Start(t, testkit.Options{Data: dataFolder(t, key), Env: []string{"DOORWARD_DATABASE=" + through, "DOORWARD_BUILTINS_ADMIT=true"}}), line
}

func status(t *testing.T, url string) int {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	return r.StatusCode
}

// TestLostDatabase: a replica that cannot ask the database refuses everything with 503 and says why, also what it would have
// allowed a moment ago; the other replica goes on; it recovers by itself, with what was changed meanwhile.
func TestLostDatabase(t *testing.T) {
	for name, lose := range map[string]func(*testkit.Line){"cut": (*testkit.Line).Cut, "quiet": (*testkit.Line).Quiet} {
		t.Run(name, func(t *testing.T) {
			url, key := testkit.PostgresURL(t), newSealingKey()
			f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
			g, line := viaLine(t, url, key)
			g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "ALLOW")
			other, _ := viaLine(t, url, key)
			id, agentKey := other.Agent("second", "*")
			c := testkit.NewClient(t, g.URL+"/mcp/fake", agentKey, testkit.Modern)
			testkit.Eventually(t, 5*time.Second, "the agent of the other replica may call here", func() bool { r := c.Call("work", `{}`); return r.Error == nil })

			lose(line)
			begin := time.Now()
			testkit.Eventually(t, 10*time.Second, "the replica is not ready", func() bool { return status(t, g.URL+"/readyz") == http.StatusServiceUnavailable })
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v to notice", took)
			}
			// What "ready" saw before by its own question, calls see when the state is old.
			testkit.Eventually(t, 10*time.Second, "calls are refused", func() bool {
				r := c.Call("work", `{}`)
				return r.Error != nil && r.Error.Data.Reason == "DATABASE_UNAVAILABLE"
			})
			ran := f.Calls()
			other.EmergencyStop("agent", id)
			for what, r := range map[string]testkit.Reply{"call": c.Call("work", `{}`), "list": c.Request("tools/list", `{}`)} {
				if r.Status != http.StatusServiceUnavailable || r.Error == nil || r.Error.Data.Reason != "DATABASE_UNAVAILABLE" {
					t.Errorf("%s: %v", what, r)
				}
			}
			for _, path := range []string{"/api/v1/agents", "/tools"} {
				if got, answer := g.REST(testkit.AdminKey, "GET", path, nil); got != http.StatusServiceUnavailable || !strings.Contains(string(answer), "DATABASE_UNAVAILABLE") {
					t.Errorf("%s: %d %s", path, got, answer)
				}
			}
			if got, _ := g.REST("dw_made_after_the_loss_0123456789abcdef", "GET", "/api/v1/agents", nil); got != http.StatusServiceUnavailable {
				t.Errorf("a key that may be new: %d", got)
			}
			if got := status(t, g.URL+"/healthz"); got != http.StatusOK {
				t.Errorf("healthz: %d; the process is well", got)
			}
			if n := f.Calls(); n != ran {
				t.Errorf("%d calls ran without the database", n-ran)
			}

			line.Mend()
			testkit.Eventually(t, 30*time.Second, "the replica is ready again", func() bool { return status(t, g.URL+"/readyz") == http.StatusOK })
			// The very first call that is decided again knows of the stop.
			testkit.Eventually(t, 30*time.Second, "calls are decided again", func() bool {
				r := c.Call("work", `{}`)
				if r.Error == nil {
					t.Fatalf("a stopped agent called: %v", r)
				}
				return r.Error.Data.Reason == "AGENT_EMERGENCY_STOP"
			})
			if out, code := other.CLI("audit", "verify", "--database", url); code != 0 {
				t.Errorf("audit verify: exit %d\n%s", code, out)
			}
		})
	}
}
