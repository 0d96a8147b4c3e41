package gate

import (
	"slices"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// The reasons of refusals that gate itself gives.
const (
	reasonUnknownTool   = "UNKNOWN_TOOL"
	reasonAmbiguousTool = "AMBIGUOUS_TOOL"
)

// resolve finds the one tool that the caller means. What is not granted is answered
// exactly like what does not exist (case 6); only the record knows the difference.
func (a *attempt) resolve() error {
	named := a.named()
	if len(named) == 1 && a.grants(named[0]) { // nearly every call
		a.found(named[0])
		return nil
	}
	granted := make([]*catalog.Tool, 0, len(named))
	for _, t := range named {
		if a.grants(t) {
			granted = append(granted, t)
		}
	}
	if len(granted) > 1 {
		granted = a.onlyVisible(granted)
	}
	switch len(granted) {
	case 1:
		a.found(granted[0])
		return nil
	case 0:
		return a.unknown(named)
	}
	return a.ambiguous(granted)
}

func (a *attempt) grants(t *catalog.Tool) bool { return granted(a.caller, t) }

// granted reports whether the caller may know the tool.
func granted(c *auth.Caller, t *catalog.Tool) bool { return c.Granted(t.ServerName, t.Name, t.Tier) }

// named gives the tools that the name may mean, whoever calls.
func (a *attempt) named() []*catalog.Tool {
	ws := a.caller.WorkspaceID
	if a.call.Server == "" {
		return a.snap.Lookup(ws, a.call.Name)
	}
	sv := a.snap.ServerByName(ws, a.call.Server)
	if sv == nil {
		return nil
	}
	if t := sv.Tool(a.call.Name); t != nil { // its own name comes first on the door of one server
		return []*catalog.Tool{t}
	}
	var out []*catalog.Tool
	for _, t := range a.snap.Lookup(ws, a.call.Name) {
		if t.ServerID == sv.ID {
			out = append(out, t)
		}
	}
	return out
}

// onlyVisible narrows several granted tools to those that a list shows: a caller that sees one tool of a
// name means that one. When the lists show none of them, all stay.
func (a *attempt) onlyVisible(granted []*catalog.Tool) []*catalog.Tool {
	shown := make([]*catalog.Tool, 0, len(granted))
	for _, t := range granted {
		if v := verdictOf(a.snap, a.caller, t, listing); v.Action != policy.Deny {
			shown = append(shown, t)
		}
	}
	if len(shown) == 0 {
		return granted
	}
	return shown
}

// unknown refuses a name without a tool for this caller. A stopped or missing agent is told that first, whatever it asks for (PV-35).
func (a *attempt) unknown(hidden []*catalog.Tool) error {
	if v := callerVerdict(a.caller); v.Action == policy.Deny {
		if len(hidden) > 0 {
			a.found(hidden[0])
		}
		a.verdict = v
		return a.refusedBy(v)
	}
	if len(hidden) > 0 {
		a.found(hidden[0])
		a.decided(policy.Deny, policy.StageGrant, "", policy.ReasonNotGranted)
	} else {
		a.decided(policy.Deny, policy.StageGrant, "", reasonUnknownTool)
	}
	return a.unknownTool()
}

// unknownTool is the one answer for a tool that does not exist and one that the caller must not know.
func (a *attempt) unknownTool() error {
	return a.refusal(fault.UnknownTool, reasonUnknownTool, "Unknown tool: %s", cut(a.call.Name, nameLimit))
}

func (a *attempt) ambiguous(granted []*catalog.Tool) error {
	if v := callerVerdict(a.caller); v.Action == policy.Deny {
		a.verdict = v
		return a.refusedBy(v)
	}
	names := make([]string, len(granted))
	for i, t := range granted {
		names[i] = t.ServerName + "/" + t.Name
	}
	slices.Sort(names)
	a.decided(policy.Deny, policy.StageGrant, "", reasonAmbiguousTool)
	return a.refusal(fault.InvalidParams, reasonAmbiguousTool,
		"ambiguous: several servers have a tool named %s; call it by one of the names in candidates", cut(a.call.Name, nameLimit)).
		With("candidates", names)
}
