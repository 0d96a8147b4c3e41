package gate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
)

// saved adds a rule the way REST does.
func (w *world) saved(p catalog.Policy) (catalog.Policy, error) {
	return w.catalog.CreatePolicy(context.Background(), w.owner.WorkspaceID, p, w.owner.PersonID)
}

func (w *world) sees(c *auth.Caller, tool string) bool {
	for _, t := range w.gate.Visible(c, "") {
		if t.Name == tool {
			return true
		}
	}
	return false
}

// TestConditionalRule: by real calls, the arguments decide; the list shows what not every call is refused for.
func TestConditionalRule(t *testing.T) {
	w := newWorld(t)
	id := w.tools["notes/write_note"]
	w.rule("write_note", "ALLOW")
	p, err := w.saved(catalog.Policy{ToolID: id, Action: "DENY", Condition: `args.text.contains("secret")`, Reason: "no secrets"})
	if err != nil {
		t.Fatal(err)
	}
	if _, f := w.call(w.agent, "write_note", `{"text":"hello"}`); f != nil {
		t.Fatalf("a call that the condition does not hold for: %v", f)
	}
	r, f := w.call(w.agent, "write_note", `{"text":"a secret"}`)
	w.refused(r, f, fault.Denied, "RULE_DENY", "rules", "RULE_DENY")
	if row := w.row(r.TraceID); row.RuleID != p.ID {
		t.Errorf("recorded rule %q, want %q", row.RuleID, p.ID)
	}
	// A condition that fails denies, and says so.
	r, f = w.call(w.agent, "write_note", `{}`)
	if f == nil || f.Class != fault.Denied || !strings.Contains(f.Message, "could not be answered") {
		t.Errorf("a condition that fails: %v %+v", f, w.row(r.TraceID))
	}
	if !w.sees(w.agent, "write_note") {
		t.Error("the list hides a tool that only some calls are refused for")
	}
	// An explanation with arguments decides as the call does.
	e, err := w.gate.Explain(context.Background(), w.agent, "notes/write_note", []byte(`{"text":"a secret"}`))
	if err != nil || e.Action != "DENY" || e.Rule != p.ID {
		t.Errorf("explain: %+v %v", e, err)
	}
	// Depends on the caller alone: the list knows it, for this role and no other.
	if _, err := w.saved(catalog.Policy{ToolID: id, Action: "DENY", Condition: `caller.kind == "person" && caller.role == "viewer"`}); err != nil {
		t.Fatal(err)
	}
	viewer := w.newPerson("vera", auth.Viewer)
	if w.sees(viewer, "write_note") || !w.sees(w.owner, "write_note") || !w.sees(w.agent, "write_note") {
		t.Errorf("lists: viewer %v, owner %v, agent %v", w.sees(viewer, "write_note"), w.sees(w.owner, "write_note"), w.sees(w.agent, "write_note"))
	}
}

// TestConditionalAllowOnly: where no condition holds, a person must approve (PV-16), and a tool that is allowed for some calls
// only is no tool with an allowing rule: to allow all of them is a loosening.
func TestConditionalAllowOnly(t *testing.T) {
	w := newWorld(t)
	id := w.tools["notes/write_note"]
	w.exec(`DELETE FROM policy WHERE mcp_tool_id = $1`, id)
	if _, err := w.saved(catalog.Policy{ToolID: id, Action: "ALLOW", Condition: `args.text == "ok"`}); err != nil {
		t.Fatal(err)
	}
	if _, f := w.call(w.agent, "write_note", `{"text":"ok"}`); f != nil {
		t.Errorf("allowed: %v", f)
	}
	if _, f := w.call(w.agent, "write_note", `{"text":"other"}`); f == nil || f.Class != fault.Held {
		t.Errorf("not allowed: %v", f)
	}
	server := w.catalog.Snapshot().ToolByID(id).ServerID
	_, err := w.catalog.Verdict(context.Background(), w.owner.WorkspaceID, server, id, "ALLOW", "", false, "x")
	if f := fault.From(err); f == nil || f.Reason != "mcp_loosening_confirmation_required" {
		t.Errorf("loosening: %v", err)
	}
}

