package door

import (
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// listApprovals lists held calls by the filters of the query; next_cursor, when there is one, goes into cursor.
func (d *Door) listApprovals(c *restCall) (any, error) {
	q := c.URL.Query()
	limit, err := c.number("limit", 100)
	if err != nil {
		return nil, err
	}
	f := gate.ApprovalFilter{Status: q.Get("status"), AgentID: q.Get("agent_id"), Before: q.Get("cursor"), Limit: int(min(max(limit, 1), 500))}
	if a := d.agentNamed(c.caller.WorkspaceID, f.AgentID); a != nil {
		f.AgentID = a.ID
	}
	if text := q.Get("older_than"); text != "" {
		if f.OlderThan, err = time.ParseDuration(text); err != nil || f.OlderThan < 0 {
			return nil, fault.New(fault.InvalidParams, "older_than must be a duration such as 10m or 1h30m")
		}
	}
	switch q.Get("escalated") {
	case "", "false":
	case "true":
		f.Escalated = true
	default:
		return nil, fault.New(fault.InvalidParams, "escalated must be true or false")
	}
	list, err := d.d.Gate.Approvals(c.Context(), c.caller.WorkspaceID, f)
	if err != nil {
		return nil, err
	}
	out := approvalList{Approvals: list}
	if len(list) == f.Limit {
		out.NextCursor = list[len(list)-1].Cursor()
	}
	return out, nil
}

func (d *Door) showApproval(c *restCall) (any, error) {
	return d.d.Gate.ShowApproval(c.Context(), c.caller.WorkspaceID, c.PathValue("id"))
}

// approvalStatus is what a client polls; an agent learns of its own calls only.
func (d *Door) approvalStatus(c *restCall) (any, error) {
	trace := c.URL.Query().Get("trace_id")
	if trace == "" {
		return nil, fault.New(fault.InvalidParams, "trace_id must be given")
	}
	a, err := d.d.Gate.Approval(c.Context(), c.caller.WorkspaceID, trace)
	if err == nil && c.caller.AgentID != "" && a.AgentID != c.caller.AgentID {
		err = fault.New(fault.NotFound, "no such approval in this workspace").Why("mcp_approval_not_found")
	}
	if err != nil {
		return nil, err
	}
	return d.d.Gate.StatusOf(c.Context(), &a)
}

func (d *Door) approveCall(c *restCall) (any, error) { return d.decide(c, true) }
func (d *Door) denyCall(c *restCall) (any, error)    { return d.decide(c, false) }

type decisionInput struct {
	Reason string `json:"reason"`
}

// decide takes nobody's word for who decides: it is the person whose key was sent (case 9).
func (d *Door) decide(c *restCall, approve bool) (any, error) {
	var in decisionInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	return d.d.Gate.Decide(c.Context(), c.caller, c.PathValue("id"), approve, in.Reason)
}
