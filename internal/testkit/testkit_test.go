package testkit

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

var _ = Register("selftest", func(s *FakeStdio) {
	s.Tools = []string{ToolDef("echo", "Echoes.")}
	s.OnCall = func(name string, args json.RawMessage) (string, string) {
		s.Print("junk")
		return TextResult(name + " " + string(args)), ""
	}
	s.Serve()
})

// The fakes and the clients are tested against each other: a fault of theirs must not look like one of the gateway.
func TestStdioFake(t *testing.T) {
	d := DirectStdio(t, Reexec("selftest", nil), Legacy)
	if l := d.List(); len(l) != 1 || ToolName(t, l[0]) != "echo" {
		t.Errorf("%s", l)
	}
	if r := string(d.Request("tools/call", CallParams("echo", `{"a":1}`))); !strings.Contains(r, `echo {\"a\":1}`) {
		t.Error(r)
	}
}

func TestHTTPFake(t *testing.T) {
	f := NewFake(t, ToolDef("a", "A."))
	c := NewClient(t, f.URL, "", Legacy)
	c.Connect()
	f.Pages(Page{Tools: []string{ToolDef("a", "A.")}, Next: "2"}, Page{Tools: []string{ToolDef("b", "B.")}})
	if n := c.Names(); strings.Join(n, " ") != "a b" {
		t.Error(n)
	}
	if r := c.Call("a", `{}`); r.Text() != "a {}" || f.Calls() != 1 {
		t.Error(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	news := c.Stream(ctx)
	Eventually(t, 5*time.Second, "the stream is open", f.Announce)
	select {
	case m := <-news:
		if !strings.Contains(string(m), "list_changed") {
			t.Errorf("%s", m)
		}
	case <-time.After(5 * time.Second):
		t.Error("no announcement")
	}
	f.OnCall(func(string, json.RawMessage) (string, string) { return "", Drop })
	if r, err := c.Try(t.Context(), "tools/call", CallParams("a", `{}`)); err == nil {
		t.Errorf("the connection was not cut: %v", r)
	}
	f.Forget(false)
	if r := c.Call("a", `{}`); r.Status != 404 {
		t.Error(r)
	}
	f.Down()
	if _, err := c.Try(t.Context(), "ping", ""); err == nil {
		t.Error("the port is open")
	}
	f.Up()
	c.Connect()
	if r := c.Request("ping", ""); string(r.Result) != "{}" {
		t.Error(r)
	}
}

func TestAddMeta(t *testing.T) {
	for params, want := range map[string]string{`{}`: `{"_meta":{M}}`, `{"a":1}`: `{"_meta":{M},"a":1}`, `{"_meta":{"p":1},"a":1}`: `{"_meta":{M,"p":1},"a":1}`} {
		if got := addMeta(params, "M"); got != want {
			t.Errorf("%s: %s, want %s", params, got, want)
		}
	}
}
