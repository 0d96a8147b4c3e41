package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

// Case 11: a dead or slow server delays nobody.
func TestCase11BadNeighbours(t *testing.T) {
	g := testkit.Start(t, testkit.Options{})
	fakes := map[string]*testkit.Fake{}
	for _, name := range []string{"good", "dead", "slow"} {
		fakes[name] = testkit.NewFake(t, testkit.ToolDef("tool", "Of "+name+"."))
		g.Approve(g.AddHTTP(name, fakes[name].URL, nil).ID, "ALLOW")
	}
	g.Stop()
	fakes["dead"].Down()
	fakes["slow"].Delay(time.Minute)
	g.Restart()

	c := g.Client("/mcp", testkit.Legacy)
	start := time.Now()
	names := c.Names()
	ok(t, c.Call("good__tool", `{}`), "tool")
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("list and call of the good server took %v", d)
	}
	if len(names) != 3 {
		t.Errorf("tools %v: the last good lists of the bad ones are gone", names)
	}
	if status, body := g.REST(testkit.AgentKey, "GET", "/tools", nil); status != 200 || strings.Count(string(body), "inputSchema") != 3 {
		t.Errorf("GET /tools: %d %s", status, body)
	}
	r := c.Call("dead__tool", `{}`)
	refused(t, r, unreachable, "")
	if r.Took > 5*time.Second {
		t.Errorf("a call of the dead server took %v", r.Took)
	}
	_, body := g.REST(testkit.AdminKey, "GET", "/api/v1/mcp/servers", nil)
	for name, want := range map[string][]string{"good": {"up"}, "dead": {"down", "connecting"}, "slow": {"down", "connecting"}} {
		if h := health(t, body, name); !strings.Contains(strings.Join(want, " "), h) || h == "" {
			t.Errorf("%s is %q, want one of %v", name, h, want)
		}
	}

	// A late server whose list differs from what was admitted announces itself.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	news := c.Stream(ctx)
	fakes["dead"].Tools(testkit.ToolDef("tool", "Of dead, but changed."))
	fakes["dead"].Up()
	deadline := time.After(60 * time.Second)
	for {
		select {
		case m, open := <-news:
			if !open {
				t.Fatal("the stream ended")
			}
			if strings.Contains(string(m), "notifications/tools/list_changed") {
				if names := c.Names(); len(names) != 2 {
					t.Errorf("tools %v", names)
				}
				return
			}
		case <-deadline:
			t.Fatal("the late server was not announced within 60 s")
		}
	}
}

// health finds a server's health in a list of servers.
func health(t *testing.T, list []byte, name string) string {
	t.Helper()
	var v struct {
		Servers []struct {
			Name       string `json:"name"`
			Health     string `json:"health"`
			Connection struct {
				Health string `json:"health"`
			} `json:"connection"`
		} `json:"servers"`
	}
	testkit.Decode(t, list, &v)
	for _, s := range v.Servers {
		if s.Name == name {
			return s.Health + s.Connection.Health
		}
	}
	t.Fatalf("no server %s in %s", name, list)
	return ""
}

// Case 12: after a restart of the server one re-initialize serves all callers.
func TestCase12ServerRestart(t *testing.T) {
	for name, strange := range map[string]bool{"404": false, "200 with an error": true} {
		t.Run(name, func(t *testing.T) {
			_, f, _, c := one(t, "ALLOW", testkit.ToolDef("work", "Works."))
			ok(t, c.Call("work", `{"n":0}`), "work")
			before := len(f.Requests("initialize"))
			f.Forget(strange)
			var wg sync.WaitGroup
			failed := make(chan string, 64)
			for i := range 20 {
				wg.Go(func() {
					r, err := c.Try(t.Context(), "tools/call", testkit.CallParams("work", fmt.Sprintf(`{"n":%d}`, i+1)))
					if err != nil || r.Error != nil || r.IsError() {
						failed <- fmt.Sprint(r, err)
					}
				})
			}
			wg.Wait()
			close(failed)
			for f := range failed {
				t.Error(f)
			}
			// One for the client's session and one for the shared connection, whose stream ended.
			if n := len(f.Requests("initialize")) - before; n < 1 || n > 2 {
				t.Errorf("%d times initialize for 20 callers", n)
			}
			if n := f.Calls(); n != 21 {
				t.Errorf("%d calls ran, want 21", n)
			}
		})
	}
}

