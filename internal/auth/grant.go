package auth

import "doorward.dev/doorward/internal/policy"

// readSurface is what a task without an agent gets: supacloud.read.* and the unconditional baseline (SC-7).
var readSurface = policy.SetOf(policy.TierBaseline, policy.TierRead)

// GrantedTool reports whether the caller may know a tool of that tier. A person of the workspace may know all its tools;
// an agent the baseline and what its allowlist grants; a task without an agent what only reads. It allocates nothing.
func (c *Caller) GrantedTool(server, tool string, tier policy.Tier) bool {
	if c.AgentID == "" {
		return (c.TaskID == "" || readSurface.Has(tier)) && c.Granted(server, tool)
	}
	if c.Agent == nil {
		return false
	}
	if tier == policy.TierBaseline {
		return true
	}
	for i := range c.Agent.Allowlist {
		if c.Agent.Allowlist[i].Grants(server, tool, tier) {
			return true
		}
	}
	return false
}
