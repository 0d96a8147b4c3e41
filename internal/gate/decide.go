package gate

import (
	"encoding/json"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

const reasonArguments = "ARGUMENTS_INVALID"

// decide asks policy about the tool and refuses what it denies.
func (a *attempt) decide() error {
	a.verdict = verdictOf(a.snap, a.caller, a.tool, a.occasion())
	if a.verdict.Action == policy.Deny {
		return a.refusedBy(a.verdict)
	}
	if a.caller.LacksScope != "" && a.tool.Class != policy.Read { // not hidden from lists: the client can ask for the scope
		a.decided(policy.Deny, policy.StageCaller, "", auth.ReasonScope)
		return auth.InsufficientScope(a.caller.LacksScope).With("reason", auth.ReasonScope).With("trace_id", a.call.TraceID)
	}
	if err := a.script(); err != nil {
		return err
	}
	a.decided(a.verdict.Action, a.verdict.Stage, a.verdict.RuleID, a.verdict.Reason)
	return nil
}

// again makes the decision anew on the newest snapshot, after a wait or when the database has moved on.
// The tool is the one that was decided on before, whatever its name means by now.
func (a *attempt) again() error {
	a.refresh()
	sv := a.snap.Servers[a.tool.ServerID]
	var t *catalog.Tool
	if sv != nil {
		t = sv.Tool(a.tool.Name)
	}
	if t == nil || t.ID != a.tool.ID {
		a.decided(policy.Deny, policy.StageGrant, "", reasonUnknownTool)
		return a.unknownTool()
	}
	if t.Confirm && !a.control.asked {
		return a.unconfirmed(fault.Conflict, "confirmation_added", "the tool has come to need confirmation while the call waited; call again")
	}
	changed := t.Fingerprint != a.tool.Fingerprint
	a.found(t)
	if err := a.decide(); err != nil || !changed {
		return err
	}
	return a.checkArguments()
}

// refusedBy makes the answer of a verdict that denies.
func (a *attempt) refusedBy(v policy.Verdict) error {
	a.decided(policy.Deny, v.Stage, v.RuleID, v.Reason)
	if v.Hidden {
		return a.unknownTool()
	}
	e := a.refusal(v.Class, v.Reason, "%s", explained(v)).With("origin", string(v.Stage))
	if v.RuleID != "" {
		e.With("rule", v.RuleID)
	}
	return e
}

// explained is the sentence of a verdict with the reason that an admin gave for the rule.
func explained(v policy.Verdict) string {
	if v.RuleReason == "" {
		return v.Message
	}
	return v.Message + ": " + v.RuleReason
}

// verdictOf is the decision about a tool for a caller; Call, Visible, Explain and Simulate all use it.
func verdictOf(snap *catalog.Snapshot, c *auth.Caller, t *catalog.Tool, o occasion) policy.Verdict {
	f := factsOf(snap, c, t)
	if f.Conditional() {
		f.Situation = o.situation(c, t)
	}
	return policy.Decide(&f)
}

// factsOf is what the decision about a tool for a caller depends on, but for the call itself.
func factsOf(snap *catalog.Snapshot, c *auth.Caller, t *catalog.Tool) policy.Facts {
	f := callerFacts(c)
	f.Granted = granted(c, t)
	if c.Agent != nil {
		f.Capability = capability(c.Agent, t)
	}
	snap.Facts(t, c.AgentID, &f)
	return f
}

// callerFacts is the caller's own part of the facts.
func callerFacts(c *auth.Caller) policy.Facts {
	f := policy.Facts{AgentID: c.AgentID, TaskOver: c.TaskOver, Shutdown: c.Shutdown}
	if c.AgentID == "" {
		return f
	}
	if c.Agent == nil {
		f.AgentMissing = true
		return f
	}
	f.AgentStopped = c.Agent.StoppedAt != 0
	f.AgentState = c.Agent.State
	return f
}

// everyoneMay is the rule of what has no rules of its own.
var everyoneMay = []policy.Rule{{Word: "ALLOW"}}

// callerVerdict is the decision about the caller alone: as if all else allowed.
func callerVerdict(c *auth.Caller) policy.Verdict {
	f := callerFacts(c)
	f.Granted, f.ServerState, f.Admission, f.ServerRules = true, policy.StateActive, policy.Admitted, everyoneMay
	return policy.Decide(&f)
}

// capability is the word of the agent's capability model for a tool: the entry of the tool itself, else
// the one of its action class. It only ever tightens.
func capability(agent *auth.Agent, t *catalog.Tool) string {
	if len(agent.Capability) == 0 {
		return ""
	}
	if word, ok := agent.Capability[t.ServerName+"/"+t.Name]; ok {
		return word
	}
	return agent.Capability[string(t.Class)]
}

// noArguments stands for arguments that the caller left out.
var noArguments = json.RawMessage("{}")

// arguments as the tool will read them.
func (c *Call) arguments() json.RawMessage {
	if len(c.Arguments) == 0 {
		return noArguments
	}
	return c.Arguments
}

// checkArguments checks the arguments against the admitted definition. A member that stands twice is refused
// first: schema, rule and tool might each read another one of the two.
func (a *attempt) checkArguments() error {
	var err error
	if name, twice := mcp.Repeated(a.call.arguments()); twice {
		err = fault.New(fault.InvalidParams, "the arguments have %q twice in one object; send each member once", cut(name, nameLimit))
	} else if a.tool.Schema != nil {
		err = a.tool.Schema.Check(a.call.arguments())
	}
	if err == nil {
		return nil
	}
	a.decided(policy.Deny, policy.StageArguments, "", reasonArguments)
	f := *fault.From(err) // a copy: the schema may share its errors
	f.Data = nil
	for k, v := range fault.From(err).Data {
		f.With(k, v)
	}
	if f.Reason == "" {
		f.Reason = reasonArguments
	}
	return f.With("reason", f.Reason).With("trace_id", a.call.TraceID)
}
