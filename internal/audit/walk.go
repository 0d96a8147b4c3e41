package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"doorward.dev/doorward/internal/db"
)

// walkColumns are those of a row that say who called what and what was decided, without the bodies.
const walkColumns = `seq, at, trace_id, agent_id, person_id, task_id, server_name, tool_id, tool_name, decision, stage, rule_id, reason, status`

// Walk gives every row that f selects to fn, newest first; Limit does not count. Only the columns of walkColumns are read, and, with
// args, those of the arguments: a row may hold 64 KiB of bodies. The Event is the same one each time. An error of fn ends it.
func Walk(ctx context.Context, d *db.DB, f Filter, args bool, fn func(*Event) error) error {
	if err := f.narrow(ctx, d); err != nil {
		return err
	}
	var e Event
	columns := walkColumns
	fields := []any{&e.Seq, &e.At, &e.TraceID, &e.AgentID, &e.PersonID, &e.TaskID, &e.Server, &e.ToolID, &e.Tool, &e.Decision, &e.Stage, &e.RuleID, &e.Reason, &e.Status}
	if args {
		columns += `, args_digest, args_size, ` + bodyOf("args_body")
		fields = append(fields, &e.ArgsDigest, &e.ArgsSize, &e.ArgsBody)
	}
	where, values := f.where()
	found, err := d.Read.QueryContext(ctx, `SELECT `+columns+` FROM audit_events`+where+` ORDER BY seq DESC`, values...)
	if err != nil {
		return unreadable(err)
	}
	defer found.Close()
	for found.Next() {
		if err := found.Scan(fields...); err != nil {
			return unreadable(err)
		}
		if err := fn(&e); err != nil {
			return err
		}
	}
	if err := found.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

// WholeArgs reports whether ArgsBody is what passed: of what was too large a part is kept, and secrets are blanked.
func (e *Event) WholeArgs() bool {
	if e.ArgsSize != int64(len(e.ArgsBody)) {
		return false
	}
	if e.ArgsSize == 0 {
		return true
	}
	sum := sha256.Sum256([]byte(e.ArgsBody))
	return hex.EncodeToString(sum[:]) == e.ArgsDigest
}
