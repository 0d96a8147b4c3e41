package catalog

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Limit is how many calls an operator allows at most: of a tool, by an agent, of both, or in the whole workspace.
type Limit struct {
	ID        string `json:"id"`
	ToolID    string `json:"mcp_tool_id,omitempty"` // empty: all tools
	AgentID   string `json:"agent_id,omitempty"`    // empty: whoever calls
	Per       string `json:"per"`                   // day, hour, task
	N         int64  `json:"n"`
	Reason    string `json:"reason,omitempty"`
	CreatedBy string `json:"created_by"`
	CreatedAt int64  `json:"created_at"`
}

// maxLimit bounds the number of a limit.
const maxLimit = 1_000_000_000

const limitColumns = `id, COALESCE(mcp_tool_id, ''), COALESCE(agent_id, ''), per, n, reason, created_by, created_at`

func (l *Limit) fields() []any {
	return []any{&l.ID, &l.ToolID, &l.AgentID, &l.Per, &l.N, &l.Reason, &l.CreatedBy, &l.CreatedAt}
}

// Limits lists the limits of a workspace, oldest first.
func (c *Catalog) Limits(ctx context.Context, ws string) ([]Limit, error) {
	rows, err := c.d.DB.Read.QueryContext(ctx, `SELECT `+limitColumns+` FROM call_limit WHERE workspace_id = $1 ORDER BY created_at, id`, ws)
	if err != nil {
		return nil, stored(err)
	}
	defer rows.Close()
	out := []Limit{}
	for rows.Next() {
		var l Limit
		if err := rows.Scan(l.fields()...); err != nil {
			return nil, stored(err)
		}
		out = append(out, l)
	}
	return out, stored(rows.Err())
}

// CreateLimit adds a limit. It counts from now on.
func (c *Catalog) CreateLimit(ctx context.Context, ws string, l Limit, by string) (Limit, error) {
	switch {
	case l.Per != "day" && l.Per != "hour" && l.Per != "task":
		return Limit{}, fault.New(fault.InvalidParams, "per must be day, hour or task")
	case l.N < 1 || l.N > maxLimit:
		return Limit{}, fault.New(fault.InvalidParams, "n must be a number from 1 to %d; a rule with DENY forbids all calls", maxLimit)
	case len(l.Reason) > maxReason:
		return Limit{}, fault.New(fault.InvalidParams, "reason is longer than %d bytes", maxReason)
	}
	l.ID, l.CreatedBy, l.CreatedAt = db.NewID(), by, c.now()
	err := c.change(ctx, func(tx *sql.Tx) error {
		if l.ToolID != "" {
			if err := toolInWorkspace(ctx, tx, ws, l.ToolID); err != nil {
				return err
			}
		}
		if l.AgentID != "" {
			if err := agentInWorkspace(ctx, tx, ws, l.AgentID); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO call_limit (id, workspace_id, mcp_tool_id, agent_id, per, n, reason, created_by, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, l.ID, ws, orNull(l.ToolID), orNull(l.AgentID), l.Per, l.N, l.Reason, by, l.CreatedAt)
		return err
	})
	if err != nil {
		return Limit{}, err
	}
	return l, nil
}

// DeleteLimit removes a limit.
func (c *Catalog) DeleteLimit(ctx context.Context, ws, id string) error {
	return c.change(ctx, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, `DELETE FROM call_limit WHERE workspace_id = $1 AND id = $2`, ws, id)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return fault.New(fault.NotFound, "no such limit in this workspace")
		}
		return nil
	})
}

// limits are filed under what narrows them most: the tool, else the agent, else the workspace. All three are ids.
func (l *loader) limits(ctx context.Context) error {
	rows, err := l.tx.QueryContext(ctx, `SELECT `+limitColumns+`, workspace_id FROM call_limit ORDER BY created_at, id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var limit Limit
		var under string
		if err := rows.Scan(append(limit.fields(), &under)...); err != nil {
			return err
		}
		switch {
		case limit.ToolID != "":
			under = limit.ToolID
		case limit.AgentID != "":
			under = limit.AgentID
		}
		if l.s.limits == nil {
			l.s.limits = map[string][]*Limit{}
		}
		l.s.limits[under] = append(l.s.limits[under], &limit)
	}
	return rows.Err()
}

// Limits gives the limits of operators that hold for a call, those of the tool first. It allocates nothing where there are none.
func (s *Snapshot) Limits(ws string, t *Tool, agentID string) (list []*Limit) {
	if len(s.limits) == 0 {
		return nil
	}
	for _, l := range s.limits[t.ID] {
		if l.AgentID == "" || l.AgentID == agentID {
			list = append(list, l)
		}
	}
	if agentID != "" {
		list = append(list, s.limits[agentID]...)
	}
	return append(list, s.limits[ws]...)
}
