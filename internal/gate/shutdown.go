package gate

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
)

// ShutdownRequest is the emergency shutdown of the caller's whole workspace.
type ShutdownRequest struct {
	Reason string `json:"reason,omitempty"`
}

// ShutdownResult says what a shutdown did.
type ShutdownResult struct {
	Changed          bool `json:"changed"`
	ExpiredApprovals int  `json:"expired_approvals"`
}

// EmergencyShutdown stops a whole workspace as EmergencyStop does a target: nobody in it calls anything any more, its
// approvals end, its running calls are cancelled. What people administer and read stays open to them.
func (g *Gate) EmergencyShutdown(ctx context.Context, by *auth.Caller, r ShutdownRequest) (ShutdownResult, error) {
	row := adminRow(by, "emergency_shutdown", r.Reason)
	row.TraceID = newTraceID(g.Now())
	if err := mayAdminister(by, auth.Admin, "shut the workspace down", "INSUFFICIENT_PERMISSIONS"); err != nil {
		return ShutdownResult{}, g.adminRefused(ctx, row, err)
	}
	var res ShutdownResult
	ended, err := g.halt(ctx, row, func(tx *sql.Tx) (ended []Approval, err error) {
		d := auth.Shutdown{At: g.Now().UnixMicro(), Reason: cut(r.Reason, reasonLimit), By: by.PersonID}
		if res.Changed, err = auth.ShutDownTx(ctx, tx, by.WorkspaceID, d); err != nil {
			return nil, err
		}
		return g.endApprovals(ctx, tx, `workspace_id = $2`, "emergency shutdown", by.WorkspaceID)
	})
	res.ExpiredApprovals = len(ended)
	return res, err
}

// Release lifts the shutdown of the caller's workspace. Only an owner does, and the record of it comes first.
func (g *Gate) Release(ctx context.Context, by *auth.Caller) error {
	row := adminRow(by, "shutdown.release", "")
	row.TraceID = newTraceID(g.Now())
	if err := mayAdminister(by, auth.Owner, "lift a shutdown", "INSUFFICIENT_PERMISSIONS"); err != nil {
		return g.adminRefused(ctx, row, err)
	}
	if err := g.adminWrite(ctx, *row, audit.Started); err != nil {
		return err
	}
	if err := g.Auth.Reopen(ctx, by.WorkspaceID); err != nil {
		return g.adminRefused(ctx, row, err)
	}
	return g.adminWrite(ctx, *row, audit.OK)
}
