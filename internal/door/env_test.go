package door_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/upstream"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server inside the test that counts what reaches it.
type fake struct {
	defs []json.RawMessage
	mu   sync.Mutex
	runs int
	args []string
	do   func(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error)
}

func (f *fake) Tools() []json.RawMessage { return f.defs }

func (f *fake) CallTool(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	f.mu.Lock()
	f.runs++
	f.args = append(f.args, string(args))
	do := f.do
	f.mu.Unlock()
	if do != nil {
		return do(ctx, name, args)
	}
	return json.RawMessage(`{"content":[{"type":"text","text":"` + name + `"}],"big":9007199254740993,"f":1.0}`), nil
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs
}

// world is a door on a real gate, catalogue, record and database.
type world struct {
	t        testing.TB
	ctx      context.Context
	db       *db.DB
	auth     *auth.Auth
	catalog  *catalog.Catalog
	pool     *upstream.Pool
	gate     *gate.Gate
	door     *door.Door
	deps     door.Deps
	redactor *secret.Redactor
	url      string // of the door
	openURL  string // of the listener without keys
	agentKey string
	adminKey string
	owner    *auth.Caller
	configs  []upstream.Config
	stopDoor func()
	later    atomic.Int64 // how far the clock of the gate is ahead
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.later.Load())) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newWorld(t testing.TB, change ...func(*door.Deps)) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), redactor: &secret.Redactor{}}
	dir := t.TempDir()
	w.db = must(db.Open(w.ctx, testkit.Database(t), dir))(t)
	t.Cleanup(func() { w.db.Close() })
	box := must(secret.OpenBox(filepath.Join(dir, "key")))(t)
	log := must(audit.New(w.ctx, audit.Options{DB: w.db, Redactor: w.redactor, Now: time.Now}))(t)
	w.run(log.Run)
	w.auth = must(auth.New(w.ctx, w.db, time.Now))(t)
	var err error
	_, w.adminKey, w.agentKey, err = w.auth.Bootstrap(w.ctx, "", "")
	ok(t, err)
	ok(t, w.auth.Reload(w.ctx))
	w.owner = must(w.auth.Authenticate(w.adminKey))(t)
	w.catalog = must(catalog.New(w.ctx, catalog.Deps{DB: w.db, Box: box, Redactor: w.redactor, Now: time.Now}))(t)
	w.pool = upstream.New(upstream.Deps{
		OnListing: func(ctx context.Context, id string, l mcp.Listing) {
			w.catalog.ApplyListing(ctx, id, l)
			w.catalog.Reload(ctx)
		},
		OnChanged: func(id, method string, params json.RawMessage) { w.door.Changed(id, method, params) },
	})
	w.gate = must(gate.New(gate.Deps{DB: w.db, Auth: w.auth, Catalog: w.catalog, Upstream: w.pool, Audit: log, Redactor: w.redactor,
		PublicURL: "https://door.example", StateKey: box.Key("request state"), Now: w.now}))(t)
	w.deps = door.Deps{
		Auth: w.auth, Catalog: w.catalog, Gate: w.gate, Upstream: w.pool, Audit: log, DB: w.db, Redactor: w.redactor,
		Box: box, Version: "1.2.3",
	}
	for _, fn := range change {
		fn(&w.deps)
	}
	w.door = must(door.New(w.deps))(t)
	w.run(w.pool.Run)
	w.stopDoor = w.run(w.door.Run)
	w.url = w.serve(w.door.Handler())
	w.openURL = w.serve(w.door.OpenHandler("default"))
	return w
}

func (w *world) serve(h http.Handler) string {
	s := httptest.NewServer(h)
	w.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
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

func (w *world) eventually(what string, fn func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !fn(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("never: " + what)
		}
	}
}

// add registers a server, waits for its first list and allows all of its tools.
func (w *world) add(name string, cfg upstream.Config) catalog.Server {
	w.t.Helper()
	ws := w.owner.WorkspaceID
	spec := catalog.Spec{Name: name, Transport: cfg.Transport, URL: cfg.URL}
	if cfg.Transport == "builtin" {
		spec.Origin = "builtin"
	}
	s := must(w.catalog.Register(w.ctx, ws, spec, "owner"))(w.t)
	cfg.ID, cfg.Name, cfg.Revision = s.ID, name, "1"
	w.configs = append(w.configs, cfg)
	must(w.catalog.ApplyListing(w.ctx, s.ID, w.pool.Scan(w.ctx, cfg)))(w.t)
	ok(w.t, w.catalog.Reload(w.ctx))
	w.approveAll(s.ID)
	w.pool.Apply(w.configs)
	w.eventually(name+" is up", func() bool {
		st, found := w.pool.Status(s.ID)
		return found && st.Health == upstream.Up
	})
	return must(w.catalog.Get(w.ctx, ws, s.ID))(w.t)
}

func (w *world) approveAll(id string) {
	w.t.Helper()
	ws := w.owner.WorkspaceID
	var choices []catalog.Choice
	for _, tool := range must(w.catalog.Tools(w.ctx, ws, id))(w.t) {
		choices = append(choices, catalog.Choice{ToolID: tool.ID, Action: "ALLOW"})
	}
	s := must(w.catalog.Get(w.ctx, ws, id))(w.t)
	must(w.catalog.Approve(w.ctx, ws, id, s.ScanID, choices, "owner"))(w.t)
	ok(w.t, w.catalog.Reload(w.ctx))
}

