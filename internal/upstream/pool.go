package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// The defaults of Deps and Config.
const (
	defaultConnect  = 20 * time.Second
	defaultCall     = 10 * time.Minute
	defaultParallel = 8
)

// Pool keeps one shared connection per server, and sessions of legacy HTTP servers per client session.
// Its methods are safe for concurrent use.
type Pool struct {
	d          Deps
	clientInfo json.RawMessage
	pace       pace
	connects   chan struct{} // a place per connect that may run at once

	ctx    context.Context
	cancel context.CancelFunc
	owners sync.WaitGroup

	servers atomic.Pointer[map[string]*server] // replaced as a whole: a call takes no lock
	apply   sync.Mutex
	closed  bool
}

// pace holds the times between attempts; tests make them short.
type pace struct {
	backoff, backoffMax time.Duration // between connects
	stable              time.Duration // a connection that lasted so long starts the backoff anew
	probe               time.Duration // for server/discover
	debounce            time.Duration // between list_changed and the listing
	ping                time.Duration // of HTTP servers without a stream
	sessionIdle         time.Duration // of a session that no client uses
}

var usual = pace{
	backoff: time.Second, backoffMax: time.Minute, stable: 10 * time.Second, probe: 5 * time.Second,
	debounce: 200 * time.Millisecond, ping: 30 * time.Second, sessionIdle: 30 * time.Minute,
}

// New makes an empty pool.
func New(d Deps) *Pool {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.OnListing == nil {
		d.OnListing = func(context.Context, string, mcp.Listing) {}
	}
	if d.OnChanged == nil {
		d.OnChanged = func(string, string, json.RawMessage) {}
	}
	if d.OnStatus == nil {
		d.OnStatus = func(Status) {}
	}
	if d.Redact == nil {
		d.Redact = func(b []byte) []byte { return b }
	}
	if d.ConnectTimeout <= 0 {
		d.ConnectTimeout = defaultConnect
	}
	if d.MaxMessage <= 0 {
		d.MaxMessage = mcp.DefaultMaxMessage
	}
	if d.Parallel <= 0 {
		d.Parallel = defaultParallel
	}
	if d.Version == "" {
		d.Version = "dev"
	}
	p := &Pool{d: d, pace: usual, connects: make(chan struct{}, d.Parallel)}
	p.clientInfo = json.RawMessage(`{"name":"doorward","version":` + string(mcp.Quote(d.Version)) + `}`)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.servers.Store(&map[string]*server{})
	return p
}

// Run keeps the connections until ctx ends, then closes them; children are gone when it returns.
func (p *Pool) Run(ctx context.Context) error {
	<-ctx.Done()
	p.apply.Lock()
	p.closed = true
	p.apply.Unlock()
	p.cancel()
	p.owners.Wait()
	return nil
}

// Apply makes the set of servers that should be connected exactly cfgs. It does not wait for connects.
func (p *Pool) Apply(cfgs []Config) {
	p.apply.Lock()
	defer p.apply.Unlock()
	if p.closed {
		return
	}
	old := *p.servers.Load()
	next := make(map[string]*server, len(cfgs))
	for _, cfg := range cfgs {
		s := old[cfg.ID]
		if s == nil || s.cfg.Revision != cfg.Revision {
			var before *server
			before, s = s, newServer(p, cfg)
			p.owners.Go(func() {
				if before != nil { // a server must not run twice on one set of files
					<-before.gone
				}
				s.run()
			})
		}
		next[cfg.ID] = s
	}
	p.servers.Store(&next)
	for id, s := range old {
		if next[id] != s {
			s.cancel()
		}
	}
}

// Scan lists a server's tools now, connecting if need be (also a server that Apply does not name: probe only).
func (p *Pool) Scan(ctx context.Context, cfg Config) mcp.Listing {
	if s := p.find(cfg.ID); s != nil && s.cfg.Revision == cfg.Revision {
		s.hurry()
		c, err := s.connected(ctx, true)
		if err != nil {
			return mcp.Listing{Err: err}
		}
		return s.relist(ctx, c)
	}
	return p.probe(ctx, cfg)
}

// probe lists a server on a connection of its own. Run waits for it as for the others.
func (p *Pool) probe(ctx context.Context, cfg Config) mcp.Listing {
	p.apply.Lock()
	if p.closed {
		p.apply.Unlock()
		return mcp.Listing{Err: fault.New(fault.Unavailable, "doorward is shutting down")}
	}
	p.owners.Add(1)
	p.apply.Unlock()
	defer p.owners.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	s := newServer(p, cfg)
	defer s.cancel()
	c, err := s.connect(ctx)
	if err != nil {
		return mcp.Listing{Err: err}
	}
	defer c.close()
	return s.relist(ctx, c)
}

func (p *Pool) find(id string) *server { return (*p.servers.Load())[id] }

// EndSession ends the upstream sessions kept for a client session.
func (p *Pool) EndSession(session string) {
	for _, s := range *p.servers.Load() {
		if c := s.current(); c != nil {
			if h, ok := c.link.(*httpLink); ok {
				h.endSession(session)
			}
		}
	}
}

// Status of one server; Statuses of all.
func (p *Pool) Status(serverID string) (Status, bool) {
	s := p.find(serverID)
	if s == nil {
		return Status{}, false
	}
	return s.status(), true
}

// Statuses of all servers, by id.
func (p *Pool) Statuses() []Status {
	var out []Status
	for _, s := range slices.SortedFunc(maps.Values(*p.servers.Load()), func(a, b *server) int {
		return strings.Compare(a.cfg.ID, b.cfg.ID)
	}) {
		out = append(out, s.status())
	}
	return out
}

// text is what an error says, with its causes but without configured secrets, for those who run Doorward.
func (p *Pool) text(err error) string { return string(p.d.Redact([]byte(err.Error()))) }

// public is what an error says to a caller.
func (p *Pool) public(err error) string { return string(p.d.Redact([]byte(fault.From(err).Message))) }
