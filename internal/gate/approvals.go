package gate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/notify"
)

// Approval is a held call as REST shows it.
type Approval struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"` // PENDING, APPROVED, DENIED, EXPIRED, CONSUMED
	AgentID      string          `json:"agent_id,omitempty"`
	PersonID     string          `json:"person_id,omitempty"`
	ServerID     string          `json:"server_id"`
	Server       string          `json:"server_name"`
	ToolID       string          `json:"tool_id"`
	Tool         string          `json:"tool_name"`
	Fingerprint  string          `json:"fingerprint"`
	ArgsDigest   string          `json:"args_digest"`
	Arguments    json.RawMessage `json:"arguments,omitempty"` // redacted
	PolicyID     string          `json:"policy_id,omitempty"`
	Reason       string          `json:"reason"`
	TraceID      string          `json:"trace_id"`
	CreatedAt    int64           `json:"created_at"`
	ExpiresAt    int64           `json:"expires_at"`
	DecidedAt    int64           `json:"decided_at,omitempty"`
	DecidedBy    string          `json:"decided_by,omitempty"`
	DecideReason string          `json:"decide_reason,omitempty"`
	ConsumedAt   int64           `json:"consumed_at,omitempty"`
	EscalatedAt  int64           `json:"escalated_at,omitempty"` // since when it needs the second role's attention
	// DecisionTraceID is the trace of the decision, in the record.
	DecisionTraceID string `json:"decision_trace_id,omitempty"`

	// Names as of now, for people; empty where the agent or person is gone.
	AgentName     string `json:"agent_name,omitempty"`
	DecidedByName string `json:"decided_by_name,omitempty"`

	// Notifications say who was told, only where one approval is shown.
	Notifications []notify.Message `json:"notifications,omitempty"`

	workspaceID string
	derived     bool // shown EXPIRED by the clock, not swept yet
}

// approvalColumns are read by scanApproval.
const approvalColumns = `id, workspace_id, status, agent_id, person_id, server_id, server_name, tool_id, tool_name, fingerprint, args_digest,
	arguments, policy_id, reason, trace_id, created_at, expires_at, decided_at, decided_by, decide_reason, consumed_at, escalated_at, decision_trace_id`

func scanApproval(row interface{ Scan(...any) error }) (*Approval, error) {
	var a Approval
	var args string
	err := row.Scan(&a.ID, &a.workspaceID, &a.Status, &a.AgentID, &a.PersonID, &a.ServerID, &a.Server, &a.ToolID, &a.Tool, &a.Fingerprint,
		&a.ArgsDigest, &args, &a.PolicyID, &a.Reason, &a.TraceID, &a.CreatedAt, &a.ExpiresAt, &a.DecidedAt, &a.DecidedBy, &a.DecideReason, &a.ConsumedAt, &a.EscalatedAt, &a.DecisionTraceID)
	if err != nil {
		return nil, err
	}
	a.Arguments = json.RawMessage(args)
	return &a, nil
}

// asOf shows an overdue approval as what it is, swept or not.
func (a *Approval) asOf(now int64) {
	if (a.Status == pending || a.Status == approved) && a.ExpiresAt <= now {
		a.Status, a.derived = expired, true
	}
}

