package catalog

import (
	"testing"

	"doorward.dev/doorward/internal/policy"
)

// TestConditionsAreLoaded: a stored condition is compiled once per text and kept by the next snapshots; a broken one refuses.
func TestConditionsAreLoaded(t *testing.T) {
	l := &loader{old: &Snapshot{}, s: &Snapshot{conditions: map[string]*policy.Condition{}}}
	c := l.condition(`args.n == 1`)
	if c == nil || l.condition(`args.n == 1`) != c || l.condition("") != nil {
		t.Fatal("not compiled once")
	}
	next := &loader{old: l.s, s: &Snapshot{conditions: map[string]*policy.Condition{}}}
	if next.condition(`args.n == 1`) != c {
		t.Error("compiled again for the next snapshot")
	}
	f := policy.Facts{AgentState: policy.StateActive, Granted: true, ServerState: StateActive, Admission: policy.Admitted, Situation: &policy.Situation{}}
	f.ServerRules = []policy.Rule{{Word: "ALLOW"}, {ID: "b", Word: "DENY", If: next.condition(`of.a.newer(version`)}}
	if v := policy.Decide(&f); v.RuleID != "b" || v.Action != policy.Deny {
		t.Errorf("a broken DENY was skipped: %+v", v)
	}
}