// TestConditionCase5: what can never match is refused when saved.
func TestConditionCase5(t *testing.T) {
	w := newWorld(t)
	for _, text := range []string{`false`, `args.n`, `caller.rol == "x"`, `hour("UTC") == 24`, `tool.server == "elsewhere"`} {
		_, err := w.saved(catalog.Policy{ToolID: w.tools["notes/write_note"], Action: "DENY", Condition: text})
		if f := fault.From(err); f == nil || f.Reason != "mcp_condition_invalid" || f.Data["line"] == nil || f.Data["column"] == nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// BenchmarkVerdict is a decision among 10,000 rules and 1,000 agents.
func BenchmarkVerdict(b *testing.B) {
	w := newWorld(b)
	tool := w.tools["notes/write_note"]
	w.exec(`INSERT INTO agent (id, workspace_id, name, state, created_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000) SELECT 'b' || i, $1, 'b' || i, 'ACTIVE', 1 FROM n`, w.owner.WorkspaceID)
	w.exec(`INSERT INTO policy (id, workspace_id, mcp_tool_id, agent_id, action, created_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 10000) SELECT 'r' || i, $1, $2, 'b' || (1 + i % 1000), 'REQUIRE_APPROVAL', 1 FROM n`,
		w.owner.WorkspaceID, tool)
	for i := range 10 {
		w.exec(`INSERT INTO policy (id, workspace_id, mcp_tool_id, agent_id, action, created_at) VALUES ($1, $2, $3, $4, 'REQUIRE_APPROVAL', 1)`,
			fmt.Sprint("own", i), w.owner.WorkspaceID, tool, w.agent.AgentID)
	}
	w.reload()
	snap := w.catalog.Snapshot()
	decide := w.gate.Decision(snap, w.agent, snap.ToolByID(tool))
	if n := testing.AllocsPerRun(100, decide); n != 0 {
		b.Errorf("a decision without conditions allocates %v times", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		decide()
	}
}

// A rule may ask for the labels that a task was started with, and for the tool's tier; without a task there are no labels.
func TestConditionOnLabelsAndTier(t *testing.T) {
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	must[catalog.Policy](t)(w.saved(catalog.Policy{ToolID: w.tools["notes/write_note"], Action: "DENY", Condition: `"untrusted" in labels && tool.tier == "ops"`}))
	for _, c := range []struct {
		labels []string
		runs   bool
	}{{nil, true}, {[]string{"untrusted"}, false}, {[]string{"a", "untrusted"}, false}, {[]string{"Untrusted"}, true}} {
		token, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", AgentID: w.agent.AgentID, Labels: c.labels}, 0)
		ok(t, err)
		if _, f := w.call(must[*auth.Caller](t)(w.auth.Authenticate(token)), "write_note", `{"text":"x"}`); (f == nil) != c.runs {
			t.Errorf("%v: %v", c.labels, f)
		}
	}
	if _, f := w.call(w.agent, "write_note", `{"text":"x"}`); f != nil {
		t.Errorf("without a task: %v", f)
	}
	deploy := "deploy"
	w.setTool("write_note", catalog.ToolSettings{Tier: &deploy})
	token, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", AgentID: w.agent.AgentID, Labels: []string{"untrusted"}}, 0)
	ok(t, err)
	if _, f := w.call(must[*auth.Caller](t)(w.auth.Authenticate(token)), "write_note", `{"text":"x"}`); f != nil {
		t.Errorf("another tier: %v", f)
	}
	for _, bad := range [][]string{{""}, {"a\nb"}, make([]string, 17)} {
		if _, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", Labels: bad}, 0); !fault.Is(err, fault.InvalidParams) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
