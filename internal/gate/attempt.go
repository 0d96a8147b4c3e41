package gate

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// attempt is one call on its way through the stages. event is its row in the
// record and is filled in as the stages find things out.
type attempt struct {
	g       *Gate
	call    *Call
	caller  *auth.Caller // with the agent as of now
	snap    *catalog.Snapshot
	server  *catalog.ServerView
	tool    *catalog.Tool
	verdict policy.Verdict
	asOf    int64  // revision of the database that caller and snap hold at least
	digest  string // of the canonical arguments, once needed
	left    string // the request state of a held call
	control control
	// answer is what the gate itself answers with instead of calling the tool: the first step of a confirmation, a stored result,
	// or (answerErr) the stored error of the server.
	answer    json.RawMessage
	answerErr *mcp.RPCError
	started   time.Time
	run       run
	halt      *halt // the stop that cancelled it
	event     audit.Event
}

// nameLimit bounds names that callers made up, in the record and in answers (bytes).
const nameLimit = 256

func (g *Gate) begin(c *Call) *attempt {
	if c.TraceID == "" {
		c.TraceID = newTraceID(g.Now())
	}
	a := &attempt{g: g, call: c, started: g.Now()}
	a.refresh()
	a.event = audit.Event{
		Kind: audit.Call, TraceID: c.TraceID,
		WorkspaceID: c.Caller.WorkspaceID, AgentID: c.Caller.AgentID, PersonID: c.Caller.Behalf(),
		TaskID: c.Caller.TaskID, KeyID: c.Caller.KeyID,
		Door: c.Door, Method: c.Method, Tool: cut(c.Name, nameLimit), Server: cut(c.Server, nameLimit),
		Arguments: c.Arguments,
	}
	return a
}

// refresh takes the newest snapshots. The agent is looked up anew because a door may keep a
// caller for long (stdio), and a stop must hold at once.
func (a *attempt) refresh() {
	a.asOf = a.g.revised.n.Load() // before taking them: they may be newer, never older
	a.snap = a.g.Catalog.Snapshot()
	a.caller = a.g.current(a.call.Caller)
}

// current is the caller with its workspace, its task and its agent as of now.
func (g *Gate) current(c *auth.Caller) *auth.Caller {
	if c.TaskID != "" {
		if over := g.Auth.TaskOver(c.TaskID); over != c.TaskOver {
			ended := *c
			ended.TaskOver = over
			c = &ended
		}
	}
	if shut := g.Auth.Shutdown(c.WorkspaceID) != nil; shut != c.Shutdown {
		moved := *c
		moved.Shutdown = shut
		c = &moved
	}
	if c.AgentID == "" {
		return c
	}
	agent := g.Auth.AgentByID(c.AgentID)
	if agent == c.Agent {
		return c
	}
	fresh := *c
	fresh.Agent = agent
	return &fresh
}

// found sets the tool of the attempt, for the stages that follow and for the record.
func (a *attempt) found(t *catalog.Tool) {
	a.tool, a.server = t, a.snap.Servers[t.ServerID]
	a.event.ServerID, a.event.Server = t.ServerID, t.ServerName
	a.event.ToolID, a.event.Tool = t.ID, t.Name
	a.event.Fingerprint = t.Fingerprint
}

// decided puts the true reason of a decision into the record.
func (a *attempt) decided(act policy.Action, stage policy.Stage, rule, reason string) {
	a.event.Decision, a.event.Stage = act.String(), string(stage)
	a.event.RuleID, a.event.Reason = rule, reason
}

// refusal makes the error of a refusal for the caller. reason may say less than the record.
func (a *attempt) refusal(class fault.Class, reason, format string, args ...any) *fault.Error {
	return fault.New(class, format, args...).Why(reason).
		With("reason", reason).With("trace_id", a.call.TraceID)
}

// refused records an attempt that was not dispatched and gives its answer.
func (a *attempt) refused(ctx context.Context, err error) (Result, error) {
	f := fault.From(err)
	a.event.Status = refusalStatus(f.Class)
	a.event.ErrorClass = string(f.Class)
	r := Result{TraceID: a.call.TraceID, State: a.left}
	if werr := a.write(ctx); werr != nil && f.Reason != reasonAudit {
		return r, a.unrecorded(werr, "the call was refused and could not be recorded; try again later")
	}
	return r, f
}

func refusalStatus(c fault.Class) audit.Status {
	switch c {
	case fault.Held:
		return audit.HeldStatus
	case fault.InvalidParams, fault.InvalidRequest, fault.MethodNotFound, fault.TooLarge:
		return audit.Invalid
	case fault.Cancelled:
		return audit.CancelledStat
	}
	return audit.DeniedStatus
}

// newTraceID is trc_ and 32 hex digits: 48 bits of time, so that ids sort, and 80 random ones. They name,
// they do not protect, so the runtime's generator, which takes no lock and no system call, is enough.
func newTraceID(now time.Time) string {
	var b [16]byte
	ms, r := uint64(now.UnixMilli()), rand.Uint64() //nolint:gosec // not a secret
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	for i := range 8 {
		b[6+i] = byte(r >> (8 * i))
	}
	r2 := rand.Uint32() //nolint:gosec // not a secret
	b[14], b[15] = byte(r2), byte(r2>>8)
	var out [4 + 32]byte
	copy(out[:], "trc_")
	hex.Encode(out[4:], b[:])
	return string(out[:])
}

// cut bounds a text without splitting a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}
