package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// open is a call that every stage lets through.
func open(words ...string) policy.Facts {
	f := policy.Facts{
		AgentID: "a1", AgentState: "ACTIVE", Granted: true,
		ServerState: "ACTIVE", Admission: policy.Admitted,
	}
	f.ServerRules = rules("s", words...)
	return f
}

func rules(prefix string, words ...string) []policy.Rule {
	var out []policy.Rule
	for i, w := range words {
		out = append(out, policy.Rule{ID: fmt.Sprint(prefix, i), Word: w, Reason: "why " + w})
	}
	return out
}

func TestActionWords(t *testing.T) {
	for _, w := range []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY"} {
		a, ok := policy.ParseAction(w)
		if !ok || a.String() != w {
			t.Errorf("%s: got %v %v", w, a, ok)
		}
	}
	for _, w := range []string{"", "allow", "Allow", " ALLOW", "PERMIT", "ALLOW\x00"} {
		if a, ok := policy.ParseAction(w); ok || a != policy.Deny {
			t.Errorf("%q: got %v %v, want DENY and unknown", w, a, ok)
		}
	}
}

// Each row breaks one stage; the pairs below break two and expect the earlier.
var stages = []struct {
	name   string
	spoil  func(*policy.Facts)
	stage  policy.Stage
	reason string
	class  fault.Class
	hidden bool
}{
	{"missing agent (case 7)", func(f *policy.Facts) { f.AgentMissing = true }, policy.StageCaller, "AGENT_UNKNOWN", fault.Denied, false},
	{"PV-35 stopped", func(f *policy.Facts) { f.AgentStopped = true }, policy.StageStop, "AGENT_EMERGENCY_STOP", fault.Blocked, false},
	{"workspace shut down", func(f *policy.Facts) { f.Shutdown = true }, policy.StageStop, "PROJECT_EMERGENCY_SHUTDOWN", fault.Blocked, false},
	{"agent paused", func(f *policy.Facts) { f.AgentState = "PAUSED" }, policy.StageStop, "AGENT_NOT_ACTIVE", fault.Blocked, false},
	{"not granted", func(f *policy.Facts) { f.Granted = false }, policy.StageGrant, "NOT_GRANTED", fault.UnknownTool, true},
	{"server pending", func(f *policy.Facts) { f.ServerState = "PENDING_APPROVAL" }, policy.StageServer, "SERVER_PENDING_APPROVAL", fault.Blocked, false},
	{"PV-2 not admitted", func(f *policy.Facts) { f.Admission = policy.NotAdmitted }, policy.StageAdmission, "TOOL_NOT_ADMITTED", fault.NotAdmitted, false},
	{"rule DENY", func(f *policy.Facts) { f.ServerRules = rules("d", "DENY") }, policy.StageRules, "RULE_DENY", fault.Denied, false},
}

func TestStagesPairwise(t *testing.T) {
	for i, first := range stages {
		for j := i; j < len(stages); j++ {
			f := open("ALLOW")
			first.spoil(&f)
			stages[j].spoil(&f)
			v := policy.Decide(&f)
			if v.Action != policy.Deny || v.Stage != first.stage || v.Reason != first.reason || v.Class != first.class || v.Hidden != first.hidden {
				t.Errorf("%s + %s: got %+v, want the first to decide", first.name, stages[j].name, v)
			}
		}
	}
}

func TestStates(t *testing.T) {
	for state, reason := range map[string]string{
		"PENDING_APPROVAL": "SERVER_PENDING_APPROVAL", "PAUSED": "SERVER_PAUSED", "BLOCKED": "SERVER_BLOCKED",
		"": "SERVER_STATE_UNKNOWN", "active": "SERVER_STATE_UNKNOWN", "DELETED": "SERVER_STATE_UNKNOWN",
	} {
		f := open("ALLOW")
		f.ServerState = state
		if v := policy.Decide(&f); v.Action != policy.Deny || v.Reason != reason || v.Class != fault.Blocked {
			t.Errorf("server %q: got %+v, want %s", state, v, reason)
		}
	}
	for _, state := range []string{"", "PENDING_APPROVAL", "PAUSED", "SUSPENDED", "REVOKED", "REJECTED", "active"} {
		f := open("ALLOW")
		f.AgentState = state
		if v := policy.Decide(&f); v.Reason != "AGENT_NOT_ACTIVE" {
			t.Errorf("agent %q: got %+v", state, v)
		}
		f.AgentID = "" // a person has no agent state
		if v := policy.Decide(&f); v.Action != policy.Allow {
			t.Errorf("person with agent state %q: got %+v", state, v)
		}
	}
	for a, reason := range map[policy.Admission]string{
		policy.NotAdmitted: "TOOL_NOT_ADMITTED", policy.Changed: "TOOL_CHANGED", "": "TOOL_NOT_ADMITTED", "Admitted": "TOOL_NOT_ADMITTED",
	} {
		f := open("ALLOW")
		f.Admission = a
		v := policy.Decide(&f)
		if v.Reason != reason || v.Class != fault.NotAdmitted {
			t.Errorf("admission %q: got %+v, want %s", a, v, reason)
		}
		if m := strings.ToLower(v.Message); strings.Contains(m, "session") || strings.Contains(m, "expired") {
			t.Errorf("admission %q: message %q holds a word that clients misread", a, v.Message)
		}
	}
	f := open("ALLOW")
	f.AgentMissing = true
	f.AgentID = "agent-gone"
	if v := policy.Decide(&f); !strings.Contains(v.Message, "agent-gone") {
		t.Errorf("a dangling reference must name itself: %q", v.Message)
	}
}

