package gate

import (
	"context"
	"encoding/json"
	"errors"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/upstream"
)

// dispatch carries the call to its server. What comes back is untouched, but for configured secrets.
func (a *attempt) dispatch() (json.RawMessage, error) {
	defer a.returned()
	return a.g.carry(a.run.ctx, &upstream.Request{
		ServerID: a.tool.ServerID,
		Method:   "tools/call",
		Params:   a.params(),
		// The definition is the admitted one: the decision refuses a tool that differs from it.
		ToolSchema: mcp.Get(a.tool.Definition, "inputSchema"),
		Safe:       a.tool.Class == policy.Read,
		Client:     a.call.Client,
	})
}

// params are the caller's params with the name that the server knows.
func (a *attempt) params() json.RawMessage {
	p := a.call.Params
	if len(p) == 0 {
		p = mcp.Set(json.RawMessage(`{}`), "arguments", a.call.arguments())
		return mcp.Set(p, "name", mcp.Quote(a.tool.Name))
	}
	if a.call.Name == a.tool.Name {
		return p
	}
	return mcp.Set(p, "name", mcp.Quote(a.tool.Name))
}

// carry is the one way to a server. Secrets of the configuration must not reach callers, on whatever way they come back.
func (g *Gate) carry(ctx context.Context, r *upstream.Request) (json.RawMessage, error) {
	r.Client = g.guarded(r.Client)
	raw, err := g.Upstream.Do(ctx, r)
	if err == nil {
		return g.Redactor.Redact(raw), nil
	}
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		clean := *rpc
		clean.Raw = g.Redactor.Redact(rpc.Raw)
		clean.Message = string(g.Redactor.Redact([]byte(rpc.Message)))
		return nil, &clean
	}
	return nil, err
}

// guarded redacts what a server sends to the client while the request runs.
func (g *Gate) guarded(c *upstream.Client) *upstream.Client {
	if c == nil || (c.Notify == nil && c.Ask == nil) {
		return c
	}
	out := *c
	if c.Notify != nil {
		out.Notify = func(method string, params json.RawMessage) { c.Notify(method, g.Redactor.Redact(params)) }
	}
	if c.Ask != nil {
		out.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, json.RawMessage, error) {
			return c.Ask(ctx, method, g.Redactor.Redact(params))
		}
	}
	return &out
}
