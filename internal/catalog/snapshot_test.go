package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/policy"
)

func names(ts []*catalog.Tool) string {
	var out []string
	for _, t := range ts {
		out = append(out, t.ServerName+"/"+t.Name)
	}
	return strings.Join(out, " ")
}

func TestLookup(t *testing.T) {
	f := newFixture(t)
	a, b := f.register("mem"), f.register("evil.srv")
	f.list(a, def("memory.search", "1"), def("memory_search", "2"), def("read", "3"), def("x__y", "4"), def("x/y", "5"))
	f.list(b, def("read", "1"), def("mem/read", "2"), def("mem__read", "3"), def("mcp__mem__read", "4"), def("only", "5"))
	s := f.c.Snapshot()
	for name, want := range map[string]string{
		"mem/read":            "mem/read", // not taken over by the tool of another server
		"mem__read":           "mem/read",
		"mcp__mem__read":      "mem/read",
		"mem/x/y":             "mem/x/y",
		"mem__x__y":           "mem/x__y",
		"mem/memory.search":   "mem/memory.search",
		"mem__memory_search":  "mem/memory_search", // keeps its name beside the look-alike
		"mem__memory.search":  "mem/memory.search",
		"evil.srv/mem/read":   "evil.srv/mem/read",
		"evil_srv__mem__read": "evil.srv/mem__read",
		"evil.srv__only":      "evil.srv/only",
		"mcp__evil_srv__only": "evil.srv/only",
		"only":                "evil.srv/only",
		"x/y":                 "mem/x/y",
		"nope":                "",
		"mem/nope":            "",
		"mem__nope":           "",
		"":                    "",
		"mcp__":               "",
		"nope/read":           "",
	} {
		if got := names(s.Lookup(ws, name)); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := s.Lookup(ws, "read"); len(got) != 2 {
		t.Errorf("ambiguous: %s", names(got))
	}
	if got := s.Lookup(other, "mem/read"); got != nil {
		t.Errorf("other workspace: %s", names(got))
	}
	seen := map[string]string{}
	for _, id := range []string{a.ID, b.ID} {
		for _, tool := range s.Servers[id].Tools {
			if before, ok := seen[tool.Public]; ok {
				t.Errorf("%s and %s are both %s", before, tool.Name, tool.Public)
			}
			seen[tool.Public] = tool.Name
			if got := s.Lookup(ws, tool.Public); len(got) != 1 || got[0] != tool {
				t.Errorf("%s: its public name finds %s", tool.Public, names(got))
			}
		}
	}
}

func TestFactsAllocateNothing(t *testing.T) {
	f := newFixture(t)
	s := f.register("srv")
	f.list(s, def("read_x", "1"))
	s = f.approve(s, "read_x", "ALLOW")
	for _, p := range []catalog.Policy{{AgentID: "agent-1", Action: "REQUIRE_APPROVAL"}, {AgentID: "agent-1", ToolID: f.tool(s, "read_x").ID, Action: "DENY"}} {
		_, err := f.c.CreatePolicy(f.ctx, ws, p, admin)
		f.ok(err)
	}
	snapshot := f.c.Snapshot()
	tool := snapshot.Servers[s.ID].Tool("read_x")
	var facts policy.Facts
	if n := testing.AllocsPerRun(100, func() {
		snapshot.Facts(tool, "agent-1", &facts)
		snapshot.Lookup(ws, "read_x")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(facts.AgentRules) != 2 || facts.ServerState != "ACTIVE" || facts.Admission != policy.Admitted {
		t.Errorf("facts: %+v", facts)
	}
	snapshot.Facts(tool, "agent-9", &facts)
	if facts.AgentRules != nil {
		t.Error("rules of another agent")
	}
	snapshot.Facts(tool, "", &facts)
	if facts.AgentRules != nil {
		t.Error("a person has no agent's rules")
	}
}

// What did not change is shared between snapshots, so that a change costs little.
func TestSnapshotsShare(t *testing.T) {
	f := newFixture(t)
	s := f.register("srv")
	f.list(s, def("a_read", "1"), def("b_read", "1"))
	s = f.approve(s, "a_read", "ALLOW", "b_read", "ALLOW")
	before := f.c.Snapshot().Servers[s.ID]
	f.list(s, def("a_read", "1"), def("b_read", "2"))
	after := f.c.Snapshot().Servers[s.ID]
	if before.Tool("a_read").Schema != after.Tool("a_read").Schema || &before.Tool("a_read").Definition[0] != &after.Tool("a_read").Definition[0] {
		t.Error("an unchanged tool was compiled or read again")
	}
	if string(before.Tool("b_read").Definition) == string(after.Tool("b_read").Definition) || after.Tool("b_read").Schema != nil {
		t.Error("a changed tool kept its definition or its schema")
	}
	revision := f.c.Snapshot().Revision
	f.list(s, def("a_read", "1"), def("b_read", "2"))
	if f.c.Snapshot().Revision != revision {
		t.Error("a listing without news makes a new revision")
	}
}

func large(t testing.TB, servers, tools int) *fixture {
	f := newFixture(t)
	for i := range servers {
		s := f.register(fmt.Sprint("srv", i))
		var defs []string
		for j := range tools {
			defs = append(defs, def(fmt.Sprintf("read_%d", j), strings.Repeat("Reads something of some length. ", 20)))
		}
		f.list(s, defs...)
	}
	f.exec(`UPDATE tool SET admitted_fingerprint = fingerprint`)
	return f
}

func BenchmarkReload(b *testing.B) {
	f := large(b, 50, 500)
	f.restart()
	s := f.c.Snapshot().ServerByName(ws, "srv0").Server
	f.ok(func() error { _, err := f.c.Approve(f.ctx, ws, s.ID, "", nil, admin); return err }())
	b.ResetTimer()
	for i := range b.N {
		var err error
		if i%2 == 0 {
			_, err = f.c.Pause(f.ctx, ws, s.ID, admin)
		} else {
			_, err = f.c.Resume(f.ctx, ws, s.ID, admin)
		}
		f.ok(err)
	}
}
