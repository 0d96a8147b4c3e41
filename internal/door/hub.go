package door

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// kinds of lists that can change.
type kinds uint8

const (
	kindTools kinds = 1 << iota
	kindPrompts
	kindResources
)

var kindOf = map[string]kinds{
	"notifications/tools/list_changed":     kindTools,
	"notifications/prompts/list_changed":   kindPrompts,
	"notifications/resources/list_changed": kindResources,
}

const resourceUpdated = "notifications/resources/updated"

// settle is how long the hub waits for more of the same before it tells anybody.
const settle = 50 * time.Millisecond

// hub tells standing streams what changed: one notification per kind after a burst, and
// only to those whose view really is another one.
type hub struct {
	seed    maphash.Seed
	wake    chan struct{}
	stopped chan struct{}

	mu        sync.Mutex
	listeners map[*listener]struct{}
	bySession map[*bridge.Session]*listener
	pending   map[string]kinds // server id ("" the catalogue) -> what changed
}

// listener is one standing stream: the GET stream of an older client, or a subscriptions/listen.
type listener struct {
	who      func() (*auth.Caller, error)
	serverID string // empty: the aggregate
	kinds    kinds
	uris     map[string]string // resource uri -> server id
	sess     *bridge.Session   // nil: 2026-07-28
	st       *bridge.Stream
	send     func(method string, params json.RawMessage)
	ctx      context.Context
	streams  sync.WaitGroup

	tools, servers uint64 // digests of what the client could see last
}

func (h *hub) init() {
	h.seed = maphash.MakeSeed()
	h.wake = make(chan struct{}, 1)
	h.stopped = make(chan struct{})
	h.listeners = make(map[*listener]struct{})
	h.bySession = make(map[*bridge.Session]*listener)
	h.pending = make(map[string]kinds)
}

// count is the number of standing streams.
func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners)
}

