package auth

import "doorward.dev/doorward/internal/policy"

// readSurface is what a task without an agent gets: supacloud.read.* and the unconditional baseline (SC-7).
var readSurface = policy.SetOf(policy.TierBaseline, policy.TierRead)

// Granted reports whether the caller may know a tool of that tier. A person of the workspace may know all its tools;
// an agent the baseline and what its allowlist grants; a task without an agent what only reads. It allocates nothing.
func (c *Caller) Granted(server, tool string, tier policy.Tier) bool {
	if c.AgentID == "" {
		if c.TaskID != "" {
			return c.ActorRole >= Viewer && readSurface.Has(tier)
		}
		return c.PersonID != "" && c.Role >= Viewer
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

// noTool is a name that no tool has: only an entry for all tools of a server, or for everything, grants it.
const noTool = "\x00"

// GrantedAll reports whether the caller may know whatever the server offers, also what it does not offer yet.
func (c *Caller) GrantedAll(server string) bool { return c.Granted(server, noTool, policy.TierUnknown) }
