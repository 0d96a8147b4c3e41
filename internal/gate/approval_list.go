package gate

import (
	"context"
	"strconv"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/notify"
)

// ApprovalFilter selects approvals; zero fields select all.
type ApprovalFilter struct {
	Status    string // as it is shown
	AgentID   string
	OlderThan time.Duration
	Escalated bool
	Before    string // Cursor of the last one of the page before
	Limit     int    // at most 500, 0 is 100
}

// Cursor is where the next page begins.
func (a *Approval) Cursor() string { return strconv.FormatInt(a.CreatedAt, 10) + "." + a.ID }

// Approvals lists approvals of a workspace, newest first. Overdue ones are shown EXPIRED.
func (g *Gate) Approvals(ctx context.Context, ws string, f ApprovalFilter) ([]Approval, error) {
	now := g.Now()
	query, args := `SELECT `+approvalColumns+` FROM approval WHERE workspace_id = $1`, []any{ws}
	and := func(condition string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(args)), 1)
		}
		query += ` AND ` + condition
	}
	switch f.Status {
	case "":
	case pending, approved:
		and(`status = ? AND expires_at > ?`, f.Status, now.UnixMicro())
	case expired:
		and(`(status = 'EXPIRED' OR (status IN ('PENDING', 'APPROVED') AND expires_at <= ?))`, now.UnixMicro())
	case denied, consumed:
		and(`status = ?`, f.Status)
	default:
		return nil, fault.New(fault.InvalidParams, "status must be PENDING, APPROVED, DENIED, EXPIRED or CONSUMED").Why("mcp_status_invalid")
	}
	if f.AgentID != "" {
		and(`agent_id = ?`, f.AgentID)
	}
	if f.OlderThan > 0 {
		and(`created_at <= ?`, now.Add(-f.OlderThan).UnixMicro())
	}
	if f.Escalated {
		and(`escalated_at > 0`)
	}
	if f.Before != "" {
		at, id, ok := strings.Cut(f.Before, ".")
		us, err := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil {
			return nil, fault.New(fault.InvalidParams, "cursor must be next_cursor of the page before")
		}
		and(`(created_at < ? OR created_at = ? AND id < ?)`, us, us, id)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := g.DB.Read.QueryContext(ctx, query+` ORDER BY created_at DESC, id DESC LIMIT `+strconv.Itoa(min(limit, 500)), args...)
	if err != nil {
		return nil, unreadable(err)
	}
	list, err := collect(rows)
	if err != nil {
		return nil, unreadable(err)
	}
	for i := range list {
		list[i].asOf(now.UnixMicro())
	}
	g.names(ctx, ws, list)
	return list, nil
}

// names gives the agents and the deciders of approvals their names.
func (g *Gate) names(ctx context.Context, ws string, list []Approval) {
	people := map[string]string{"": ""}
	for i := range list {
		a := &list[i]
		if agent := g.Auth.AgentByID(a.AgentID); agent != nil {
			a.AgentName = agent.Name
		}
		name, known := people[a.DecidedBy]
		if !known {
			name = g.Auth.PersonName(ctx, ws, a.DecidedBy)
			people[a.DecidedBy] = name
		}
		a.DecidedByName = name
	}
}

// ShowApproval is Approval with names, and with who was told.
func (g *Gate) ShowApproval(ctx context.Context, ws, id string) (Approval, error) {
	ap, err := g.Approval(ctx, ws, id)
	if err != nil {
		return ap, err
	}
	list := []Approval{ap}
	g.names(ctx, ws, list)
	list[0].Notifications, err = notify.Messages(ctx, g.DB, ap.ID)
	return list[0], err
}

// ApprovalStatus is what a client polls (spec/palveron 4.2.3). Only an effective status of APPROVED lets the call run:
// a used approval counts as expired.
type ApprovalStatus struct {
	TraceID         string `json:"trace_id"`
	ApprovalID      string `json:"approval_id"`
	Status          string `json:"status"`           // what a person decided: PENDING, APPROVED, DENIED
	EffectiveStatus string `json:"effective_status"` // what holds now: APPROVED, DENIED, EXPIRED, PENDING
	DecidedBy       string `json:"decided_by"`
	DecidedByName   string `json:"decided_by_name"`
	DecidedAt       int64  `json:"decided_at"`
	DecisionTraceID string `json:"decision_trace_id"`
	AnchorStatus    string `json:"anchor_status"` // of the decision in the record; before it, of the held call
	CreatedAt       int64  `json:"created_at"`
	ExpiresAt       int64  `json:"expires_at"`
	EscalatedAt     int64  `json:"escalated_at"`
	ConsumedAt      int64  `json:"consumed_at"`
	ExpiredDerived  bool   `json:"expired_derived"` // overdue by the clock; no sweep has stored it yet
	AutoExpired     bool   `json:"auto_expired"`    // ended by time, not by a person, a stop or a change of rules
}

// StatusOf gives the status of the approval that a call asked for.
func (g *Gate) StatusOf(ctx context.Context, ap *Approval) (ApprovalStatus, error) {
	s := ApprovalStatus{
		TraceID: ap.TraceID, ApprovalID: ap.ID, Status: ap.Status, EffectiveStatus: ap.Status,
		DecidedBy: ap.DecidedBy, DecidedByName: g.Auth.PersonName(ctx, ap.workspaceID, ap.DecidedBy), DecidedAt: ap.DecidedAt,
		DecisionTraceID: ap.DecisionTraceID, AnchorStatus: audit.LocalOnly, CreatedAt: ap.CreatedAt, ExpiresAt: ap.ExpiresAt,
		EscalatedAt: ap.EscalatedAt, ConsumedAt: ap.ConsumedAt,
		ExpiredDerived: ap.derived, AutoExpired: ap.derived || ap.Status == expired && ap.DecideReason == overdue,
	}
	switch ap.Status {
	case consumed:
		s.Status, s.EffectiveStatus = approved, expired
	case expired:
		if s.Status = pending; ap.DecidedAt > 0 {
			s.Status = approved // it was, and nobody used it in time
		}
	}
	trace := ap.DecisionTraceID
	if trace == "" {
		trace = ap.TraceID
	}
	found, err := audit.Traces(ctx, g.DB, audit.TraceFilter{WorkspaceID: ap.workspaceID, ID: trace, Limit: 1})
	if err == nil && len(found) > 0 {
		s.AnchorStatus = found[0].Attestation
	}
	return s, err
}
