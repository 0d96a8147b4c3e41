package policy

import (
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// The reasons of a verdict. They stand in the record and in data.reason of refusals.
const (
	ReasonAgentUnknown     = "AGENT_UNKNOWN"
	ReasonEmergencyStop    = "AGENT_EMERGENCY_STOP"
	ReasonShutdown         = "PROJECT_EMERGENCY_SHUTDOWN"
	ReasonAgentNotActive   = "AGENT_NOT_ACTIVE"
	ReasonNotGranted       = "NOT_GRANTED"
	ReasonTierUnknown      = "TIER_UNKNOWN"
	ReasonServerPending    = "SERVER_PENDING_APPROVAL"
	ReasonServerPaused     = "SERVER_PAUSED"
	ReasonServerBlocked    = "SERVER_BLOCKED"
	ReasonServerUnknown    = "SERVER_STATE_UNKNOWN"
	ReasonNotAdmitted      = "TOOL_NOT_ADMITTED"
	ReasonChanged          = "TOOL_CHANGED"
	ReasonRuleDeny         = "RULE_DENY"
	ReasonRuleUnknown      = "RULE_UNKNOWN_ACTION"
	ReasonCapabilityDeny   = "CAPABILITY_DENY"
	ReasonNoRule           = "NO_RULE"
	ReasonApprovalRequired = "APPROVAL_REQUIRED"
	ReasonRuleAllow        = "RULE_ALLOW"
	ReasonRuleLogOnly      = "RULE_LOG_ONLY"
)

// The states of agents and servers that the decision knows by name.
const (
	StateActive  = "ACTIVE"
	statePending = "PENDING_APPROVAL"
	statePaused  = "PAUSED"
	StateBlocked = "BLOCKED"
)

// Decide gives the strictest answer of all stages (stop, grant, server,
// admission, rules, capability). It allocates nothing, but for conditions and for the message
// that names an agent which does not exist.
func Decide(f *Facts) Verdict {
	// A key whose agent is gone must not become wider: it denies and names what is missing.
	if f.AgentMissing {
		return refuse(StageCaller, ReasonAgentUnknown, fault.Denied,
			"the key belongs to agent "+f.AgentID+", which does not exist; create a key for an existing agent")
	}
	// A call that waited must not outlive its task.
	if f.TaskOver != "" {
		return refuse(StageCaller, f.TaskOver, fault.Denied, "the task is over; start a new task for more work")
	}
	// PV-35: a stop is checked before every other state and is named as the cause.
	if f.AgentStopped {
		return refuse(StageStop, ReasonEmergencyStop, fault.Blocked,
			"the agent is stopped by an emergency stop; an admin must release it")
	}
	if f.Shutdown {
		return refuse(StageStop, ReasonShutdown, fault.Blocked,
			"the whole workspace is stopped by an emergency shutdown; an owner must release it")
	}
	if f.AgentID != "" && f.AgentState != StateActive {
		return refuse(StageStop, ReasonAgentNotActive, fault.Blocked,
			"the agent is not active; an admin must activate it")
	}
	if !f.Granted {
		v := refuse(StageGrant, ReasonNotGranted, fault.UnknownTool, "the agent's allowlist does not grant the tool")
		v.Hidden = true
		return v
	}
	if f.TierUnknown {
		return refuse(StageGrant, ReasonTierUnknown, fault.Denied,
			"the tool is in a tier this version does not know; an admin must give it another")
	}
	if f.ServerState != StateActive {
		return refuseServer(f.ServerState)
	}
	if f.Admission != Admitted {
		return refuseAdmission(f.Admission)
	}
	return decideRules(f)
}

func refuse(stage Stage, reason string, class fault.Class, message string) Verdict {
	return Verdict{Action: Deny, Stage: stage, Reason: reason, Class: class, Message: message}
}

func refuseServer(state string) Verdict {
	switch state {
	case statePending:
		return refuse(StageServer, ReasonServerPending, fault.Blocked, "the server is not approved yet; an admin must approve it")
	case statePaused:
		return refuse(StageServer, ReasonServerPaused, fault.Blocked, "the server is paused; an admin must resume it")
	case StateBlocked:
		return refuse(StageServer, ReasonServerBlocked, fault.Blocked, "the server is blocked; an admin must resume it")
	}
	return refuse(StageServer, ReasonServerUnknown, fault.Blocked, "the server is in a state this version does not know; an admin must set it")
}

// The messages of -32002 avoid two words: clients take an error with that
// code and one of them for the end of their connection (reconciliation 4).
func refuseAdmission(a Admission) Verdict {
	if a == Changed {
		return refuse(StageAdmission, ReasonChanged, fault.NotAdmitted, "the tool has changed since it was admitted; an admin must admit its new definition")
	}
	return refuse(StageAdmission, ReasonNotAdmitted, fault.NotAdmitted, "the tool is not admitted; an admin must admit it")
}

// decideRules applies the server-wide rules as the ceiling (PV-14), then lets
// the agent's rules (PV-15) and its capability model (PV-18) tighten. A rule whose condition does not hold is not there.
func decideRules(f *Facts) Verdict {
	v := Verdict{Stage: StageRules}
	none := true
	for i := range f.ServerRules {
		r := &f.ServerRules[i]
		a, known := ParseAction(r.Word)
		applies, why := r.applies(f.Situation, a, known)
		if applies && (none || a > v.Action) {
			v.byRule(r, a, known, why)
			none = false
		}
	}
	if none {
		// PV-16. An agent's rule does not stand in for a missing server-wide rule: it can only tighten.
		v.Action, v.Reason, v.Class = RequireApproval, ReasonNoRule, fault.Held
		v.Message = "the tool has no rule, so each call needs the approval of a person"
		if len(f.ServerRules) > 0 {
			v.Message = "the condition of no rule of the tool holds for the call, so it needs the approval of a person"
		}
	}
	for i := range f.AgentRules {
		r := &f.AgentRules[i]
		a, known := ParseAction(r.Word)
		if a < RequireApproval || a <= v.Action {
			continue
		}
		if applies, why := r.applies(f.Situation, a, known); applies {
			v.byRule(r, a, known, why)
		}
	}
	if f.Capability != "" {
		a, known := ParseAction(f.Capability)
		if a > v.Action {
			v.byCapability(a, known)
		}
	}
	return v
}

// applies asks the condition, if there is one. A word that nobody knows blocks whatever its condition says (PV-17).
func (r *Rule) applies(s *Situation, a Action, known bool) (bool, error) {
	if r.If == nil || !known {
		return true, nil
	}
	return r.If.holds(s, a)
}

func (v *Verdict) byRule(r *Rule, a Action, known bool, why error) {
	v.Action, v.RuleID, v.RuleReason = a, r.ID, r.Reason
	switch {
	case !known: // PV-17
		v.Reason, v.Class = ReasonRuleUnknown, fault.Denied
		v.Message = "a rule of the tool holds an action this version does not know; an admin must replace the rule"
	case a == Deny:
		v.Reason, v.Class, v.Message = ReasonRuleDeny, fault.Denied, "a rule denies the call"
	case a == RequireApproval:
		v.Reason, v.Class, v.Message = ReasonApprovalRequired, fault.Held, "a rule asks for the approval of a person"
	case a == LogOnly:
		v.Reason, v.Class, v.Message = ReasonRuleLogOnly, "", "a rule allows the call and has it logged"
	default:
		v.Reason, v.Class, v.Message = ReasonRuleAllow, "", "a rule allows the call"
	}
	if why != nil {
		v.Message += ", because its condition could not be answered (" + short(why) + ")"
	}
}

func (v *Verdict) byCapability(a Action, known bool) {
	v.Action, v.RuleID, v.RuleReason = a, "", ""
	switch {
	case !known:
		v.Reason, v.Class = ReasonRuleUnknown, fault.Denied
		v.Message = "the agent's capability model holds an action this version does not know; an admin must correct it"
	case a == Deny:
		v.Reason, v.Class, v.Message = ReasonCapabilityDeny, fault.Denied, "the agent's capability model denies the call"
	case a == RequireApproval:
		v.Reason, v.Class, v.Message = ReasonApprovalRequired, fault.Held, "the agent's capability model asks for the approval of a person"
	default: // LOG_ONLY over ALLOW
		v.Reason, v.Class, v.Message = ReasonRuleLogOnly, "", "the agent's capability model has the call logged"
	}
}

// short bounds what an error of a condition quotes of the arguments.
func short(err error) string {
	text := err.Error()
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
