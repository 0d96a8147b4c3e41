package mcp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func newHTTP(t *testing.T, opt mcp.HTTPOptions) *mcp.HTTP {
	t.Helper()
	if opt.Proxy == nil {
		opt.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	h, err := mcp.NewHTTP(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// rawServer gives every connection to script, which speaks HTTP by hand. n counts connections from 1.
func rawServer(t *testing.T, script func(n int, c net.Conn, requests *bufio.Reader)) (address string, conns *atomic.Int32) {
	t.Helper()
	goleakLater(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = &atomic.Int32{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n := int(conns.Add(1))
			all.Go(func() {
				defer c.Close()
				script(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return "http://" + ln.Addr().String() + "/mcp", conns
}

// readRequest reads one request; ok is false at the end of the connection.
func readRequest(br *bufio.Reader) (id string, req *http.Request, ok bool) {
	req, err := http.ReadRequest(br)
	if err != nil {
		return "", nil, false
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return "", nil, false
	}
	return string(mcp.Get(body, "id")), req, true
}

func result(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{"ok":true}}` }

const okHead = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

func TestHTTPReadsEveryFraming(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(id string) string
		closes bool // the connection cannot be used again
		class  fault.Class
	}{
		"content length": {answer: func(id string) string {
			return fmt.Sprintf(okHead+"Content-Length: %d\r\n\r\n%s", len(result(id)), result(id))
		}},
		"chunked": {answer: func(id string) string {
			r := result(id)
			return fmt.Sprintf(okHead+"Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n", r[:5], len(r)-5, r[5:])
		}},
		"close delimited": {closes: true, answer: func(id string) string { return okHead + "\r\n" + result(id) }},
		"says close": {closes: true, answer: func(id string) string {
			return fmt.Sprintf(okHead+"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(result(id)), result(id))
		}},
		"interim responses": {answer: func(id string) string {
			return fmt.Sprintf("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+okHead+"Content-Length: %d\r\n\r\n%s", len(result(id)), result(id))
		}},
		"bare line feeds, odd case, long field": {answer: func(id string) string {
			return fmt.Sprintf("HTTP/1.1 200\ncontent-TYPE: application/json; charset=utf-8\nX: %s\ncontent-LENGTH:%d\n\n%s", strings.Repeat("y", 20<<10), len(result(id)), result(id))
		}},
		"head too large": {closes: true, class: fault.OutcomeUnknown, answer: func(id string) string {
			return okHead + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 100) + "\r\n"
		}},
		"two lengths": {closes: true, class: fault.OutcomeUnknown, answer: func(id string) string {
			return okHead + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + result(id)
		}},
		"not HTTP": {closes: true, class: fault.OutcomeUnknown, answer: func(string) string { return "SSH-2.0-OpenSSH\r\n\r\n" }},
		"cut short": {closes: true, class: fault.OutcomeUnknown, answer: func(id string) string {
			return okHead + "Content-Length: 500\r\n\r\n" + result(id)
		}},
		"cut short, chunked": {closes: true, class: fault.OutcomeUnknown, answer: func(id string) string {
			return okHead + "Transfer-Encoding: chunked\r\n\r\nff\r\n" + result(id)
		}},
		"switches protocols":  {closes: true, class: fault.OutcomeUnknown, answer: func(string) string { return "HTTP/1.1 101 Switching\r\n\r\n" }},
		"too large by length": {closes: true, class: fault.UpstreamError, answer: func(string) string { return okHead + "Content-Length: 99999\r\n\r\n{" }},
		"too large chunked": {closes: true, class: fault.UpstreamError, answer: func(id string) string {
			return okHead + "Transfer-Encoding: chunked\r\n\r\nffff\r\n" + strings.Repeat(" ", 0xffff) + "\r\n0\r\n\r\n"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			url, conns := rawServer(t, func(_ int, c net.Conn, br *bufio.Reader) {
				for {
					id, _, ok := readRequest(br)
					if !ok {
						return
					}
					if _, err := io.WriteString(c, tt.answer(id)); err != nil || tt.closes {
						return
					}
				}
			})
			h := newHTTP(t, mcp.HTTPOptions{URL: url, MaxMessage: 32 << 10})
			for i := range 3 {
				r, err := h.Call(t.Context(), &mcp.Call{Method: "x"})
				if tt.class != "" {
					if !fault.Is(err, tt.class) {
						t.Fatalf("call %d: err = %v, want %s", i, err, tt.class)
					}
				} else if err != nil || string(r) != `{"ok":true}` {
					t.Fatalf("call %d: %s, %v", i, r, err)
				}
			}
			want := int32(1)
			if tt.closes {
				want = 3
			}
			if n := conns.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
		})
	}
}

// A kept connection that the server closes must not fail the next call, whether or not it may be repeated: the
// client sees the end before it sends.
func TestHTTPServerClosesKeptConnection(t *testing.T) {
	closed := make(chan struct{}, 8)
	url, conns := rawServer(t, func(_ int, c net.Conn, br *bufio.Reader) {
		if id, _, ok := readRequest(br); ok {
			fmt.Fprintf(c, okHead+"Content-Length: %d\r\n\r\n%s", len(result(id)), result(id))
		}
		c.Close()
		closed <- struct{}{}
	})
	h := newHTTP(t, mcp.HTTPOptions{URL: url})
	for i := range 4 {
		if _, err := h.Call(t.Context(), &mcp.Call{Method: "tools/call"}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		<-closed
	}
	if n := conns.Load(); n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}

// The server takes the second request on a kept connection and dies: only a safe one is sent again.
func TestHTTPRepeatsOnlySafeRequests(t *testing.T) {
	for _, safe := range []bool{true, false} {
		t.Run(fmt.Sprint("safe=", safe), func(t *testing.T) {
			url, conns := rawServer(t, func(n int, c net.Conn, br *bufio.Reader) {
				for i := 0; ; i++ {
					id, _, ok := readRequest(br)
					if !ok || n == 1 && i == 1 {
						return
					}
					fmt.Fprintf(c, okHead+"Content-Length: %d\r\n\r\n%s", len(result(id)), result(id))
				}
			})
			h := newHTTP(t, mcp.HTTPOptions{URL: url})
			if _, err := h.Call(t.Context(), &mcp.Call{Method: "first"}); err != nil {
				t.Fatal(err)
			}
			_, err := h.Call(t.Context(), &mcp.Call{Method: "second", Safe: safe})
			if safe && (err != nil || conns.Load() != 2) {
				t.Errorf("err = %v after %d connections", err, conns.Load())
			}
			if !safe && (!fault.Is(err, fault.OutcomeUnknown) || conns.Load() != 1) {
				t.Errorf("err = %v after %d connections", err, conns.Load())
			}
		})
	}
}

func TestHTTPCancelClosesTheConnection(t *testing.T) {
	asked, gone := make(chan struct{}), make(chan struct{})
	url, _ := rawServer(t, func(_ int, c net.Conn, br *bufio.Reader) {
		if _, _, ok := readRequest(br); ok {
			close(asked)
			_, _ = br.ReadByte() // until the client closes
			close(gone)
		}
	})
	h := newHTTP(t, mcp.HTTPOptions{URL: url})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := h.Call(ctx, &mcp.Call{Method: "tools/call", Version: mcp.V20260728}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("err = %v", err)
	}
	<-gone
}

func TestHTTPTimeoutOfSlowServer(t *testing.T) {
	url, _ := rawServer(t, func(_ int, c net.Conn, br *bufio.Reader) {
		if _, _, ok := readRequest(br); ok {
			_, _ = io.WriteString(c, okHead+"Content-Length: 100\r\n\r\n{")
			_, _ = br.ReadByte()
		}
	})
	h := newHTTP(t, mcp.HTTPOptions{URL: url})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Call(ctx, &mcp.Call{Method: "initialize"}); !fault.Is(err, fault.Timeout) {
		t.Errorf("err = %v", err)
	}
}

func TestHTTPRefusedPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	h := newHTTP(t, mcp.HTTPOptions{URL: "http://" + ln.Addr().String()})
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "x"}); !fault.Is(err, fault.Unreachable) {
		t.Errorf("err = %v", err)
	}
}

func TestHTTPStatuses(t *testing.T) {
	for name, tt := range map[string]struct {
		status  int
		header  string
		body    string
		session string
		class   fault.Class // empty: an error of the server itself
		text    string
	}{
		"redirect":           {status: 307, header: "https://other.example/x?token=SECRET", class: fault.UpstreamError, text: "https://other.example/x)"},
		"unauthorized":       {status: 401, class: fault.UpstreamError, text: "credentials"},
		"404 in a session":   {status: 404, session: "s", class: fault.SessionNotFound},
		"404 without":        {status: 404, class: fault.UpstreamError, text: "HTTP 404"},
		"rpc error with 400": {status: 400, body: `{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"mismatch"}}`, text: "mismatch"},
		"rpc error, no id":   {status: 400, body: `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request"}}`, text: "Bad Request"},
		"session in text":    {status: 400, session: "s", body: `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Session not found"}}`, class: fault.SessionNotFound},
		"200 session text":   {status: 200, session: "s", body: `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"session abc has expired"}}`, class: fault.SessionNotFound},
		"text, no session":   {status: 200, body: `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"session expired"}}`, text: "session expired"},
		"gateway":            {status: 502, body: "<html>", class: fault.OutcomeUnknown},
		"server error":       {status: 500, body: "oops", class: fault.UpstreamError, text: "HTTP 500"},
		"accepted":           {status: 202, class: fault.UpstreamError, text: "no answer"},
		"other id":           {status: 200, body: `{"jsonrpc":"2.0","id":4242,"result":{}}`, class: fault.UpstreamError, text: "another request"},
		"not JSON":           {status: 200, body: `hello`, class: fault.UpstreamError},
		"lone surrogate":     {status: 200, body: `{"jsonrpc":"2.0","id":1,"result":{"a":"\udc00"}}`, class: fault.UpstreamError},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.header != "" {
					w.Header().Set("Location", tt.header)
				}
				if tt.body != "" {
					w.Header().Set("Content-Type", "application/json")
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			t.Cleanup(srv.Close)
			h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
			_, err := h.Call(t.Context(), &mcp.Call{Method: "x", SessionID: tt.session})
			var rpc *mcp.RPCError
			switch {
			case err == nil:
				t.Fatal("no error")
			case tt.class == "" && (!errors.As(err, &rpc) || fault.Is(err, fault.SessionNotFound)):
				t.Fatalf("err = %v, want the server's own", err)
			case tt.class != "" && !fault.Is(err, tt.class):
				t.Fatalf("err = %v, want %s", err, tt.class)
			}
			if !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("err = %v, want %q in it", err, tt.text)
			}
		})
	}
}

func TestHTTPSendsOnlyConfiguredAndHopHeaders(t *testing.T) {
	var got http.Header
	var host string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, host = r.Header.Clone(), r.Host
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(string(mcp.Get(b, "id"))))
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL, UserAgent: "doorward/1", Headers: map[string]string{"authorization": "Bearer configured", "X-Key": "k", "host": "named"}})
	hop := http.Header{}
	params := json.RawMessage(`{"name":"tool é","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`)
	mcp.SetModernHeaders(hop, "tools/call", params, nil)
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "tools/call", Params: params, SessionID: "sess", Version: mcp.V20260728, Header: hop}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Authorization": "Bearer configured", "X-Key": "k", "User-Agent": "doorward/1", "Content-Type": "application/json",
		"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Session-Id": "sess",
		"Mcp-Method": "tools/call", "Mcp-Name": "=?base64?dG9vbCDDqQ==?=",
	}
	for k, v := range want {
		if vs := got[k]; len(vs) != 1 || vs[0] != v {
			t.Errorf("%s: %q, want %q", k, vs, v)
		}
		delete(got, k)
	}
	delete(got, "Content-Length")
	if len(got) != 0 || host != "named" {
		t.Errorf("further headers %v, host %q", got, host)
	}
}