// TestRulesTable is case 4: what the rules of one tool say about it, and what they say about another tool: nothing.
func TestRulesTable(t *testing.T) {
	none := policy.Verdict{Action: policy.RequireApproval, Reason: "NO_RULE", Class: fault.Held}
	for _, c := range []struct {
		name          string
		server, agent []string
		capability    string
		action        policy.Action
		reason, rule  string
		class         fault.Class
		otherAction   policy.Action // the same caller on a tool without server-wide rules
		otherReason   string
	}{
		{name: "PV-16 no rule", action: none.Action, reason: none.Reason, class: none.Class, otherAction: none.Action, otherReason: none.Reason},
		{name: "empty list", server: []string{}, action: none.Action, reason: none.Reason, class: none.Class, otherAction: none.Action, otherReason: none.Reason},
		{name: "only DENY", server: []string{"DENY"}, action: policy.Deny, reason: "RULE_DENY", rule: "s0", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "only ALLOW", server: []string{"ALLOW"}, action: policy.Allow, reason: "RULE_ALLOW", rule: "s0", otherAction: none.Action, otherReason: none.Reason},
		{name: "LOG_ONLY", server: []string{"LOG_ONLY"}, action: policy.LogOnly, reason: "RULE_LOG_ONLY", rule: "s0", otherAction: none.Action, otherReason: none.Reason},
		{name: "REQUIRE_APPROVAL", server: []string{"REQUIRE_APPROVAL"}, action: policy.RequireApproval, reason: "APPROVAL_REQUIRED", rule: "s0", class: fault.Held, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-17 unknown word", server: []string{"PERMIT"}, action: policy.Deny, reason: "RULE_UNKNOWN_ACTION", rule: "s0", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-17 empty word", server: []string{""}, action: policy.Deny, reason: "RULE_UNKNOWN_ACTION", rule: "s0", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-17 unknown beside ALLOW", server: []string{"ALLOW", "deny"}, action: policy.Deny, reason: "RULE_UNKNOWN_ACTION", rule: "s1", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-14 strictest of several", server: []string{"LOG_ONLY", "ALLOW", "REQUIRE_APPROVAL", "ALLOW"}, action: policy.RequireApproval, reason: "APPROVAL_REQUIRED", rule: "s2", class: fault.Held, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-14 DENY over all", server: []string{"REQUIRE_APPROVAL", "DENY", "ALLOW"}, action: policy.Deny, reason: "RULE_DENY", rule: "s1", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-15 agent ALLOW never lifts", server: []string{"DENY"}, agent: []string{"ALLOW"}, action: policy.Deny, reason: "RULE_DENY", rule: "s0", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-15 agent LOG_ONLY has no effect", server: []string{"ALLOW"}, agent: []string{"LOG_ONLY"}, action: policy.Allow, reason: "RULE_ALLOW", rule: "s0", otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-15 agent tightens", server: []string{"ALLOW"}, agent: []string{"REQUIRE_APPROVAL"}, action: policy.RequireApproval, reason: "APPROVAL_REQUIRED", rule: "a0", class: fault.Held, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-15 agent DENY", server: []string{"ALLOW"}, agent: []string{"ALLOW", "DENY"}, action: policy.Deny, reason: "RULE_DENY", rule: "a1", class: fault.Denied, otherAction: policy.Deny, otherReason: "RULE_DENY"},
		{name: "PV-17 agent unknown", server: []string{"ALLOW"}, agent: []string{"BLOCK"}, action: policy.Deny, reason: "RULE_UNKNOWN_ACTION", rule: "a0", class: fault.Denied, otherAction: policy.Deny, otherReason: "RULE_UNKNOWN_ACTION"},
		{name: "PV-16 agent rule is no server-wide rule", agent: []string{"ALLOW"}, action: none.Action, reason: none.Reason, class: fault.Held, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-18 capability denies", server: []string{"ALLOW"}, capability: "DENY", action: policy.Deny, reason: "CAPABILITY_DENY", class: fault.Denied, otherAction: policy.Deny, otherReason: "CAPABILITY_DENY"},
		{name: "PV-18 capability asks", server: []string{"LOG_ONLY"}, capability: "REQUIRE_APPROVAL", action: policy.RequireApproval, reason: "APPROVAL_REQUIRED", class: fault.Held, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-18 capability ALLOW lifts nothing", server: []string{"DENY"}, capability: "ALLOW", action: policy.Deny, reason: "RULE_DENY", rule: "s0", class: fault.Denied, otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-18 capability LOG_ONLY flags", server: []string{"ALLOW"}, capability: "LOG_ONLY", action: policy.LogOnly, reason: "RULE_LOG_ONLY", otherAction: none.Action, otherReason: none.Reason},
		{name: "PV-17 capability unknown", server: []string{"ALLOW"}, capability: "maybe", action: policy.Deny, reason: "RULE_UNKNOWN_ACTION", class: fault.Denied, otherAction: policy.Deny, otherReason: "RULE_UNKNOWN_ACTION"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(c.server...)
			f.AgentRules, f.Capability = rules("a", c.agent...), c.capability
			v := policy.Decide(&f)
			if v.Action != c.action || v.Reason != c.reason || v.RuleID != c.rule || v.Class != c.class || v.Stage != policy.StageRules || v.Hidden {
				t.Errorf("got %+v, want %v %s rule %q class %q", v, c.action, c.reason, c.rule, c.class)
			}
			if v.RuleID != "" && !strings.HasPrefix(v.RuleReason, "why ") {
				t.Errorf("the stored reason of the rule is missing: %+v", v)
			}
			f.ServerRules = nil
			if v := policy.Decide(&f); v.Action != c.otherAction || v.Reason != c.otherReason {
				t.Errorf("other tool: got %+v, want %v %s", v, c.otherAction, c.otherReason)
			}
		})
	}
}

var words = []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY", "", "permit", "Deny"}

func drawFacts(t *rapid.T) policy.Facts {
	list := func(name string) []policy.Rule {
		return rules(name, rapid.SliceOfN(rapid.SampledFrom(words), 0, 4).Draw(t, name)...)
	}
	states := []string{"ACTIVE", "ACTIVE", "ACTIVE", "PAUSED", "PENDING_APPROVAL", "BLOCKED", "?"}
	return policy.Facts{
		AgentID:      rapid.SampledFrom([]string{"", "a1"}).Draw(t, "agent"),
		AgentMissing: rapid.IntRange(0, 9).Draw(t, "missing") == 0,
		AgentStopped: rapid.IntRange(0, 9).Draw(t, "stopped") == 0,
		AgentState:   rapid.SampledFrom(states).Draw(t, "agentState"),
		Granted:      rapid.IntRange(0, 9).Draw(t, "granted") != 0,
		ServerState:  rapid.SampledFrom(states).Draw(t, "serverState"),
		Admission:    rapid.SampledFrom([]policy.Admission{policy.Admitted, policy.Admitted, policy.Changed, policy.NotAdmitted, "?"}).Draw(t, "admission"),
		ServerRules:  list("server"),
		AgentRules:   list("agentRules"),
		Capability:   rapid.SampledFrom(words).Draw(t, "capability"),
	}
}

// Adding a rule, a stop or a restriction never makes the answer more permissive. The one thing that
// may is the first server-wide rule of a tool: without one each call is held (PV-16).
func TestOnlyTightens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFacts(t)
		before := policy.Decide(&f)
		word := rapid.SampledFrom(words).Draw(t, "word")
		switch rapid.IntRange(0, 7).Draw(t, "step") {
		case 0:
			if len(f.ServerRules) == 0 {
				t.Skip("the first server-wide rule")
			}
			at := rapid.IntRange(0, len(f.ServerRules)).Draw(t, "at")
			f.ServerRules = append(f.ServerRules[:at:at], append([]policy.Rule{{ID: "new", Word: word}}, f.ServerRules[at:]...)...)
		case 1:
			f.AgentRules = append([]policy.Rule{{ID: "new", Word: word}}, f.AgentRules...)
		case 2:
			if f.Capability != "" {
				t.Skip("replaces a capability")
			}
			f.Capability = word
		case 3:
			f.AgentStopped = true
		case 4:
			f.Granted = false
		case 5:
			f.ServerState = "BLOCKED"
		case 6:
			f.Admission = policy.Changed
		case 7:
			f.AgentMissing = true
		}
		after := policy.Decide(&f)
		if after.Action < before.Action {
			t.Fatalf("became more permissive: %+v to %+v with %+v", before, after, f)
		}
		if (after.Class == "") != (after.Action <= policy.LogOnly) {
			t.Fatalf("a refusal has a class and only a refusal: %+v", after)
		}
	})
}

func TestDecideAllocatesNothing(t *testing.T) {
	for _, c := range stages[1:] {
		f := open("ALLOW", "LOG_ONLY")
		f.AgentRules = rules("a", "REQUIRE_APPROVAL")
		c.spoil(&f)
		if n := testing.AllocsPerRun(100, func() { policy.Decide(&f) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	f := open("ALLOW", "LOG_ONLY")
	f.AgentRules, f.Capability = rules("a", "REQUIRE_APPROVAL"), "LOG_ONLY"
	b.ReportAllocs()
	for b.Loop() {
		policy.Decide(&f)
	}
}
