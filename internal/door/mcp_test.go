package door_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/mcp"
)

// TestWireBytes holds every byte that older and newer clients see of the common requests.
func TestWireBytes(t *testing.T) {
	w := newWorld(t)
	notes := w.addFake("notes", &fake{defs: []json.RawMessage{def("read"), def("list")}})
	w.addFake("mail", &fake{defs: []json.RawMessage{def("list")}})
	var out bytes.Buffer
	show := func(title string, a answer) {
		body := a.body
		for _, k := range []string{"trace_id\":\""} { // differs from run to run
			if i := strings.Index(body, k); i >= 0 {
				j := i + len(k)
				body = body[:j] + "…" + body[j+strings.IndexByte(body[j:], '"'):]
			}
		}
		fmt.Fprintf(&out, "--- %s\n%d %s\n%s\n", title, a.status, a.header.Get("Content-Type"), body)
	}
	for _, path := range []string{"/mcp", "/mcp/notes", "/api/v1/mcp/proxy/" + notes.ID} {
		title := strings.Replace(path, notes.ID, "{id}", 1)
		c := w.wire(path)
		for _, v := range []string{mcp.V20241105, mcp.V20251125, "2099-01-01", "1.0"} {
			show("legacy "+title+" initialize "+v, c.post(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"`+v+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		}
		c = c.open(mcp.V20251125, `{}`)
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"read","arguments":{"n":1}}}`,
			`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"list"}}`,
			`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"notes__list"}}`,
			`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"nothing"}}`,
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":{}}}`,
			`{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{"cursor":"x"}}`,
			`{"jsonrpc":"2.0","id":9,"method":"server/discover"}`,
		} {
			show("legacy "+title+" "+body, c.post(body))
		}
		m := w.wire(path)
		show("modern "+title+" server/discover", m.modern(`"d"`, "server/discover", `{}`))
		show("modern "+title+" tools/list", m.modern(`1`, "tools/list", `{}`))
		show("modern "+title+" tools/call", m.modern(`2`, "tools/call", `{"name":"read","arguments":{"n":1}}`))
		show("modern "+title+" unknown tool", m.modern(`3`, "tools/call", `{"name":"nothing"}`))
		show("modern "+title+" initialize", m.modern(`4`, "initialize", `{"protocolVersion":"2026-07-28"}`))
	}
	golden(t, "wire.golden", out.Bytes())
}