func TestHTTPRefusesBadHeaders(t *testing.T) {
	for _, headers := range []map[string]string{
		{"X": "a\r\nInjected: 1"}, {"X Y": "v"}, {"Mcp-Session-Id": "v"}, {"transfer-encoding": "chunked"}, {"Mcp-Param-x": "v"}, {"": "v"},
	} {
		if _, err := mcp.NewHTTP(mcp.HTTPOptions{URL: "http://h/", Headers: headers}); !fault.Is(err, fault.Config) {
			t.Errorf("%q: err = %v", headers, err)
		}
	}
	for _, u := range []string{"", "ftp://h", "http://", "h:80", "http://h\r\nX: y/"} {
		if _, err := mcp.NewHTTP(mcp.HTTPOptions{URL: u}); !fault.Is(err, fault.Config) {
			t.Errorf("URL %q: err = %v", u, err)
		}
	}
}

func TestHTTPOverTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("protocol %s", r.Proto)
		}
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(string(mcp.Get(b, "id"))))
	}))
	t.Cleanup(srv.Close)
	pool := srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL, TLS: &tls.Config{RootCAs: pool}})
	for range 3 {
		if _, err := h.Call(t.Context(), &mcp.Call{Method: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	srv.CloseClientConnections() // the alert must be seen before the next request goes out
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "tools/call"}); err != nil {
		t.Errorf("after the server closed the kept connection: %v", err)
	}
	strict := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	if _, err := strict.Call(t.Context(), &mcp.Call{Method: "x"}); !fault.Is(err, fault.Unreachable) {
		t.Errorf("a certificate nobody vouches for: %v", err)
	}
}

