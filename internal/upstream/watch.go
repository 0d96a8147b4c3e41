package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

const (
	listenMethod = "subscriptions/listen"
	// maxMisses is how many times in a row an HTTP server may not be reached before its connection is lost.
	maxMisses = 3
)

var everyList = json.RawMessage(`{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}}`)

// errNoStream: the server offers no standing stream.
var errNoStream = errors.New("the server offers no stream")

// listen keeps the shared standing stream of a server until the connection ends. A server without one is
// asked now and then whether it lives.
func (c *conn) listen() {
	_, stdio := c.link.(*stdioLink)
	if stdio && c.era == mcp.Legacy {
		return // the pipe is the stream
	}
	misses := 0
	for retry := c.s.p.pace.backoff; ; {
		begin := time.Now()
		err := c.listenOnce()
		switch {
		case c.ctx.Err() != nil:
			return
		case errors.Is(err, errNoStream):
			c.ping(stdio)
			return
		case fault.Is(err, fault.Unreachable):
			if misses++; misses >= maxMisses {
				c.lose(err)
				return
			}
		default:
			misses = 0
		}
		c.s.p.d.Log.Debug("the stream of a server ended", "server", c.s.cfg.Name, "err", err)
		if time.Since(begin) >= c.s.p.pace.stable {
			retry = c.s.p.pace.backoff
		}
		if !c.sleep(retry/2 + rand.N(retry/2+1)) {
			return
		}
		retry = min(2*retry, c.s.p.pace.backoffMax)
		if misses == 0 {
			c.s.announce(toolsChanged, nil) // what changed meanwhile was not heard
		}
	}
}

// listenOnce is one stream, to its end.
func (c *conn) listenOnce() error {
	if c.era == mcp.Modern {
		_, err := c.link.call(c.ctx, &mcp.Call{
			Method: listenMethod, Params: c.ownParams(everyList), Notify: c.s.announce, Safe: true,
		}, nil)
		return streamEnd(err)
	}
	return c.link.(*httpLink).shared.listen(c.ctx, c.s.announce, nil)
}

// streamEnd tells the end of a stream from there being none.
func streamEnd(err error) error {
	var rpc *mcp.RPCError
	var status *mcp.HTTPError
	if errors.As(err, &rpc) || errors.As(err, &status) && status.Status/100 == 4 {
		return errNoStream
	}
	return err
}

// listen reads the stream of a session once.
func (s *session) listen(ctx context.Context, notify func(string, json.RawMessage), ask askFunc) error {
	st, err := s.get(ctx)
	if err != nil {
		return err
	}
	err = s.l.wire.Listen(ctx, &mcp.Call{Version: st.version, SessionID: st.id, Notify: notify, Ask: ask})
	if fault.Is(err, fault.SessionNotFound) {
		s.expire(st)
		return err
	}
	return streamEnd(err)
}

// ping asks a server without a stream whether it lives.
func (c *conn) ping(stdio bool) {
	if stdio {
		return
	}
	method := "ping"
	if c.era == mcp.Modern {
		method = "server/discover"
	}
	for misses := 0; c.sleep(c.s.p.pace.ping); {
		ctx, cancel := context.WithTimeout(c.ctx, pageTime)
		_, err := c.own(ctx, method, nil)
		cancel()
		var rpc *mcp.RPCError
		if err == nil || errors.As(err, &rpc) { // any answer is a sign of life
			misses = 0
			continue
		}
		if misses++; misses >= maxMisses && c.ctx.Err() == nil {
			c.lose(err)
			return
		}
	}
}

// Stream keeps the standalone stream that a server offers a client (GET of a legacy HTTP session,
// subscriptions/listen of a modern server with params as the client sent them) until ctx ends and delivers to
// c.Notify and c.Ask. A server that offers none: it returns at once with nil. The subscription id in what a
// modern server sends is that of this hop.
func (p *Pool) Stream(ctx context.Context, serverID string, client *Client, params json.RawMessage) error {
	s := p.find(serverID)
	if s == nil {
		return fault.New(fault.Unreachable, "the server is not connected")
	}
	for retry := p.pace.backoff; ; {
		begin := time.Now()
		c, err := s.connected(ctx, true)
		if err == nil {
			err = c.streamFor(ctx, client, params)
		}
		switch {
		case errors.Is(err, errNoStream):
			return nil
		case ctx.Err() != nil:
			return ctxError(ctx, s.cfg.Name)
		case s.ctx.Err() != nil:
			return err
		}
		if time.Since(begin) >= p.pace.stable {
			retry = p.pace.backoff
		}
		select {
		case <-time.After(retry/2 + rand.N(retry/2+1)):
		case <-ctx.Done():
			return ctxError(ctx, s.cfg.Name)
		}
		retry = min(2*retry, p.pace.backoffMax)
	}
}

// streamFor is one stream for a client, to its end.
func (c *conn) streamFor(ctx context.Context, client *Client, params json.RawMessage) error {
	notify := client.Notify
	if notify == nil {
		notify = func(string, json.RawMessage) {}
	}
	l, isHTTP := c.link.(*httpLink)
	switch {
	case c.era == mcp.Modern && client.Era == mcp.Modern && params != nil:
		r := &Request{Method: listenMethod, Client: client, Safe: true}
		_, err := c.link.call(ctx, &mcp.Call{Method: listenMethod, Params: c.paramsFor(client, params), Notify: notify, Safe: true}, r)
		return streamEnd(err)
	case c.era == mcp.Legacy && isHTTP && client.Era == mcp.Legacy && client.Session != "":
		s := l.session(client)
		s.users.Add(1)
		defer s.release()
		return s.listen(ctx, notify, askOf(client))
	}
	return errNoStream
}

type askFunc = func(ctx context.Context, method string, params json.RawMessage) (result, rpcErr json.RawMessage)

var errAsk = json.RawMessage(`{"code":-32603,"message":"the client gave no answer"}`)

// askOf is how a client is asked, nil when it cannot be.
func askOf(client *Client) askFunc {
	if client.Ask == nil {
		return nil
	}
	return func(ctx context.Context, method string, params json.RawMessage) (result, rpcErr json.RawMessage) {
		result, rpcErr, err := client.Ask(ctx, method, params)
		if err != nil {
			return nil, errAsk
		}
		return result, rpcErr
	}
}

// paramsFor are the params of a client in the shape of the server's era.
func (c *conn) paramsFor(client *Client, params json.RawMessage) json.RawMessage {
	switch {
	case c.era == mcp.Legacy:
		if client.Era == mcp.Modern {
			return bridge.LegacyParams(params)
		}
		return params
	case client.Era == mcp.Legacy: // it cannot be asked as a modern server asks: so it declares nothing
		return bridge.ModernMeta(params, mcp.V20260728, c.s.p.clientInfo, noCapabilities)
	case mcp.MetaVersion(params) == "": // not from an MCP client
		return bridge.ModernMeta(params, mcp.V20260728, c.s.p.clientInfo, noCapabilities)
	}
	return params
}
