package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// fakeHTTP is a small streamable HTTP server of 2025-11-25 with sessions.
type fakeHTTP struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	sessions map[string]json.RawMessage // capabilities by session
	inits    int
	deleted  []string
	headers  []http.Header
	waiting  map[string]chan json.RawMessage // answers to requests of the server, by session and id
	streams  map[string]chan string          // events for the GET stream of a session

	list func(cursor string) string // result of tools/list
	tool func(f *fakeHTTP, w http.ResponseWriter, r *http.Request, m mcp.Message) bool
}

func newFakeHTTP(t *testing.T) *fakeHTTP {
	f := &fakeHTTP{t: t, sessions: map[string]json.RawMessage{}, waiting: map[string]chan json.RawMessage{}, streams: map[string]chan string{}}
	f.list = func(string) string { return `{"tools":[` + tools2 + `]}` }
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeHTTP) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.sessions)
}

func (f *fakeHTTP) count() (sessions, inits int, deleted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions), f.inits, len(f.deleted)
}

func (f *fakeHTTP) stream(session string) chan string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[session] == nil {
		f.streams[session] = make(chan string, 10)
	}
	return f.streams[session]
}

func (f *fakeHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	f.mu.Lock()
	f.headers = append(f.headers, r.Header.Clone())
	_, known := f.sessions[session]
	f.mu.Unlock()
	if session != "" && !known {
		http.Error(w, "Session not found", 404)
		return
	}
	switch r.Method {
	case http.MethodDelete:
		f.mu.Lock()
		delete(f.sessions, session)
		f.deleted = append(f.deleted, session)
		f.mu.Unlock()
		return
	case http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case ev := <-f.stream(session):
				fmt.Fprintf(w, "data: %s\n\n", ev)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	b, _ := io.ReadAll(r.Body)
	m, err := mcp.Parse(b, mcp.Limits{})
	if err != nil {
		f.t.Errorf("the client sent %s: %v", b, err)
	}
	switch {
	case m.IsResponse():
		f.mu.Lock()
		ch := f.waiting[session+string(m.ID)]
		f.mu.Unlock()
		ch <- append(m.Result, m.Error...)
		w.WriteHeader(202)
	case m.ID == nil:
		w.WriteHeader(202)
	case m.Method == "initialize":
		f.mu.Lock()
		f.inits++
		id := fmt.Sprint("session-", f.inits)
		f.sessions[id] = mcp.Get(m.Params, "capabilities")
		f.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", id)
		f.answer(w, m, `{"protocolVersion":`+string(mcp.Get(m.Params, "protocolVersion"))+`,"capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`)
	case session == "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}`)
	case m.Method == "tools/list":
		cursor, _ := mcp.String(mcp.Get(m.Params, "cursor"))
		if l := f.list(cursor); l != "" {
			f.answer(w, m, l)
			return
		}
		w.WriteHeader(500)
	case m.Method == "tools/call" && f.tool != nil && f.tool(f, w, r, m):
	case m.Method == "tools/call" || m.Method == "resources/read":
		f.answer(w, m, `{"content":[],"session":"`+session+`","params":`+string(m.Params)+`}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.AppendError(nil, m.ID, json.RawMessage(`{"code":-32601,"message":"no"}`)))
	}
}

func (f *fakeHTTP) answer(w http.ResponseWriter, m mcp.Message, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(mcp.AppendResult(nil, m.ID, json.RawMessage(result)))
}

// ask sends a request within a call and waits for the answer.
func (f *fakeHTTP) ask(w http.ResponseWriter, session, id, method string) json.RawMessage {
	ch := make(chan json.RawMessage, 1)
	f.mu.Lock()
	f.waiting[session+id] = ch
	f.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"%s\",\"params\":{}}\n\n", id, method)
	w.(http.Flusher).Flush()
	return <-ch
}

// Case 3.
func TestPages(t *testing.T) {
	page := func(names, next string) string {
		var defs []string
		for _, n := range strings.Fields(names) {
			defs = append(defs, `{"name":"`+n+`"}`)
		}
		out := `{"tools":[` + strings.Join(defs, ",") + `]`
		if next != "" {
			out += `,"nextCursor":"` + next + `"`
		}
		return out + `}`
	}
	for name, tt := range map[string]struct {
		list     func(cursor string) string
		tools    int
		complete bool
		health   upstream.Health
	}{
		"three pages": {func(c string) string {
			return map[string]string{"": page("a b", "2"), "2": page("c d", "3"), "3": page("e f", "")}[c]
		}, 6, true, upstream.Up},
		"one cursor for ever":  {func(string) string { return page("a b", "x") }, 4, false, upstream.Degraded},
		"new cursors for ever": {func(c string) string { return page("a", c+"x") }, 1000, false, upstream.Degraded},
		"page two fails":       {func(c string) string { return map[string]string{"": page("a b", "2")}[c] }, 2, false, upstream.Degraded},
		"page one fails":       {func(string) string { return "" }, 0, false, upstream.Degraded},
		"no list":              {func(string) string { return "{}" }, 0, false, upstream.Degraded},
		"no tools":             {func(string) string { return `{"tools":[]}` }, 0, true, upstream.Up},
		"empty cursor":         {func(string) string { return `{"tools":[{"name":"a"}],"nextCursor":""}` }, 1, true, upstream.Up},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHTTP(t)
			f.list = tt.list
			p, ev := newPool(t, nil)
			p.Apply([]upstream.Config{httpServer("h", f.URL)})
			st := up(t, p, "h")
			l := ev.last("h")
			if len(l.Tools) != tt.tools || l.Complete != tt.complete || (l.Err == nil) != tt.complete || st.Health != tt.health {
				t.Errorf("%d tools, complete %v, err %v, health %s", len(l.Tools), l.Complete, l.Err, st.Health)
			}
			if tt.health == upstream.Degraded && st.LastError == "" {
				t.Error("no reason is given")
			}
		})
	}
}

// Case 12.
func TestLostSessionIsOpenedOnceForAll(t *testing.T) {
	f := newFakeHTTP(t)
	var runs atomic.Int32
	f.tool = func(*fakeHTTP, http.ResponseWriter, *http.Request, mcp.Message) bool { runs.Add(1); return false }
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	c := legacyClient("client")
	if _, err := p.Do(t.Context(), callTool("h", "echo", c)); err != nil {
		t.Fatal(err)
	}
	_, before, _ := f.count()
	f.forget()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := p.Do(t.Context(), callTool("h", "echo", c)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := runs.Load(); n != 21 {
		t.Errorf("the tool ran %d times, want 21", n)
	}
	// One for the client's session; the shared one is opened again when the list is read.
	eventually(t, "the shared session is back", func() bool { n, _, _ := f.count(); return n == 2 })
	if _, after, _ := f.count(); after-before != 2 {
		t.Errorf("%d handshakes, want 2", after-before)
	}
}

func TestSessionThatIsAlwaysLostGivesUp(t *testing.T) {
	f := newFakeHTTP(t)
	f.tool = func(f *fakeHTTP, w http.ResponseWriter, _ *http.Request, m mcp.Message) bool {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.AppendError(nil, m.ID, json.RawMessage(`{"code":-32600,"message":"Session not found"}`)))
		return true
	}
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	_, err := p.Do(t.Context(), callTool("h", "echo", legacyClient("a")))
	wantClass(t, err, fault.UpstreamError)
}

func TestSessionPerClientAndItsEnd(t *testing.T) {
	f := newFakeHTTP(t)
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	session := func(c *upstream.Client) string {
		r, err := p.Do(t.Context(), callTool("h", "echo", c))
		if err != nil {
			t.Fatal(err)
		}
		s, _ := mcp.String(mcp.Get(r, "session"))
		return s
	}
	a, b, shared := session(legacyClient("a")), session(legacyClient("b")), session(legacyClient(""))
	if a == b || a == shared || b == shared || session(legacyClient("a")) != a {
		t.Errorf("sessions %s, %s, %s", a, b, shared)
	}
	f.mu.Lock()
	if string(f.sessions[a]) != `{"elicitation":{}}` || string(f.sessions[shared]) != `{}` {
		t.Errorf("declared %s and %s", f.sessions[a], f.sessions[shared])
	}
	f.mu.Unlock()
	p.EndSession("a")
	eventually(t, "the server is told", func() bool { _, _, n := f.count(); return n == 1 })
	if again := session(legacyClient("a")); again == a {
		t.Error("an ended session was used again")
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	f := newFakeHTTP(t)
	p, _ := newPool(t, nil)
	p.SetSessionIdle(time.Millisecond)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	if _, err := p.Do(t.Context(), callTool("h", "echo", legacyClient("a"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session ends", func() bool { n, _, deleted := f.count(); return n == 1 && deleted == 1 })
}

func TestQuestionsReachTheirClient(t *testing.T) {
	f := newFakeHTTP(t)
	f.tool = func(f *fakeHTTP, w http.ResponseWriter, r *http.Request, m mcp.Message) bool {
		// Both sessions ask with one id at once.
		got := f.ask(w, r.Header.Get("Mcp-Session-Id"), "1", "elicitation/create")
		fmt.Fprintf(w, "data: %s\n\n", mcp.AppendResult(nil, m.ID, got))
		return true
	}
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	var both, all sync.WaitGroup
	both.Add(2)
	for _, name := range []string{"a", "b"} {
		c := legacyClient(name)
		c.Ask = func(_ context.Context, method string, _ json.RawMessage) (json.RawMessage, json.RawMessage, error) {
			both.Done()
			both.Wait() // both questions are open now
			return json.RawMessage(`{"from":"` + name + method + `"}`), nil, nil
		}
		all.Go(func() {
			r, err := p.Do(t.Context(), callTool("h", "ask", c))
			if err != nil || string(r) != `{"from":"`+name+`elicitation/create"}` {
				t.Errorf("%s got %s, %v", name, r, err)
			}
		})
	}
	all.Wait()
	// Without a session nobody can be asked.
	c := legacyClient("")
	c.Ask = func(context.Context, string, json.RawMessage) (json.RawMessage, json.RawMessage, error) {
		t.Error("asked")
		return nil, nil, errors.New("no")
	}
	r, err := p.Do(t.Context(), callTool("h", "ask", c))
	if err != nil || string(mcp.Get(r, "code")) != "-32601" {
		t.Errorf("%s, %v", r, err)
	}
}

// Case 14: what the pool sends beside the configured headers is made for this hop.
func TestHeadersOfTheHop(t *testing.T) {
	f := newFakeHTTP(t)
	p, _ := newPool(t, nil)
	cfg := httpServer("h", f.URL)
	cfg.Headers = map[string]string{"Authorization": "Bearer configured"}
	p.Apply([]upstream.Config{cfg})
	up(t, p, "h")
	if _, err := p.Do(t.Context(), callTool("h", "echo", legacyClient("the-clients-own-session"))); err != nil {
		t.Fatal(err)
	}
	p.Apply(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	allowed := map[string]bool{"Accept": true, "Content-Type": true, "Content-Length": true, "User-Agent": true, "Authorization": true,
		"Mcp-Protocol-Version": true, "Mcp-Session-Id": true, "Mcp-Method": true, "Mcp-Name": true}
	for _, h := range f.headers {
		for k, v := range h {
			if !allowed[k] || strings.Contains(strings.Join(v, ""), "the-clients") {
				t.Errorf("header %s: %s", k, v)
			}
		}
		if h.Get("Authorization") != "Bearer configured" || h.Get("User-Agent") != "doorward/1.2.3" {
			t.Errorf("headers %v", h)
		}
	}
}

func TestBrokenAfterTheRequestWasSent(t *testing.T) {
	for _, safe := range []bool{false, true} {
		t.Run(fmt.Sprint("safe=", safe), func(t *testing.T) {
			f := newFakeHTTP(t)
			var runs atomic.Int32
			f.tool = func(_ *fakeHTTP, w http.ResponseWriter, _ *http.Request, _ mcp.Message) bool {
				if runs.Add(1) == 1 {
					panic(http.ErrAbortHandler)
				}
				return false
			}
			p, _ := newPool(t, nil)
			p.Apply([]upstream.Config{httpServer("h", f.URL)})
			up(t, p, "h")
			r := callTool("h", "echo", legacyClient(""))
			r.Safe = safe
			_, err := p.Do(t.Context(), r)
			if safe && (err != nil || runs.Load() != 2) {
				t.Errorf("err = %v after %d runs", err, runs.Load())
			}
			if !safe && (!fault.Is(err, fault.OutcomeUnknown) || runs.Load() != 1) {
				t.Errorf("err = %v after %d runs", err, runs.Load())
			}
		})
	}
}

// Case 16: a tool's failure opens no breaker, a transport that fails does.
func TestBreaker(t *testing.T) {
	f := newFakeHTTP(t)
	var broken atomic.Bool
	f.tool = func(f *fakeHTTP, w http.ResponseWriter, _ *http.Request, m mcp.Message) bool {
		if broken.Load() {
			w.WriteHeader(500)
			return true
		}
		f.answer(w, m, `{"content":[],"isError":true}`)
		return true
	}
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	_, before, _ := f.count()
	for range 20 {
		if _, err := p.Do(t.Context(), callTool("h", "bad", legacyClient(""))); err != nil {
			t.Fatal(err)
		}
	}
	if _, n, _ := f.count(); n != before {
		t.Error("results with isError ended the connection")
	}
	broken.Store(true)
	for range 5 {
		_, err := p.Do(t.Context(), callTool("h", "bad", legacyClient("")))
		wantClass(t, err, fault.UpstreamError)
	}
	eventually(t, "the connection is made anew", func() bool { _, n, _ := f.count(); return n > before })
}

func TestStreamsAndChanges(t *testing.T) {
	f := newFakeHTTP(t)
	p, ev := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	before := ev.count("h")
	f.stream("session-1") <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	f.stream("session-1") <- `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1"}}`
	f.stream("session-1") <- `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`
	eventually(t, "all is told", func() bool {
		return ev.heard("tools/list_changed") && ev.heard(`resources/updated {"uri":"x:1"}`) && ev.heard("prompts/list_changed") && ev.count("h") > before
	})
	// The stream of one client.
	got := make(chan string, 4)
	c := legacyClient("c")
	c.Notify = func(m string, params json.RawMessage) { got <- m }
	c.Ask = func(context.Context, string, json.RawMessage) (json.RawMessage, json.RawMessage, error) {
		return json.RawMessage(`{"roots":[]}`), nil, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Stream(ctx, "h", c, nil) }()
	var id string
	eventually(t, "the client has a session", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for s, caps := range f.sessions {
			if string(caps) != "{}" {
				id = s
			}
		}
		return id != ""
	})
	answers := make(chan json.RawMessage, 1)
	f.mu.Lock()
	f.waiting[id+"5"] = answers
	f.mu.Unlock()
	f.stream(id) <- `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`
	f.stream(id) <- `{"jsonrpc":"2.0","id":5,"method":"roots/list"}`
	if m := <-got; m != "notifications/message" {
		t.Errorf("heard %s", m)
	}
	if a := <-answers; string(a) != `{"roots":[]}` {
		t.Errorf("answered %s", a)
	}
	cancel()
	wantClass(t, <-ended, fault.Cancelled)
	// A modern client has no stream on an old server.
	if err := p.Stream(t.Context(), "h", &upstream.Client{Era: mcp.Modern}, json.RawMessage(`{}`)); err != nil {
		t.Error(err)
	}
}

func TestServerGoesAwayAndComesBack(t *testing.T) {
	f := newFakeHTTP(t)
	var away atomic.Bool
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		if r.Method == http.MethodGet {
			w.WriteHeader(405)
			return
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	p, ev := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", proxy.URL)})
	up(t, p, "h")
	before := ev.count("h")
	away.Store(true)
	eventually(t, "it is down", func() bool { return health(p, "h") == upstream.Down })
	_, err := p.Do(t.Context(), callTool("h", "echo", legacyClient("")))
	if err == nil {
		t.Error("a call to a server that is down went through")
	}
	f.forget()
	away.Store(false)
	eventually(t, "it is up and listed", func() bool { return health(p, "h") == upstream.Up && ev.count("h") > before })
}

// The tool names what the client's era has no words for.
func TestModernClientOfAnOldServer(t *testing.T) {
	f := newFakeHTTP(t)
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{httpServer("h", f.URL)})
	up(t, p, "h")
	c := &upstream.Client{Era: mcp.Modern, Version: mcp.V20260728}
	r, err := p.Do(t.Context(), &upstream.Request{ServerID: "h", Method: "tools/call", Client: c,
		Params: json.RawMessage(`{"name":"echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"mine": 1}}`)})
	want := `{"content":[],"session":"session-1","params":{"name":"echo","_meta":{"mine": 1}},"resultType":"complete"}`
	if err != nil || string(r) != want {
		t.Errorf("%s, %v\nwant %s", r, err, want)
	}
	r, err = p.Do(t.Context(), &upstream.Request{ServerID: "h", Method: "resources/read", Client: c, Params: json.RawMessage(`{"uri":"x:"}`)})
	if err != nil || string(mcp.Get(r, "ttlMs")) != "0" || string(mcp.Get(r, "cacheScope")) != `"private"` {
		t.Errorf("%s, %v", r, err)
	}
}
