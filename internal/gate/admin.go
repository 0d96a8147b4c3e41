package gate

import (
	"context"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// reasonLimit bounds the reasons that people write (bytes).
const reasonLimit = 2 << 10

// mayAdminister allows what people with a role decide. Agents never may, whatever their key; agentReason names that case.
func mayAdminister(by *auth.Caller, least auth.Role, what, agentReason string) error {
	if by.AgentID != "" || by.PersonID == "" {
		return fault.New(fault.Forbidden, "an agent cannot %s; a person with the role %s must", what, least).Why(agentReason)
	}
	if by.Role < least {
		return fault.New(fault.Forbidden, "the role %s cannot %s; the role %s is needed", by.Role, what, least).Why("INSUFFICIENT_PERMISSIONS")
	}
	return nil
}

// adminRow begins the row of something that a person does. reason is the person's own.
func adminRow(by *auth.Caller, method, reason string) *audit.Event {
	return &audit.Event{
		Kind: audit.Admin, Method: method, Reason: cut(reason, reasonLimit),
		WorkspaceID: by.WorkspaceID, AgentID: by.AgentID, PersonID: by.PersonID, KeyID: by.KeyID, TaskID: by.TaskID,
	}
}

// adminWrite adds a copy of the row with a status.
func (g *Gate) adminWrite(ctx context.Context, row audit.Event, s audit.Status) error {
	row.Status, row.At = s, g.Now().UnixMicro()
	if err := g.Audit.Write(ctx, &row, audit.Process); err != nil {
		message := "nothing was changed, because it cannot be recorded now; try again later"
		if s == audit.OK {
			message = "it was done, but that could not be recorded"
		}
		return fault.Wrap(fault.Unavailable, err, "%s", message).Why(reasonAudit)
	}
	return nil
}

// adminRefused records that a person's or an agent's attempt was refused, and why, and returns what to answer.
func (g *Gate) adminRefused(ctx context.Context, row *audit.Event, cause error) error {
	f := fault.From(cause)
	row.Reason, row.ErrorClass = f.Reason, string(f.Class)
	if err := g.adminWrite(ctx, *row, audit.DeniedStatus); err != nil {
		return err
	}
	return f
}
