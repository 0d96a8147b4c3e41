package gate_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/upstream"
)

// The tools of the fake server, by what their names and annotations say.
const (
	readDef  = `{"name":"read_note","description":"Reads a note.","inputSchema":{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"integer"}}},"annotations":{"readOnlyHint":true}}`
	writeDef = `{"name":"write_note","description":"Writes a note.","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"},"m":{"type":"integer"}},"required":["text"]}}`
)

// fake is a server inside the test. It counts what it is asked to do.
type fake struct {
	mu   sync.Mutex
	defs []json.RawMessage
	runs map[string]int
	args []string
	do   func(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error)
}

func (f *fake) Tools() []json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.defs
}

func (f *fake) CallTool(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	f.mu.Lock()
	f.runs[name]++
	f.args = append(f.args, string(args))
	do := f.do
	f.mu.Unlock()
	if do != nil {
		return do(ctx, name, args)
	}
	return json.RawMessage(`{"content":[{"type":"text","text":"done"}],  "x":1e0,"resultType":"complete"}`), nil
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[name]
}

func (f *fake) behave(do func(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do = do
}

// world is a database with a server "notes", one agent that may all, and an owner.
type world struct {
	t        testing.TB
	ctx      context.Context
	db       *db.DB
	redactor *secret.Redactor
	clock    atomic.Int64 // unix microseconds
	fake     *fake
	audit    *audit.Log
	endAudit func()
	replica
	secrets []string // of the confirmation
	text    string   // the argument of write_note, as TestEveryPairOfStages calls it
	server  catalog.Server
	tools   map[string]string // name -> tool id
	agent   *auth.Caller
	owner   *auth.Caller
}

// replica is one process on the database.
type replica struct {
	auth    *auth.Auth
	catalog *catalog.Catalog
	pool    *upstream.Pool
	gate    *gate.Gate
}

func (w *world) now() time.Time { return time.UnixMicro(w.clock.Load()) }

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t testing.TB) *world { return newWorldOn(t, testkit.Database(t)) }

// newWorldOn makes the world in the database of a URL, empty for SQLite.
func newWorldOn(t testing.TB, url string) *world {
	w := &world{t: t, ctx: t.Context(), redactor: &secret.Redactor{}, tools: map[string]string{}, secrets: []string{confirmSecret}, text: `"x"`}
	w.clock.Store(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC).UnixMicro())
	dir := t.TempDir()
	w.db = must[*db.DB](t)(db.Open(w.ctx, url, dir))
	t.Cleanup(func() { w.db.Close() })
	w.fake = &fake{runs: map[string]int{}, defs: []json.RawMessage{json.RawMessage(readDef), json.RawMessage(writeDef)}}
	w.startAudit()
	box := must[*secret.Box](t)(secret.OpenBox(filepath.Join(dir, "key")))
	w.replica = w.newReplica(box)
	_, adminKey, agentKey, err := w.auth.Bootstrap(w.ctx, "", "")
	ok(t, err)
	w.reload()
	w.owner = must[*auth.Caller](t)(w.auth.Authenticate(adminKey))
	w.agent = must[*auth.Caller](t)(w.auth.Authenticate(agentKey))
	w.server = w.addServer("notes", w.fake)
	w.approve(w.server, map[string]string{"read_note": "ALLOW", "write_note": "REQUIRE_APPROVAL"})
	return w
}

func (w *world) startAudit() {
	var err error
	w.audit, err = audit.New(w.ctx, audit.Options{DB: w.db, Redactor: w.redactor, Now: w.now})
	ok(w.t, err)
	w.endAudit = w.run(w.audit.Run)
}

// run starts an owner and returns what ends it and waits for it.
func (w *world) run(fn func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(end)
	return end
}

