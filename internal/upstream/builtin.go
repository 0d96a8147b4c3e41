package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// builtinLink is a server inside the binary.
type builtinLink struct {
	c *conn
	b Builtin
}

func (l *builtinLink) call(ctx context.Context, c *mcp.Call, _ *Request) (json.RawMessage, error) {
	switch c.Method {
	case "tools/list":
		out := []byte(`{"tools":[`)
		for i, def := range l.b.Tools() {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, def...)
		}
		return append(out, `]}`...), nil
	case "tools/call":
		return l.tool(ctx, c.Params)
	case "ping":
		return json.RawMessage(`{}`), nil
	}
	f := fault.New(fault.MethodNotFound, "server %s has no method %.80q", l.c.s.cfg.Name, c.Method)
	return nil, mcp.ParseRPCError(mcp.ErrorObject(f, ""))
}

// tool runs a tool. It answers in the goroutine of the caller; a panic ends this call only.
func (l *builtinLink) tool(ctx context.Context, params json.RawMessage) (result json.RawMessage, err error) {
	name, _ := mcp.String(mcp.Get(params, "name"))
	defer func() {
		if p := recover(); p != nil {
			l.c.s.p.d.Log.Error("a built-in server panicked", "server", l.c.s.cfg.Name, "tool", name, "panic", p, "stack", string(debug.Stack()))
			result, err = nil, fault.New(fault.UpstreamError, "the built-in server failed").Why("PANIC")
		}
	}()
	result, err = l.b.CallTool(ctx, name, mcp.Get(params, "arguments"))
	var rpc *mcp.RPCError
	switch {
	case err == nil:
		if mcp.Check(result, mcp.Limits{}) != nil || !mcp.IsObject(result) {
			return nil, fault.New(fault.UpstreamError, "the built-in server answered with something that is no result").Why("BAD_RESULT")
		}
		return result, nil
	case errors.As(err, &rpc):
		return nil, rpc
	case ctx.Err() != nil:
		return nil, ctxError(ctx, l.c.s.cfg.Name)
	}
	f := fault.From(err)
	switch f.Class {
	case fault.InvalidParams, fault.UnknownTool, fault.NotFound:
		return nil, mcp.ParseRPCError(mcp.ErrorObject(f, ""))
	case fault.Cancelled, fault.Timeout:
		return nil, f
	}
	// A tool that fails is a result which the model can read.
	text := string(mcp.Quote(f.Message))
	return json.RawMessage(`{"content":[{"type":"text","text":` + text + `}],"isError":true}`), nil
}

func (l *builtinLink) notify(context.Context, string, json.RawMessage) error { return nil }
func (l *builtinLink) tidy()                                                 {}
func (l *builtinLink) close()                                                {}
func (l *builtinLink) pid() int                                              { return 0 }
func (l *builtinLink) stderr() string                                        { return "" }