// Approval gives one approval by its id or the trace id of the call that asked for it; an overdue one is shown EXPIRED.
func (g *Gate) Approval(ctx context.Context, ws, idOrTrace string) (Approval, error) {
	row := g.DB.Read.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approval
		WHERE workspace_id = $1 AND (id = $2 OR trace_id = $3) ORDER BY created_at DESC, id DESC LIMIT 1`, ws, idOrTrace, idOrTrace)
	ap, err := scanApproval(row)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Approval{}, noApproval()
	case err != nil:
		return Approval{}, unreadable(err)
	}
	ap.asOf(g.Now().UnixMicro())
	return *ap, nil
}

func collect(rows *sql.Rows) ([]Approval, error) {
	defer rows.Close()
	list := []Approval{}
	for rows.Next() {
		ap, err := scanApproval(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, *ap)
	}
	return list, rows.Err()
}

func noApproval() *fault.Error {
	return fault.New(fault.NotFound, "no such approval in this workspace").Why("mcp_approval_not_found")
}

func unreadable(err error) error {
	return fault.Wrap(fault.Unavailable, err, "approvals cannot be read now; try again later").Why(reasonApprovalStore)
}

// Decide approves or denies a held call. The decider is the authenticated person, never an agent, and
// not the requester (case 9). Deciding twice is fault.Conflict. The decision is in the record, as started, before it takes effect.
func (g *Gate) Decide(ctx context.Context, by *auth.Caller, id string, approve bool, reason string) (Approval, error) {
	row := adminRow(by, "approval.deny", reason)
	status := denied
	if approve {
		row.Method, status = "approval.approve", approved
	}
	row.ApprovalID, row.TraceID = cut(id, nameLimit), newTraceID(g.Now())
	ap, err := g.decidable(ctx, by, id, row)
	if err != nil {
		return Approval{}, g.adminRefused(ctx, row, err)
	}
	if err := g.adminWrite(ctx, *row, audit.Started); err != nil {
		return Approval{}, err
	}
	ap, err = g.decideTx(ctx, by, ap, status, reason, row.TraceID)
	if err != nil {
		return Approval{}, g.adminRefused(ctx, row, err)
	}
	g.announce([]Approval{*ap})
	return *ap, g.adminWrite(ctx, *row, audit.OK)
}

// decidable reads the approval and checks that the caller may decide it.
func (g *Gate) decidable(ctx context.Context, by *auth.Caller, id string, row *audit.Event) (*Approval, error) {
	if err := mayAdminister(by, g.DecideRole, "decide about an approval", "AGENT_CANNOT_DECIDE"); err != nil {
		return nil, err
	}
	ap, err := scanApproval(g.DB.Read.QueryRowContext(ctx,
		`SELECT `+approvalColumns+` FROM approval WHERE workspace_id = $1 AND id = $2`, by.WorkspaceID, id))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, noApproval()
	case err != nil:
		return nil, unreadable(err)
	}
	row.ServerID, row.Server, row.ToolID, row.Tool, row.Fingerprint = ap.ServerID, ap.Server, ap.ToolID, ap.Tool, ap.Fingerprint
	if ap.PersonID != "" && ap.PersonID == by.PersonID {
		return nil, fault.New(fault.Forbidden, "your own call needs the decision of a second person").Why("APPROVER_IS_REQUESTER")
	}
	return ap, undecidable(ap, g.Now().UnixMicro())
}

// undecidable says why an approval cannot be decided, nil when it can.
func undecidable(ap *Approval, now int64) error {
	ap.asOf(now)
	switch ap.Status {
	case pending:
		return nil
	case expired:
		return fault.New(fault.Conflict, "the approval is overdue or was withdrawn; the call must be repeated to ask again").
			Why("mcp_approval_expired").With("status", ap.Status)
	}
	return fault.New(fault.Conflict, "the approval has been decided already: %s", ap.Status).
		Why("mcp_approval_decided").With("status", ap.Status)
}

// decideTx stores a decision; of several at once, here or on other replicas, the first one counts.
func (g *Gate) decideTx(ctx context.Context, by *auth.Caller, ap *Approval, status, reason, trace string) (*Approval, error) {
	now, name := g.Now().UnixMicro(), g.Auth.PersonName(ctx, by.WorkspaceID, by.PersonID)
	var after *Approval
	err := g.DB.Tx(ctx, func(tx *sql.Tx) (err error) {
		after, err = scanApproval(tx.QueryRowContext(ctx, `UPDATE approval SET status = $1, decided_at = $2, decided_by = $3, decide_reason = $4, decision_trace_id = $5
			WHERE workspace_id = $6 AND id = $7 AND status = 'PENDING' AND expires_at > $8 RETURNING `+approvalColumns,
			status, now, by.PersonID, cut(reason, reasonLimit), trace, by.WorkspaceID, ap.ID, now))
		if err == nil {
			after.DecidedByName = name
			return g.tell(ctx, tx, notify.Decided, *after)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		after, err = scanApproval(tx.QueryRowContext(ctx,
			`SELECT `+approvalColumns+` FROM approval WHERE workspace_id = $1 AND id = $2`, by.WorkspaceID, ap.ID))
		if errors.Is(err, sql.ErrNoRows) {
			return noApproval()
		}
		if err == nil {
			err = undecidable(after, now)
		}
		return err
	})
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return nil, f
	case err != nil:
		return nil, unreadable(err)
	}
	return after, nil
}

// Withdraw expires open and approved, unused approvals of a server or tool (pause, un-admission, rule change to DENY).
// At least one of serverID and toolID must be given. It returns how many it ended.
func (g *Gate) Withdraw(ctx context.Context, ws, serverID, toolID, why string) (int, error) {
	if serverID == "" && toolID == "" {
		return 0, fault.New(fault.InvalidParams, "name the server or the tool whose approvals end").Why("mcp_target_required")
	}
	var ended []Approval
	err := g.DB.Tx(ctx, func(tx *sql.Tx) (err error) {
		ended, err = g.endApprovals(ctx, tx, `workspace_id = $2 AND ($3 = '' OR server_id = $4) AND ($5 = '' OR tool_id = $6)`,
			cut(why, reasonLimit), ws, serverID, serverID, toolID, toolID)
		return err
	})
	if err != nil {
		return 0, unreadable(err)
	}
	g.announce(ended)
	return len(ended), nil
}

// endApprovals expires the open and the approved, unused approvals that where selects; $1 is the reason.
func (g *Gate) endApprovals(ctx context.Context, tx *sql.Tx, where string, args ...any) ([]Approval, error) {
	rows, err := tx.QueryContext(ctx, `UPDATE approval SET status = 'EXPIRED', decide_reason = $1
		WHERE status IN ('PENDING', 'APPROVED') AND `+where+` RETURNING `+approvalColumns, args...)
	if err != nil {
		return nil, err
	}
	ended, err := collect(rows)
	if err != nil {
		return nil, err
	}
	return ended, g.tell(ctx, tx, notify.Expired, ended...)
}

// Drain answers every call that waits for a person, now and from now on, with what it waits for; it can be repeated
// after a restart. Other calls pass as before. It may be called more than once.
func (g *Gate) Drain() { g.drain.Do(func() { close(g.closing) }) }

// Run sweeps overdue approvals, and those that need a second role, until ctx ends, then drains. Calls do not depend on it: an overdue approval lets nothing run, swept or not.
func (g *Gate) Run(ctx context.Context) error {
	defer g.Drain()
	tick := time.NewTicker(g.sweepEvery)
	defer tick.Stop()
	for {
		g.ExpireOverdue(ctx) //nolint:errcheck // the next sweep tries again; what is overdue is treated as such all the same
		g.Escalate(ctx)      //nolint:errcheck // the next sweep tries again
		g.ForgetKeys(ctx)    //nolint:errcheck // likewise
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ExpireOverdue marks overdue approvals EXPIRED and returns how many.
func (g *Gate) ExpireOverdue(ctx context.Context) (int, error) {
	now := g.Now().UnixMicro()
	var any bool
	err := g.DB.Read.QueryRowContext(ctx,
		`SELECT EXISTS (SELECT 1 FROM approval WHERE status IN ('PENDING', 'APPROVED') AND expires_at <= $1)`, now).Scan(&any)
	if err != nil || !any {
		return 0, err
	}
	var ended []Approval
	err = g.DB.Tx(ctx, func(tx *sql.Tx) (err error) {
		ended, err = g.endApprovals(ctx, tx, `expires_at <= $2`, overdue, now)
		return err
	})
	g.announce(ended)
	return len(ended), err
}
