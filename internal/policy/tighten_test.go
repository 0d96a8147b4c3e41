package policy_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/policy"
)

// permitted orders verdicts by what the caller may do: nothing, the call after a person approved it, the call.
func permitted(v policy.Verdict) int {
	switch v.Action {
	case policy.Allow, policy.LogOnly:
		return 2
	case policy.RequireApproval:
		return 1
	}
	return 0
}

// TestAddingNeverLoosens states what may be added without a call becoming more permitted:
//
//   - any rule of an agent, any stop, and any server-wide rule that denies or asks for approval, with or without a condition: always;
//   - a server-wide rule that allows: where an unconditional server-wide rule is. (On a tool without one it
//     takes the place of the approval that NO_RULE asks for, which is what it is for.)
//   - a condition on a server-wide rule that allows: always, since a rule that is not there cannot allow. LOG_ONLY counts as allowing.
//
// A condition on a rule that refuses narrows it, and so loosens; that is no part of the property.
func TestAddingNeverLoosens(t *testing.T) {
	words := []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY", "PERMIT"}
	texts := []string{`args.n == 1`, `args.n > 1`, `args.missing == 1`, `has(args.n)`, `tool.class == "read"`, `agent.name == "a"`, `hour("UTC") < 12`}
	var compiled []*policy.Condition
	for _, text := range texts {
		compiled = append(compiled, compile(t, text))
	}
	ids := 0
	rule := func(t *rapid.T, words []string) policy.Rule {
		ids++
		r := policy.Rule{ID: fmt.Sprint(ids), Word: rapid.SampledFrom(words).Draw(t, "word")}
		if rapid.Bool().Draw(t, "conditional") {
			r.If = rapid.SampledFrom(compiled).Draw(t, "if")
		}
		return r
	}
	rapid.Check(t, func(t *rapid.T) {
		f := open()
		for range rapid.IntRange(0, 4).Draw(t, "server rules") {
			f.ServerRules = append(f.ServerRules, rule(t, words))
		}
		for range rapid.IntRange(0, 3).Draw(t, "agent rules") {
			f.AgentRules = append(f.AgentRules, rule(t, words))
		}
		f.Capability = rapid.SampledFrom(append(words, "")).Draw(t, "capability")
		args := json.RawMessage(rapid.SampledFrom([]string{`{}`, `{"n":1}`, `{"n":2}`, `{"n":"x"}`, `[`}).Draw(t, "args"))
		decide := func(f policy.Facts) int {
			f.Situation = &policy.Situation{AgentName: "a", Class: policy.Write, Args: args, Now: evening}
			return permitted(policy.Decide(&f))
		}
		before := decide(f)
		after := f
		after.ServerRules = append([]policy.Rule(nil), f.ServerRules...)
		after.AgentRules = append([]policy.Rule(nil), f.AgentRules...)
		what := rapid.SampledFrom([]string{"agent rule", "refusing rule", "any rule", "condition", "stop", "shutdown", "grant", "tier", "server", "admission"}).Draw(t, "add")
		switch what {
		case "agent rule":
			after.AgentRules = append(after.AgentRules, rule(t, words))
		case "refusing rule":
			after.ServerRules = append(after.ServerRules, rule(t, words[2:]))
		case "any rule":
			after.ServerRules = append(after.ServerRules, policy.Rule{ID: "base", Word: rapid.SampledFrom(words).Draw(t, "base")})
			before = decide(after)
			after.ServerRules = append(after.ServerRules, rule(t, words))
		case "condition":
			for i := range after.ServerRules {
				if w := after.ServerRules[i].Word; after.ServerRules[i].If == nil && (w == "ALLOW" || w == "LOG_ONLY") {
					after.ServerRules[i].If = rapid.SampledFrom(compiled).Draw(t, "new if")
					break
				}
			}
		case "stop":
			after.AgentStopped = true
		case "shutdown":
			after.Shutdown = true
		case "grant":
			after.Granted = false
		case "tier":
			after.TierUnknown = true
		case "server":
			after.ServerState = rapid.SampledFrom([]string{"PAUSED", "BLOCKED", "PENDING_APPROVAL", "ODD"}).Draw(t, "state")
		case "admission":
			after.Admission = rapid.SampledFrom([]policy.Admission{policy.NotAdmitted, policy.Changed, "odd"}).Draw(t, "admission")
		}
		if got := decide(after); got > before {
			t.Fatalf("%s made the call more permitted: %d to %d", what, before, got)
		}
	})
}