func TestHTTPThroughProxy(t *testing.T) {
	var seen atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		if r.URL.Host != "upstream.invalid" {
			t.Errorf("asked for %s", r.URL)
		}
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(string(mcp.Get(b, "id"))))
	}))
	t.Cleanup(proxy.Close)
	via, _ := url.Parse(proxy.URL)
	h := newHTTP(t, mcp.HTTPOptions{URL: "http://upstream.invalid/mcp", Proxy: http.ProxyURL(via)})
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "x"}); err != nil || seen.Load() != 1 {
		t.Errorf("err = %v, the proxy saw %d requests", err, seen.Load())
	}
	proxy.Close()
	h = newHTTP(t, mcp.HTTPOptions{URL: "http://upstream.invalid/mcp", Proxy: http.ProxyURL(via)})
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "x"}); !fault.Is(err, fault.Unreachable) {
		t.Errorf("without the proxy: %v", err)
	}
}

// sse writes events as a server does; each is sent at once.
type sse struct {
	w http.ResponseWriter
}

func startSSE(w http.ResponseWriter) sse {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	return sse{w}
}

func (s sse) send(format string, args ...any) {
	fmt.Fprintf(s.w, format+"\n\n", args...)
	s.w.(http.Flusher).Flush()
}

func TestHTTPEventStreamAnswer(t *testing.T) {
	answered := make(chan string, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		m, err := mcp.Parse(b, mcp.Limits{})
		if err != nil {
			t.Error(err)
		}
		if m.IsResponse() {
			if r.Header.Get("Mcp-Session-Id") != "s1" {
				t.Errorf("the answer came for session %q", r.Header.Get("Mcp-Session-Id"))
			}
			answered <- string(b)
			w.WriteHeader(202)
			return
		}
		ev := startSSE(w)
		token := mcp.GetPath(m.Params, "_meta", "progressToken")
		ev.send(": comment")
		ev.send("event: other\ndata: ignored")
		ev.send("data: not json")
		ev.send(`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, token)
		ev.send(`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"stranger","progress":1}}`)
		ev.send(`data: {"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`)
		ev.send(`data: {"jsonrpc":"2.0","id":8,"method":"ping"}`)
		got := []string{<-answered, <-answered}
		ev.send(`data: {"jsonrpc":"2.0","id":987654,"result":{"wrong":1}}`)
		ev.send(`data: {"jsonrpc":"2.0","id":%s,"result":{"answers":%d}}`, m.ID, len(got))
		for _, a := range got {
			if a != `{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}` && a != `{"jsonrpc":"2.0","id":8,"result":{}}` {
				t.Errorf("answer %s", a)
			}
		}
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	var notes []string
	r, err := h.Call(t.Context(), &mcp.Call{
		Method: "tools/call", SessionID: "s1", Version: mcp.V20251125, Params: json.RawMessage(`{"_meta":{"progressToken":"mine"}}`),
		Notify: func(method string, params json.RawMessage) { notes = append(notes, string(params)) },
		Ask: func(_ context.Context, method string, params json.RawMessage) (json.RawMessage, json.RawMessage) {
			if method != "elicitation/create" || string(params) != `{"message":"?"}` {
				t.Errorf("asked %s %s", method, params)
			}
			return json.RawMessage(`{"action":"accept"}`), nil
		},
	})
	if err != nil || string(r) != `{"answers":2}` {
		t.Fatalf("%s, %v", r, err)
	}
	if len(notes) != 1 || notes[0] != `{"progressToken":"mine","progress":1}` {
		t.Errorf("notifications %q", notes)
	}
}

// The server ends the stream before the answer and lets the client take it up again (SEP-1699).
func TestHTTPStreamIsTakenUpAgain(t *testing.T) {
	var id atomic.Value
	var gets atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			n := gets.Add(1)
			if want := fmt.Sprint("e", n); r.Header.Get("Last-Event-Id") != want || r.Header.Get("Mcp-Session-Id") != "s" {
				t.Errorf("GET %d from %q", n, r.Header.Get("Last-Event-Id"))
			}
			ev := startSSE(w)
			if n == 1 {
				ev.send("id: e2\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}")
				return
			}
			ev.send("id: e3\ndata: %s", result(id.Load().(string)))
			return
		}
		b, _ := io.ReadAll(r.Body)
		id.Store(string(mcp.Get(b, "id")))
		startSSE(w).send("id: e1\nretry: 1\ndata:")
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	notes := 0
	r, err := h.Call(t.Context(), &mcp.Call{Method: "tools/call", SessionID: "s", Version: mcp.V20251125,
		Notify: func(string, json.RawMessage) { notes++ }})
	if err != nil || string(r) != `{"ok":true}` || notes != 1 {
		t.Errorf("%s, %v, %d notifications", r, err, notes)
	}
}

