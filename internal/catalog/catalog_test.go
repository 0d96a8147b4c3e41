package catalog_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ws    = "ws-1"
	other = "ws-2"
	admin = "person-1"
)

// fixture is a catalogue on a real database with two workspaces and an agent in each.
type fixture struct {
	testing.TB
	c        *catalog.Catalog
	db       *db.DB
	box      *secret.Box
	redactor *secret.Redactor
	ctx      context.Context
	mu       sync.Mutex
	now      time.Time
}

// tick is a clock that moves a millisecond each time it is read.
func (f *fixture) tick() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(time.Millisecond)
	return f.now
}

func open(t testing.TB, url string) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{TB: t, ctx: t.Context(), redactor: new(secret.Redactor), now: time.UnixMicro(1_790_000_000_000_000)}
	var err error
	if f.db, err = db.Open(f.ctx, url, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.db.Close() })
	if f.box, err = secret.OpenBox(filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	for i, w := range []string{ws, other} {
		f.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ($1, $1, $1, 1)`, w)
		f.exec(`INSERT INTO agent (id, workspace_id, name, state, created_at) VALUES ($1, $2, 'a', 'ACTIVE', 1)`, fmt.Sprint("agent-", i+1), w)
	}
	f.restart()
	return f
}

func newFixture(t testing.TB) *fixture { return open(t, "") }

// each runs a test on SQLite and, where a server answers, on PostgreSQL.
func each(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Run("sqlite", func(t *testing.T) { test(t, newFixture(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, open(t, testkit.PostgresURL(t))) })
}

// restart opens the catalogue anew on the same database.
func (f *fixture) restart() {
	f.Helper()
	c, err := catalog.New(f.ctx, catalog.Deps{DB: f.db, Box: f.box, Redactor: f.redactor, Reserved: []string{"host"}, Now: f.tick})
	f.ok(err)
	f.c = c
}

func (f *fixture) exec(query string, args ...any) {
	f.Helper()
	_, err := f.db.Write.ExecContext(f.ctx, query, args...)
	f.ok(err)
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// refused checks class and reason of an error.
func (f *fixture) refused(err error, class fault.Class, reason string) {
	f.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Class != class || e.Reason != reason {
		f.Errorf("got %v, want %s %s", err, class, reason)
	}
}

func (f *fixture) register(name string) catalog.Server {
	f.Helper()
	s, err := f.c.Register(f.ctx, ws, catalog.Spec{Name: name, Transport: "stdio", Command: "srv"}, admin)
	f.ok(err)
	return s
}

func def(name, description string) string {
	return fmt.Sprintf(`{"name":%s,"description":%s,"inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}}`, mcp.Quote(name), mcp.Quote(description))
}

func listing(defs ...string) mcp.Listing {
	l := mcp.Listing{Complete: true}
	for _, d := range defs {
		l.Tools = append(l.Tools, json.RawMessage(d))
	}
	return l
}

func (f *fixture) list(s catalog.Server, defs ...string) catalog.Scan {
	f.Helper()
	return f.apply(s, listing(defs...))
}

func (f *fixture) apply(s catalog.Server, l mcp.Listing) catalog.Scan {
	f.Helper()
	scan, err := f.c.ApplyListing(f.ctx, s.ID, l)
	f.ok(err)
	return scan
}

// tool gives a tool as REST shows it.
func (f *fixture) tool(s catalog.Server, name string) catalog.ToolInfo {
	f.Helper()
	ts, err := f.c.Tools(f.ctx, ws, s.ID)
	f.ok(err)
	for _, t := range ts {
		if t.Name == name {
			return t
		}
	}
	f.Fatalf("no tool %s in %+v", name, ts)
	return catalog.ToolInfo{}
}

// approve makes a server ACTIVE with the given tools: name, action, …
func (f *fixture) approve(s catalog.Server, choices ...string) catalog.Server {
	f.Helper()
	var cs []catalog.Choice
	for i := 0; i < len(choices); i += 2 {
		cs = append(cs, catalog.Choice{ToolID: f.tool(s, choices[i]).ID, Action: choices[i+1]})
	}
	s, err := f.c.Approve(f.ctx, ws, s.ID, "", cs, admin)
	f.ok(err)
	return s
}

// decide is the decision about a call of a tool by agent-1, from the snapshot.
func (f *fixture) decide(s catalog.Server, name string) policy.Verdict {
	f.Helper()
	facts := policy.Facts{AgentID: "agent-1", AgentState: "ACTIVE", Granted: true}
	snapshot := f.c.Snapshot()
	t := snapshot.Servers[s.ID].Tool(name)
	if t == nil {
		return policy.Verdict{Action: policy.Deny, Reason: "NO_SUCH_TOOL"}
	}
	snapshot.Facts(t, "agent-1", &facts)
	return policy.Decide(&facts)
}

// expect compares decisions: name, "ACTION REASON", …
func (f *fixture) expect(s catalog.Server, pairs ...string) {
	f.Helper()
	for i := 0; i < len(pairs); i += 2 {
		v := f.decide(s, pairs[i])
		got := v.Action.String() + " " + v.Reason
		if got != pairs[i+1] {
			f.Errorf("%s: got %s, want %s", pairs[i], got, pairs[i+1])
		}
	}
}

func TestWorkspacesAreApart(t *testing.T) {
	f := newFixture(t)
	s := f.register("fs")
	f.list(s, def("read_x", "Reads"))
	tool := f.tool(s, "read_x").ID
	_, errGet := f.c.Get(f.ctx, other, s.ID)
	_, errName := f.c.Get(f.ctx, other, "fs")
	_, errTools := f.c.Tools(f.ctx, other, s.ID)
	_, errMasked := f.c.Masked(f.ctx, other, s.ID)
	_, errApprove := f.c.Approve(f.ctx, other, s.ID, "", nil, admin)
	_, errAdmit := f.c.Admit(f.ctx, other, s.ID, tool, "ALLOW", "x", admin)
	_, errVerdict := f.c.Verdict(f.ctx, other, s.ID, tool, "DENY", "", false, admin)
	_, errPause := f.c.Pause(f.ctx, other, s.ID, admin)
	_, errUpdate := f.c.Update(f.ctx, other, s.ID, catalog.Spec{Name: "x", Command: "y"}, admin)
	_, errTool := f.c.CreatePolicy(f.ctx, other, catalog.Policy{ToolID: tool, Action: "DENY"}, admin)
	_, errAgent := f.c.CreatePolicy(f.ctx, ws, catalog.Policy{AgentID: "agent-2", Action: "DENY"}, admin)
	for i, err := range []error{errGet, errName, errTools, errMasked, errApprove, errAdmit, errVerdict, errPause, errUpdate, errTool, errAgent,
		f.c.Remove(f.ctx, other, s.ID), f.c.DeletePolicy(f.ctx, other, "none")} {
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("%d: got %v, want not found", i, err)
		}
	}
	if list, err := f.c.List(f.ctx, other); err != nil || len(list) != 0 {
		t.Errorf("list of the other workspace: %v %v", list, err)
	}
	if v := f.c.Snapshot().ServerByName(other, s.ID); v != nil {
		t.Error("the other workspace finds the server by id")
	}
	// The same name may be used there.
	_, err := f.c.Register(f.ctx, other, catalog.Spec{Name: "fs", Command: "srv"}, admin)
	f.ok(err)
}

func TestOnChange(t *testing.T) {
	f := newFixture(t)
	var revisions []int64
	f.c.OnChange(func(s *catalog.Snapshot) {
		revisions = append(revisions, s.Revision)
		if len(s.Servers) == 1 { // a listener may change the catalogue
			if _, err := f.c.Register(f.ctx, ws, catalog.Spec{Name: "second", Command: "x"}, admin); err != nil {
				t.Error(err)
			}
		}
	})
	f.register("first")
	if len(f.c.Snapshot().Servers) != 2 || len(revisions) != 2 || revisions[1] <= revisions[0] {
		t.Errorf("told %v, servers %d", revisions, len(f.c.Snapshot().Servers))
	}
	f.ok(f.c.Reload(f.ctx))
	if len(revisions) != 2 {
		t.Error("told without a change")
	}
	// Another process changes the database.
	f.ok(f.db.Tx(f.ctx, func(tx *sql.Tx) error {
		if _, err := tx.Exec(`UPDATE server SET state = 'BLOCKED'`); err != nil {
			return err
		}
		return f.db.Changed(f.ctx, tx)
	}))
	f.ok(f.c.Reload(f.ctx))
	if f.c.Snapshot().ServerByName(ws, "first").State != "BLOCKED" || len(revisions) != 3 {
		t.Error("the change of another process was not loaded")
	}
}

func contains(t testing.TB, where string, text any, marks ...string) {
	t.Helper()
	b, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range marks {
		if strings.Contains(string(b), m) {
			t.Errorf("%s shows %s: %s", where, m, b)
		}
	}
}
