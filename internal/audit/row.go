package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync"

	"doorward.dev/doorward/internal/db"
)

func newID() string { return db.NewID() }

// columns of audit_events, in the order of fields and values.
const columns = `seq, id, at, kind, trace_id, workspace_id, agent_id, person_id, task_id, key_id, door, method,
 server_id, server_name, tool_id, tool_name, fingerprint, decision, stage, rule_id, reason, approval_id, status, error_class,
 latency_us, args_digest, args_size, args_body, result_digest, result_size, result_body, slots, prev_hash, hash`

const columnCount = 34

// fields are where Scan puts a row.
func (e *Event) fields() []any {
	return []any{&e.Seq, &e.ID, &e.At, &e.Kind, &e.TraceID, &e.WorkspaceID, &e.AgentID, &e.PersonID, &e.TaskID, &e.KeyID, &e.Door, &e.Method,
		&e.ServerID, &e.Server, &e.ToolID, &e.Tool, &e.Fingerprint, &e.Decision, &e.Stage, &e.RuleID, &e.Reason, &e.ApprovalID, &e.Status, &e.ErrorClass,
		&e.LatencyUS, &e.ArgsDigest, &e.ArgsSize, &e.ArgsBody, &e.ResultDigest, &e.ResultSize, &e.ResultBody, &e.Slots, &e.PrevHash, &e.Hash}
}

// values appends what INSERT binds, with what stands for the bodies.
func (e *Event) values(to []any, args, result string) []any {
	return append(to, e.Seq, e.ID, e.At, string(e.Kind), e.TraceID, e.WorkspaceID, e.AgentID, e.PersonID, e.TaskID, e.KeyID, e.Door, e.Method,
		e.ServerID, e.Server, e.ToolID, e.Tool, e.Fingerprint, e.Decision, e.Stage, e.RuleID, e.Reason, e.ApprovalID, string(e.Status), e.ErrorClass,
		e.LatencyUS, e.ArgsDigest, e.ArgsSize, args, e.ResultDigest, e.ResultSize, result, e.Slots, e.PrevHash, e.Hash)
}

// insertSQL inserts n rows with one statement. Only here $1 is not good enough
// for SQLite: it is a name there, which the driver looks up one by one, at every call.
func insertSQL(n int, postgres bool) string {
	var b strings.Builder
	b.WriteString("INSERT INTO audit_events (" + columns + ") VALUES ")
	for i := range n * columnCount {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%columnCount == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		if postgres {
			b.WriteString("$" + itoa(i+1))
		} else {
			b.WriteString("?")
		}
	}
	b.WriteString(")")
	return b.String()
}

// hashVersion names the formula of content and link; it is part of both.
const hashVersion = 1

// genesis stands for the row before the first.
var genesis = strings.Repeat("0", 2*sha256.Size)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// content is the digest of every column but seq, prev_hash and hash: texts
// with their length before them, numbers in eight bytes, in a fixed order, so that two
// different rows never give the same bytes.
func (e *Event) content() [sha256.Size]byte {
	p := buffers.Get().(*[]byte)
	b := append((*p)[:0], hashVersion)
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	text(e.ID)
	number(e.At)
	for _, s := range [...]string{string(e.Kind), e.TraceID, e.WorkspaceID, e.AgentID, e.PersonID, e.TaskID, e.KeyID, e.Door, e.Method,
		e.ServerID, e.Server, e.ToolID, e.Tool, e.Fingerprint, e.Decision, e.Stage, e.RuleID, e.Reason, e.ApprovalID, string(e.Status), e.ErrorClass} {
		text(s)
	}
	number(e.LatencyUS)
	text(e.ArgsDigest)
	number(e.ArgsSize)
	text(e.ArgsBody)
	text(e.ResultDigest)
	number(e.ResultSize)
	text(e.ResultBody)
	if e.Slots != "" { // later than the formula: rows without slots have the hash they always had
		text(e.Slots)
	}
	sum := sha256.Sum256(b)
	if cap(b) <= 4*defaultMaxBody {
		*p = b
		buffers.Put(p)
	}
	return sum
}

// link is the hash of a row: of the hash before, the number and the content.
func link(prev string, seq int64, content [sha256.Size]byte) string {
	var b [1 + 2*sha256.Size + 8 + sha256.Size]byte
	b[0] = hashVersion
	n := 1 + copy(b[1:1+2*sha256.Size], prev)
	binary.BigEndian.PutUint64(b[n:], uint64(seq))
	copy(b[n+8:], content[:])
	sum := sha256.Sum256(b[:n+8+sha256.Size])
	return hex.EncodeToString(sum[:])
}
