package door

import (
	"encoding/json"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// auditFilter reads the filters of the query.
func (d *Door) auditFilter(c *restCall) (f audit.Filter, err error) {
	q := c.URL.Query()
	f = audit.Filter{
		WorkspaceID: c.caller.WorkspaceID, AgentID: q.Get("agent_id"), ServerID: q.Get("server_id"), ToolID: q.Get("tool_id"),
		TraceID: q.Get("trace_id"), Door: q.Get("door"), Method: q.Get("method"), Decision: q.Get("decision"),
		Status: q.Get("status"), Kind: audit.Kind(q.Get("kind")),
	}
	if a := d.agentNamed(c.caller.WorkspaceID, f.AgentID); a != nil {
		f.AgentID = a.ID
	}
	if v := d.d.Catalog.Snapshot().ServerByName(c.caller.WorkspaceID, f.ServerID); v != nil && f.ServerID != "" {
		f.ServerID = v.ID
	}
	if f.From, err = moment(q.Get("from")); err != nil {
		return f, err
	}
	if f.To, err = moment(q.Get("to")); err != nil {
		return f, err
	}
	f.Before, err = c.number("before", 0)
	return f, err
}

// listAudit lists rows by the filters of the query; next_cursor, when there is one, goes into before.
func (d *Door) listAudit(c *restCall) (any, error) {
	f, err := d.auditFilter(c)
	if err != nil {
		return nil, err
	}
	limit, err := c.number("limit", 50)
	if err != nil {
		return nil, err
	}
	f.Limit = int(min(max(limit, 1), 200))
	rows, err := audit.List(c.Context(), d.d.DB, f)
	if err != nil {
		return nil, err
	}
	out := eventList{Events: orEmpty(rows)}
	if len(rows) == f.Limit {
		out.Next = rows[len(rows)-1].Seq
	}
	return out, nil
}

// moment reads a time as RFC 3339 or unix microseconds.
func moment(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UnixMicro(), nil
	}
	var n int64
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return 0, fault.New(fault.InvalidParams, "from and to are times such as 2026-11-29T12:00:00Z or unix microseconds")
	}
	return n, nil
}

func (d *Door) showAudit(c *restCall) (any, error) {
	rows, err := audit.List(c.Context(), d.d.DB, audit.Filter{WorkspaceID: c.caller.WorkspaceID, TraceID: c.PathValue("trace_id"), Limit: 200})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fault.New(fault.NotFound, "the record has no such trace")
	}
	return eventList{Events: rows}, nil
}

type verifyInput struct {
	Keys        []string `json:"keys"`
	Checkpoints []string `json:"checkpoints"`
}

// verifyAudit verifies the record, against what the caller kept elsewhere where the body has it.
func (d *Door) verifyAudit(c *restCall) (any, error) {
	var in verifyInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	return audit.Verify(c.Context(), d.d.DB, audit.Known{Keys: in.Keys, Checkpoints: in.Checkpoints})
}

type explainInput struct {
	Agent     string          `json:"agent"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// explain says what would happen to a call, without calling. Without an agent it is about the person who asks.
func (d *Door) explain(c *restCall) (any, error) {
	q := c.URL.Query()
	in := explainInput{Agent: q.Get("agent"), Tool: q.Get("tool")}
	if text := q.Get("arguments"); text != "" {
		in.Arguments = json.RawMessage(text)
	}
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if strings.TrimSpace(in.Tool) == "" {
		return nil, fault.New(fault.InvalidParams, "tool must name a tool, such as server/tool")
	}
	if len(in.Arguments) > 0 && !json.Valid(in.Arguments) {
		return nil, fault.New(fault.InvalidParams, "arguments must be a JSON object")
	}
	caller := c.caller
	if in.Agent != "" {
		a := d.agentNamed(c.caller.WorkspaceID, in.Agent)
		if a == nil {
			return nil, fault.New(fault.NotFound, "no such agent in this workspace")
		}
		caller = &auth.Caller{WorkspaceID: c.caller.WorkspaceID, AgentID: a.ID, Agent: a}
	}
	return d.d.Gate.Explain(c.Context(), caller, in.Tool, in.Arguments)
}
