package policy

import (
	"errors"
	"fmt"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// neverCost bounds the search for a condition that can never be true (CEL cost units); what costs more is believed.
const neverCost = 3_000_000

// The closed sets of words that conditions compare with.
var (
	roleWords  = []string{"none", "viewer", "editor", "admin", "owner"}
	kindWords  = []string{"person", "agent", "task"}
	classWords = []Class{Read, Write, Delete, Send, Execute, Unknown}
)

// Never refuses a condition that is false (or fails) for every call, as far as that can be found out: all values of
// the closed sets (role, kind, class, hour and weekday in one zone) are tried with everything else unknown. What is false even so
// is false for every call. server and tool are those of the rule, empty when it is for any.
func (c *Condition) Never(server, tool string) error {
	trial := trial{c: c, s: Situation{Server: server, Tool: tool, Unknown: Args | Clock | Task | Project | Role | Agent | Annotations}}
	if tool == "" {
		trial.s.Unknown |= ToolName
	}
	if trial.anyCall() {
		return nil
	}
	if trial.failed != nil {
		return invalid(1, 1, fmt.Sprintf("the condition fails for every call: %v", trial.failed))
	}
	return fault.New(fault.InvalidParams, "the condition can never be true, so the rule would do nothing; check the words and hours it compares with").
		Why(ReasonCondition).With("line", 1).With("column", 1)
}

type trial struct {
	c      *Condition
	s      Situation
	failed error
}

// anyCall reports whether some call may fulfil the condition.
func (t *trial) anyCall() bool {
	if t.c.program == nil {
		return true
	}
	for _, role := range pick(t.c.vars[varRole], roleWords) {
		for _, kind := range pick(t.c.vars[varKind], kindWords) {
			for _, class := range pick(t.c.vars[varClass], classWords) {
				t.s.Role, t.s.Kind, t.s.Class = role, kind, class
				if t.c.vars[varRole] {
					t.s.Unknown &^= Role
				}
				if t.anyTime() {
					return true
				}
			}
		}
	}
	return false
}

// anyTime tries every hour of a week. Two zones meet in more ways than that, and so do minutes and dates.
func (t *trial) anyTime() bool {
	if len(t.c.zones) != 1 || t.c.fine {
		return t.may()
	}
	t.s.Unknown &^= Clock
	var zone *time.Location
	for name := range t.c.zones {
		zone, _ = location(name)
	}
	for hour := range 7 * 24 {
		t.s.Now = time.Date(2026, time.June, 1, hour, 0, 0, 0, zone) // June has no change of the clock in any zone of 2026
		if t.may() {
			return true
		}
	}
	return false
}

// may reports whether the condition may be true for a call like this one.
func (t *trial) may() bool {
	spent := t.s.spent
	t.s.spent = 0 // each is a decision of its own
	is, err := t.c.eval(&t.s)
	t.s.spent += spent
	switch {
	case t.s.spent > neverCost || is || errors.Is(err, errUnknown):
		return true
	case err != nil:
		t.failed = err
	}
	return false
}

// pick is all values where they matter, else one.
func pick[T any](matters bool, values []T) []T {
	if matters {
		return values
	}
	return values[:1]
}
