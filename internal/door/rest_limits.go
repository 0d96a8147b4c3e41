package door

import (
	"net/http"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// routesLimits are the limits that operators set. Who removes one loosens, as with rules.
func routesLimits() []route {
	const p = "/api/v1/mcp/limits"
	return []route{
		operation("GET", p, auth.Viewer, "limit.list", (*Door).listLimits, "List the limits that were set"),
		operation("POST", p, auth.Editor, "limit.create", (*Door).createLimit, "Set a limit for a tool, an agent, both, or the workspace"),
		operation("DELETE", p+"/{id}", auth.Admin, "limit.delete", (*Door).deleteLimit, "Remove a limit"),
		operation("GET", p+"/usage", auth.Viewer, "limit.usage", (*Door).limitUsage, "How much of each limit is used (?agent_id=&task_id=)"),
	}
}

type limitList struct {
	Limits []catalog.Limit `json:"limits"`
}

type limitsUsed struct {
	Usage []gate.Usage `json:"usage"`
}

func (d *Door) listLimits(c *restCall) (any, error) {
	list, err := d.d.Catalog.Limits(c.Context(), c.caller.WorkspaceID)
	return limitList{orEmpty(list)}, err
}

type limitInput struct {
	ToolID  string `json:"mcp_tool_id"`
	AgentID string `json:"agent_id"`
	Per     string `json:"per"`
	N       int64  `json:"n"`
	Reason  string `json:"reason"`
}

func (d *Door) createLimit(c *restCall) (any, error) {
	var in limitInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	c.row.ToolID = clip(in.ToolID, 64)
	l, err := d.d.Catalog.CreateLimit(c.Context(), c.caller.WorkspaceID,
		catalog.Limit{ToolID: in.ToolID, AgentID: in.AgentID, Per: in.Per, N: in.N, Reason: in.Reason}, c.by())
	if err != nil {
		return nil, err
	}
	c.row.RuleID, c.status = l.ID, http.StatusCreated
	return l, nil
}

func (d *Door) deleteLimit(c *restCall) (any, error) {
	id := c.PathValue("id")
	c.row.RuleID = clip(id, 64)
	err := d.d.Catalog.DeleteLimit(c.Context(), c.caller.WorkspaceID, id)
	return deleted{id}, err
}

func (d *Door) limitUsage(c *restCall) (any, error) {
	agent, task := c.URL.Query().Get("agent_id"), c.URL.Query().Get("task_id")
	if agent != "" {
		a := d.agentNamed(c.caller.WorkspaceID, agent)
		if a == nil {
			return nil, fault.New(fault.NotFound, "no such agent in this workspace")
		}
		agent = a.ID
	}
	if task != "" {
		if _, err := d.d.Auth.Task(c.Context(), c.caller.WorkspaceID, task); err != nil {
			return nil, err
		}
	}
	list, err := d.d.Gate.Usage(c.Context(), c.caller.WorkspaceID, agent, task)
	return limitsUsed{orEmpty(list)}, err
}
