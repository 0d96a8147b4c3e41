package auth

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/fault"
)

// Shutdown is the emergency shutdown of a workspace.
type Shutdown struct {
	At     int64
	Reason string
	By     string // id of the person
}

// Shutdown gives the shutdown of a workspace, nil when it is open.
func (a *Auth) Shutdown(ws string) *Shutdown { return a.current.Load().shut[ws] }

func (s *snapshot) loadShutdowns(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, `SELECT id, stopped_at, stop_reason, stopped_by FROM workspace WHERE stopped_at <> 0`)
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		var ws string
		var d Shutdown
		if err := rows.Scan(&ws, &d.At, &d.Reason, &d.By); err != nil {
			return unreadable(err)
		}
		if s.shut == nil {
			s.shut = make(map[string]*Shutdown)
		}
		s.shut[ws] = &d
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

// ShutDownTx shuts a workspace down within tx; false when it was so already, which keeps the first reason.
// The caller commits with db.TxChange and reloads.
func ShutDownTx(ctx context.Context, tx *sql.Tx, ws string, d Shutdown) (bool, error) {
	done, err := tx.ExecContext(ctx, `UPDATE workspace SET stopped_at = $1, stop_reason = $2, stopped_by = $3 WHERE id = $4 AND stopped_at = 0`,
		d.At, d.Reason, d.By, ws)
	if err != nil {
		return false, written(err, "")
	}
	n, err := done.RowsAffected()
	return n == 1, written(err, "")
}

// Reopen lifts the shutdown of a workspace. Agents and servers that are stopped by themselves stay so.
func (a *Auth) Reopen(ctx context.Context, ws string) error {
	return a.change(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `UPDATE workspace SET stopped_at = 0, stop_reason = '', stopped_by = '' WHERE id = $1 AND stopped_at <> 0`, ws)
		if err != nil {
			return written(err, "")
		}
		if n, err := done.RowsAffected(); err != nil || n == 1 {
			return written(err, "")
		}
		return fault.New(fault.Conflict, "the workspace is not shut down").Why("NOT_SHUT_DOWN")
	})
}
