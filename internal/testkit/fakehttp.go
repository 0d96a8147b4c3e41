package testkit

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fake is a legacy streamable HTTP server with tools, in the test process. Change it with Set.
type Fake struct {
	URL string

	t        testing.TB
	server   *httptest.Server
	mu       sync.Mutex
	pages    []Page
	onCall   func(name string, args json.RawMessage) (result, rpcErr string)
	sessions map[string]string // id → negotiated revision
	strange  bool              // an unknown session is answered 200 with an error
	requests []Recorded
	streams  map[chan string]bool
	opened   int
	calls    int
	fail     func(method string) bool
	onList   func(cursor string) (tools []string, next string)
	delay    time.Duration
	closed   chan struct{}
}

// Page is one answer to tools/list.
type Page struct {
	Tools []string // definitions
	Next  string   // nextCursor, "" for none
	Fail  bool     // answer with an error
}

// Recorded is a request that reached the fake.
type Recorded struct {
	HTTP   string
	Method string
	Header http.Header
	Body   []byte
}

// ToolDef is a definition with a description; its input takes anything.
func ToolDef(name, description string) string {
	return fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, description)
}

// NewFake starts a fake that offers tools (definitions) and answers every call with its arguments.
func NewFake(t testing.TB, tools ...string) *Fake {
	t.Helper()
	f := &Fake{t: t, sessions: map[string]string{}, streams: map[chan string]bool{}, closed: make(chan struct{})}
	f.pages = []Page{{Tools: tools}}
	f.onCall = func(name string, args json.RawMessage) (string, string) {
		return TextResult(name + " " + string(args)), ""
	}
	f.server = httptest.NewServer(f)
	f.URL = f.server.URL + "/mcp"
	t.Cleanup(func() {
		close(f.closed)
		f.Down()
	})
	return f
}

// Down closes the listener and every connection: the port refuses from now on. Up opens it again.
func (f *Fake) Down() {
	f.server.Listener.Close()
	f.server.CloseClientConnections()
	f.Forget(false)
}

