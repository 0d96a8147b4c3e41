package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

const reasonAudit = "AUDIT_UNAVAILABLE"

// intent makes it durable, even against power loss, that a tool with side effects is about to run, and takes the slots of the call
// in the same transaction: a limit that is used up refuses the row and with it the call. A tool that only reads has an intent
// only for that. An approval that was used for the call stays used when the record fails: nobody may run it twice.
func (a *attempt) intent(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return a.cancelled(err)
	}
	list, durable := a.needs(), audit.Power
	if a.tool.Class == policy.Read && !a.control.asked {
		if len(list) == 0 {
			return nil
		}
		durable = audit.Process
	}
	row := a.event
	row.Kind, row.Status, row.Reserve = audit.Intent, audit.Started, slots(list)
	row.At = a.g.Now().UnixMicro()
	row.Reason = a.reason()
	err := a.g.Audit.Write(ctx, &row, durable)
	var x *audit.Exhausted
	switch {
	case err == nil:
		return nil
	case errors.As(err, &x):
		return a.limited(ctx, x, list)
	}
	a.decided(policy.Deny, policy.StageRecord, "", reasonAudit)
	return a.unrecorded(err, "the call was not run, because it cannot be recorded now; try again later")
}

// outcome records how a dispatched call ended, then gives its answer.
func (a *attempt) outcome(ctx context.Context, raw json.RawMessage, err error) (Result, error) {
	r := Result{TraceID: a.call.TraceID}
	a.event.Status, a.event.ErrorClass = outcomeStatus(raw, err)
	a.event.Result = raw
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		a.event.Result = rpc.Raw
	}
	if a.halt != nil {
		err = a.cutShort(raw, err)
	}
	if werr := a.write(ctx); werr != nil {
		return r, a.unrecorded(werr, "the call ran but its outcome could not be recorded; do not repeat it unasked")
	}
	if err != nil {
		return r, a.upstreamFault(err)
	}
	r.Raw = raw
	return r, nil
}

// answered: the gate answers by itself.
func (a *attempt) answered() bool { return a.answer != nil || a.answerErr != nil }

// own records and gives the gate's own answer.
func (a *attempt) own(ctx context.Context) (Result, error) {
	r := Result{TraceID: a.call.TraceID, Raw: a.answer}
	if a.answerErr != nil {
		a.event.Status, a.event.ErrorClass = outcomeStatus(nil, a.answerErr)
	}
	var list []need
	if a.event.Status == audit.ConfirmationRequired { // the first step is a call like the second: it uses slots, too
		list = a.needs()
		a.event.Reserve = slots(list)
	}
	werr := a.write(ctx)
	a.event.Reserve = nil
	var x *audit.Exhausted
	switch {
	case errors.As(werr, &x):
		return a.refused(ctx, a.limited(ctx, x, list))
	case werr != nil:
		return Result{TraceID: r.TraceID}, a.unrecorded(werr, "the answer could not be recorded; try again later")
	}
	if a.answerErr != nil {
		return Result{TraceID: r.TraceID}, a.answerErr
	}
	return r, nil
}

// outcomeStatus tells a tool that failed from a server that failed (case 16).
func outcomeStatus(raw json.RawMessage, err error) (audit.Status, string) {
	if err == nil {
		if isToolError(raw) {
			return audit.ToolError, string(audit.ToolError)
		}
		return audit.OK, ""
	}
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		return audit.UpstreamError, "rpc_" + strconv.FormatInt(rpc.Code, 10)
	}
	f := fault.From(err)
	switch f.Class {
	case fault.Timeout:
		return audit.TimeoutStatus, string(f.Class)
	case fault.Cancelled:
		return audit.CancelledStat, string(f.Class)
	case fault.OutcomeUnknown:
		return audit.UnknownStatus, string(f.Class)
	}
	return audit.UpstreamError, string(f.Class)
}

var isErrorKey = []byte(`isError`)

// isToolError reads isError of a result. Most results do not hold the word at all, and a search costs
// a small part of a walk through the members of a large one.
func isToolError(raw json.RawMessage) bool {
	return bytes.Contains(raw, isErrorKey) && string(mcp.Get(raw, "isError")) == "true"
}

// upstreamFault adds the trace id to a failure of the upstream; a JSON-RPC error stays as it came.
func (a *attempt) upstreamFault(err error) error {
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		return rpc
	}
	f := *fault.From(err) // a copy: callers that share a failed connection may share its error
	data := make(map[string]any, len(f.Data)+2)
	for k, v := range f.Data {
		data[k] = v
	}
	f.Data = data
	if f.Reason != "" {
		f.With("reason", f.Reason)
	}
	return f.With("trace_id", a.call.TraceID)
}

// write adds the row of the attempt to the record, also when the caller has gone away meanwhile.
func (a *attempt) write(ctx context.Context) error {
	now := a.g.Now()
	a.event.Reason = a.reason()
	a.event.At, a.event.LatencyUS = now.UnixMicro(), now.Sub(a.started).Microseconds()
	return a.g.Audit.Write(ctx, &a.event, audit.Process)
}

// reason is that of the decision; of a call that repeats another one it names that, too.
func (a *attempt) reason() string {
	if a.call.ReplayOf == "" || strings.HasPrefix(a.event.Reason, replayOf) {
		return a.event.Reason
	}
	if a.event.Reason == "" {
		return replayOf + a.call.ReplayOf
	}
	return replayOf + a.call.ReplayOf + ": " + a.event.Reason
}

// replayOf begins the reason of a call that repeats another one.
const replayOf = "replay of "

func (a *attempt) unrecorded(cause error, message string) error {
	f := a.refusal(fault.Unavailable, reasonAudit, "%s", message)
	f.Err = cause
	return f
}

func (a *attempt) cancelled(cause error) error {
	f := a.refusal(fault.Cancelled, "CANCELLED", "the call was cancelled before it ran")
	f.Err = cause
	return f
}

// Refused records an attempt that a door refused before it could make a whole Call of it (parameters that are no
// object, a missing name) and returns what to answer: cause, or that the record cannot be written.
func (g *Gate) Refused(ctx context.Context, c *Call, cause error) error {
	a := g.begin(c)
	a.decided(policy.Deny, policy.StageArguments, "", fault.From(cause).Reason)
	_, err := a.refused(ctx, cause)
	return err
}