func (w *world) newReplica(box *secret.Box) replica {
	t := w.t
	r := replica{
		auth:    must[*auth.Auth](t)(auth.New(w.ctx, w.db, w.now)),
		catalog: must[*catalog.Catalog](t)(catalog.New(w.ctx, catalog.Deps{DB: w.db, Box: box, Redactor: w.redactor, Now: w.now})),
		pool:    upstream.New(upstream.Deps{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}),
	}
	w.run(r.pool.Run)
	r.gate = must[*gate.Gate](t)(gate.New(gate.Deps{
		DB: w.db, Auth: r.auth, Catalog: r.catalog, Upstream: r.pool, Audit: w.audit, Redactor: w.redactor, Now: w.now,
		PublicURL: "https://door.example", ConfirmationSecrets: w.secrets,
	}))
	r.gate.Hurry(5*time.Millisecond, 5*time.Millisecond, 5*time.Millisecond)
	return r
}

// second makes another process on the same database. It shares the fake server.
func (w *world) second() *world {
	box := must[*secret.Box](w.t)(secret.OpenBox(filepath.Join(w.t.TempDir(), "key")))
	o := &world{
		t: w.t, ctx: w.ctx, db: w.db, redactor: w.redactor, fake: w.fake, audit: w.audit, server: w.server,
		tools: w.tools, agent: w.agent, owner: w.owner, secrets: w.secrets,
	}
	o.clock.Store(w.clock.Load())
	o.replica = o.newReplica(box)
	o.connect(upstream.Config{ID: w.server.ID, Name: w.server.Name, Transport: "builtin", Builtin: w.fake})
	return o
}

func (w *world) reload() {
	ok(w.t, w.auth.Reload(w.ctx))
	ok(w.t, w.catalog.Reload(w.ctx))
}

func (w *world) connect(cfgs ...upstream.Config) {
	w.pool.Apply(cfgs)
	for _, c := range cfgs {
		w.eventually("server "+c.Name+" is up", func() bool {
			s, found := w.pool.Status(c.ID)
			return found && s.Health == upstream.Up
		})
	}
}

