package upstream

import (
	"context"
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// Do carries a request to a server and returns the result object: as it came when client and server are of
// one era, else in the shape of the client's era (package bridge). Errors: *mcp.RPCError as the
// server sent it; *fault.Error of class Unreachable (it did not run), UpstreamError, OutcomeUnknown, Timeout or Cancelled.
func (p *Pool) Do(ctx context.Context, r *Request) (json.RawMessage, error) {
	s := p.find(r.ServerID)
	if s == nil {
		return nil, fault.New(fault.Unreachable, "the server is not connected: it was paused or removed")
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for again := false; ; again = true {
		// Lists of many servers are put together: one that is still starting must not delay the others.
		c, err := s.connected(ctx, !strings.HasSuffix(r.Method, "/list"))
		if err != nil {
			return nil, err
		}
		result, err := c.do(ctx, r)
		switch {
		case err == nil:
			return result, nil
		case again || ctx.Err() != nil:
		case fault.Is(err, fault.Unreachable), r.Safe && fault.Is(err, fault.OutcomeUnknown):
			continue // it did not run, or may run twice
		}
		if r.Safe && fault.Is(err, fault.OutcomeUnknown) {
			err = fault.Wrap(fault.Unreachable, err, "server %s failed twice while it answered", s.cfg.Name)
		}
		return nil, err
	}
}

// do makes one attempt on one connection.
func (c *conn) do(ctx context.Context, r *Request) (json.RawMessage, error) {
	if c.breaker == nil {
		return c.carry(ctx, r)
	}
	done, err := c.breaker.Allow()
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "server %s is down", c.s.cfg.Name)
	}
	result, err := c.carry(ctx, r)
	done(err)
	return result, err
}

// carry translates where the eras differ, and makes the call.
func (c *conn) carry(ctx context.Context, r *Request) (json.RawMessage, error) {
	client := r.Client
	if client == nil {
		client = &Client{Era: c.era, Version: c.version}
	}
	if c.era == mcp.Modern && client.Era == mcp.Legacy && r.Method == "ping" {
		return json.RawMessage(`{}`), nil // a modern server has none; the connection is known to work
	}
	call := &mcp.Call{Method: r.Method, Params: c.paramsFor(client, r.Params), Safe: r.Safe, Ask: askOf(client)}
	if client.Notify != nil {
		call.Notify = c.notifier(client)
	}
	result, err := c.link.call(ctx, call, r)
	if err != nil {
		if rpc, ok := err.(*mcp.RPCError); ok && c.era == mcp.Legacy && client.Era == mcp.Modern {
			return nil, bridge.ModernError(r.Method, rpc)
		}
		return nil, err
	}
	_, builtin := c.link.(*builtinLink)
	switch {
	case client.Era == mcp.Legacy && c.era == mcp.Modern:
		return bridge.LegacyResult(result, client.Version)
	case client.Era == mcp.Modern && (c.era == mcp.Legacy || builtin):
		return bridge.ModernResult(r.Method, result), nil
	}
	return result, nil
}

// notifier passes on what belongs to a call. That a list changed is for all, and told once it was read.
func (c *conn) notifier(client *Client) func(string, json.RawMessage) {
	return func(method string, params json.RawMessage) {
		if strings.HasSuffix(method, "/list_changed") {
			c.s.announce(method, params)
			return
		}
		client.Notify(method, params)
	}
}
