package gate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/policy"
)

// simulate runs a proposal over the calls of the last week.
func (w *world) simulate(p catalog.Proposal) *gate.Simulation {
	w.t.Helper()
	now := w.clock.Load()
	return must[*gate.Simulation](w.t)(w.gate.Simulate(w.ctx, w.owner, gate.SimulateRequest{Proposal: p, From: now - 7*24*time.Hour.Microseconds(), To: now + 1}))
}

func adding(rules ...catalog.ProposedRule) catalog.Proposal { return catalog.Proposal{Add: rules} }

func sums(s *gate.Simulation) string {
	t := s.Totals
	return fmt.Sprintf("%d calls, %d changed, %d stricter, %d looser, %d unjudged, %d drifted", t.Calls, t.Changed, t.Stricter, t.Looser, t.Unjudged, t.Drifted)
}

func wantSums(t testing.TB, what string, s *gate.Simulation, want string) {
	t.Helper()
	if got := sums(s); got != want {
		t.Errorf("%s: %s, want %s; %v", what, got, want, s.Unjudged)
	}
}

// Real calls, then a proposal: what the simulation says of each is what the same call meets once the rule is saved.
func TestSimulateForetellsCalls(t *testing.T) {
	w := newWorld(t)
	helper, viewer := w.newAgent("helper", "notes/*"), w.newPerson("vera", auth.Viewer)
	task, _ := w.newTask("")
	token, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", AgentID: helper.AgentID, ProjectID: "p1", Labels: []string{"night"}}, time.Hour)
	ok(t, err)
	agentTask := must[*auth.Caller](t)(w.auth.Authenticate(token))
	script := "script_run"
	w.setTool("write_note", catalog.ToolSettings{Tier: &script})
	bound := *w.newAgent("bound", "notes/*").Agent
	bound.ScriptAllowlist = []string{"nightly"}
	must[*auth.Agent](t)(w.auth.UpdateAgent(w.ctx, w.owner.WorkspaceID, bound))
	boundCaller := &auth.Caller{WorkspaceID: w.owner.WorkspaceID, AgentID: bound.ID, Agent: &bound}
	type made struct {
		caller     *auth.Caller
		tool, args string
	}
	calls := map[string]made{} // trace -> call
	callAll := func(note func(trace string, m made)) {
		for _, c := range []*auth.Caller{w.agent, helper, w.owner, viewer, task, agentTask, boundCaller} {
			for _, m := range []made{
				{c, "read_note", ``}, {c, "read_note", `{"id":"1"}`}, {c, "read_note", `{"id":"secret"}`}, {c, "write_note", `{"text":"a","slug":"nightly"}`}, {c, "write_note", `{"text":"a"}`},
			} {
				w.clock.Add(time.Second.Microseconds())
				r, _ := w.call(m.caller, m.tool, m.args)
				note(r.TraceID, m)
			}
		}
	}
	callAll(func(trace string, m made) { calls[trace] = m })
	recorded := map[string]string{}
	for trace := range calls {
		recorded[trace] = w.row(trace).Decision
	}
	read, write := w.tools["notes/read_note"], w.tools["notes/write_note"]
	for _, p := range []catalog.ProposedRule{
		{Action: "DENY", ToolID: read},
		{Action: "LOG_ONLY", ToolID: read},
		{Action: "DENY", AgentID: helper.AgentID},
		{Action: "REQUIRE_APPROVAL", AgentID: helper.AgentID, ToolID: read},
		{Action: "DENY", ToolID: read, Condition: `args.id.contains("secret")`},
		{Action: "DENY", ToolID: read, Condition: `caller.role == "owner" && caller.kind == "task"`},
		{Action: "DENY", AgentID: helper.AgentID, Condition: `task != "" && agent.name == "helper"`},
		{Action: "DENY", ToolID: read, Condition: `"night" in labels && project == "p1" && tool.tier == "read"`},
		{Action: "ALLOW", ToolID: write}, // under the rule that asks for approval
	} {
		s := w.simulate(adding(p))
		if s.Totals.Calls != len(calls) || s.Totals.Unjudged != 0 || s.Totals.Drifted != 0 || s.Totals.Looser != 0 {
			t.Errorf("%+v: %s %v", p, sums(s), s.Unjudged)
		}
		proposed := map[string]string{}
		for trace, decision := range recorded {
			proposed[trace] = decision
		}
		for _, c := range s.Changes {
			if c.Recorded.Decision != recorded[c.TraceID] || c.Today.Decision != recorded[c.TraceID] || c.Proposed.Decision == c.Today.Decision || c.Change != "stricter" {
				t.Errorf("%+v: a change that is none: %+v", p, c)
			}
			if c.Proposed.Rule != "add[0]" {
				t.Errorf("%+v: decided by %q", p, c.Proposed.Rule)
			}
			proposed[c.TraceID] = c.Proposed.Decision
		}
		want := map[made]string{}
		for trace, m := range calls {
			want[m] = proposed[trace]
		}
		saved := must[catalog.Policy](t)(w.saved(catalog.Policy{Action: p.Action, ToolID: p.ToolID, AgentID: p.AgentID, Condition: p.Condition}))
		w.reload()
		clock := w.clock.Load()
		callAll(func(trace string, m made) {
			if row := w.row(trace); row.Decision != want[m] {
				t.Errorf("%+v: %s by %q with %s is %s %s, foretold %s", p, m.tool, m.caller.AgentID, m.args, row.Decision, row.Reason, want[m])
			}
			w.exec(`DELETE FROM audit_events WHERE trace_id = $1`, trace)
		})
		w.clock.Store(clock)
		ok(t, w.catalog.DeletePolicy(w.ctx, w.owner.WorkspaceID, saved.ID))
	}
}

