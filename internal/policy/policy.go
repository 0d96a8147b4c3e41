// Package policy is the pure decision about one call: facts in, verdict with
// stage, rule and reason out. It has no I/O and no clock, and every stage may
// only tighten what the stages before it said.
package policy

import "doorward.dev/doorward/internal/fault"

// Action is a rule's word. The order is the strictness: the greatest wins.
type Action uint8

// The actions.
const (
	Allow Action = iota
	LogOnly
	RequireApproval
	Deny
)

// ParseAction reads a stored or given word. An unknown word is Deny and false:
// stored it blocks (PV-17), given it is refused.
func ParseAction(word string) (Action, bool) {
	switch word {
	case "ALLOW":
		return Allow, true
	case "LOG_ONLY":
		return LogOnly, true
	case "REQUIRE_APPROVAL":
		return RequireApproval, true
	case "DENY":
		return Deny, true
	}
	return Deny, false
}

// String gives the word that ParseAction reads; an Action out of range is DENY.
func (a Action) String() string {
	switch a {
	case Allow:
		return "ALLOW"
	case LogOnly:
		return "LOG_ONLY"
	case RequireApproval:
		return "REQUIRE_APPROVAL"
	}
	return "DENY"
}

// Class is what a tool does, as far as its definition tells (PV-10).
type Class string

// The action classes.
const (
	Read    Class = "read"
	Write   Class = "write"
	Delete  Class = "delete"
	Send    Class = "send"
	Execute Class = "execute"
	Unknown Class = "unknown"
)

// Stage names the part of the path that decided; see design "A call".
type Stage string

// The stages, in their order.
const (
	StageCaller      Stage = "caller"
	StageStop        Stage = "stop"
	StageGrant       Stage = "grant"
	StageServer      Stage = "server"
	StageAdmission   Stage = "admission"
	StageRules       Stage = "rules"
	StageArguments   Stage = "arguments"
	StageConfirm     Stage = "confirm"
	StageIdempotency Stage = "idempotency"
	StageApproval    Stage = "approval"
	StageLimits      Stage = "limits"
	StageRecord      Stage = "record"
	StageDispatch    Stage = "dispatch"
)

// Admission is the state of a tool (PV-2).
type Admission string

// The admission states.
const (
	Admitted    Admission = "admitted"
	NotAdmitted Admission = "not_admitted"
	Changed     Admission = "changed"
)

// Rule is a stored rule as the decision sees it. Word is kept as stored: an
// unknown word must block.
type Rule struct {
	ID     string
	Word   string
	Reason string
	If     *Condition // nil: the rule applies to every call
}

// Facts is all that a decision depends on. It is cheap to build from a
// snapshot: slices are shared, nothing is copied.
type Facts struct {
	AgentID      string // empty: a person calls
	AgentMissing bool   // the key names an agent that does not exist (case 7): denies and names itself
	TaskOver     string // why the task that calls may not go on, empty: it may, or no task calls
	AgentStopped bool
	Shutdown     bool   // the whole workspace is shut down
	AgentState   string // ACTIVE, … ; only ACTIVE may call
	Granted      bool
	TierUnknown  bool   // the tool is stored in a tier that this version does not know
	ServerState  string // only ACTIVE may be called
	ServerReason string
	Admission    Admission
	ServerRules  []Rule // server-wide rules of the tool
	AgentRules   []Rule // rules of the agent, and of agent and tool
	Capability   string // word of the agent's capability model for the tool, empty: none
	// Situation is what the conditions of rules are asked about; needed only when there are some.
	Situation *Situation
}

// Conditional reports whether some rule has a condition, so that Situation is needed.
func (f *Facts) Conditional() bool {
	for i := range f.ServerRules {
		if f.ServerRules[i].If != nil {
			return true
		}
	}
	for i := range f.AgentRules {
		if f.AgentRules[i].If != nil {
			return true
		}
	}
	return false
}

// Asks are the aspects that the conditions of the rules read.
func (f *Facts) Asks() (a Aspect) {
	for _, rules := range [...][]Rule{f.ServerRules, f.AgentRules} {
		for i := range rules {
			if rules[i].If != nil {
				a |= rules[i].If.Asks()
			}
		}
	}
	return a
}

// Verdict is the decision and why.
type Verdict struct {
	Action  Action
	Stage   Stage
	RuleID  string // the rule that decided, empty: none
	Reason  string // machine-readable: AGENT_EMERGENCY_STOP, TOOL_CHANGED, NO_RULE, …
	Message string // one sentence for people
	// RuleReason is the reason a person stored with the deciding rule.
	RuleReason string
	Class      fault.Class // of the refusal, when Action is Deny or RequireApproval
	Hidden     bool        // the caller must not learn that the tool exists
}