// Case 12: a call whose fate is unknown is repeated only when it is a read.
func TestCase12OutcomeUnknown(t *testing.T) {
	read := `{"name":"get_item","description":"Gets an item.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`
	write := `{"name":"create_item","description":"Creates an item.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}}`
	g, f, _, c := one(t, "ALLOW", read, write)
	var mu sync.Mutex
	runs := map[string]int{}
	f.OnCall(func(name string, args json.RawMessage) (string, string) {
		mu.Lock()
		defer mu.Unlock()
		runs[name]++
		if runs[name] == 1 {
			return "", testkit.Drop
		}
		return testkit.TextResult(name + " done"), ""
	})
	ok(t, c.Call("get_item", `{}`), "done")
	if runs["get_item"] != 2 {
		t.Errorf("a read was sent %d times, want 2", runs["get_item"])
	}
	r := c.Call("create_item", `{}`)
	refused(t, r, unreachable, "")
	if r.Error != nil && !strings.Contains(strings.ToLower(r.Error.Message), "unknown") && !strings.Contains(r.Error.Message, "may have run") {
		t.Errorf("the answer does not say that the outcome is unknown: %v", r)
	}
	if runs["create_item"] != 1 {
		t.Errorf("a write was sent %d times", runs["create_item"])
	}
	if e := g.LastEvent("create_item"); e.Status != "unknown" {
		t.Errorf("recorded as %+v", e)
	}
}

// rude is a server that does what a stdio server should not. Its tool "pids" tells its process and a grandchild.
var _ = testkit.Register("rude", func(s *testkit.FakeStdio) {
	signal.Ignore(syscall.SIGTERM)
	grandchild := exec.Command("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
	grandchild.Stdout = os.Stdout // holds the pipe open
	if err := grandchild.Start(); err != nil {
		panic(err)
	}
	s.Print("Starting up on port 3000 ...")
	s.Tools = []string{testkit.ToolDef("pids", "Tells processes."), testkit.ToolDef("noise", "Makes noise."), testkit.ToolDef("big", "Sends a long line.")}
	s.OnCall = func(name string, _ json.RawMessage) (string, string) {
		switch name {
		case "pids":
			return testkit.TextResult(fmt.Sprint(os.Getpid(), " ", grandchild.Process.Pid)), ""
		case "big":
			return testkit.TextResult(strings.Repeat("x", 5<<20)), ""
		}
		s.Print("this is no JSON")
		s.Print(`{"half":`)
		s.Print("")
		s.Print(`{"jsonrpc":"2.0","id":"never asked","result":{}}`)
		s.Print(`{"jsonrpc":"2.0","id":9999999,"error":{"code":1,"message":"nobody asked"}}`)
		s.Print(`[]`)
		line := strings.Repeat("e", 1023) + "\n"
		for range 10 << 10 {
			os.Stderr.WriteString(line)
		}
		return testkit.TextResult("noise made"), ""
	}
	s.Serve()
	select {} // the end of stdin is no reason to end
})

// Case 13: a rude child.
func TestCase13RudeChild(t *testing.T) {
	for name, end := range map[string]func(g *testkit.Gateway, id string){
		"gateway stops":  func(g *testkit.Gateway, _ string) { g.Stop() },
		"server removed": func(g *testkit.Gateway, id string) { g.Admin("DELETE", "/api/v1/mcp/servers/"+id, nil, nil) },
		"server paused":  func(g *testkit.Gateway, id string) { g.Admin("POST", "/api/v1/mcp/servers/"+id+"/pause", nil, nil) },
		"gateway killed": func(g *testkit.Gateway, _ string) { g.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			g := testkit.Start(t, testkit.Options{})
			id := g.AddStdio("rude", testkit.Reexec("rude", nil)).ID
			g.Approve(id, "ALLOW")
			c := g.Client("/mcp/rude", testkit.Legacy)
			r := c.Call("noise", `{}`)
			ok(t, r, "noise made")
			if r.Took > 5*time.Second {
				t.Errorf("the result came after %v", r.Took)
			}
			if r = c.Call("big", `{}`); len(r.Text()) != 5<<20 {
				t.Errorf("a line of 5 MiB came back with %d bytes: %.200s", len(r.Text()), r.Raw)
			}
			r = c.Call("pids", `{}`)
			var child, grandchild int
			if _, err := fmt.Sscan(r.Text(), &child, &grandchild); err != nil {
				t.Fatalf("%v: %v", err, r)
			}
			start := time.Now()
			end(g, id)
			if name == "gateway killed" {
				// A crash leaves no time to clean up: the kernel kills the child; its own child is beyond our reach.
				testkit.Eventually(t, 5*time.Second, "the child is gone", func() bool { return !alive(child) })
				_ = syscall.Kill(grandchild, syscall.SIGKILL)
				return
			}
			testkit.Eventually(t, 10*time.Second, "the whole group is gone", func() bool { return !alive(child) && !alive(grandchild) })
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("the group was gone only after %v", d)
			}
		})
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
