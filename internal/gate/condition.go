package gate

import (
	"encoding/json"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/policy"
)

// occasion is what a decision is asked for: one call with its arguments and its time, or a list.
type occasion struct {
	now     func() time.Time
	args    json.RawMessage
	unknown policy.Aspect
	lenient bool
}

// listing is the occasion of lists: what only some calls are refused for stays listed.
var listing = occasion{unknown: policy.OfNoCall, lenient: true}

// occasion of the attempt.
func (a *attempt) occasion() occasion {
	return occasion{now: a.g.Now, args: a.call.arguments()}
}

// situation is what conditions are asked about. It is made only where there are some.
func (o occasion) situation(c *auth.Caller, t *catalog.Tool) *policy.Situation {
	s := &policy.Situation{
		Role: roleOf(c).String(), Kind: kindOf(c), AgentID: c.AgentID, Task: c.TaskID, Project: c.ProjectID, Labels: c.TaskLabels,
		Server: t.ServerName, Tool: t.Name, Class: t.Class, Tier: t.Tier, Definition: t.Definition,
		Args: o.args, Unknown: o.unknown, Lenient: o.lenient,
	}
	if c.Agent != nil {
		s.AgentName = c.Agent.Name
	}
	if o.now != nil {
		s.Now = o.now()
	}
	return s
}

// roleOf is the role of the person who calls or on whose behalf a task or token does.
func roleOf(c *auth.Caller) auth.Role {
	if c.TaskID != "" || c.ActorPersonID != "" {
		return c.ActorRole
	}
	return c.Role
}

// kindOf is agent also for the task of an agent.
func kindOf(c *auth.Caller) string {
	switch {
	case c.AgentID != "":
		return "agent"
	case c.TaskID != "":
		return "task"
	}
	return "person"
}
