package gate

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/notify"
)

// roles checks who decides, and who is told when nobody did.
func (d *Deps) roles() error {
	if d.DecideRole == auth.NoRole {
		d.DecideRole = auth.Admin
	}
	if d.EscalateRole == auth.NoRole {
		d.EscalateRole = auth.Owner
	}
	if d.DecideRole < auth.Editor || d.EscalateRole < d.DecideRole {
		return fault.New(fault.Config, "approvals are decided by editors or higher, and escalated to nobody lower than who decides")
	}
	return nil
}

// Escalate marks the approvals that nobody decided about for EscalateAfter, so that the second role hears of them, and
// returns how many. Of many processes, one marks each.
func (g *Gate) Escalate(ctx context.Context) (int, error) {
	if g.EscalateAfter <= 0 {
		return 0, nil
	}
	now := g.Now()
	us, since := now.UnixMicro(), now.Add(-g.EscalateAfter).UnixMicro()
	var any bool
	err := g.DB.Read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM approval
		WHERE status = 'PENDING' AND escalated_at = 0 AND created_at <= $1 AND expires_at > $2)`, since, us).Scan(&any)
	if err != nil || !any {
		return 0, err
	}
	var list []Approval
	err = g.DB.Tx(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `UPDATE approval SET escalated_at = $1
			WHERE status = 'PENDING' AND escalated_at = 0 AND created_at <= $2 AND expires_at > $3 RETURNING `+approvalColumns, us, since, us)
		if err != nil {
			return err
		}
		if list, err = collect(rows); err != nil {
			return err
		}
		return g.tell(ctx, tx, notify.Escalated, list...)
	})
	if err != nil {
		return 0, err
	}
	g.announce(list)
	return len(list), nil
}