// Removing and replacing loosen, and PV-16: a tool without a rule is held, so a rule that allows is looser there.
func TestSimulateLooser(t *testing.T) {
	w := newWorld(t)
	write := w.tools["notes/write_note"]
	if _, f := w.call(w.agent, "write_note", `{"text":"a"}`); f == nil || f.Class != fault.Held {
		t.Fatal(f)
	}
	var ruleID string
	for _, p := range must[[]catalog.Policy](t)(w.catalog.Policies(w.ctx, w.owner.WorkspaceID)) {
		if p.ToolID == write {
			ruleID = p.ID
		}
	}
	s := w.simulate(catalog.Proposal{Replace: []catalog.ProposedVerdict{{ToolID: write, Action: "ALLOW"}}})
	wantSums(t, "replace", s, "1 calls, 1 changed, 0 stricter, 1 looser, 0 unjudged, 0 drifted")
	if c := s.Changes[0]; c.Change != "looser" || c.Proposed.Rule != "replace[0]" || c.Today.Rule != ruleID || c.Recorded.Rule != ruleID || c.Agent != w.agent.Agent.Name {
		t.Errorf("%+v", c)
	}
	// Without its rule the tool is held all the same; with one that allows in its place it is not.
	wantSums(t, "remove", w.simulate(catalog.Proposal{Remove: []string{ruleID}}), "1 calls, 0 changed, 0 stricter, 0 looser, 0 unjudged, 0 drifted")
	allow := catalog.ProposedRule{Action: "ALLOW", ToolID: write}
	wantSums(t, "add", w.simulate(adding(allow)), "1 calls, 0 changed, 0 stricter, 0 looser, 0 unjudged, 0 drifted")
	wantSums(t, "remove and add", w.simulate(catalog.Proposal{Add: []catalog.ProposedRule{allow}, Remove: []string{ruleID}}),
		"1 calls, 1 changed, 0 stricter, 1 looser, 0 unjudged, 0 drifted")
	// What changed since is counted, not listed.
	w.rule("write_note", "DENY")
	wantSums(t, "drifted", w.simulate(adding(allow)), "1 calls, 0 changed, 0 stricter, 0 looser, 0 unjudged, 1 drifted")
	// Nothing was changed by asking.
	if r, f := w.call(w.agent, "write_note", `{"text":"a"}`); f == nil || f.Class != fault.Denied {
		t.Errorf("the rule of now: %v %v", r, f)
	}
}

