package door

import (
	"net/http"
	"strconv"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

func (d *Door) listTools(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	tools, err := d.d.Catalog.Tools(c.Context(), c.caller.WorkspaceID, s.ID)
	return toolList{orEmpty(tools)}, err
}

// orEmpty makes a list that is never null in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

type admitInput struct {
	Action      string `json:"action"`
	Fingerprint string `json:"fingerprint"`
}

func (d *Door) admitTool(c *restCall) (any, error) {
	var in admitInput
	s, err := d.server(c)
	if err == nil {
		err = c.decode(&in)
	}
	if err != nil {
		return nil, err
	}
	t, err := d.d.Catalog.Admit(c.Context(), c.caller.WorkspaceID, s.ID, c.PathValue("tool_id"), in.Action, in.Fingerprint, c.by())
	return d.decided(c, t, in.Action, err)
}

type suggestionsInput struct {
	ToolIDs []string `json:"tool_ids"`
}

func (d *Door) admitSuggestions(c *restCall) (any, error) {
	var in suggestionsInput
	s, err := d.server(c)
	if err == nil {
		err = c.decode(&in)
	}
	if err != nil {
		return nil, err
	}
	n, err := d.d.Catalog.AdmitSuggestions(c.Context(), c.caller.WorkspaceID, s.ID, in.ToolIDs, c.by())
	return admitted{n}, err
}

type verdictInput struct {
	Action           string `json:"action"`
	Reason           string `json:"reason"`
	ConfirmLoosening bool   `json:"confirm_loosening"`
}

func (d *Door) setVerdict(c *restCall) (any, error) {
	var in verdictInput
	s, err := d.server(c)
	if err == nil {
		err = c.decode(&in)
	}
	if err != nil {
		return nil, err
	}
	t, err := d.d.Catalog.Verdict(c.Context(), c.caller.WorkspaceID, s.ID, c.PathValue("tool_id"), in.Action, in.Reason, in.ConfirmLoosening, c.by())
	return d.decided(c, t, in.Action, err)
}

func (d *Door) setTool(c *restCall) (any, error) {
	var in catalog.ToolSettings
	s, err := d.server(c)
	if err == nil {
		err = c.decode(&in)
	}
	if err != nil {
		return nil, err
	}
	t, err := d.d.Catalog.SetTool(c.Context(), c.caller.WorkspaceID, s.ID, c.PathValue("tool_id"), in)
	return d.decided(c, t, "", err)
}

// decided names the tool in the record and ends the approvals that a DENY makes void.
func (d *Door) decided(c *restCall, t catalog.ToolInfo, action string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	c.row.ToolID, c.row.Tool, c.row.Fingerprint, c.row.Decision = t.ID, t.Name, t.Fingerprint, action
	if action == "DENY" {
		if _, err := d.d.Gate.Withdraw(c.Context(), c.caller.WorkspaceID, c.row.ServerID, t.ID, "the rule of the tool became DENY"); err != nil {
			return nil, err
		}
	}
	return c.tagged(t, t.ETag), nil
}

func (d *Door) listPolicies(c *restCall) (any, error) {
	list, err := d.d.Catalog.Policies(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return nil, err
	}
	list, next, err := pageOf(c, list, func(p catalog.Policy) string { return ageKey(p.CreatedAt, p.ID) })
	return policyList{orEmpty(list), next}, err
}

type policyInput struct {
	Action    string `json:"action"`
	ToolID    string `json:"mcp_tool_id"`
	AgentID   string `json:"agent_id"`
	Condition string `json:"condition"`
	Reason    string `json:"reason"`
}

// createPolicy adds a rule. A stricter one is an editor's to make, an allowing one an admin's (PV-27).
func (d *Door) createPolicy(c *restCall) (any, error) {
	var in policyInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	c.row.Decision, c.row.ToolID = clip(in.Action, 40), clip(in.ToolID, 64)
	if (in.Action == "ALLOW" || in.Action == "LOG_ONLY") && c.caller.Role < auth.Admin {
		return nil, fault.New(fault.Forbidden, "a rule that allows needs an admin").Why("INSUFFICIENT_PERMISSIONS")
	}
	p, err := d.d.Catalog.CreatePolicy(c.Context(), c.caller.WorkspaceID,
		catalog.Policy{ToolID: in.ToolID, AgentID: in.AgentID, Action: in.Action, Condition: in.Condition, Reason: in.Reason}, c.by())
	if err != nil {
		return nil, err
	}
	c.row.RuleID, c.status = p.ID, http.StatusCreated
	if p.Action == "DENY" && p.Condition == "" && p.ToolID != "" && p.AgentID == "" {
		if _, err := d.d.Gate.Withdraw(c.Context(), c.caller.WorkspaceID, "", p.ToolID, "the rule of the tool became DENY"); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (d *Door) deletePolicy(c *restCall) (any, error) {
	id := c.PathValue("id")
	c.row.RuleID = clip(id, 64)
	err := d.d.Catalog.DeletePolicy(c.Context(), c.caller.WorkspaceID, id)
	return deleted{id}, err
}

// emergencyStop takes the target by id; a name of a server or agent works too, since a stop is typed in a hurry.
func (d *Door) emergencyStop(c *restCall) (any, error) {
	var in gate.StopRequest
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.TargetID != "" {
		switch in.Scope {
		case "server":
			if s, err := d.d.Catalog.Get(c.Context(), c.caller.WorkspaceID, in.TargetID); err == nil {
				in.TargetID = s.ID
			}
		case "agent":
			if a := d.agentNamed(c.caller.WorkspaceID, in.TargetID); a != nil {
				in.TargetID = a.ID
			}
		}
	}
	return d.d.Gate.EmergencyStop(c.Context(), c.caller, in)
}

// shutdownState is what people see of a shutdown.
type shutdownState struct {
	Active bool   `json:"active"`
	At     int64  `json:"at,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // id of the person
}

func (d *Door) showShutdown(c *restCall) (any, error) {
	s := d.d.Auth.Shutdown(c.caller.WorkspaceID)
	if s == nil {
		return shutdownState{}, nil
	}
	return shutdownState{true, s.At, s.Reason, s.By}, nil
}

func (d *Door) shutDown(c *restCall) (any, error) {
	var in gate.ShutdownRequest
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	return d.d.Gate.EmergencyShutdown(c.Context(), c.caller, in)
}

func (d *Door) releaseShutdown(c *restCall) (any, error) {
	if err := d.d.Gate.Release(c.Context(), c.caller); err != nil {
		return nil, err
	}
	return shutdownState{}, nil
}

// number reads a whole number of the query.
func (c *restCall) number(name string, missing int64) (int64, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.New(fault.InvalidParams, "%s must be a whole number, 0 or more", name)
	}
	return n, nil
}
