package catalog

import (
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/policy"
)

// Tool is a tool in the snapshot. It is immutable.
type Tool struct {
	ID         string
	ServerID   string
	ServerName string
	Name       string          // the tool's own name
	Public     string          // name on the aggregate door: <server>__<tool>
	Definition json.RawMessage // as last seen, byte for byte
	// Fingerprint of Definition; AdmittedFingerprint is empty when never admitted.
	Fingerprint, AdmittedFingerprint string
	Class                            policy.Class
	Tier                             policy.Tier // TierUnknown: stored by a version that knows more; Decide denies it
	Confirm                          bool        // calls need the two-step confirmation
	Present                          bool
	Admission                        policy.Admission
	ServerRules                      []policy.Rule
	// Schema checks arguments by the admitted definition. It is nil unless the tool is admitted:
	// no other tool can be called.
	Schema *ArgsSchema

	seenAt   int64 // when Definition was stored; the cache key of the load
	position int64 // in the server's list
}

// Snapshot is everything a call is decided by, as of one revision. Immutable, shared by all calls.
type Snapshot struct {
	Revision int64
	Servers  map[string]*ServerView // by id
	// AgentRules are the rules that name an agent: agent id -> tool id ("" = all other tools) -> rules.
	// The rules for all tools are part of each tool's list, so that Facts joins nothing.
	AgentRules map[string]map[string][]policy.Rule

	workspaces map[string]*names
	byID       map[string]*Tool             // all tools, also those not present
	conditions map[string]*policy.Condition // compiled, by their text
	limits     map[string][]*Limit          // by tool, agent or workspace; nil: there are none
}

// names are the tables of one workspace that names are looked up in.
type names struct {
	servers map[string]*ServerView
	public  map[string][]*Tool
	own     map[string][]*Tool
}

// ServerView is a server with its tools, in the order the server lists them.
type ServerView struct {
	Server
	Tools  []*Tool // present ones
	byName map[string]*Tool
}

// Tool finds a tool by its own name, nil when the server has none.
func (s *ServerView) Tool(name string) *Tool { return s.byName[name] }

// ServerByName finds a server of a workspace by name or id.
func (s *Snapshot) ServerByName(workspaceID, nameOrID string) *ServerView {
	if v := s.Servers[nameOrID]; v != nil && v.WorkspaceID == workspaceID {
		return v
	}
	if n := s.workspaces[workspaceID]; n != nil {
		return n.servers[nameOrID]
	}
	return nil
}

// ToolByID finds a tool, also one that its server does not list any more; nil when there is none.
func (s *Snapshot) ToolByID(id string) *Tool { return s.byID[id] }

// Lookup finds tools by any name a door accepts: "server/tool", "server__tool", "mcp__server__tool" or the
// tool's own name. More than one: ambiguous; the caller filters by what it may see.
//
// A name that says its server comes first: a server that calls a tool of its
// own "victim/tool" or "victim__tool" cannot take that name over, nor make it ambiguous.
func (s *Snapshot) Lookup(workspaceID, name string) []*Tool {
	n := s.workspaces[workspaceID]
	if n == nil {
		return nil
	}
	if t := n.qualified(name, "/"); t != nil {
		return []*Tool{t}
	}
	short := strings.TrimPrefix(name, "mcp__")
	if ts := n.public[short]; ts != nil {
		return ts
	}
	if t := n.qualified(short, "__"); t != nil {
		return []*Tool{t}
	}
	return n.own[name]
}

// qualified splits at the first separator: server names contain neither.
func (n *names) qualified(name, separator string) *Tool {
	server, tool, found := strings.Cut(name, separator)
	if !found {
		return nil
	}
	if v := n.servers[server]; v != nil {
		return v.byName[tool]
	}
	return nil
}

// Facts gathers what the decision about a tool depends on, but for the caller's own part
// (AgentID, AgentMissing, AgentStopped, AgentState, Granted, Capability), which gate fills in.
// It allocates nothing.
func (s *Snapshot) Facts(t *Tool, agentID string, f *policy.Facts) {
	f.ServerState, f.ServerReason = "", ""
	if v := s.Servers[t.ServerID]; v != nil {
		f.ServerState, f.ServerReason = v.State, v.StateReason
	}
	f.TierUnknown = t.Tier == policy.TierUnknown
	f.Admission = t.Admission
	if !t.Present {
		f.Admission = policy.NotAdmitted
	}
	f.ServerRules = t.ServerRules
	f.AgentRules = nil
	if agentID == "" {
		return
	}
	if byTool := s.AgentRules[agentID]; byTool != nil {
		rules, ok := byTool[t.ID]
		if !ok {
			rules = byTool[""]
		}
		f.AgentRules = rules
	}
}
