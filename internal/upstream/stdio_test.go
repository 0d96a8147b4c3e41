package upstream_test

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

func TestStdioServer(t *testing.T) {
	p, ev := newPool(t, nil)
	p.Apply([]upstream.Config{stdioServer("s", "plain")})
	st := up(t, p, "s")
	if st.Era != "legacy" || st.ProtocolVersion != "2025-11-25" || st.Instructions != "be kind" || st.PID == 0 || string(mcp.Get(st.ServerInfo, "name")) != `"fake"` {
		t.Errorf("status %+v", st)
	}
	l := ev.last("s")
	if !l.Complete || l.Err != nil || len(l.Tools) != 2 || string(l.Tools[0]) != `{"name":"echo","inputSchema":{"type":"object"},"x": 1.0}` {
		t.Errorf("listing %s, %v", l.Tools, l.Err)
	}
	r, err := p.Do(t.Context(), callTool("s", "echo", legacyClient("c1")))
	if err != nil || string(r) != `{"content":[],"params":{"name":"echo","arguments":{"n": 9007199254740993}}}` {
		t.Errorf("%s, %v", r, err)
	}
	_, err = p.Do(t.Context(), &upstream.Request{ServerID: "s", Method: "prompts/list", Client: legacyClient("")})
	if rpc, ok := err.(*mcp.RPCError); !ok || rpc.Code != -32601 {
		t.Errorf("err = %v", err)
	}
}

func TestStdioProgressAndListChanged(t *testing.T) {
	p, ev := newPool(t, nil)
	p.Apply([]upstream.Config{stdioServer("s", "plain")})
	up(t, p, "s")
	var got []string
	c := legacyClient("")
	c.Notify = func(m string, params json.RawMessage) { got = append(got, m+string(params)) }
	_, err := p.Do(t.Context(), &upstream.Request{ServerID: "s", Method: "tools/call", Client: c,
		Params: json.RawMessage(`{"name":"progress","_meta":{"progressToken":"abc"}}`)})
	if err != nil || len(got) != 1 || got[0] != `notifications/progress{"progressToken":"abc","progress":1}` {
		t.Errorf("%v: %q", err, got)
	}
	before := ev.count("s")
	if _, err := p.Do(t.Context(), callTool("s", "change", c)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the list is read again, then told", func() bool {
		return ev.heard("s notifications/tools/list_changed") && ev.count("s") > before
	})
}

// Case 13.
func TestNastyChild(t *testing.T) {
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{stdioServer("s", "nasty")})
	st := up(t, p, "s")
	r, err := p.Do(t.Context(), callTool("s", "big", legacyClient("")))
	if err != nil || len(r) < 5<<20 {
		t.Fatalf("%d bytes, %v", len(r), err)
	}
	eventually(t, "stderr is drained", func() bool {
		st, _ = p.Status("s")
		return strings.Contains(st.Stderr, "child ")
	})
	if len(st.Stderr) > 8000 {
		t.Errorf("tail of %d bytes", len(st.Stderr))
	}
	m := regexp.MustCompile(`child (\d+)`).FindStringSubmatch(st.Stderr)
	begin := time.Now()
	p.Apply(nil)
	eventually(t, "the whole group is gone", func() bool { return !alive(m[1]) && syscall.Kill(-st.PID, 0) != nil })
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("that took %v", d)
	}
}

func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

func TestServerThatDiesAtDiscover(t *testing.T) {
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{stdioServer("s", "fragile")})
	if st := up(t, p, "s"); st.Era != "legacy" {
		t.Errorf("status %+v", st)
	}
}

func TestChildDiesDuringCall(t *testing.T) {
	p, _ := newPool(t, nil)
	p.Apply([]upstream.Config{stdioServer("s", "plain")})
	first := up(t, p, "s")
	_, err := p.Do(t.Context(), callTool("s", "die", legacyClient("")))
	wantClass(t, err, fault.OutcomeUnknown)
	eventually(t, "it runs again", func() bool {
		st, _ := p.Status("s")
		return st.Health == upstream.Up && st.PID != first.PID
	})
	if _, err := p.Do(t.Context(), callTool("s", "echo", legacyClient(""))); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if alive(pidText(first.PID)) {
		t.Error("the first child lives on")
	}
}

func pidText(n int) string { return strings.TrimSpace(string(mustJSON(n))) }

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestTimeoutAndCancel(t *testing.T) {
	p, _ := newPool(t, nil)
	cfg := stdioServer("s", "plain")
	cfg.Timeout = 50 * time.Millisecond
	p.Apply([]upstream.Config{cfg, stdioServer("long", "plain")})
	up(t, p, "s")
	up(t, p, "long")
	_, err := p.Do(t.Context(), callTool("s", "hang", legacyClient("")))
	wantClass(t, err, fault.Timeout)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = p.Do(ctx, callTool("long", "hang", legacyClient("")))
	wantClass(t, err, fault.Cancelled)
	if h := health(p, "s"); h != upstream.Up {
		t.Errorf("health %s after a timeout", h)
	}
}

