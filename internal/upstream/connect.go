package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// The JSON-RPC codes by which a modern server says what is wrong with a request.
const (
	codeNoMethod       = -32601
	codeHeaderMismatch = -32020
	codeMissingCap     = -32021
	codeBadVersion     = -32022
)

// connect makes a connection: start or dial, then the handshake. At most Deps.Parallel do so at once, each
// within Deps.ConnectTimeout.
func (s *server) connect(ctx context.Context) (*conn, error) {
	select {
	case s.p.connects <- struct{}{}:
		defer func() { <-s.p.connects }()
	case <-ctx.Done():
		return nil, ctxError(ctx, s.cfg.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, s.p.d.ConnectTimeout)
	defer cancel()
	c, err := s.open(ctx)
	if err != nil {
		s.mu.Lock()
		s.era = nil // what was known may not be true any more
		s.mu.Unlock()
		return nil, err
	}
	s.mu.Lock()
	s.era = &c.era
	s.mu.Unlock()
	return c, nil
}

// known is the era found at the last connect.
func (s *server) known() *mcp.Era {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.era
}

func (s *server) open(ctx context.Context) (*conn, error) {
	switch s.cfg.Transport {
	case "stdio":
		return s.openStdio(ctx, s.known())
	case "http":
		return s.openHTTP(ctx)
	case "builtin":
		return s.openBuiltin()
	}
	return nil, fault.New(fault.Config, "transport %q of server %s is not supported: use stdio or http", s.cfg.Transport, s.cfg.Name)
}

// errOther: the peer speaks another era than it was asked in.
var errOther = errors.New("another era")

// handshake finds the era and shakes hands. known: what it was last time.
func (c *conn) handshake(ctx context.Context, known *mcp.Era) error {
	if known != nil && *known == mcp.Legacy {
		return c.initialize(ctx)
	}
	err := c.discover(ctx)
	if err == nil || fault.Is(err, fault.Unreachable) || !mayBeLegacy(err) || ctx.Err() != nil {
		return err
	}
	slow := fault.Is(err, fault.Timeout)
	if err = c.initialize(ctx); err == nil || !slow || ctx.Err() != nil {
		return err
	}
	// It took long to start and does not know initialize: then it may be modern all the same.
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) && c.discover(ctx) == nil {
		return nil
	}
	return err
}

// mayBeLegacy: any answer to server/discover that is not a modern server's own.
func mayBeLegacy(err error) bool {
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		switch rpc.Code {
		case codeHeaderMismatch, codeMissingCap:
			return false
		case codeBadVersion:
			supported := mcp.GetPath(rpc.Raw, "data", "supported")
			return slices.ContainsFunc(mcp.Elements(supported), func(v json.RawMessage) bool {
				text, _ := mcp.String(v)
				return mcp.EraOf(text) == mcp.Legacy
			})
		}
		return true
	}
	var f *fault.Error
	return !errors.As(err, &f) || f.Reason != "NEEDS_AUTH"
}

// discover asks as a modern client does.
func (c *conn) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.p.pace.probe)
	defer cancel()
	c.era, c.version = mcp.Modern, mcp.V20260728
	result, err := c.own(ctx, "server/discover", nil)
	if err != nil {
		c.era = mcp.Legacy
		return err
	}
	supported := mcp.Elements(mcp.Get(result, "supportedVersions"))
	if !slices.ContainsFunc(supported, func(v json.RawMessage) bool {
		text, _ := mcp.String(v)
		return text == mcp.V20260728
	}) {
		c.era = mcp.Legacy
		return errOther
	}
	c.caps = mcp.Get(result, "capabilities")
	c.info = mcp.GetPath(result, "_meta", mcp.MetaServerInfo)
	c.instructions, _ = mcp.String(mcp.Get(result, "instructions"))
	return nil
}

// initialize shakes hands as an older client does.
func (c *conn) initialize(ctx context.Context) error {
	c.era = mcp.Legacy
	if h, ok := c.link.(*httpLink); ok {
		st, err := h.shared.get(ctx)
		if err == nil {
			err = c.greeted(st.result)
		}
		return err
	}
	result, err := c.own(ctx, "initialize", c.s.p.initializeParams(mcp.V20251125, noCapabilities))
	if err != nil {
		return err
	}
	if err := c.greeted(result); err != nil {
		return err
	}
	return c.link.notify(ctx, "notifications/initialized", nil)
}

// greeted takes what the server says of itself.
func (c *conn) greeted(result json.RawMessage) error {
	version, err := legacyVersion(result)
	if err != nil {
		return err
	}
	c.version = version
	c.caps, c.info = mcp.Get(result, "capabilities"), mcp.Get(result, "serverInfo")
	c.instructions, _ = mcp.String(mcp.Get(result, "instructions"))
	return nil
}

// legacyVersion is the revision that a server answers initialize with.
func legacyVersion(result json.RawMessage) (string, error) {
	version, _ := mcp.String(mcp.Get(result, "protocolVersion"))
	if !mcp.Known(version) || mcp.EraOf(version) != mcp.Legacy {
		return "", fault.New(fault.UpstreamError, "the server speaks a protocol version that is not supported: %.40q", version)
	}
	return version, nil
}

func (p *Pool) initializeParams(version string, caps json.RawMessage) json.RawMessage {
	if !mcp.IsObject(caps) {
		caps = noCapabilities
	}
	return json.RawMessage(`{"protocolVersion":"` + version + `","capabilities":` + string(caps) + `,"clientInfo":` + string(p.clientInfo) + `}`)
}

// openBuiltin connects a server inside the binary.
func (s *server) openBuiltin() (*conn, error) {
	if s.cfg.Builtin == nil {
		return nil, fault.New(fault.Config, "the built-in server %s does not exist", s.cfg.Name)
	}
	c := s.newConn()
	c.link = &builtinLink{c: c, b: s.cfg.Builtin}
	c.era, c.version = mcp.Modern, mcp.V20260728
	c.caps = json.RawMessage(`{"tools":{}}`)
	c.info = builtinInfo(s)
	return c, nil
}

func builtinInfo(s *server) json.RawMessage {
	return json.RawMessage(`{"name":` + string(mcp.Quote(s.cfg.Name)) + `,"version":` + string(mcp.Quote(s.p.d.Version)) + `}`)
}