func (h *hub) dirty(serverID string, k kinds) {
	h.mu.Lock()
	h.pending[serverID] |= k
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Changed tells the clients concerned that a server announced a change; wire it to upstream.Deps.OnChanged.
// method is the notification's. It never blocks.
func (d *Door) Changed(serverID, method string, params json.RawMessage) {
	if k, ok := kindOf[method]; ok {
		d.merged.clear()
		d.hub.dirty(serverID, k)
		return
	}
	if method != resourceUpdated {
		return
	}
	uri, ok := mcp.String(mcp.Get(params, "uri"))
	if !ok {
		return
	}
	params = d.redact(params)
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	for l := range d.hub.listeners {
		if (l.uris[uri] == serverID || l.sess != nil && l.sess.Subscribed(uri, serverID)) && d.hears(l, serverID) {
			l.send(method, params)
		}
	}
}

// hears reports whether the client of a standing stream may hear a server now: a stop, a pause or a rule
// made after the stream was opened holds for it as for a call.
func (d *Door) hears(l *listener, serverID string) bool {
	caller, err := l.who()
	return err == nil && d.d.Gate.Reaches(caller, serverID)
}

// runHub flushes bursts of changes until ctx ends.
func (d *Door) runHub(ctx context.Context) {
	defer close(d.hub.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.hub.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		d.flush()
	}
}

// flush tells every listener what changed for it since it was told last.
func (d *Door) flush() {
	h := &d.hub
	h.mu.Lock()
	pending := h.pending
	h.pending = make(map[string]kinds)
	all := make([]*listener, 0, len(h.listeners))
	for l := range h.listeners {
		all = append(all, l)
	}
	h.mu.Unlock()
	if len(all) == 0 {
		return
	}
	snap := d.d.Catalog.Snapshot()
	seen := digests{d: d, snap: snap}
	for _, l := range all {
		caller, err := l.who()
		if err != nil { // the key was revoked or has expired: so is what it may hear
			l.st.Close()
			continue
		}
		k := d.news(l, &seen, caller, pending)
		if k&kindTools != 0 {
			l.send("notifications/tools/list_changed", nil)
		}
		if k&kindPrompts != 0 {
			l.send("notifications/prompts/list_changed", nil)
		}
		if k&kindResources != 0 {
			l.send("notifications/resources/list_changed", nil)
		}
	}
}

// news works out which lists are other ones for a listener now.
func (d *Door) news(l *listener, seen *digests, caller *auth.Caller, pending map[string]kinds) kinds {
	var k kinds
	if l.kinds&kindTools != 0 {
		if now := seen.tools(caller, l.serverID); now != l.tools {
			l.tools = now
			k |= kindTools
		} else if l.serverID != "" {
			// The door of one server hands the server's own word on as it is.
			k |= pending[l.serverID] & kindTools
		}
	}
	if rest := l.kinds & (kindPrompts | kindResources); rest != 0 {
		only := seen.snap.Servers[l.serverID]
		if l.serverID != "" && only == nil {
			return k
		}
		servers := d.usable(seen.snap, caller, only)
		if now := seen.servers(servers); now != l.servers {
			l.servers = now
			k |= rest
		}
		for _, s := range servers {
			k |= pending[s.ID] & rest
		}
	}
	return k
}

// digests computes what lists look like, each distinct list once per flush.
type digests struct {
	d    *Door
	snap *catalog.Snapshot
	done []struct {
		tools []*catalog.Tool
		sum   uint64
	}
}

func (g *digests) tools(c *auth.Caller, serverID string) uint64 {
	tools := g.d.d.Gate.Visible(c, serverID)
	for i := range g.done {
		if sameTools(g.done[i].tools, tools) {
			return g.done[i].sum
		}
	}
	var h maphash.Hash
	h.SetSeed(g.d.hub.seed)
	for _, t := range tools {
		h.WriteString(t.Public)
		h.WriteByte(0)
		h.Write(t.Definition)
		h.WriteByte(0)
	}
	sum := h.Sum64()
	g.done = append(g.done, struct {
		tools []*catalog.Tool
		sum   uint64
	}{tools, sum})
	return sum
}

func (g *digests) servers(servers []*catalog.ServerView) uint64 {
	var h maphash.Hash
	h.SetSeed(g.d.hub.seed)
	for _, s := range servers {
		h.WriteString(s.ID)
		h.WriteByte(0)
		h.WriteString(s.Name)
		h.WriteByte(0)
	}
	return h.Sum64()
}

// listen registers l, with what its client can see now as the point of comparison.
func (d *Door) listen(l *listener, caller *auth.Caller) {
	seen := digests{d: d, snap: d.d.Catalog.Snapshot()}
	d.news(l, &seen, caller, nil)
	h := &d.hub
	h.mu.Lock()
	h.listeners[l] = struct{}{}
	if l.sess != nil {
		h.bySession[l.sess] = l
	}
	h.mu.Unlock()
	if d.d.Catalog.Snapshot() != seen.snap { // it moved while nobody told l
		h.dirty("", kindTools|kindPrompts|kindResources)
	}
}

// leave takes l out and waits for what runs for it.
func (d *Door) leave(l *listener, cancel context.CancelFunc) {
	h := &d.hub
	h.mu.Lock()
	delete(h.listeners, l)
	if l.sess != nil && h.bySession[l.sess] == l {
		delete(h.bySession, l.sess)
	}
	h.mu.Unlock()
	cancel()
	l.streams.Wait()
}

// watchSession makes the GET stream of a session hear of changes, and of what its upstream sessions say by themselves.
func (d *Door) watchSession(p *peer, s *bridge.Session, st *bridge.Stream) (leave func()) {
	ctx, cancel := context.WithCancel(p.r.Context())
	l := &listener{
		who: func() (*auth.Caller, error) { return p.who(p.r) }, serverID: p.sc.serverID(),
		kinds: kindTools | kindPrompts | kindResources, sess: s, st: st, ctx: ctx,
		send: func(method string, params json.RawMessage) { st.Send(mcp.AppendNotification(nil, method, params)) },
	}
	d.listen(l, p.caller)
	for _, id := range s.Uses() {
		d.follow(s, id)
	}
	return func() { d.leave(l, cancel) }
}

// follow connects the standing stream of a session, if it has one, with that of its session on a server.
func (d *Door) follow(s *bridge.Session, serverID string) {
	h := &d.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.bySession[s]
	if l == nil || l.ctx.Err() != nil || !d.hears(l, serverID) {
		return
	}
	c := &upstream.Client{Era: mcp.Legacy, Version: s.Version, Session: s.ID, Capabilities: s.Capabilities,
		Notify: func(method string, params json.RawMessage) {
			if k, ok := kindOf[method]; ok { // these are told once, by the hub
				d.hub.dirty(serverID, k)
				return
			}
			if method == "notifications/message" && belowLevel(params, s.Level()) || !d.hears(l, serverID) {
				return
			}
			l.send(method, d.redact(params))
		},
		Ask: func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, json.RawMessage, error) {
			if !d.hears(l, serverID) {
				return nil, bridge.Declined(method), nil
			}
			return s.Ask(ctx, method, d.redact(params), l.st.Send)
		},
	}
	l.streams.Go(func() {
		if err := d.d.Upstream.Stream(l.ctx, serverID, c, nil); err != nil && l.ctx.Err() == nil {
			d.d.Log.Debug("standing stream of a session ended", "server", serverID, "err", err)
		}
	})
}

// redact takes configured secrets out of what a server says by itself, which does not come through the gate.
func (d *Door) redact(params json.RawMessage) json.RawMessage {
	if d.d.Redactor == nil {
		return params
	}
	return d.d.Redactor.Redact(params)
}
