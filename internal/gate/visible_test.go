package gate_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

func names(list []*catalog.Tool) string {
	var out []string
	for _, t := range list {
		out = append(out, t.ServerName+"/"+t.Name)
	}
	return strings.Join(out, " ")
}

func TestVisible(t *testing.T) {
	w := newWorld(t)
	w.approve(w.addServer("archive", w.fake), map[string]string{"write_note": "ALLOW"})
	reader := w.newAgent("reader", "read_note")
	for _, c := range []struct {
		by           *auth.Caller
		server, want string
	}{
		{w.agent, "", "archive/write_note notes/read_note notes/write_note"},
		{w.agent, "notes", "notes/read_note notes/write_note"},
		{w.agent, w.server.ID, "notes/read_note notes/write_note"},
		{w.agent, "nowhere", ""},
		{reader, "", "notes/read_note"},
		{reader, "archive", ""},
		{w.owner, "archive", "archive/write_note"},
	} {
		for range 2 { // the second answer is the kept one
			if got := names(w.gate.Visible(c.by, c.server)); got != c.want {
				t.Errorf("%s on %q: %s", c.by.AgentID, c.server, got)
			}
		}
	}
	if a, b := w.gate.Visible(w.agent, ""), w.gate.Visible(w.agent, ""); &a[0] != &b[0] {
		t.Error("the list is made anew each time")
	}
	w.rule("read_note", "DENY")
	if got := names(w.gate.Visible(reader, "")); got != "" {
		t.Errorf("a denied tool is listed: %s", got)
	}
	w.rule("read_note", "ALLOW")
	w.exec(`UPDATE agent SET allowlist = '["notes/*"]' WHERE id = $1`, reader.AgentID)
	if got := names(w.gate.Visible(reader, "")); got != "notes/read_note notes/write_note" {
		t.Errorf("a changed allowlist is not seen: %s", got)
	}
}

// A list shows exactly what the same caller may call, in whatever state everything is.
func TestVisibleIsWhatMayBeCalled(t *testing.T) {
	w := newWorld(t)
	var defs []json.RawMessage
	for i := range 4 {
		defs = append(defs, json.RawMessage(strings.Replace(readDef, "read_note", fmt.Sprintf("read_%d", i), 1)))
	}
	s := w.addServer("many", &fake{defs: defs})
	w.approve(s, map[string]string{"read_0": "ALLOW", "read_1": "ALLOW", "read_2": "ALLOW", "read_3": "ALLOW"})
	a := w.newAgent("a", "*")
	words := []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY", "whatever"}
	rapid.Check(t, func(t *rapid.T) {
		set := func(query string, args ...any) {
			if _, err := w.db.Write.ExecContext(w.ctx, query, args...); err != nil {
				t.Fatal(err)
			}
		}
		set(`DELETE FROM policy`)
		set(`UPDATE agent SET state = $1, stopped_at = $2, allowlist = $3, capability = $4 WHERE id = $5`,
			rapid.SampledFrom([]string{"ACTIVE", "ACTIVE", "ACTIVE", "PAUSED"}).Draw(t, "agent"),
			rapid.SampledFrom([]int{0, 0, 0, 7}).Draw(t, "stopped"),
			rapid.SampledFrom([]string{`["*"]`, `["many/*"]`, `["many/read_0","read_2"]`, `[]`}).Draw(t, "allowlist"),
			rapid.SampledFrom([]string{`{}`, `{}`, `{"read":"DENY"}`, `{"many/read_1":"REQUIRE_APPROVAL"}`}).Draw(t, "capability"), a.AgentID)
		set(`UPDATE server SET state = $1 WHERE id = $2`, rapid.SampledFrom([]string{"ACTIVE", "ACTIVE", "ACTIVE", "PAUSED", "BLOCKED"}).Draw(t, "server"), s.ID)
		for i := range 4 {
			id := w.tools[fmt.Sprintf("many/read_%d", i)]
			set(`UPDATE tool SET admitted_fingerprint = CASE CAST($1 AS BIGINT) WHEN 0 THEN '' WHEN 1 THEN 'old' ELSE fingerprint END WHERE id = $2`, rapid.IntRange(0, 4).Draw(t, "admission"), id)
			for j, word := range rapid.SliceOfN(rapid.SampledFrom(words), 0, 2).Draw(t, "rules") {
				set(`INSERT INTO policy (id, workspace_id, mcp_tool_id, action, created_at) VALUES ($1, $2, $3, $4, 1)`, fmt.Sprint(i, j), s.WorkspaceID, id, word)
			}
		}
		set(`UPDATE revision SET n = n + 1 WHERE id = 1`)
		w.reload()
		for _, c := range []*auth.Caller{a, w.owner} {
			visible := w.gate.Visible(c, "many")
			for i := range 4 {
				name := fmt.Sprintf("read_%d", i)
				listed := slices.ContainsFunc(visible, func(t *catalog.Tool) bool { return t.Name == name })
				_, err := w.gate.Call(w.ctx, newCall(c, "many/"+name, `{}`))
				f := fault.From(err)
				callable := f == nil || f.Class == fault.Held || f.Class == fault.Unreachable // it is not connected
				if listed != callable {
					t.Fatalf("%s: listed %v, call says %v", name, listed, err)
				}
				e, err := w.gate.Explain(w.ctx, c, "many/"+name, nil)
				if err != nil || (e.Action != "DENY") != callable {
					t.Fatalf("%s: explain %+v %v, call says %v", name, e, err, f)
				}
			}
		}
	})
}

