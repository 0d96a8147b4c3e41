package gate

import (
	"slices"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

const reasonScript = "SCRIPT_NOT_GRANTED"

// script keeps an agent to the scripts of its profile (SC-62). It goes by the tier, so it holds for a foreign tool that an operator
// put beside script.run as well; such a tool names its script in the argument slug, as script.run does.
func (a *attempt) script() error {
	if a.tool.Tier != policy.TierScriptRun || a.caller.Agent == nil || a.caller.Agent.ScriptAllowlist == nil {
		return nil
	}
	slug, _ := mcp.String(mcp.Get(a.call.arguments(), "slug"))
	if slices.Contains(a.caller.Agent.ScriptAllowlist, slug) {
		return nil
	}
	a.decided(policy.Deny, policy.StageGrant, "", reasonScript)
	return a.refusal(fault.Denied, reasonScript, "the agent's script_allowlist does not hold the script %q", cut(slug, nameLimit)).
		With("origin", string(policy.StageGrant))
}