func TestHTTPStreamThatEndsWithoutAnswer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		startSSE(w).send(`data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	if _, err := h.Call(t.Context(), &mcp.Call{Method: "tools/call"}); !fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("err = %v", err)
	}
}

// A call whose answer came as events must not cost the connection.
func TestHTTPStreamGivesConnectionBack(t *testing.T) {
	var conns atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		startSSE(w).send("data: %s", result(string(mcp.Get(b, "id"))))
	}))
	srv.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	for range 50 {
		if _, err := h.Call(t.Context(), &mcp.Call{Method: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n > 10 {
		t.Errorf("50 calls took %d connections", n)
	}
}

func TestHTTPLegacyCancelIsTold(t *testing.T) {
	asked, told := make(chan string, 1), make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if method, _ := mcp.String(mcp.Get(b, "method")); method == "notifications/cancelled" {
			told <- string(mcp.GetPath(b, "params", "requestId")) + r.Header.Get("Mcp-Session-Id")
			w.WriteHeader(202)
			return
		}
		asked <- string(mcp.Get(b, "id"))
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	ctx, cancel := context.WithCancel(t.Context())
	var id string
	go func() { id = <-asked; cancel() }()
	if _, err := h.Call(ctx, &mcp.Call{Method: "tools/call", SessionID: "s", Version: mcp.V20250618}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("err = %v", err)
	}
	if got := <-told; got != id+"s" {
		t.Errorf("cancelled %q, want %q", got, id+"s")
	}
}

func TestHTTPListen(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Session-Id") == "none" {
			w.WriteHeader(405)
			return
		}
		startSSE(w).send(`data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	var got []string
	err := h.Listen(t.Context(), &mcp.Call{SessionID: "s", Notify: func(m string, _ json.RawMessage) { got = append(got, m) }})
	if len(got) != 1 || got[0] != "notifications/tools/list_changed" || err == nil {
		t.Errorf("heard %q, ended with %v", got, err)
	}
	err = h.Listen(t.Context(), &mcp.Call{SessionID: "none"})
	var status *mcp.HTTPError
	if !errors.As(err, &status) || status.Status != 405 {
		t.Errorf("err = %v", err)
	}
}

func TestHTTPManyCallers(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.AppendResult(nil, mcp.Get(b, "id"), mcp.Get(b, "params")))
	}))
	t.Cleanup(srv.Close)
	h := newHTTP(t, mcp.HTTPOptions{URL: srv.URL})
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 100 {
				p := fmt.Sprintf(`{"g":%d,"i":%d,"pad":"%s"}`, g, i, strings.Repeat("p", i*1000))
				r, err := h.Call(t.Context(), &mcp.Call{Method: "echo", Params: json.RawMessage(p)})
				if err != nil || string(r) != p {
					t.Errorf("%d bytes, %v", len(r), err)
					return
				}
			}
		})
	}
	all.Wait()
}
