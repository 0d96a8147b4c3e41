package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"doorward.dev/doorward/internal/fault"
)

// DefaultMaxMessage bounds one message of a peer where no bound is given, in bytes.
const DefaultMaxMessage = 16 << 20

// ErrNoMethod is the error object that declines a request of a server.
var ErrNoMethod = json.RawMessage(`{"code":-32601,"message":"the client does not support this request"}`)

// Call is one request to a server over a client transport. It is used once.
type Call struct {
	Method string
	Params json.RawMessage // nil or an object; a progress token in it is replaced on the wire
	Safe   bool            // may be sent again when its fate is unknown

	// Notify receives the notifications that belong to the call, in order, in the goroutine of the caller
	// and before the result. The progress token is that of Params. nil: dropped.
	Notify func(method string, params json.RawMessage)
	// Ask answers a request that the server makes within the call: a result or an error object. It runs in a
	// goroutine of its own and must return when ctx ends. nil: declined with ErrNoMethod.
	Ask func(ctx context.Context, method string, params json.RawMessage) (result, rpcErr json.RawMessage)

	// For HTTP only.
	Version   string      // MCP-Protocol-Version, empty: not sent
	SessionID string      // Mcp-Session-Id, empty: not sent
	Header    http.Header // more headers of this hop, see SetModernHeaders

	// NewSession is set by the transport to the Mcp-Session-Id of the answer.
	NewSession string
}

// swapToken puts the request id in place of the progress token of params, so that tokens of different
// callers never meet on one connection. token is the caller's, nil when there is none.
func swapToken(params json.RawMessage, id int64) (out, token json.RawMessage) {
	meta := Get(params, "_meta")
	if token = Get(meta, "progressToken"); token == nil {
		return params, nil
	}
	return Set(params, "_meta", Set(meta, "progressToken", formatID(id))), token
}

// restoreToken gives a notification back the caller's progress token. ok is false for progress that is not of
// request id, or that nobody asked for.
func restoreToken(method string, params json.RawMessage, id int64, token json.RawMessage) (out json.RawMessage, ok bool) {
	if method != "notifications/progress" {
		return params, true
	}
	got, isInt := Int(Get(params, "progressToken"))
	if token == nil || !isInt || got != id {
		return nil, false
	}
	return Set(params, "progressToken", token), true
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context, method string) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fault.Wrap(fault.Timeout, ctx.Err(), "the server gave no answer to %s in time", method)
	}
	return fault.Wrap(fault.Cancelled, context.Cause(ctx), "the call was cancelled")
}

// answer is what a response says: its result, or its error as *RPCError.
func answer(m *Message) (json.RawMessage, error) {
	if m.Error != nil {
		return nil, ParseRPCError(m.Error)
	}
	return m.Result, nil
}

// formatID is the id of a request as the server sees it.
func formatID(id int64) json.RawMessage { return strconv.AppendInt(nil, id, 10) }
