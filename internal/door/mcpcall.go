package door

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

// callTool takes one tools/call through the gate.
func (x *exchange) callTool(ctx context.Context) (json.RawMessage, error) {
	call := gate.Call{
		Caller: x.caller, Door: x.sc.door, Method: "tools/call", Server: x.sc.serverID(),
		Params: x.m.Params, Client: &x.client,
		CanWait: x.out.canStream && mcp.GetPath(x.m.Params, "_meta", "progressToken") != nil,
	}
	mode := x.asksPeople(&call)
	x.tellsPeople(&call)
	var ok bool
	call.Name, ok = mcp.String(mcp.Get(x.m.Params, "name"))
	call.Arguments = mcp.Get(x.m.Params, "arguments")
	var bad error
	switch {
	case !ok || call.Name == "":
		bad = fault.New(fault.InvalidParams, "params.name is missing: it names the tool to call")
	case call.Arguments != nil && !mcp.IsObject(call.Arguments):
		bad = fault.New(fault.InvalidParams, "params.arguments must be an object")
	}
	if bad != nil { // also an attempt that is no call leaves its row
		err := x.d.d.Gate.Refused(ctx, &call, bad)
		x.traceID = call.TraceID
		return nil, err
	}
	res, err := x.d.d.Gate.Call(ctx, &call)
	x.traceID = call.TraceID
	x.d.metrics.call(res.Raw, err)
	x.used(&call)
	x.toldAll(err)
	if err != nil {
		return x.inputRequired(mode, res.State, err)
	}
	return res.Raw, nil
}

// used lets the standing stream of a session hear of the server it now has a session on.
func (x *exchange) used(call *gate.Call) {
	if x.sess == nil {
		return
	}
	id := call.Server
	if id == "" && call.Name != "" {
		if !x.sess.HasStream() {
			return
		}
		for _, t := range x.snap.Lookup(x.caller.WorkspaceID, call.Name) {
			if x.caller.Granted(t.ServerName, t.Name, t.Tier) {
				id = t.ServerID
				break
			}
		}
	}
	if id != "" && x.sess.Use(id) {
		x.d.follow(x.sess, id)
	}
}

// notify passes a notification that belongs to this request on to the client.
func (x *exchange) notify(method string, params json.RawMessage) {
	if method == "notifications/message" && (x.era == mcp.Modern && x.level == "" || belowLevel(params, x.level)) {
		return
	}
	if _, ok := kindOf[method]; ok { // told by the hub, once, to all whom it concerns
		if id := x.sc.serverID(); id != "" {
			x.d.Changed(id, method, params)
		}
		return
	}
	x.out.send(mcp.AppendNotification(nil, method, params))
}

var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// belowLevel reports whether a log message is less severe than the client wants. A shared
// connection speaks at the level of its most talkative client, so the door filters for each.
func belowLevel(params json.RawMessage, want string) bool {
	if want == "" {
		return false
	}
	have, _ := mcp.String(mcp.Get(params, "level"))
	i, j := slices.Index(levels, have), slices.Index(levels, want)
	return i >= 0 && j >= 0 && i < j
}

// isToolError reports whether a result says that the tool failed. The cheap look comes
// first: nearly no result is one, and results can be large.
func isToolError(result json.RawMessage) bool {
	if !bytes.Contains(result, []byte(`"isError"`)) {
		return false
	}
	yes, _ := mcp.Bool(mcp.Get(result, "isError"))
	return yes
}
