package audit

import (
	"context"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Filter selects rows; zero fields select all.
type Filter struct {
	WorkspaceID, AgentID, ServerID, ToolID, TraceID, Door, Method string
	Decision, Status                                              string
	Kind                                                          Kind
	From, To                                                      int64 // unix microseconds, From included, To not
	Before                                                        int64 // seq cursor: rows below it; 0 = newest
	Limit                                                         int   // default 50, at most 200
}

const (
	defaultLimit = 50
	maxLimit     = 200
)

// List returns rows, newest first. The next page is Before the seq of the last row.
func List(ctx context.Context, d *db.DB, f Filter) ([]Event, error) {
	var where []string
	var args []any
	add := func(condition string, value any) {
		args = append(args, value)
		where = append(where, condition+" $"+itoa(len(args)))
	}
	for _, c := range []struct{ column, value string }{
		{"workspace_id", f.WorkspaceID}, {"agent_id", f.AgentID}, {"server_id", f.ServerID}, {"tool_id", f.ToolID}, {"trace_id", f.TraceID},
		{"door", f.Door}, {"method", f.Method}, {"decision", f.Decision}, {"status", f.Status}, {"kind", string(f.Kind)},
	} {
		if c.value != "" {
			add(c.column+" =", c.value)
		}
	}
	for _, c := range []struct {
		condition string
		value     int64
	}{{"at >=", f.From}, {"at <", f.To}, {"seq <", f.Before}} {
		if c.value != 0 {
			add(c.condition, c.value)
		}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	query := `SELECT ` + columns + ` FROM audit_events`
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, ` AND `)
	}
	return rows(ctx, d, query+` ORDER BY seq DESC LIMIT `+itoa(min(limit, maxLimit)), args...)
}

// Get returns all rows of a trace, oldest first; fault.NotFound when the workspace has none.
func Get(ctx context.Context, d *db.DB, workspaceID, traceID string) ([]Event, error) {
	events, err := rows(ctx, d, `SELECT `+columns+` FROM audit_events WHERE trace_id = $1 AND workspace_id = $2 ORDER BY seq`, traceID, workspaceID)
	if err == nil && len(events) == 0 {
		return nil, fault.New(fault.NotFound, "no audit events with this trace id in this workspace")
	}
	return events, err
}

func rows(ctx context.Context, d *db.DB, query string, args ...any) ([]Event, error) {
	events := []Event{}
	found, err := d.Read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	for found.Next() {
		var e Event
		if err := found.Scan(e.fields()...); err != nil {
			return nil, unreadable(err)
		}
		events = append(events, e)
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	return events, nil
}

func unreadable(err error) error {
	return fault.Wrap(fault.Unavailable, err, "the audit record cannot be read; try again")
}
