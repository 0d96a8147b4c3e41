package audit

import (
	"context"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Filter selects rows; zero fields select all.
type Filter struct {
	WorkspaceID, AgentID, ServerID, ToolID, TraceID, TaskID, Door, Method string
	Decision, Status                                                      string
	Kind                                                                  Kind
	From, To                                                              int64 // unix microseconds, From included, To not
	Before                                                                int64 // seq cursor: rows below it; 0 = newest
	After                                                                 int64 // rows above this seq
	Limit                                                                 int   // default 50, at most 200
}

const (
	defaultLimit = 50
	maxLimit     = 200
)

// List returns rows, newest first. The next page is Before the seq of the last row.
func List(ctx context.Context, d *db.DB, f Filter) ([]Event, error) {
	if err := f.narrow(ctx, d); err != nil {
		return nil, err
	}
	where, args := f.where()
	return rows(ctx, d, `SELECT `+selected+` FROM audit_events`+where+` ORDER BY seq DESC LIMIT `+itoa(pageSize(f.Limit)), args...)
}

// exportPage is how many rows are read at a time.
const exportPage = 500

// Export gives every row that f selects to fn, oldest first; Limit does not count. It reads page by page, so a slow
// reader holds no transaction open. An error of fn ends it.
func Export(ctx context.Context, d *db.DB, f Filter, fn func(*Event) error) error {
	if err := f.narrow(ctx, d); err != nil {
		return err
	}
	for {
		where, args := f.where()
		page, err := rows(ctx, d, `SELECT `+selected+` FROM audit_events`+where+` ORDER BY seq LIMIT `+itoa(exportPage), args...)
		if err != nil {
			return err
		}
		for i := range page {
			if err := fn(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < exportPage {
			return nil
		}
		f.After = page[len(page)-1].Seq
	}
}

// where is the condition of f, empty when it selects all.
func (f *Filter) where() (string, []any) {
	var where []string
	var args []any
	add := func(condition string, value any) {
		args = append(args, value)
		where = append(where, condition+" $"+itoa(len(args)))
	}
	for _, c := range []struct{ column, value string }{
		{"workspace_id", f.WorkspaceID}, {"agent_id", f.AgentID}, {"server_id", f.ServerID}, {"tool_id", f.ToolID}, {"trace_id", f.TraceID},
		{"task_id", f.TaskID}, {"door", f.Door}, {"method", f.Method}, {"decision", f.Decision}, {"status", f.Status}, {"kind", string(f.Kind)},
	} {
		if c.value != "" {
			add(c.column+" =", c.value)
		}
	}
	for _, c := range []struct {
		condition string
		value     int64
	}{{"at >=", f.From}, {"at <", f.To}, {"seq <", f.Before}, {"seq >", f.After}} {
		if c.value != 0 {
			add(c.condition, c.value)
		}
	}
	if len(where) == 0 {
		return "", nil
	}
	return ` WHERE ` + strings.Join(where, ` AND `), args
}

// narrow turns bounds of time into bounds of seq with the times that checkpoints hold of their rows, so that a search of one
// day does not walk over years. It leaves out no row, also where the clock was set back: rows that no checkpoint covers yet stay in.
func (f *Filter) narrow(ctx context.Context, d *db.DB) error {
	if f.From > 0 {
		var first int64
		if err := d.Read.QueryRowContext(ctx, `SELECT COALESCE((SELECT MIN(first) FROM audit_checkpoint WHERE max_at >= $1),
			(SELECT MAX(size) + 1 FROM audit_checkpoint), 1)`, f.From).Scan(&first); err != nil {
			return unreadable(err)
		}
		f.After = max(f.After, first-1)
	}
	if f.To > 0 {
		var last, covered, early int64
		if err := d.Read.QueryRowContext(ctx, `SELECT COALESCE((SELECT MAX(size) FROM audit_checkpoint WHERE min_at < $1), 0),
			COALESCE((SELECT MAX(size) FROM audit_checkpoint), 0)`, f.To).Scan(&last, &covered); err != nil {
			return unreadable(err)
		}
		if err := d.Read.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM audit_events WHERE seq > $1 AND at < $2 LIMIT 1) AS tail`, covered, f.To).Scan(&early); err != nil {
			return unreadable(err)
		}
		if early == 0 && (f.Before == 0 || last+1 < f.Before) {
			f.Before = last + 1
		}
	}
	return nil
}

// Get returns all rows of a trace, oldest first; fault.NotFound when the workspace has none.
func Get(ctx context.Context, d *db.DB, workspaceID, traceID string) ([]Event, error) {
	events, err := rows(ctx, d, `SELECT `+selected+` FROM audit_events WHERE trace_id = $1 AND workspace_id = $2 ORDER BY seq`, traceID, workspaceID)
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