func TestExplain(t *testing.T) {
	w := newWorld(t)
	outline := func(e gate.Explanation) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%s by %s: %s at %s, %s\n", e.Tool, e.Agent, e.Action, e.Stage, e.Reason)
		for _, s := range e.Steps {
			fmt.Fprintf(&b, "%s: %s\n", s.Stage, s.Outcome)
		}
		return b.String()
	}
	explain := func(c *auth.Caller, tool, args string) string {
		t.Helper()
		var raw json.RawMessage
		if args != "" {
			raw = json.RawMessage(args)
		}
		return outline(must[gate.Explanation](t)(w.gate.Explain(w.ctx, c, tool, raw)))
	}
	same := func(got, want string) {
		t.Helper()
		if got != strings.TrimPrefix(want, "\n") {
			t.Errorf("got\n%swant%s", got, want)
		}
	}
	same(explain(w.agent, "notes/read_note", `{}`), `
notes/read_note by default: ALLOW at rules, RULE_ALLOW
caller: pass
stop: pass
grant: pass
server: pass
admission: pass
rules: pass
arguments: pass
confirm: pass
approval: pass
limits: pass
record: pass
dispatch: pass
`)
	held := `
notes/write_note by default: REQUIRE_APPROVAL at rules, APPROVAL_REQUIRED
caller: pass
stop: pass
grant: pass
server: pass
admission: pass
rules: tighten
arguments: pass
confirm: pass
approval: tighten
limits: pass
record: pass
dispatch: pass
`
	same(explain(w.agent, "write_note", ""), held)
	same(explain(w.agent, "write_note", `{"text":"x"}`), held)
	id := w.hold(w.agent, `{"text":"x"}`)
	same(explain(w.agent, "write_note", `{"text":"x"}`), held)
	w.decide(id, true)
	same(explain(w.agent, "write_note", `{"text":"x"}`), strings.Replace(held, "approval: tighten", "approval: pass", 1))
	w.decide(w.hold(w.agent, `{"text":"y"}`), false)
	same(explain(w.agent, "write_note", `{"text":"y"}`), `
notes/write_note by default: DENY at approval, APPROVAL_DENIED
caller: pass
stop: pass
grant: pass
server: pass
admission: pass
rules: tighten
arguments: pass
confirm: pass
approval: refuse
limits: not reached
record: not reached
dispatch: not reached
`)
	same(explain(w.agent, "write_note", `{}`), `
notes/write_note by default: DENY at arguments, ARGUMENTS_INVALID
caller: pass
stop: pass
grant: pass
server: pass
admission: pass
rules: tighten
arguments: refuse
confirm: not reached
approval: not reached
limits: not reached
record: not reached
dispatch: not reached
`)
	same(explain(w.newAgent("nobody"), "write_note", ""), `
notes/write_note by nobody: DENY at grant, NOT_GRANTED
caller: pass
stop: pass
grant: refuse
server: not reached
admission: not reached
rules: not reached
arguments: not reached
confirm: not reached
approval: not reached
limits: not reached
record: not reached
dispatch: not reached
`)
	if _, err := w.gate.Explain(w.ctx, w.agent, "notes/none", nil); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if w.status(id) != "APPROVED" || w.fake.count("write_note") != 0 {
		t.Error("explaining did something")
	}
}

// BenchmarkCall is the whole path of an allowed read with its durable row.
func BenchmarkCall(b *testing.B) {
	w := newWorld(b)
	c := newCall(w.agent, "read_note", `{"id":"a"}`)
	b.ReportAllocs()
	for b.Loop() {
		c.TraceID = ""
		if _, err := w.gate.Call(w.ctx, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCallParallel(b *testing.B) {
	w := newWorld(b)
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := w.gate.Call(w.ctx, newCall(w.agent, "read_note", `{"id":"a"}`)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkVisible is a list that is kept.
func BenchmarkVisible(b *testing.B) {
	w := newWorld(b)
	b.ReportAllocs()
	for b.Loop() {
		if len(w.gate.Visible(w.agent, "")) != 2 {
			b.Fatal("not two")
		}
	}
}