// What the record does not hold whole is judged where it makes no difference, and counted with the reason where it may.
func TestSimulateUnjudged(t *testing.T) {
	w := newWorld(t)
	w.redactor.Set("test", []string{"hunter2hunter2"})
	read := w.tools["notes/read_note"]
	for _, args := range []string{`{"id":"1"}`, `{"id":"` + strings.Repeat("x", 40_000) + `"}`, `{"id":"hunter2hunter2"}`} {
		if _, f := w.call(w.agent, "read_note", args); f != nil {
			t.Fatal(f)
		}
	}
	long := catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: `size(args.id) > 100`}
	s := w.simulate(adding(long))
	wantSums(t, "arguments", s, "3 calls, 0 changed, 0 stricter, 0 looser, 2 unjudged, 0 drifted")
	if s.Unjudged["arguments_incomplete"] != 2 {
		t.Errorf("why: %v", s.Unjudged)
	}
	s = w.simulate(adding(long, catalog.ProposedRule{Action: "DENY", ToolID: read}))
	wantSums(t, "whatever the arguments are", s, "3 calls, 3 changed, 3 stricter, 0 looser, 0 unjudged, 0 drifted")
	wantSums(t, "no arguments asked", w.simulate(adding(catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: `hour("UTC") == 12`})),
		"3 calls, 3 changed, 3 stricter, 0 looser, 0 unjudged, 0 drifted")
	wantSums(t, "another hour", w.simulate(adding(catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: `hour("UTC") == 13`})),
		"3 calls, 0 changed, 0 stricter, 0 looser, 0 unjudged, 0 drifted")

	w.exec(`DELETE FROM audit_events`)
	task, made := w.newTask(w.agent.AgentID)
	w.call(task, "read_note", `{}`) //nolint:errcheck // for the record
	must[auth.Task](t)(w.auth.FinishTask(w.ctx, w.owner.WorkspaceID, made.ID))
	w.call(task, "read_note", `{}`)                    //nolint:errcheck // refused: it is over
	w.call(w.agent, "no_such_tool", `{}`)              //nolint:errcheck
	w.call(w.newAgent("gone", "*"), "read_note", `{}`) //nolint:errcheck
	other := w.addServer("other", w.fake)
	w.approve(other, map[string]string{"read_note": "ALLOW"})
	w.call(w.agent, "other/read_note", `{}`) //nolint:errcheck
	deny := adding(catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: `project == "p1"`})
	wantSums(t, "a task that is over now", w.simulate(adding(catalog.ProposedRule{Action: "DENY", ToolID: read})), "5 calls, 2 changed, 2 stricter, 0 looser, 1 unjudged, 0 drifted")
	wantSums(t, "before", w.simulate(deny), "5 calls, 0 changed, 0 stricter, 0 looser, 1 unjudged, 0 drifted")
	w.exec(`DELETE FROM task WHERE id = $1`, made.ID)
	w.exec(`DELETE FROM api_key WHERE agent_id IN (SELECT id FROM agent WHERE name = 'gone')`)
	w.exec(`DELETE FROM agent WHERE name = 'gone'`)
	ok(t, w.catalog.Remove(w.ctx, w.owner.WorkspaceID, other.ID))
	w.reload()
	s = w.simulate(deny)
	for why, n := range map[string]int{"task_gone": 1, "agent_gone": 1, "tool_gone": 1, "no_tool": 1} {
		if s.Unjudged[why] != n {
			t.Errorf("%s: %v", why, s.Unjudged)
		}
	}
	w.exec(`UPDATE person SET disabled_at = 1`)
	w.call(w.owner, "read_note", `{}`) //nolint:errcheck
	if s = w.simulate(deny); s.Unjudged["person_gone"] != 1 {
		t.Errorf("person: %v", s.Unjudged)
	}
}

