package door_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/mcp"
)

func list(t testing.TB, body string) (tools []json.RawMessage, next string) {
	t.Helper()
	result := mcp.Get([]byte(body), "result")
	if result == nil {
		t.Fatalf("no result: %.300s", body)
	}
	next, _ = mcp.String(mcp.Get(result, "nextCursor"))
	return mcp.Elements(mcp.Get(result, "tools")), next
}

func names(t testing.TB, a answer) string {
	t.Helper()
	tools, _ := list(t, a.body)
	var out []string
	for _, d := range tools {
		n, _ := mcp.String(mcp.Get(d, "name"))
		out = append(out, n)
	}
	return strings.Join(out, " ")
}

const listRequest = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// TestListIsByteEqual: what a server says about a tool reaches the client unchanged, only the name differs on the aggregate.
func TestListIsByteEqual(t *testing.T) {
	w := newWorld(t)
	defs := []json.RawMessage{def("zeta"), def("alpha")}
	w.addFake("notes", &fake{defs: defs})
	for _, a := range []answer{w.wire("/mcp/notes").open(mcp.V20251125, `{}`).post(listRequest), w.wire("/mcp/notes").modern("1", "tools/list", `{}`)} {
		got, _ := list(t, a.body)
		if len(got) != 2 || string(got[0]) != string(defs[0]) || string(got[1]) != string(defs[1]) {
			t.Errorf("got %s", got)
		}
	}
	got, _ := list(t, w.wire("/mcp").open(mcp.V20251125, `{}`).post(listRequest).body)
	want := strings.Replace(string(defs[0]), `"zeta"`, `"notes__zeta"`, 1)
	if string(got[0]) != want {
		t.Errorf("aggregate: got %s, want %s", got[0], want)
	}
}

func TestListShowsWhatMayBeCalled(t *testing.T) {
	w := newWorld(t)
	notes := w.addFake("notes", &fake{defs: []json.RawMessage{def("read"), def("write")}})
	w.addFake("mail", &fake{defs: []json.RawMessage{def("send")}})
	few := w.wire("/mcp")
	few.header.Set("Authorization", "Bearer "+w.key("few", "notes/read"))
	few = few.open(mcp.V20251125, `{}`)
	all := w.wire("/mcp").open(mcp.V20251125, `{}`)
	if got := names(t, all.post(listRequest)); got != "mail__send notes__read notes__write" {
		t.Errorf("all: %s", got)
	}
	if got := names(t, few.post(listRequest)); got != "notes__read" {
		t.Errorf("few: %s", got)
	}
	hidden := w.wire("/mcp/mail").with("Authorization", few.header.Get("Authorization"))
	if a, b := hidden.post(listRequest), w.wire("/mcp/none").post(listRequest); a.status != 404 || a.body != b.body {
		t.Errorf("a hidden server must look like none: %d %s %s", a.status, a.body, b.body)
	}
	if a, b := few.post(strings.Replace(listRequest, `tools/list"`, `tools/call","params":{"name":"mail__send"}`, 1)),
		few.post(strings.Replace(listRequest, `tools/list"`, `tools/call","params":{"name":"mail__nope"}`, 1)); mcp.ParseRPCError(mcp.Get([]byte(a.body), "error")).Code != -32602 ||
		strings.Replace(mcp.ParseRPCError(mcp.Get([]byte(a.body), "error")).Message, "mail__send", "mail__nope", 1) != mcp.ParseRPCError(mcp.Get([]byte(b.body), "error")).Message {
		t.Errorf("a hidden tool must look like none: %s %s", a.body, b.body)
	}
	w.rule(notes.ID, "read", "DENY")
	if got := names(t, few.post(listRequest)); got != "" {
		t.Errorf("denied: %s", got)
	}
	if got := names(t, all.post(listRequest)); got != "mail__send notes__write" {
		t.Errorf("denied: %s", got)
	}
}

func TestListPages(t *testing.T) {
	w := newWorld(t, func(d *door.Deps) { d.PageSize = 10 })
	f := &fake{}
	for i := range 25 {
		f.defs = append(f.defs, json.RawMessage(fmt.Sprintf(`{"name":"t%04d","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`, i)))
	}
	w.addFake("many", f)
	c := w.wire("/mcp/many").open(mcp.V20251125, `{}`)
	var got []string
	for cursor, pages := "", 0; ; pages++ {
		params := `{}`
		if cursor != "" {
			params = `{"cursor":"` + cursor + `"}`
		}
		a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":` + params + `}`)
		tools, next := list(t, a.body)
		for _, d := range tools {
			n, _ := mcp.String(mcp.Get(d, "name"))
			got = append(got, n)
		}
		if cursor = next; next == "" {
			if pages != 2 {
				t.Errorf("%d pages", pages+1)
			}
			break
		}
	}
	if len(got) != 25 || got[0] != "t0000" || got[24] != "t0024" {
		t.Errorf("%d tools", len(got))
	}
	for _, bad := range []string{`"x"`, `""`, `"dG9vbHM6OQ"`, `"dG9vbHM6OTA"`, `"dG9vbHM6MDEw"`, `7`} {
		a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":` + bad + `}}`)
		if mcp.ParseRPCError(mcp.Get([]byte(a.body), "error")).Code != -32602 {
			t.Errorf("cursor %s: %.200s", bad, a.body)
		}
	}
}

// TestListedTwice: stored bytes are the same bytes, with the id of each request.
func TestListedTwice(t *testing.T) {
	w := newWorld(t)
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	a, b := c.post(listRequest), c.post(strings.Replace(listRequest, `"id":1`, `"id":"two"`, 1))
	if strings.Replace(a.body, `"id":1`, `"id":"two"`, 1) != b.body {
		t.Errorf("%s\n%s", a.body, b.body)
	}
}

func BenchmarkListTools(b *testing.B) {
	w := newWorld(b)
	f := &fake{}
	for i := range 500 {
		f.defs = append(f.defs, json.RawMessage(fmt.Sprintf(`{"name":"t%04d","description":"%s","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`, i, strings.Repeat("x", 1200))))
	}
	w.addFake("many", f)
	c := w.wire("/mcp/many").open(mcp.V20251125, `{}`)
	b.ReportAllocs()
	for b.Loop() {
		if a := c.post(listRequest); len(a.body) < 500*1200 {
			b.Fatal(a.body)
		}
	}
}