func (w *world) eventually(what string, fn func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !fn(); {
		if time.Now().After(end) {
			w.t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

// addServer registers a builtin server and lists it, admitting nothing.
func (w *world) addServer(name string, f *fake) catalog.Server {
	w.t.Helper()
	s := must[catalog.Server](w.t)(w.catalog.Register(w.ctx, w.owner.WorkspaceID,
		catalog.Spec{Name: name, Transport: "builtin", Origin: "builtin"}, "owner"))
	w.list(s, f.Tools()...)
	if name == "notes" {
		w.connect(upstream.Config{ID: s.ID, Name: name, Transport: "builtin", Builtin: f})
	}
	return s
}

func (w *world) list(s catalog.Server, defs ...json.RawMessage) {
	w.t.Helper()
	must[catalog.Scan](w.t)(w.catalog.ApplyListing(w.ctx, s.ID, mcp.Listing{Tools: defs, Complete: true}))
	w.reload()
	for _, info := range must[[]catalog.ToolInfo](w.t)(w.catalog.Tools(w.ctx, w.owner.WorkspaceID, s.ID)) {
		w.tools[s.Name+"/"+info.Name] = info.ID
	}
}

func (w *world) approve(s catalog.Server, rules map[string]string) {
	w.t.Helper()
	var choices []catalog.Choice
	for name, action := range rules {
		choices = append(choices, catalog.Choice{ToolID: w.tools[s.Name+"/"+name], Action: action})
	}
	s = must[catalog.Server](w.t)(w.catalog.Get(w.ctx, w.owner.WorkspaceID, s.ID))
	must[catalog.Server](w.t)(w.catalog.Approve(w.ctx, w.owner.WorkspaceID, s.ID, s.ScanID, choices, "owner"))
	w.reload()
}

// rule sets the server-wide rule of a tool of notes.
func (w *world) rule(tool, action string) {
	w.t.Helper()
	must[catalog.ToolInfo](w.t)(w.catalog.Verdict(w.ctx, w.owner.WorkspaceID, w.server.ID, w.tools["notes/"+tool], action, "", true, "owner"))
	w.reload()
}

// newAgent makes an agent with an allowlist.
func (w *world) newAgent(name string, allow ...string) *auth.Caller {
	w.t.Helper()
	in := auth.Agent{Name: name, State: "ACTIVE"}
	for _, s := range allow {
		in.Allowlist = append(in.Allowlist, must[auth.Pattern](w.t)(auth.ParsePattern(s)))
	}
	a := must[*auth.Agent](w.t)(w.auth.CreateAgent(w.ctx, w.owner.WorkspaceID, in))
	w.reload()
	if a.State != "ACTIVE" {
		must[*auth.Agent](w.t)(w.auth.SetAgentState(w.ctx, w.owner.WorkspaceID, a.ID, "ACTIVE"))
	}
	key, _, err := w.auth.CreateKey(w.ctx, w.owner.WorkspaceID, a.ID, "", "k", 0)
	ok(w.t, err)
	w.reload()
	return must[*auth.Caller](w.t)(w.auth.Authenticate(key))
}

// newPerson makes a person and gives the caller of its key.
func (w *world) newPerson(name string, role auth.Role) *auth.Caller {
	w.t.Helper()
	p := must[auth.Person](w.t)(w.auth.CreatePerson(w.ctx, w.owner.WorkspaceID, name, role))
	key, _, err := w.auth.CreateKey(w.ctx, w.owner.WorkspaceID, "", p.ID, "k", 0)
	ok(w.t, err)
	w.reload()
	return must[*auth.Caller](w.t)(w.auth.Authenticate(key))
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	ok(w.t, w.db.TxChange(w.ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(w.ctx, query, args...)
		return err
	}))
	w.reload()
}

// call makes a call as a door would.
func (w *world) call(c *auth.Caller, name, args string) (gate.Result, *fault.Error) {
	w.t.Helper()
	return w.do(w.ctx, newCall(c, name, args))
}

func newCall(c *auth.Caller, name, args string) *gate.Call {
	params := []byte(`{"name":` + string(mcp.Quote(name)) + `}`)
	if args != "" {
		params = mcp.Set(params, "arguments", []byte(args))
	}
	return &gate.Call{Caller: c, Door: "mcp", Method: "tools/call", Name: name, Params: params, Arguments: json.RawMessage(args)}
}

func (w *world) do(ctx context.Context, c *gate.Call) (gate.Result, *fault.Error) {
	w.t.Helper()
	r, err := w.gate.Call(ctx, c)
	return r, asFault(w.t, err)
}

func asFault(t testing.TB, err error) *fault.Error {
	t.Helper()
	if err == nil {
		return nil
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Fatalf("not a *fault.Error: %#v", err)
	}
	return f
}

// rows gives the rows of a trace, oldest first.
func (w *world) rows(trace string) []audit.Event {
	w.t.Helper()
	list := must[[]audit.Event](w.t)(audit.List(w.ctx, w.db, audit.Filter{TraceID: trace}))
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// row gives the outcome row of a trace.
func (w *world) row(trace string) audit.Event {
	w.t.Helper()
	list := w.rows(trace)
	if len(list) == 0 {
		w.t.Fatalf("trace %s left no row", trace)
	}
	return list[len(list)-1]
}

// refused checks a refusal: its class and reason for the caller, and stage and reason in the record.
func (w *world) refused(r gate.Result, f *fault.Error, class fault.Class, reason, stage, recorded string) audit.Event {
	w.t.Helper()
	if f == nil {
		w.t.Fatalf("the call ran: %s", r.Raw)
	}
	if f.Class != class || f.Reason != reason || f.Data["reason"] != reason || f.Data["trace_id"] != r.TraceID {
		w.t.Fatalf("got %s %s %v (%s), want %s %s", f.Class, f.Reason, f.Data, f.Message, class, reason)
	}
	row := w.row(r.TraceID)
	if row.Stage != stage || row.Reason != recorded {
		w.t.Fatalf("the record says stage %s reason %s status %s, want %s %s", row.Stage, row.Reason, row.Status, stage, recorded)
	}
	return row
}
