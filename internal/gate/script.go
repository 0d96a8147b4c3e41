package gate

import (
	"encoding/json"
	"slices"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

const reasonScript = "SCRIPT_NOT_GRANTED"

// script keeps an agent to the scripts of its profile (SC-62). It goes by the tier, so it holds for a foreign tool that an operator
// put beside script.run as well; such a tool names its script in the argument slug, as script.run does.
func (a *attempt) script() error {
	slug, ok := scriptGranted(a.caller, a.tool, a.call.arguments())
	if ok {
		return nil
	}
	a.decided(policy.Deny, policy.StageGrant, "", reasonScript)
	return a.refusal(fault.Denied, reasonScript, "the agent's script_allowlist does not hold the script %q", cut(slug, nameLimit)).
		With("origin", string(policy.StageGrant))
}

// scriptBound: the agent may run some scripts only, and the tool runs scripts.
func scriptBound(c *auth.Caller, t *catalog.Tool) bool {
	return t.Tier == policy.TierScriptRun && c.Agent != nil && c.Agent.ScriptAllowlist != nil
}

// scriptGranted reports whether the agent may run the script that the arguments name; slug is its name where that is asked.
func scriptGranted(c *auth.Caller, t *catalog.Tool, args json.RawMessage) (slug string, ok bool) {
	if !scriptBound(c, t) {
		return "", true
	}
	slug, _ = mcp.String(mcp.Get(args, "slug"))
	return slug, slices.Contains(c.Agent.ScriptAllowlist, slug)
}
