package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// Proposal is a change of the rules that is tried out and not made.
type Proposal struct {
	Add     []ProposedRule    `json:"add"`
	Remove  []string          `json:"remove"`  // ids of rules
	Replace []ProposedVerdict `json:"replace"` // as if a verdict were set, in the order given
}

// ProposedRule is a rule as it would be saved.
type ProposedRule struct {
	Action    string `json:"action"`
	ToolID    string `json:"mcp_tool_id"`
	AgentID   string `json:"agent_id"`
	Reason    string `json:"reason"`
	Condition string `json:"condition"`
}

// ProposedVerdict takes the place of all server-wide rules of a tool.
type ProposedVerdict struct {
	ToolID string `json:"mcp_tool_id"`
	Action string `json:"action"`
}

// Bounds of a proposal: to check a condition takes up to half a second.
const (
	maxProposed = 100
	maxRemoved  = 10_000
)

// Propose gives the rules of a workspace as they are and as the proposal would make them, both made from the same rows, so that
// they differ in what is proposed and in nothing else. A proposal that could not be saved is refused as it would be then;
// data.item says which part. New rules have the ids "add[0]", "replace[0]", … The snapshots are for ToolByID and Facts: they have no names to look up.
func (c *Catalog) Propose(ctx context.Context, ws string, p Proposal) (today, proposed *Snapshot, err error) {
	switch n := len(p.Add) + len(p.Replace); {
	case n+len(p.Remove) == 0:
		return nil, nil, fault.New(fault.InvalidParams, "the proposal is empty; give add, remove or replace").Why("mcp_proposal_empty")
	case n > maxProposed || len(p.Remove) > maxRemoved:
		return nil, nil, fault.New(fault.TooLarge, "a proposal has at most %d new rules and %d removed ones", maxProposed, maxRemoved)
	}
	if err := c.Reload(ctx); err != nil {
		return nil, nil, err
	}
	rules, err := c.Policies(ctx, ws)
	if err != nil {
		return nil, nil, err
	}
	s := c.Snapshot()
	changed, err := c.apply(ctx, ws, rules, p)
	if err != nil {
		return nil, nil, err
	}
	return s.withRules(rules), s.withRules(changed), nil
}

// apply gives the rules as the proposal leaves them.
func (c *Catalog) apply(ctx context.Context, ws string, rules []Policy, p Proposal) ([]Policy, error) {
	known, removed := make(map[string]bool, len(rules)), make(map[string]bool, len(p.Remove))
	for _, r := range rules {
		known[r.ID] = true
	}
	for i, id := range p.Remove {
		if !known[id] {
			return nil, itemError(fmt.Sprintf("remove[%d]", i), fault.New(fault.NotFound, "no such policy in this workspace"))
		}
		removed[id] = true
	}
	rules = slices.DeleteFunc(slices.Clone(rules), func(r Policy) bool { return removed[r.ID] })
	for i, v := range p.Replace {
		item := fmt.Sprintf("replace[%d]", i)
		r := Policy{ID: item, ToolID: v.ToolID, Action: v.Action}
		if err := c.checkProposed(ctx, ws, r); err != nil {
			return nil, itemError(item, err)
		}
		rules = slices.DeleteFunc(rules, func(r Policy) bool { return r.ToolID == v.ToolID && r.AgentID == "" })
		rules = append(rules, r)
	}
	for i, a := range p.Add {
		item := fmt.Sprintf("add[%d]", i)
		r := Policy{ID: item, ToolID: a.ToolID, AgentID: a.AgentID, Action: a.Action, Reason: a.Reason, Condition: a.Condition}
		if err := c.checkProposed(ctx, ws, r); err != nil {
			return nil, itemError(item, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// checkProposed refuses what CreatePolicy would refuse.
func (c *Catalog) checkProposed(ctx context.Context, ws string, p Policy) error {
	if err := c.checkRule(p); err != nil {
		return err
	}
	return stored(targetsInWorkspace(ctx, c.d.DB.Read, ws, p))
}

// itemError says which part of a proposal an error is about.
func itemError(item string, err error) error {
	f := *fault.From(err)
	f.Data = maps.Clone(f.Data)
	f.Message = item + ": " + f.Message
	return f.With("item", item)
}

// withRules copies the snapshot with other rules: those of the list, and none else. What the two have in common is shared.
func (s *Snapshot) withRules(rules []Policy) *Snapshot {
	out := &Snapshot{
		Revision: s.Revision, Servers: make(map[string]*ServerView, len(s.Servers)), AgentRules: map[string]map[string][]policy.Rule{},
		byID: make(map[string]*Tool, len(s.byID)), conditions: map[string]*policy.Condition{},
	}
	for id, v := range s.Servers {
		out.Servers[id] = &ServerView{Server: v.Server}
	}
	for id, t := range s.byID {
		bare := *t
		bare.ServerRules = nil
		out.byID[id] = &bare
	}
	for _, p := range rules {
		r := policy.Rule{ID: p.ID, Word: p.Action, Reason: p.Reason}
		if p.Condition != "" {
			if out.conditions[p.Condition] == nil {
				out.conditions[p.Condition] = s.conditionOf(p.Condition)
			}
			r.If = out.conditions[p.Condition]
		}
		out.addRule(r, p.ToolID, p.AgentID)
	}
	out.joinRules()
	return out
}

// Asks are the aspects of a call that the conditions of the snapshot's rules read.
func (s *Snapshot) Asks() (a policy.Aspect) {
	for _, c := range s.conditions {
		a |= c.Asks()
	}
	return a
}