// TestIDsComeBackByteForByte: also those that a float64 would change.
func TestIDsComeBackByteForByte(t *testing.T) {
	w := newWorld(t)
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	for _, id := range []string{`0`, `-1`, `9007199254740993`, `9223372036854775808`, `18446744073709551617`, `""`, `"a\u00e9\n"`, `"9"`} {
		for _, a := range []answer{
			c.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"read"}}`),
			w.wire("/mcp").modern(id, "tools/call", `{"name":"read"}`),
		} {
			m, err := mcp.Parse([]byte(a.body), mcp.Limits{})
			if err != nil || string(m.ID) != id || m.Result == nil {
				t.Errorf("id %s: %d %s", id, a.status, a.body)
			}
		}
	}
}

// TestBadInput: a clear protocol error, nothing forwarded, the connection and other callers unharmed.
func TestBadInput(t *testing.T) {
	f := &fake{defs: []json.RawMessage{def("read")}}
	w := newWorld(t, func(d *door.Deps) { d.MaxBody = 1 << 20 })
	w.addFake("notes", f)
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	old := w.wire("/mcp/notes").open(mcp.V20250326, `{}`)
	none := w.wire("/mcp/notes")
	call := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":{}}}`
	mp, _ := modernParams(`{"name":"read","arguments":{}}`)
	mcall := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + mp + `}`
	modern := none.with("Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", "tools/call", "Mcp-Name", "read")
	for _, tc := range []struct {
		name   string
		c      *wire
		body   string
		status int
		code   int64
		id     string
	}{
		{"empty body", c, " ", 400, -32700, "null"},
		{"not JSON", c, `{"jsonrpc":"2.0","id":7,`, 400, -32700, "*"},
		{"two values", c, call + call, 400, -32700, "*"},
		{"NUL", c, "\x00", 400, -32700, "null"},
		{"no jsonrpc", c, `{"id":7,"method":"ping"}`, 400, -32600, "7"},
		{"jsonrpc 1.0", c, `{"jsonrpc":"1.0","id":7,"method":"ping"}`, 400, -32600, "7"},
		{"number", c, `7`, 400, -32600, "null"},
		{"no method", c, `{"jsonrpc":"2.0","id":7}`, 400, -32600, "7"},
		{"method number", c, `{"jsonrpc":"2.0","id":7,"method":1}`, 400, -32600, "7"},
		{"id null", c, `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400, -32600, "null"},
		{"id object", c, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, 400, -32600, "null"},
		{"id array", c, `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, 400, -32600, "null"},
		{"id fraction", c, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, 400, -32600, "null"},
		{"id true", c, `{"jsonrpc":"2.0","id":true,"method":"ping"}`, 400, -32600, "null"},
		{"two ids", c, `{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`, 400, -32600, "null"},
		{"two methods", c, `{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call"}`, 400, -32600, "7"},
		{"case variant", c, `{"jsonrpc":"2.0","id":7,"method":"ping","Method":"tools/call"}`, 400, -32600, "7"},
		{"two names", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","name":"x"}}`, 400, -32600, "7"},
		{"params array", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":[1]}`, 0, 0, "7"},
		{"arguments array", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":[]}}`, 200, -32602, "7"},
		{"name number", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":3}}`, 0, 0, "7"},
		{"unknown method", c, `{"jsonrpc":"2.0","id":7,"method":"tools/evil"}`, 200, -32601, "7"},
		{"unknown notification", c, `{"jsonrpc":"2.0","method":"notifications/evil"}`, 202, 0, ""},
		{"lone surrogate", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":{"x":"\ud800"}}}`, 400, -32700, "*"},
		{"bad UTF-8", c, "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\"}", 400, -32700, "*"},
		{"deep", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":` + strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}}`, 400, -32600, "7"},
		{"large", c, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":{"x":"` + strings.Repeat("y", 2<<20) + `"}}}`, 413, -32600, "null"},
		{"batch in 2025-11-25", c, `[` + call + `]`, 400, -32600, "null"},
		{"empty batch in 2025-03-26", old, `[]`, 400, -32600, "null"},
		{"bad batch in 2025-03-26", old, `[{"jsonrpc":"2.0"}]`, 400, -32600, "*"},
		{"batch without session", none, `[` + call + `]`, 400, -32600, "null"},
		{"no session", none, call, 400, -32600, "7"},
		{"unknown session", none.with("Mcp-Session-Id", "nope"), call, 404, -32600, "7"},
		{"wrong revision", c.with("Mcp-Protocol-Version", "2024-01-01"), call, 400, -32600, "7"},
		{"other revision", c.with("Mcp-Protocol-Version", mcp.V20250618), call, 400, -32600, "7"},
		{"content type", c.with("Content-Type", "text/plain"), call, 415, -32600, "null"},
		{"no content type", c.with("Content-Type", ""), call, 415, -32600, "null"},
		{"accept", c.with("Accept", "text/html"), call, 406, -32600, "null"},
		{"no key", c.with("Authorization", ""), call, 401, -32600, "null"},
		{"wrong key", c.with("Authorization", "Bearer agent_x"), call, 401, -32600, "null"},
		{"foreign origin", c.with("Origin", "https://evil.example"), call, 403, -32600, "null"},
		{"null origin", c.with("Origin", "null"), call, 403, -32600, "null"},
		{"rebound host", c.with("Host", "evil.example"), call, 403, -32600, "null"},
		{"unknown server", w.wire("/mcp/nope"), call, 404, -32602, "null"},
		{"modern without _meta", modern, call, 400, -32602, "7"},
		{"modern without header", none.with("Mcp-Method", "tools/call", "Mcp-Name", "read"), mcall, 400, -32020, "7"},
		{"modern method header", modern.with("Mcp-Method", "tools/list"), mcall, 400, -32020, "7"},
		{"modern no method header", modern.with("Mcp-Method", ""), mcall, 400, -32020, "7"},
		{"modern name header", modern.with("Mcp-Name", "write"), mcall, 400, -32020, "7"},
		{"modern newer", modern.with("Mcp-Protocol-Version", "2099-01-01"), strings.Replace(mcall, mcp.V20260728, "2099-01-01", 1), 400, -32022, "7"},
		{"modern no revision", modern.with("Mcp-Protocol-Version", "v9"), strings.Replace(mcall, mcp.V20260728, "v9", 1), 400, -32022, "7"},
		{"modern no capabilities", modern, strings.Replace(mcall, "clientCapabilities", "x", 1), 400, -32602, "7"},
		{"modern batch", modern, `[` + mcall + `]`, 400, -32600, "null"},
		{"modern response", modern, `{"jsonrpc":"2.0","id":7,"result":{}}`, 400, -32600, "7"},
		{"modern removed method", modern.with("Mcp-Method", "ping"), strings.Replace(mcall, `"tools/call"`, `"ping"`, 1), 404, -32601, "7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := *tc.c
			c.t = t
			a := c.post(tc.body)
			if tc.status != 0 && a.status != tc.status {
				t.Errorf("status %d, want %d: %s", a.status, tc.status, a.body)
			}
			if a.status == http.StatusAccepted {
				if a.body != "" {
					t.Errorf("202 with a body: %s", a.body)
				}
				return
			}
			var m struct {
				JSONRPC string          `json:"jsonrpc"`
				ID      json.RawMessage `json:"id"`
				Error   struct {
					Code    int64  `json:"code"`
					Message string `json:"message"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(a.body), &m); err != nil {
				t.Fatalf("%v in %s", err, a.body)
			}
			if tc.code == 0 {
				tc.code = m.Error.Code
				if tc.code != -32602 && tc.code != -32600 {
					t.Errorf("code %d", tc.code)
				}
			}
			if m.JSONRPC != "2.0" || m.Error.Code != tc.code || m.Error.Message == "" || tc.id != "*" && string(m.ID) != tc.id {
				t.Errorf("got %s, want code %d and id %s", a.body, tc.code, tc.id)
			}
			if a.status == http.StatusUnauthorized && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Error("401 without WWW-Authenticate")
			}
			if n := f.count(); n != 0 {
				t.Fatalf("%d calls reached the server", n)
			}
		})
	}
	for _, a := range []answer{c.post(call), modern.post(mcall)} { // nobody was harmed
		if a.status != 200 || !strings.Contains(a.body, `"result"`) {
			t.Errorf("afterwards: %d %s", a.status, a.body)
		}
	}
	if f.count() != 2 {
		t.Errorf("%d calls reached the server", f.count())
	}
}

func TestMethodsOfHTTP(t *testing.T) {
	w := newWorld(t)
	c := w.wire("/mcp").open(mcp.V20251125, `{}`)
	m := w.wire("/mcp").with("Mcp-Protocol-Version", mcp.V20260728)
	for _, tc := range []struct {
		c      *wire
		method string
		status int
	}{
		{c, "PUT", 405}, {c, "PATCH", 405}, {m, "GET", 405}, {m, "DELETE", 405},
		{w.wire("/mcp"), "GET", 400}, {w.wire("/mcp"), "DELETE", 400},
		{c.with("Accept", "application/json"), "GET", 406},
	} {
		if a := tc.c.send(tc.method, ""); a.status != tc.status || tc.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s: %d, want %d", tc.method, a.status, tc.status)
		}
	}
}

// TestAllowedOrigin: a page of a configured origin may ask, send and read; any other is refused.
func TestAllowedOrigin(t *testing.T) {
	w := newWorld(t, func(d *door.Deps) { d.AllowedOrigins = []string{"https://app.example"} })
	c := w.wire("/mcp").with("Origin", "https://app.example")
	ask := c.with("Authorization", "", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization, mcp-session-id")
	if a := ask.send("OPTIONS", ""); a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" || a.header.Get("Access-Control-Allow-Headers") == "" {
		t.Errorf("preflight: %d %v", a.status, a.header)
	}
	if c.open(mcp.V20251125, `{}`).post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`).header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Error("the page cannot read the answer")
	}
	for _, origin := range []string{"https://app.example.evil", "http://app.example", "https://x.app.example", "file://"} {
		if a := ask.with("Origin", origin).send("OPTIONS", ""); a.status != 403 || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d", origin, a.status)
		}
	}
	own := w.wire("/mcp").with("Origin", w.url)
	if own.open(mcp.V20251125, `{}`).session == "" {
		t.Error("the door's own origin is refused")
	}
}

func TestSessionEnds(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{def("read")}}
	w.addFake("notes", f)
	c := w.wire("/mcp").open(mcp.V20251125, `{}`)
	other := w.wire("/mcp")
	other.header.Set("Authorization", "Bearer "+w.key("second", "*"))
	other.session = c.session
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if a := other.post(ping); a.status != 404 {
		t.Errorf("another key's session: %d", a.status)
	}
	elsewhere := w.wire("/mcp/notes")
	elsewhere.session = c.session
	if a := elsewhere.post(ping); a.status != 404 {
		t.Errorf("the session of another door: %d", a.status)
	}
	if a := c.send("DELETE", ""); a.status != 204 {
		t.Errorf("DELETE: %d %s", a.status, a.body)
	}
	for _, a := range []answer{c.post(ping), c.send("GET", ""), c.send("DELETE", "")} {
		if a.status != 404 {
			t.Errorf("after DELETE: %d", a.status)
		}
	}
}

func TestBatch(t *testing.T) {
	w := newWorld(t)
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp/notes").open(mcp.V20250326, `{}`)
	a := c.post(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"read"}},{"jsonrpc":"2.0","id":2,"method":"no"},{"jsonrpc":"2.0","id":3,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]`)
	var got []struct {
		ID     any
		Result json.RawMessage
		Error  *struct{ Code int }
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || len(got) != 4 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if string(got[0].Result) != "{}" || got[1].ID != "x" || got[1].Result == nil || got[2].Error.Code != -32601 || got[3].Error.Code != -32600 {
		t.Errorf("got %s", a.body)
	}
	if a := c.post(`[{"jsonrpc":"2.0","method":"notifications/initialized"}]`); a.status != 202 || a.body != "" {
		t.Errorf("notifications only: %d %s", a.status, a.body)
	}
}

// TestCancel: notifications/cancelled cancels in a session, closing the connection does in 2026-07-28.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	started, ended := make(chan struct{}, 4), make(chan error, 4)
	f := &fake{defs: []json.RawMessage{def("read")}}
	f.do = func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	w.addFake("notes", f)
	t.Run("legacy", func(t *testing.T) {
		c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
		var wg sync.WaitGroup
		wg.Go(func() {
			a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}}`)
			if !strings.Contains(a.body, `"error"`) {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		<-started
		c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`) // another id
		select {
		case <-ended:
			t.Error("cancelled by another id")
		case <-time.After(50 * time.Millisecond):
		}
		if a := c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`); a.status != 202 {
			t.Errorf("status %d", a.status)
		}
		<-ended
		wg.Wait()
	})
	t.Run("legacy disconnect is no cancellation", func(t *testing.T) {
		c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if res, err := c.do(ctx, "POST", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}}`)); err == nil {
				res.Body.Close()
			}
		}()
		<-started
		cancel()
		<-gone
		select {
		case <-ended:
			t.Error("cancelled by a lost connection")
		case <-time.After(100 * time.Millisecond):
		}
		c.send("DELETE", "") // the end of the session cancels
		<-ended
	})
	t.Run("modern disconnect", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p, _ := modernParams(`{"name":"read"}`)
		c := w.wire("/mcp/notes").with("Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", "tools/call", "Mcp-Name", "read")
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if res, err := c.do(ctx, "POST", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+p+`}`)); err == nil {
				res.Body.Close()
			}
		}()
		<-started
		cancel()
		<-gone
		<-ended
	})
}

// TestSameIDSideBySide: some clients give every request the id 1.
func TestSameIDSideBySide(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{def("echo")}}
	var both sync.WaitGroup
	both.Add(8)
	f.do = func(_ context.Context, _ string, args json.RawMessage) (json.RawMessage, error) {
		both.Done()
		both.Wait() // all eight are in flight
		return json.RawMessage(`{"content":[],"echo":` + string(args) + `}`), nil
	}
	w.addFake("notes", f)
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"n":%d}}}`, i))
			if !strings.Contains(a.body, fmt.Sprintf(`"echo":{"n":%d}`, i)) {
				t.Errorf("call %d got %s", i, a.body)
			}
		})
	}
	wg.Wait()
}

