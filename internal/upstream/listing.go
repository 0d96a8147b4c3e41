package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// The bounds of a walk through tools/list.
const (
	maxPages  = 1000
	maxListed = 64 << 20 // bytes of all pages
	pageTime  = 20 * time.Second
)

// relist reads the list of tools, delivers it and sets the health by it. One runs at a time.
func (s *server) relist(ctx context.Context, c *conn) mcp.Listing {
	select {
	case s.lists <- struct{}{}:
		defer func() { <-s.lists }()
	case <-ctx.Done():
		return mcp.Listing{Err: ctxError(ctx, s.cfg.Name)}
	}
	l := c.list(ctx)
	if ctx.Err() != nil {
		return l
	}
	if l.Err != nil {
		s.p.d.Log.Warn("the tools of a server could not be listed in full", "server", s.cfg.Name, "err", s.p.text(l.Err))
	}
	if c.era == mcp.Modern {
		s.noteHeaders(l.Tools)
	}
	s.p.d.OnListing(ctx, s.cfg.ID, l)
	s.set(func() {
		if s.conn != c {
			return
		}
		if s.health, s.lastErr = Up, nil; !l.Complete {
			s.health, s.lastErr = Degraded, l.Err
		}
	})
	return l
}

// noteHeaders tells which tools clients of 2026-07-28 must not use. They stay listed: older clients may, and
// whether a tool is offered is not decided here.
func (s *server) noteHeaders(tools []json.RawMessage) {
	for _, def := range tools {
		if err := mcp.ValidParamHeaders(mcp.Get(def, "inputSchema")); err != nil {
			name, _ := mcp.String(mcp.Get(def, "name"))
			s.p.d.Log.Warn("a tool has an x-mcp-header that is not valid", "server", s.cfg.Name, "tool", name, "err", err)
		}
	}
}

// list walks through all pages of tools/list.
func (c *conn) list(ctx context.Context) mcp.Listing {
	var l mcp.Listing
	seen := map[string]bool{}
	var params json.RawMessage
	size := 0
	for page := 1; ; page++ {
		result, err := c.page(ctx, params)
		if err != nil {
			if page == 1 && c.hasNoTools(err) {
				return mcp.Listing{Complete: true}
			}
			l.Err = fault.Wrap(fault.UpstreamError, err, "page %d of the tools could not be read: %s", page, rpcText(err))
			return l
		}
		tools := mcp.Get(result, "tools")
		size += len(result)
		for _, def := range mcp.Elements(tools) {
			if mcp.IsObject(def) {
				l.Tools = append(l.Tools, def)
			}
		}
		next := mcp.Get(result, "nextCursor")
		cursor, isText := mcp.String(next)
		switch {
		case tools == nil:
			l.Err = fault.New(fault.UpstreamError, "page %d of the tools has no list", page)
		case next == nil || mcp.IsNull(next) || isText && cursor == "":
			l.Complete = true
			return l
		case !isText:
			l.Err = fault.New(fault.UpstreamError, "page %d of the tools has a cursor that is no text", page)
		case seen[cursor]:
			l.Err = fault.New(fault.UpstreamError, "page %d of the tools repeats a cursor", page)
		case page >= maxPages || size > maxListed:
			l.Err = fault.New(fault.UpstreamError, "the list of tools does not end: %d pages, %d bytes", page, size)
		}
		if l.Err != nil {
			return l
		}
		seen[cursor] = true
		params = mcp.Set(nil, "cursor", next)
	}
}

func (c *conn) page(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	return c.own(ctx, "tools/list", params)
}

// hasNoTools: the server never said that it has tools.
func (c *conn) hasNoTools(err error) bool {
	var rpc *mcp.RPCError
	return errors.As(err, &rpc) && rpc.Code == -32601 && mcp.Get(c.caps, "tools") == nil
}

// rpcText is what an error says; that of a server's own error is its.
func rpcText(err error) string {
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		return rpc.Message
	}
	return fault.From(err).Message
}