// A proposal that could not be saved is refused as when saving, and says which part is wrong.
func TestSimulateRefusals(t *testing.T) {
	w := newWorld(t)
	read := w.tools["notes/read_note"]
	fine := catalog.ProposedRule{Action: "DENY", ToolID: read}
	for name, c := range map[string]struct {
		p            catalog.Proposal
		class        fault.Class
		reason, item string
	}{
		"empty":        {catalog.Proposal{}, fault.InvalidParams, "mcp_proposal_empty", ""},
		"too many":     {adding(make([]catalog.ProposedRule, 101)...), fault.TooLarge, "", ""},
		"word":         {adding(fine, catalog.ProposedRule{Action: "PERMIT", ToolID: read}), fault.InvalidParams, "mcp_action_invalid", "add[1]"},
		"no target":    {adding(catalog.ProposedRule{Action: "DENY"}), fault.InvalidParams, "mcp_policy_target_required", "add[0]"},
		"ineffective":  {adding(catalog.ProposedRule{Action: "ALLOW", AgentID: w.agent.AgentID}), fault.InvalidParams, "mcp_agent_rule_ineffective", "add[0]"},
		"condition":    {adding(fine, catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: "task ==\n nope"}), fault.InvalidParams, "mcp_condition_invalid", "add[1]"},
		"foreign tool": {catalog.Proposal{Replace: []catalog.ProposedVerdict{{ToolID: "x", Action: "DENY"}}}, fault.NotFound, "", "replace[0]"},
		"no tool":      {catalog.Proposal{Replace: []catalog.ProposedVerdict{{Action: "DENY"}}}, fault.InvalidParams, "mcp_policy_target_required", "replace[0]"},
		"agent":        {adding(catalog.ProposedRule{Action: "DENY", AgentID: "x"}), fault.NotFound, "", "add[0]"},
		"rule":         {catalog.Proposal{Remove: []string{"x"}}, fault.NotFound, "", "remove[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.gate.Simulate(w.ctx, w.owner, gate.SimulateRequest{Proposal: c.p, From: 1, To: 2})
			f := fault.From(err)
			if f == nil || f.Class != c.class || f.Reason != c.reason {
				t.Fatalf("%v", err)
			}
			if item, _ := f.Data["item"].(string); item != c.item || !strings.HasPrefix(f.Message, item) {
				t.Errorf("item %q: %s", item, f.Message)
			}
			if name == "condition" && (f.Data["line"] != 2 || f.Data["column"] != 2) {
				t.Errorf("position %v", f.Data)
			}
		})
	}
}

// An added rule loosens only a call that no rule of the tool applied to, where it takes the place of the approval that NO_RULE
// asks for (PV-16); every other change is stricter.
func TestSimulateAddedRuleTightens(t *testing.T) {
	w := newWorld(t)
	read, write := w.tools["notes/read_note"], w.tools["notes/write_note"]
	for _, c := range []*auth.Caller{w.agent, w.newAgent("helper", "notes/read_note"), w.owner} {
		for _, call := range [][2]string{{"read_note", ``}, {"read_note", `{"n":1}`}, {"read_note", `{"n":2}`}, {"write_note", `{"text":"a","n":1}`}} {
			w.call(c, call[0], call[1]) //nolint:errcheck // for the record
		}
	}
	texts := []string{"", "", `args.n == 1`, `has(args.n)`, `caller.kind == "agent"`, `tool.class == "read"`, `args.missing == 1`, `hour("UTC") < 12`}
	words := []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY", "PERMIT"}
	looser := 0
	rapid.Check(t, func(rt *rapid.T) {
		w.exec(`DELETE FROM policy`)
		for i := range rapid.IntRange(0, 4).Draw(rt, "rules") {
			agent := any(nil)
			if rapid.Bool().Draw(rt, "of agent") {
				agent = w.agent.AgentID
			}
			w.exec(`INSERT INTO policy (id, workspace_id, mcp_tool_id, agent_id, action, condition, created_at) VALUES ($1, $2, $3, $4, $5, $6, 1)`, fmt.Sprint("r", i),
				w.owner.WorkspaceID, rapid.SampledFrom([]string{read, write}).Draw(rt, "tool"), agent, rapid.SampledFrom(words).Draw(rt, "word"), rapid.SampledFrom(texts).Draw(rt, "if"))
		}
		p := catalog.ProposedRule{Action: rapid.SampledFrom(words[:4]).Draw(rt, "action"), Condition: rapid.SampledFrom(texts).Draw(rt, "condition")}
		if p.ToolID = rapid.SampledFrom([]string{read, write, ""}).Draw(rt, "for"); p.ToolID == "" || p.Action == "DENY" && rapid.Bool().Draw(rt, "for agent") {
			p.AgentID, p.Action = w.agent.AgentID, "DENY"
		}
		s, err := w.gate.Simulate(w.ctx, w.owner, gate.SimulateRequest{Proposal: adding(p), From: 1, To: w.clock.Load() + 1})
		if fault.From(err) != nil && fault.From(err).Reason == policy.ReasonCondition {
			return // it can never hold for the tool
		}
		if err != nil || s.Totals.Calls != 12 || s.Totals.Unjudged != 0 {
			rt.Fatalf("%v %+v", err, s)
		}
		for _, c := range s.Changes {
			if c.Change == "looser" {
				looser++
				if c.Today.Reason != policy.ReasonNoRule {
					rt.Fatalf("%+v loosens %+v", p, c)
				}
			}
		}
	})
	if looser == 0 {
		t.Error("no case met the exception")
	}
}