// TestKeepAlive: a silent call becomes an event stream with comments, and its result is the last event.
func TestKeepAlive(t *testing.T) {
	w := newWorld(t, func(d *door.Deps) { d.KeepAlive = 20 * time.Millisecond })
	release := make(chan struct{})
	f := &fake{defs: []json.RawMessage{def("read")}}
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		<-release
		return json.RawMessage(`{"content":[]}`), nil
	}
	w.addFake("notes", f)
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	res, err := c.do(t.Context(), "POST", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}}`))
	ok(t, err)
	if ct := res.Header.Get("Content-Type"); ct != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("headers %v", res.Header)
	}
	defer res.Body.Close()
	buf := make([]byte, 4096)
	n, err := res.Body.Read(buf)
	ok(t, err)
	if got := string(buf[:n]); got != "retry: 1000\n\n" && !strings.HasPrefix(got, "retry: 1000\n\n: keep-alive\n\n") {
		t.Errorf("first bytes %q", buf[:n])
	}
	close(release)
	ev, err := mcp.NewEventReader(res.Body, 0).Next()
	ok(t, err)
	if string(ev.Data) != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
		t.Errorf("result %s", ev.Data)
	}
	for _, accept := range []string{"text/event-stream", "text/event-stream, application/json"} {
		a := c.with("Accept", accept).post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		if a.header.Get("Content-Type") != "text/event-stream" || a.body != "retry: 1000\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n" {
			t.Errorf("%s: %s", accept, a.body)
		}
	}
	plain := c.with("Accept", "application/json") // who takes no stream waits for the answer
	if a := plain.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read"}}`); a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%v", a.header)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t)
	started, release := make(chan struct{}), make(chan struct{})
	f := &fake{defs: []json.RawMessage{def("read")}}
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		close(started)
		<-release
		return json.RawMessage(`{"content":[]}`), nil
	}
	w.addFake("notes", f)
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	get, _ := c.stream(t.Context(), "GET", "")
	p, _ := modernParams(`{"notifications":{"toolsListChanged":true}}`)
	listen, _ := w.wire("/mcp").with("Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", "subscriptions/listen").
		stream(t.Context(), "POST", `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":`+p+`}`)
	next(t, listen)
	var wg sync.WaitGroup
	wg.Go(func() {
		if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}}`); !strings.Contains(a.body, `"result"`) {
			t.Errorf("the running call: %d %s", a.status, a.body)
		}
	})
	<-started
	w.door.Drain()
	if _, open := <-get; open {
		t.Error("the GET stream goes on")
	}
	if end := next(t, listen); end != `{"jsonrpc":"2.0","id":"l","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}` {
		t.Errorf("end of the listen: %s", end)
	}
	for name, a := range map[string]answer{
		"legacy call": c.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read"}}`),
		"modern call": w.wire("/mcp").modern("2", "tools/call", `{"name":"read"}`),
		"initialize":  w.wire("/mcp").post(`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`),
		"tools/call":  w.wire("/tools/call").post(`{"name":"read"}`),
		"readyz":      w.wire("/readyz").send("GET", ""),
	} {
		if a.status != 503 {
			t.Errorf("%s while draining: %d %s", name, a.status, a.body)
		}
	}
	if a := w.wire("/healthz").send("GET", ""); a.status != 200 {
		t.Errorf("healthz: %d", a.status)
	}
	close(release)
	wg.Wait()
}

// BenchmarkCall is one tools/call of a session through every layer below the socket.
func BenchmarkCall(b *testing.B) {
	w := newWorld(b)
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	h := w.door.Handler()
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"n":1}}}`)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, _ := http.NewRequest("POST", "/mcp/notes", bytes.NewReader(body))
			r.Header = c.header.Clone()
			r.Header.Set("Mcp-Session-Id", c.session)
			rec := discard{h: http.Header{}}
			h.ServeHTTP(&rec, r)
			if rec.n < 50 {
				b.Fatal("no answer")
			}
		}
	})
}

// discard is a response that is thrown away.
type discard struct {
	h http.Header
	n int
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { d.n += len(b); return len(b), nil }
func (d *discard) WriteHeader(int)             {}
