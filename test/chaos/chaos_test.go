// Package chaos kills the built binary while it works and counts what it leaves behind.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	read  = `{"name":"get_item","description":"Gets an item.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`
	write = `{"name":"create_item","description":"Creates an item.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}}`
)

// ledger is what the fake server has executed, by call id.
type ledger struct {
	mu   sync.Mutex
	runs map[string]map[int64]int // tool → id → times
}

func (l *ledger) run(tool string, args json.RawMessage) (string, string) {
	var in struct{ ID int64 }
	_ = json.Unmarshal(args, &in)
	l.mu.Lock()
	if l.runs == nil {
		l.runs = map[string]map[int64]int{"get_item": {}, "create_item": {}}
	}
	l.runs[tool][in.ID]++
	l.mu.Unlock()
	time.Sleep(time.Duration(in.ID%23) * time.Millisecond) // so that calls are everywhere on the way when the kill comes
	return testkit.TextResult(fmt.Sprint("done ", in.ID)), ""
}

// row is what the record has of one call.
type row struct{ intent, outcome string }

// record reads the database by call id.
func record(t *testing.T, g *testkit.Gateway) map[int64]row {
	t.Helper()
	d := g.DB()
	defer d.Close()
	rows, err := d.QueryContext(t.Context(), `SELECT kind, status, args_body FROM audit_events WHERE method = 'tools/call' ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[int64]row{}
	for rows.Next() {
		var kind, status, args string
		if err := rows.Scan(&kind, &status, &args); err != nil {
			t.Fatal(err)
		}
		var in struct{ ID int64 }
		testkit.Decode(t, []byte(args), &in)
		r := all[in.ID]
		if kind == "intent" {
			r.intent = status
		} else {
			r.outcome = status
		}
		all[in.ID] = r
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestKillNine: whatever instant the gateway is killed at, the record tells what was acknowledged and what was sent on.
func TestKillNine(t *testing.T) {
	l := &ledger{}
	f := testkit.NewFake(t, read, write)
	f.OnCall(l.run)
	g := testkit.Start(t, testkit.Options{})
	g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "ALLOW")

	var id atomic.Int64
	acknowledged := map[int64]bool{}
	for round := range 3 {
		acked := storm(t, g, &id, 1000, 1200+400*round)
		for _, a := range acked {
			acknowledged[a] = true
		}
		if out, code := g.CLI("audit", "verify", "--data", g.Data); code != 0 {
			t.Fatalf("round %d: audit verify after the kill: exit %d\n%s", round, code, out)
		}
		g.Restart()
	}
	g.Stop()
	if out, code := g.CLI("audit", "verify", "--data", g.Data); code != 0 {
		t.Errorf("audit verify: exit %d\n%s", code, out)
	}
	rows := record(t, g)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range acknowledged {
		if rows[id].outcome != "ok" {
			t.Errorf("call %d was acknowledged, but its outcome is %q", id, rows[id].outcome)
		}
	}
	for id, n := range l.runs["create_item"] {
		if rows[id].intent == "" {
			t.Errorf("call %d was sent to the server, but has no intent", id)
		}
		if n > 1 {
			t.Errorf("call %d with side effects ran %d times", id, n)
		}
	}
	lost := 0
	for id := range l.runs["create_item"] {
		if rows[id].outcome == "" {
			lost++
		}
	}
	t.Logf("%d acknowledged, %d reads and %d writes executed, %d writes in flight at a kill", len(acknowledged), len(l.runs["get_item"]), len(l.runs["create_item"]), lost)
	if len(acknowledged) < 1000 || lost == 0 {
		t.Error("the kills did not hit calls in flight, so the test shows nothing")
	}
}

// storm keeps n callers busy and kills the gateway once acks calls were acknowledged. It returns the acknowledged ids.
func storm(t *testing.T, g *testkit.Gateway, id *atomic.Int64, n, acks int) []int64 {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: n}
	defer transport.CloseIdleConnections()
	c := testkit.NewClient(t, g.URL+"/mcp/fake", testkit.AgentKey, testkit.Modern)
	c.HTTP = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var acked []int64
	enough := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				me := id.Add(1)
				tool := "get_item"
				if me%2 == 0 {
					tool = "create_item"
				}
				r, err := c.Try(ctx, "tools/call", testkit.CallParams(tool, fmt.Sprintf(`{"id":%d}`, me)))
				if err != nil {
					return // killed
				}
				if r.Error != nil || r.IsError() || r.Text() != fmt.Sprint("done ", me) {
					t.Errorf("call %d: %v", me, r)
					return
				}
				mu.Lock()
				acked = append(acked, me)
				full := len(acked) >= acks
				mu.Unlock()
				if full {
					once.Do(func() { close(enough) })
				}
			}
		})
	}
	select {
	case <-enough:
	case <-ctx.Done():
		t.Error("the calls did not get through")
	}
	g.Kill()
	wg.Wait()
	return acked
}

var _ = testkit.Register("echo", func(s *testkit.FakeStdio) {
	s.Tools = []string{testkit.ToolDef("echo", "Echoes.")}
	s.OnCall = func(_ string, args json.RawMessage) (string, string) { return testkit.TextResult(string(args)), "" }
	s.Serve()
})

// usage is what the gateway holds.
type usage struct{ goroutines, files, children int }

func measure(t *testing.T, g *testkit.Gateway) usage {
	t.Helper()
	var u usage
	resp, err := http.Get(g.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics := bufio.NewScanner(resp.Body)
	for metrics.Scan() {
		if v, ok := strings.CutPrefix(metrics.Text(), "go_goroutines "); ok {
			u.goroutines, _ = strconv.Atoi(v)
		}
	}
	if u.goroutines == 0 {
		t.Fatalf("metrics have no go_goroutines (%v)", metrics.Err())
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.PID))
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(fds)
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", g.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", g.PID, task.Name()))
		u.children += len(strings.Fields(string(list)))
	}
	return u
}

// TestLeaks: ten thousand calls and two hundred connects leave nothing behind.
func TestLeaks(t *testing.T) {
	f := testkit.NewFake(t, read, write)
	g := testkit.Start(t, testkit.Options{})
	g.Approve(g.AddHTTP("web", f.URL, nil).ID, "ALLOW")
	g.Approve(g.AddStdio("child", testkit.Reexec("echo", nil)).ID, "ALLOW")

	work := func(calls, connects int) {
		transport := &http.Transport{MaxIdleConnsPerHost: 64}
		defer transport.CloseIdleConnections()
		load(t, g, transport, calls)
		connect(t, g, transport, connects)
	}
	work(500, 10) // pools, caches and lazily made things are there afterwards
	base := settle(t, g, usage{})
	start := time.Now()
	work(10_000, 200)
	t.Logf("10,000 calls and 200 connects took %v", time.Since(start))
	after := settle(t, g, base)
	t.Logf("before %+v, after %+v", base, after)
	const slack = 4 // a connection or a timer that is not gone yet is no leak; one per call or connect would be hundreds
	if after.goroutines > base.goroutines+slack || after.files > base.files+slack || after.children != base.children {
		t.Errorf("left behind: before %+v, after %+v", base, after)
	}
}

// settle measures until the figures are down to base, or stay the same, for at most 30 s.
func settle(t *testing.T, g *testkit.Gateway, base usage) usage {
	t.Helper()
	last, same := usage{}, 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(250 * time.Millisecond) {
		u := measure(t, g)
		if base.goroutines > 0 && u.goroutines <= base.goroutines && u.files <= base.files && u.children == base.children {
			return u
		}
		if u == last {
			same++
		} else {
			last, same = u, 0
		}
		if base.goroutines == 0 && same > 8 {
			return u
		}
	}
	return last
}

// load makes calls over both transports and all doors from 16 callers.
func load(t *testing.T, g *testkit.Gateway, transport http.RoundTripper, calls int) {
	t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		version, path := testkit.Legacy, "/mcp/web"
		if i%2 == 0 {
			version = testkit.Modern
		}
		tool := "get_item"
		if i%4 >= 2 {
			path, tool = "/mcp/child", "echo"
		}
		c := testkit.NewClient(t, g.URL+path, testkit.AgentKey, version)
		c.HTTP = &http.Client{Transport: transport, Timeout: 30 * time.Second}
		c.Connect()
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(calls) {
					break
				}
				r, err := c.Try(t.Context(), "tools/call", testkit.CallParams(tool, fmt.Sprintf(`{"id":%d}`, n)))
				if err != nil || r.Error != nil || r.IsError() {
					t.Errorf("call %d: %v, %v", n, r, err)
					return
				}
			}
			if c.Session != "" {
				c.Close()
			}
		})
	}
	wg.Wait()
}

// connect opens sessions with their streams. Every second client ends its session, the others just go away.
func connect(t *testing.T, g *testkit.Gateway, transport http.RoundTripper, n int) {
	t.Helper()
	for i := range n {
		path := "/mcp/web"
		if i%3 == 0 {
			path = "/mcp"
		}
		c := testkit.NewClient(t, g.URL+path, testkit.AgentKey, testkit.Legacy)
		c.HTTP = &http.Client{Transport: transport}
		c.Connect()
		ctx, cancel := context.WithCancel(t.Context())
		c.Stream(ctx)
		c.Names()
		if i%2 == 0 {
			c.Close()
		}
		cancel()
	}
}
