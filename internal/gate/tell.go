package gate

import (
	"context"
	"database/sql"
	"encoding/json"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/notify"
)

// tell adds the messages about approvals to which something happened, in the transaction in which it happens.
func (g *Gate) tell(ctx context.Context, tx *sql.Tx, kind string, aps ...Approval) error {
	if !g.Notify.Wants(kind) {
		return nil
	}
	role := g.DecideRole
	if kind == notify.Escalated {
		role = g.EscalateRole
	}
	for _, ap := range aps {
		e := notify.Event{
			Kind: kind, ApprovalID: ap.ID, WorkspaceID: ap.workspaceID, URL: g.approvalURL(ap.ID), Role: role.String(), Arguments: ap.Arguments,
		}
		if a := g.Auth.AgentByID(ap.AgentID); a != nil {
			ap.AgentName = a.Name
		}
		ap.Arguments = nil
		var err error
		if e.Approval, err = json.Marshal(ap); err != nil {
			return fault.Wrap(fault.Internal, err, "a notification cannot be written")
		}
		if err := g.Notify.Add(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// approvalURL is where an approval is shown, empty when no address is configured.
func (g *Gate) approvalURL(id string) string {
	if g.PublicURL == "" {
		return ""
	}
	return g.PublicURL + "/api/v1/mcp/approvals/" + id
}
