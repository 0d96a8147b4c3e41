package gate

import (
	"context"
	"database/sql"
	"errors"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
)

// StopRequest is a targeted emergency stop (PV-30 to PV-35).
type StopRequest struct {
	Scope    string `json:"scope"` // server, agent
	TargetID string `json:"target_id"`
	Reason   string `json:"reason,omitempty"`
}

// StopResult says what a stop did.
type StopResult struct {
	Scope            string `json:"scope"`
	TargetID         string `json:"target_id"`
	Changed          bool   `json:"changed"`
	ExpiredApprovals int    `json:"expired_approvals"`
}

const (
	scopeServer = "server"
	scopeAgent  = "agent"
)

// EmergencyStop stops a target at once: the change, the end of its open approvals and the record of kind
// stop belong together. When it returns, no new call of the target passes in this process; others follow within a second,
// and an approved call not even there. Its running calls are cancelled, here and there. Stopping twice is no error.
//
// The stop comes before its record, unlike everything else: a record that cannot be written must not keep anything running.
func (g *Gate) EmergencyStop(ctx context.Context, by *auth.Caller, r StopRequest) (StopResult, error) {
	row := adminRow(by, "emergency_stop", r.Reason)
	row.TraceID = newTraceID(g.Now())
	if err := stopAllowed(by, r); err != nil {
		return StopResult{}, g.adminRefused(ctx, row, err)
	}
	res := StopResult{Scope: r.Scope, TargetID: r.TargetID}
	ended, err := g.halt(ctx, row, func(tx *sql.Tx) (ended []Approval, err error) {
		res.Changed, ended, err = g.stopTx(ctx, tx, by.WorkspaceID, r, row)
		return ended, err
	})
	res.ExpiredApprovals = len(ended)
	return res, err
}

// halt stores a stop, lets it take effect here, and records it. It gives the approvals that ended.
func (g *Gate) halt(ctx context.Context, row *audit.Event, store func(*sql.Tx) ([]Approval, error)) (ended []Approval, err error) {
	if err = g.DB.TxChange(ctx, func(tx *sql.Tx) (err error) {
		ended, err = store(tx)
		return err
	}); err != nil {
		return nil, g.adminRefused(ctx, row, stopFault(err))
	}
	reloadErr := g.reload(context.WithoutCancel(ctx))
	g.CancelStopped() // those who are told of changes may be told by another goroutine, later
	g.announce(ended)
	if err := g.recordStop(ctx, *row); err != nil {
		return ended, err
	}
	if reloadErr != nil {
		return ended, fault.Wrap(fault.Unavailable, reloadErr, "the stop is stored, but this process could not load it yet; repeat it")
	}
	return ended, nil
}

func stopAllowed(by *auth.Caller, r StopRequest) error {
	if err := mayAdminister(by, auth.Admin, "order an emergency stop", "INSUFFICIENT_PERMISSIONS"); err != nil {
		return err
	}
	switch r.Scope {
	case scopeServer, scopeAgent:
	case "all":
		return fault.New(fault.InvalidParams, `the scope "all" was removed; stop a server or an agent, or shut the whole workspace down (POST /api/v1/emergency-shutdown, doorward shutdown)`).Why("mcp_scope_all_removed")
	default:
		return fault.New(fault.InvalidParams, "the scope must be server or agent").Why("mcp_scope_invalid")
	}
	if r.TargetID == "" {
		return fault.New(fault.InvalidParams, "target_id must name the server or agent to stop").Why("mcp_target_required")
	}
	return nil
}

// stopTx stops the target and ends its approvals, and names the target in the row.
func (g *Gate) stopTx(ctx context.Context, tx *sql.Tx, ws string, r StopRequest, row *audit.Event) (changed bool, ended []Approval, err error) {
	now, why := g.Now().UnixMicro(), cut(r.Reason, reasonLimit)
	if r.Scope == scopeServer {
		if err := tx.QueryRowContext(ctx, `SELECT name FROM server WHERE workspace_id = $1 AND id = $2`, ws, r.TargetID).Scan(&row.Server); err != nil {
			return false, nil, err
		}
		row.ServerID = r.TargetID
		if changed, err = catalog.BlockTx(ctx, tx, ws, r.TargetID, why, now); err != nil {
			return false, nil, err
		}
		ended, err = g.endApprovals(ctx, tx, `workspace_id = $2 AND server_id = $3`, "emergency stop", ws, r.TargetID)
		return changed, ended, err
	}
	if err := tx.QueryRowContext(ctx, `SELECT id FROM agent WHERE workspace_id = $1 AND id = $2`, ws, r.TargetID).Scan(&row.AgentID); err != nil {
		return false, nil, err
	}
	if changed, err = auth.StopAgentTx(ctx, tx, ws, r.TargetID, why, now); err != nil {
		return false, nil, err
	}
	ended, err = g.endApprovals(ctx, tx, `workspace_id = $2 AND agent_id = $3`, "emergency stop", ws, r.TargetID)
	return changed, ended, err
}

func stopFault(err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, sql.ErrNoRows):
		return fault.New(fault.NotFound, "no such target in this workspace").Why("mcp_target_not_found")
	}
	return fault.Wrap(fault.Unavailable, err, "the stop could not be stored; try again")
}

// recordStop writes the admin row and the one of kind stop, for attestation (PV-30, PV-34).
func (g *Gate) recordStop(ctx context.Context, row audit.Event) error {
	stop := row
	stop.Kind = audit.Stop
	if err := g.adminWrite(ctx, stop, audit.OK); err != nil {
		return err
	}
	return g.adminWrite(ctx, row, audit.OK)
}
