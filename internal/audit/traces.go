package audit

import (
	"context"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Trace is one attempt as the list of traces shows it, in the words of that interface.
type Trace struct {
	Seq         int64  `json:"seq"`
	ID          string `json:"id"`
	Type        string `json:"trace_type"`
	AgentID     string `json:"agent_id"`
	Decision    string `json:"decision"`
	Reason      string `json:"reason"`
	PolicyID    string `json:"policy_id,omitempty"`
	Hash        string `json:"integrity_hash"` // of the row
	Attestation string `json:"attestation_status"`
	Reference   string `json:"flare_tx_hash"` // where the anchor keeps the checkpoint; empty until it is anchored
	OccurredAt  int64  `json:"occurred_at"`   // unix microseconds
	LatencyMS   int64  `json:"latency_ms"`
}

// TraceFilter selects traces; zero fields select all.
type TraceFilter struct {
	WorkspaceID, AgentID, PolicyID, Decision, Type, ID string
	From, To                                           int64 // unix microseconds
	Before                                             int64 // seq cursor
	Limit                                              int
}

// TraceDecisions and TraceTypes are the words of a trace, in the order of their documentation.
var (
	TraceDecisions = []string{"PASSED", "BLOCKED", "MODIFIED", "FLAGGED", "PENDING_APPROVAL", "RATE_LIMITED", "ERROR"}
	TraceTypes     = []string{"VERIFY", "MCP_TOOL_CALL", "BROWSER_SHIELD", "LIFECYCLE"}
)

// The words of a row. Nothing here gives MODIFIED or BROWSER_SHIELD: Doorward changes no call and guards no browser.
const (
	traceDecision = `CASE WHEN status = 'held' THEN 'PENDING_APPROVAL' WHEN error_class = 'limit' THEN 'RATE_LIMITED'
 WHEN status IN ('denied', 'invalid') THEN 'BLOCKED' WHEN status IN ('upstream_error', 'timeout', 'unknown', 'cancelled') THEN 'ERROR'
 WHEN decision = 'LOG_ONLY' THEN 'FLAGGED' ELSE 'PASSED' END`
	traceType = `CASE WHEN kind IN ('admin', 'stop') THEN 'LIFECYCLE' WHEN method = 'tools/call' THEN 'MCP_TOOL_CALL' ELSE 'VERIFY' END`
	// One row an attempt: not the beginnings, and a stop not twice.
	traceRow = `status <> 'started' AND NOT (kind = 'admin' AND method IN ('emergency_stop', 'emergency_shutdown') AND status = 'ok')`
)

// Traces lists attempts, newest first. The next page is Before the seq of the last one.
func Traces(ctx context.Context, d *db.DB, f TraceFilter) ([]Trace, error) {
	base := Filter{WorkspaceID: f.WorkspaceID, AgentID: f.AgentID, TraceID: f.ID, From: f.From, To: f.To, Before: f.Before}
	if err := base.narrow(ctx, d); err != nil {
		return nil, err
	}
	where, args := base.where()
	if where == "" {
		where = ` WHERE TRUE`
	}
	var more strings.Builder
	for _, c := range []struct{ expression, value string }{{"rule_id", f.PolicyID}, {traceDecision, f.Decision}, {traceType, f.Type}} {
		if c.value != "" {
			args = append(args, c.value)
			more.WriteString(` AND ` + c.expression + ` = $` + itoa(len(args)))
		}
	}
	found, err := d.Read.QueryContext(ctx, `SELECT seq, trace_id, `+traceType+`, agent_id, `+traceDecision+`, reason, rule_id, hash, at, latency_us / 1000,
		COALESCE((SELECT MIN(c.size) FROM audit_checkpoint c WHERE c.size >= audit_events.seq), 0)
		FROM audit_events`+where+more.String()+` AND `+traceRow+` ORDER BY seq DESC LIMIT `+itoa(pageSize(f.Limit)), args...)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	list, sizes := []Trace{}, []int64{}
	for found.Next() {
		var t Trace
		var size int64
		if err := found.Scan(&t.Seq, &t.ID, &t.Type, &t.AgentID, &t.Decision, &t.Reason, &t.PolicyID, &t.Hash, &t.OccurredAt, &t.LatencyMS, &size); err != nil {
			return nil, unreadable(err)
		}
		t.Hash = "sha256:" + t.Hash
		list, sizes = append(list, t), append(sizes, size)
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	// Sizes fall with the rows; 0, no checkpoint yet, can only be in front.
	var states map[int64][]AnchorState
	if n := len(sizes); n > 0 && sizes[n-1] > 0 {
		if states, err = anchorStates(ctx, d, sizes[n-1], slices.Max(sizes)); err != nil {
			return nil, err
		}
	}
	for i := range list {
		list[i].Attestation, list[i].Reference = attestationStatus(states[sizes[i]])
	}
	return list, nil
}

// OneTrace is a trace with all its rows; fault.NotFound when the workspace has none.
func OneTrace(ctx context.Context, d *db.DB, workspaceID, id string) (Trace, []Event, error) {
	events, err := Get(ctx, d, workspaceID, id)
	if err != nil {
		return Trace{}, nil, err
	}
	list, err := Traces(ctx, d, TraceFilter{WorkspaceID: workspaceID, ID: id, Limit: 1})
	if err == nil && len(list) == 0 {
		err = fault.New(fault.NotFound, "the attempt has not ended yet, or its process ended before it did")
	}
	if err != nil {
		return Trace{}, nil, err
	}
	return list[0], events, nil
}