func (w *world) addFake(name string, f *fake) catalog.Server {
	w.t.Helper()
	return w.add(name, upstream.Config{Transport: "builtin", Builtin: f})
}

// rule sets the server-wide rule of a tool.
func (w *world) rule(serverID, tool, action string) {
	w.t.Helper()
	ws := w.owner.WorkspaceID
	for _, info := range must(w.catalog.Tools(w.ctx, ws, serverID))(w.t) {
		if info.Name == tool {
			must(w.catalog.Verdict(w.ctx, ws, serverID, info.ID, action, "", true, "owner"))(w.t)
			ok(w.t, w.catalog.Reload(w.ctx))
			return
		}
	}
	w.t.Fatalf("no tool %s", tool)
}

// key makes an agent with an allowlist and a key for it.
func (w *world) key(name string, allow ...string) string {
	w.t.Helper()
	in := auth.Agent{Name: name, State: "ACTIVE"}
	for _, s := range allow {
		in.Allowlist = append(in.Allowlist, must(auth.ParsePattern(s))(w.t))
	}
	a := must(w.auth.CreateAgent(w.ctx, w.owner.WorkspaceID, in))(w.t)
	if a.State != "ACTIVE" {
		a = must(w.auth.SetAgentState(w.ctx, w.owner.WorkspaceID, a.ID, "ACTIVE"))(w.t)
	}
	key, _, err := w.auth.CreateKey(w.ctx, w.owner.WorkspaceID, a.ID, "", name, 0)
	ok(w.t, err)
	ok(w.t, w.auth.Reload(w.ctx))
	return key
}

// wire is a raw client: it sees every byte.
type wire struct {
	t       testing.TB
	url     string
	header  http.Header
	session string
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (w *world) wire(path string) *wire {
	c := &wire{t: w.t, url: w.url + path, header: http.Header{}}
	c.header.Set("Authorization", "Bearer "+w.agentKey)
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Accept", "application/json, text/event-stream")
	return c
}

// with gives a client with other headers; an empty value takes one away.
func (c *wire) with(kv ...string) *wire {
	out := *c
	out.header = c.header.Clone()
	for i := 0; i < len(kv); i += 2 {
		out.header.Del(kv[i])
		if kv[i+1] != "" {
			out.header[http.CanonicalHeaderKey(kv[i])] = []string{kv[i+1]}
		}
	}
	return &out
}

func (c *wire) do(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url, body)
	ok(c.t, err)
	req.Header = c.header.Clone()
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
		req.Header.Del("Host")
	}
	return http.DefaultClient.Do(req)
}

func (c *wire) send(method, body string) answer {
	c.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	res, err := c.do(c.t.Context(), method, r)
	ok(c.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	ok(c.t, err)
	return answer{res.StatusCode, res.Header, string(b)}
}

func (c *wire) post(body string) answer { c.t.Helper(); return c.send(http.MethodPost, body) }

// open initializes a session of a revision.
func (c *wire) open(version, caps string) *wire {
	c.t.Helper()
	a := c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":` + caps + `,"clientInfo":{"name":"t","version":"1"}}}`)
	if a.status != http.StatusOK || a.header.Get("Mcp-Session-Id") == "" {
		c.t.Fatalf("initialize: %d %s", a.status, a.body)
	}
	out := *c
	out.session = a.header.Get("Mcp-Session-Id")
	return &out
}

// modern sends a request of 2026-07-28; params is an object without _meta.
func (c *wire) modern(id, method, params string, kv ...string) answer {
	c.t.Helper()
	p, name := modernParams(params)
	h := append([]string{"Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", method, "Mcp-Name", name}, kv...)
	return c.with(h...).post(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + p + `}`)
}

const modernMetaText = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

func modernParams(params string) (p, name string) {
	p = string(mcp.Set([]byte(params), "_meta", []byte(modernMetaText)))
	for _, k := range []string{"name", "uri"} {
		if v, found := mcp.String(mcp.Get([]byte(params), k)); found {
			name = v
		}
	}
	return p, name
}

// stream opens a stream and gives its messages; comments come as "".
func (c *wire) stream(ctx context.Context, method, body string) (<-chan string, *http.Response) {
	c.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	res, err := c.do(ctx, method, r)
	ok(c.t, err)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		c.t.Fatalf("no stream: %d %s", res.StatusCode, b)
	}
	out := make(chan string, 64)
	go func() {
		defer close(out)
		defer res.Body.Close()
		er := mcp.NewEventReader(res.Body, 0)
		for {
			ev, err := er.Next()
			if err != nil {
				return
			}
			out <- string(ev.Data)
		}
	}()
	return out, res
}

// next waits for the next message of a stream.
func next(t testing.TB, ch <-chan string) string {
	t.Helper()
	select {
	case m, open := <-ch:
		if !open {
			t.Fatal("the stream has ended")
		}
		return m
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
	}
	return ""
}

// golden compares with testdata/name; -update writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		ok(t, os.MkdirAll("testdata", 0o755))
		ok(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	ok(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update writes it anew):\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

func def(name string) json.RawMessage {
	return json.RawMessage(`{"name":"` + name + `","description":"Says ` + name + `.",  "inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}},"annotations":{"readOnlyHint":true},"x-unknown":{"keep":1e0}}`)
}