// Up opens the port again after Down.
func (f *Fake) Up() {
	f.t.Helper()
	l, err := net.Listen("tcp", strings.TrimSuffix(strings.TrimPrefix(f.URL, "http://"), "/mcp"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.server = httptest.NewUnstartedServer(f)
	f.server.Listener.Close()
	f.server.Listener = l
	f.server.Start()
}

// Delay lets every request wait before it is answered.
func (f *Fake) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// OnList replaces the pages by a function of the cursor.
func (f *Fake) OnList(fn func(cursor string) (tools []string, next string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onList = fn
}

// Drop is the error object that makes the fake cut the connection instead of answering.
const Drop = "drop"

// TextResult is a result with one block of text.
func TextResult(text string) string {
	b, _ := json.Marshal(text)
	return `{"content":[{"type":"text","text":` + string(b) + `}]}`
}

// Tools replaces the list; it does not announce it.
func (f *Fake) Tools(tools ...string) {
	f.OnList(nil)
	f.Pages(Page{Tools: tools})
}

// Pages replaces the list by several pages. The cursor "x" is answered by the page before it.
func (f *Fake) Pages(pages ...Page) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages = pages
}

// OnCall replaces what a call does: it returns a result or an error object.
func (f *Fake) OnCall(fn func(name string, args json.RawMessage) (result, rpcErr string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onCall = fn
}

// FailHTTP lets requests of a method fail with status 500.
func (f *Fake) FailHTTP(fn func(method string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fn
}

// Forget ends all sessions, as a restart of the server would. With strange, an unknown session is answered with
// status 200 and an error, as some servers do, instead of 404.
func (f *Fake) Forget(strange bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions, f.strange = map[string]string{}, strange
	for s := range f.streams {
		close(s)
	}
	f.streams = map[chan string]bool{}
}

// Announce sends notifications/tools/list_changed on every open stream; false when there is none.
func (f *Fake) Announce() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		select {
		case s <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`:
		default:
		}
	}
	return len(f.streams) > 0
}

// Requests are the requests so far, of one method ("" for all).
func (f *Fake) Requests(method string) []Recorded {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		return slices.Clone(f.requests)
	}
	var out []Recorded
	for _, r := range f.requests {
		if r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

// Calls is how many tools/call ran.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	_ = json.Unmarshal(body, &m)
	f.mu.Lock()
	f.requests = append(f.requests, Recorded{r.Method, m.Method, r.Header.Clone(), body})
	version, known := f.sessions[r.Header.Get("Mcp-Session-Id")]
	strange := f.strange
	fails := f.fail != nil && f.fail(m.Method)
	delay := f.delay
	f.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		case <-f.closed:
			return
		}
	}
	switch {
	case fails:
		http.Error(w, "broken", http.StatusInternalServerError)
	case m.Method == "initialize":
		f.initialize(w, m.ID, m.Params)
	case r.Header.Get("Mcp-Session-Id") == "":
		f.answer(w, http.StatusBadRequest, m.ID, "", `{"code":-32000,"message":"Bad Request: no session"}`)
	case !known && strange:
		f.answer(w, http.StatusOK, m.ID, "", `{"code":-32001,"message":"Session not found"}`)
	case !known:
		f.answer(w, http.StatusNotFound, m.ID, "", `{"code":-32001,"message":"Session not found"}`)
	case r.Header.Get("Mcp-Protocol-Version") != version && version >= "2025-06-18":
		f.answer(w, http.StatusBadRequest, m.ID, "", `{"code":-32000,"message":"Bad Request: not the negotiated version"}`)
	case r.Method == http.MethodGet:
		f.stream(w, r)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		f.serve(w, m.ID, m.Method, m.Params)
	}
}

func (f *Fake) initialize(w http.ResponseWriter, id, params json.RawMessage) {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	_ = json.Unmarshal(params, &p)
	if p.ProtocolVersion > Legacy {
		p.ProtocolVersion = Legacy
	}
	f.mu.Lock()
	f.opened++
	session := fmt.Sprintf("fake-session-%d-%d", f.opened, time.Now().UnixNano())
	f.sessions[session] = p.ProtocolVersion
	f.mu.Unlock()
	w.Header().Set("Mcp-Session-Id", session)
	f.answer(w, http.StatusOK, id, `{"protocolVersion":"`+p.ProtocolVersion+`","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}`, "")
}

func (f *Fake) serve(w http.ResponseWriter, id json.RawMessage, method string, params json.RawMessage) {
	switch method {
	case "ping":
		f.answer(w, http.StatusOK, id, `{}`, "")
	case "tools/list":
		result, rpcErr := f.list(params)
		f.answer(w, http.StatusOK, id, result, rpcErr)
	case "tools/call":
		var p struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		_ = json.Unmarshal(params, &p)
		f.mu.Lock()
		f.calls++
		fn := f.onCall
		f.mu.Unlock()
		result, rpcErr := fn(p.Name, p.Arguments)
		if rpcErr == Drop {
			panic(http.ErrAbortHandler)
		}
		f.answer(w, http.StatusOK, id, result, rpcErr)
	default:
		f.answer(w, http.StatusOK, id, "", `{"code":-32601,"message":"Method not found"}`)
	}
}

// list answers with the page that the cursor names: the one after the page whose Next it is.
func (f *Fake) list(params json.RawMessage) (result, rpcErr string) {
	var p struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(params, &p)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onList != nil {
		tools, next := f.onList(p.Cursor)
		return listResult(tools, next), ""
	}
	i := 0
	if p.Cursor != "" {
		at := slices.IndexFunc(f.pages, func(pg Page) bool { return pg.Next == p.Cursor })
		if at < 0 {
			return "", `{"code":-32602,"message":"unknown cursor"}`
		}
		i = min(at+1, len(f.pages)-1) // the last page may name itself: a cursor that never ends
	}
	page := f.pages[i]
	if page.Fail {
		return "", `{"code":-32603,"message":"this page is broken"}`
	}
	return listResult(page.Tools, page.Next), ""
}

func listResult(tools []string, next string) string {
	if next != "" {
		next = `,"nextCursor":"` + next + `"`
	}
	return `{"tools":[` + strings.Join(tools, ",") + `]` + next + `}`
}

func (f *Fake) answer(w http.ResponseWriter, status int, id json.RawMessage, result, rpcErr string) {
	if id == nil {
		id = json.RawMessage("null")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if rpcErr != "" {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, id, rpcErr)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func (f *Fake) stream(w http.ResponseWriter, r *http.Request) {
	s := make(chan string, 16)
	f.mu.Lock()
	f.streams[s] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.streams, s)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case msg, open := <-s:
			if !open {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", msg)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}