// recordCalls puts n calls into the record without its writer: agents a and tools by turns, times within the last days.
func (w *world) recordCalls(n int, agents int) {
	w.t.Helper()
	for i := range agents {
		w.exec(`INSERT INTO agent (id, workspace_id, name, state, allowlist, created_at) VALUES ($1, $2, $1, 'ACTIVE', '["*"]', 1)`, fmt.Sprint("bulk", i), w.owner.WorkspaceID)
	}
	w.exec(`INSERT INTO audit_events (seq, id, at, kind, trace_id, workspace_id, agent_id, key_id, door, method, server_id, server_name, tool_id, tool_name, fingerprint,
		decision, stage, rule_id, reason, status, latency_us, args_digest, args_size, args_body, result_digest, result_size, result_body, prev_hash, hash)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < CAST($1 AS BIGINT))
		SELECT 1000 + i, 'e' || i, CAST($2 AS BIGINT) - i, 'call', 'trc_' || i, $3, 'bulk' || (i % CAST($4 AS BIGINT)), 'k', 'mcp', 'tools/call', $5, 'notes',
		CASE WHEN i % 4 = 0 THEN $6 ELSE $7 END, CASE WHEN i % 4 = 0 THEN 'write_note' ELSE 'read_note' END, 'v1:0123456789abcdef',
		CASE WHEN i % 4 = 0 THEN 'REQUIRE_APPROVAL' ELSE 'ALLOW' END, 'rules', 'r', 'RULE_ALLOW', 'ok', 100,
		'2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd', 7, '{"n":1}', 'd', 400, $8, 'p', 'h' FROM n`,
		n, w.clock.Load(), w.owner.WorkspaceID, agents, w.server.ID, w.tools["notes/write_note"], w.tools["notes/read_note"], strings.Repeat("r", 400))
}

// The lists end at the limit, the totals do not.
func TestSimulateLimit(t *testing.T) {
	w := newWorld(t)
	w.recordCalls(3000, 7)
	deny := adding(catalog.ProposedRule{Action: "DENY", ToolID: w.tools["notes/read_note"], Condition: "args.n == 1"})
	s := w.simulate(deny)
	wantSums(t, "all", s, "3000 calls, 2250 changed, 2250 stricter, 0 looser, 0 unjudged, 0 drifted")
	if len(s.Changes) != 200 || !s.Cut || len(s.Pairs) != 7 || s.Changes[0].TraceID != "trc_2999" {
		t.Errorf("%d changes, %d pairs, truncated %v, first %+v", len(s.Changes), len(s.Pairs), s.Cut, s.Changes[0])
	}
	in := gate.SimulateRequest{Proposal: deny, From: w.clock.Load() - 10, To: w.clock.Load() - 5, Limit: 3}
	s = must[*gate.Simulation](t)(w.gate.Simulate(w.ctx, w.owner, in))
	wantSums(t, "a span", s, "5 calls, 4 changed, 4 stricter, 0 looser, 0 unjudged, 0 drifted") // i = 6 to 10, of which 8 is a write
	if len(s.Changes) != 3 || len(s.Pairs) != 3 || !s.Cut {
		t.Errorf("%d changes, %d pairs, truncated %v", len(s.Changes), len(s.Pairs), s.Cut)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := w.gate.Simulate(ctx, w.owner, in); err == nil {
		t.Error("nobody waits for the answer any more, and it was made")
	}
	foreign := *w.owner
	foreign.WorkspaceID = "elsewhere"
	if _, err := w.gate.Simulate(w.ctx, &foreign, in); !fault.Is(err, fault.NotFound) {
		t.Errorf("a tool of another workspace: %v", err)
	}
}

// BenchmarkSimulate is 100,000 recorded calls of 50 agents and two tools.
func BenchmarkSimulate(b *testing.B) {
	w := newWorld(b)
	w.recordCalls(100_000, 50)
	read := w.tools["notes/read_note"]
	for _, c := range []struct {
		name      string
		condition string
	}{{"unconditional", ""}, {"by-time", `hour("Europe/Berlin") < 8`}, {"by-arguments", `has(args.n) && args.n > 0`}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				start := time.Now()
				s := w.simulate(adding(catalog.ProposedRule{Action: "DENY", ToolID: read, Condition: c.condition}))
				if s.Totals.Calls != 100_000 || s.Totals.Unjudged != 0 {
					b.Fatal(sums(s))
				}
				b.Logf("%s: %s in %s", c.name, sums(s), time.Since(start).Round(time.Millisecond))
			}
		})
	}
}