// Case 11.
func TestOneBadServerDelaysNobody(t *testing.T) {
	p, ev := newPool(t, func(d *upstream.Deps) { d.ConnectTimeout = 3 * time.Second; d.Parallel = 2 })
	sleeper := upstream.Config{ID: "sleeper", Name: "sleeper", Transport: "stdio", Command: "sleep", Args: []string{"60"}, Revision: "1"}
	p.Apply([]upstream.Config{sleeper, httpServer("refused", "http://127.0.0.1:1/mcp"), stdioServer("good", "plain")})
	begin := time.Now()
	up(t, p, "good")
	if d := time.Since(begin); d > 2500*time.Millisecond {
		t.Errorf("the good server was up after %v", d)
	}
	if _, err := p.Do(t.Context(), callTool("good", "echo", legacyClient(""))); err != nil {
		t.Error(err)
	}
	begin = time.Now()
	_, err := p.Do(t.Context(), &upstream.Request{ServerID: "sleeper", Method: "prompts/list", Client: legacyClient("")})
	wantClass(t, err, fault.Unreachable)
	if d := time.Since(begin); d > time.Second {
		t.Errorf("a list of a server that still starts took %v", d)
	}
	eventually(t, "the others are down", func() bool { return health(p, "refused") == upstream.Down && health(p, "sleeper") == upstream.Down })
	_, err = p.Do(t.Context(), callTool("refused", "x", legacyClient("")))
	if !fault.Is(err, fault.Unreachable) {
		t.Errorf("err = %v", err)
	}
	st, _ := p.Status("refused")
	if st.LastError == "" {
		t.Errorf("status %+v", st)
	}
	if ev.count("sleeper") != 0 {
		t.Error("a listing came from nowhere")
	}
}

func TestScanOfAnUnknownServer(t *testing.T) {
	p, ev := newPool(t, nil)
	l := p.Scan(t.Context(), stdioServer("probe", "plain"))
	if !l.Complete || len(l.Tools) != 2 {
		t.Errorf("listing %s, %v", l.Tools, l.Err)
	}
	if ev.count("probe") != 1 {
		t.Errorf("%d listings told", ev.count("probe"))
	}
	if _, ok := p.Status("probe"); ok {
		t.Error("the probe stayed")
	}
	l = p.Scan(t.Context(), upstream.Config{ID: "x", Name: "x", Transport: "stdio", Command: "/no/such"})
	if !fault.Is(l.Err, fault.Unreachable) || l.Complete {
		t.Errorf("%+v", l)
	}
	p.Apply([]upstream.Config{stdioServer("kept", "plain")})
	if l = p.Scan(t.Context(), stdioServer("kept", "plain")); !l.Complete || len(l.Tools) != 2 {
		t.Errorf("%+v", l)
	}
}

func TestApplyMakesTheConnectionAnew(t *testing.T) {
	p, _ := newPool(t, nil)
	cfg := stdioServer("s", "plain")
	p.Apply([]upstream.Config{cfg})
	first := up(t, p, "s")
	p.Apply([]upstream.Config{cfg})
	if st := up(t, p, "s"); st.PID != first.PID {
		t.Error("the same configuration made a new connection")
	}
	cfg.Revision = "2"
	p.Apply([]upstream.Config{cfg})
	if st := up(t, p, "s"); st.PID == first.PID || alive(pidText(first.PID)) {
		t.Error("a new configuration kept the old connection")
	}
	p.Apply(nil)
	if _, ok := p.Status("s"); ok {
		t.Error("a removed server has a status")
	}
	_, err := p.Do(t.Context(), callTool("s", "echo", nil))
	wantClass(t, err, fault.Unreachable)
}

func TestSecretsInErrorsAreRedacted(t *testing.T) {
	p, _ := newPool(t, func(d *upstream.Deps) {
		d.Redact = func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), "hunter2", "***")) }
	})
	p.Apply([]upstream.Config{{ID: "s", Name: "s", Transport: "stdio", Command: "sh", Args: []string{"-c", "echo the key is hunter2 >&2; exit 1"}, Revision: "1"},
		httpServer("h", "http://hunter2.invalid:1/")})
	eventually(t, "both are down", func() bool {
		st, _ := p.Status("s")
		return st.Health == upstream.Down && strings.Contains(st.Stderr, "the key is") && health(p, "h") == upstream.Down
	})
	_, err := p.Do(t.Context(), callTool("h", "x", nil))
	if text := string(mustJSON(p.Statuses())) + fault.From(err).Message; strings.Contains(text, "hunter2") {
		t.Errorf("the secret shows: %s", text)
	}
}
