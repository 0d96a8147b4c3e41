package cli

import (
	"fmt"
	"net/url"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/gate"
)

const limitsPath = "/api/v1/mcp/limits"

type limitAddCmd struct {
	N      int64  `arg:"" help:"How many calls may run."`
	Per    string `help:"day (calendar day, UTC), hour (the last 60 minutes) or task." required:"" placeholder:"WINDOW"`
	Tool   string `help:"SERVER/TOOL; without it, all tools." placeholder:"SERVER/TOOL"`
	Agent  string `help:"Name or id of the agent; without it, whoever calls." placeholder:"NAME"`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (c *limitAddCmd) Run(e *env) error {
	tool, agent, err := e.target(c.Tool, c.Agent)
	if err != nil {
		return err
	}
	in := map[string]any{"mcp_tool_id": tool, "agent_id": agent, "per": c.Per, "n": c.N, "reason": c.Reason}
	return ask(e, "POST", limitsPath, in, func(l catalog.Limit) { e.print("limit_added", l.ID, l.N, l.Per) })
}

type limitListCmd struct{}

func (limitListCmd) Run(e *env) error {
	type list struct{ Limits []catalog.Limit }
	return ask(e, "GET", limitsPath, nil, func(l list) {
		rows := [][]string{{"ID", "CALLS", "PER", "TOOL", "AGENT", "BY", "REASON"}}
		for _, x := range l.Limits {
			rows = append(rows, []string{x.ID, fmt.Sprint(x.N), x.Per, x.ToolID, x.AgentID, x.CreatedBy, oneLine(x.Reason, 60)})
		}
		e.table(rows)
	})
}

type limitUsageCmd struct {
	Agent string `help:"Name or id of the agent whose hour is shown, too." placeholder:"NAME"`
	Task  string `help:"Id of the task whose budget is shown, too." placeholder:"ID"`
}

func (c *limitUsageCmd) Run(e *env) error {
	q := url.Values{}
	if c.Agent != "" {
		q.Set("agent_id", c.Agent)
	}
	if c.Task != "" {
		q.Set("task_id", c.Task)
	}
	path := limitsPath + "/usage"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	type list struct{ Usage []gate.Usage }
	return ask(e, "GET", path, nil, func(l list) {
		rows := [][]string{{"USED", "LIMIT", "PER", "WHAT"}}
		for _, u := range l.Usage {
			rows = append(rows, []string{fmt.Sprint(u.Used), fmt.Sprint(u.Limit), u.Per, u.What})
		}
		e.table(rows)
	})
}

type limitRemoveCmd struct {
	ID string `arg:"" help:"Id of the limit."`
}

func (c *limitRemoveCmd) Run(e *env) error {
	return ask(e, "DELETE", limitsPath+"/"+url.PathEscape(c.ID), nil, func(struct{}) { e.print("limit_removed", c.ID) })
}
