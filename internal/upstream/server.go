package upstream

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

const (
	toolsChanged    = "notifications/tools/list_changed"
	resourceUpdated = "notifications/resources/updated"
	maxUpdates      = 1024 // announcements of resources that may wait
)

// server is the owner of the connection to one server: it connects, lists, watches and connects again.
type server struct {
	p      *Pool
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	gone   chan struct{} // closed when the owner has ended
	hurryC chan struct{} // ends a wait between attempts
	lists  chan struct{} // one listing at a time

	mu      sync.Mutex
	conn    *conn
	health  Health
	since   time.Time
	lastErr error
	next    time.Time
	stderr  string
	changed chan struct{} // closed and replaced when something above changes
	era     *mcp.Era      // found at the last connect

	newsMu  sync.Mutex
	news    map[string]bool // list_changed methods that wait
	updates []json.RawMessage
	newsC   chan struct{}
}

func newServer(p *Pool, cfg Config) *server {
	s := &server{
		p: p, cfg: cfg, gone: make(chan struct{}), hurryC: make(chan struct{}, 1), lists: make(chan struct{}, 1),
		health: Connecting, since: time.Now(), changed: make(chan struct{}), news: map[string]bool{}, newsC: make(chan struct{}, 1),
	}
	if s.cfg.Timeout <= 0 {
		s.cfg.Timeout = defaultCall
	}
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	return s
}

// run is the owner goroutine.
func (s *server) run() {
	defer close(s.gone)
	for failures := 0; s.ctx.Err() == nil; {
		s.set(func() { s.health, s.conn = Connecting, nil })
		c, err := s.connect(s.ctx)
		if err == nil {
			begin := time.Now()
			s.set(func() { s.conn, s.lastErr = c, nil })
			s.refresh(c)
			err = s.watch(c)
			s.set(func() { s.conn, s.stderr = nil, c.link.stderr() })
			c.close()
			if time.Since(begin) >= s.p.pace.stable { // the first attempt after a good time comes at once
				failures = 0
				s.set(func() { s.lastErr = err })
				s.p.d.Log.Warn("the connection to a server ended", "server", s.cfg.Name, "err", s.p.text(err))
				continue
			}
		}
		if s.ctx.Err() != nil {
			return
		}
		failures++
		s.p.d.Log.Warn("a server is down", "server", s.cfg.Name, "err", s.p.text(err), "attempt", failures)
		s.wait(s.backoff(failures), err)
	}
}

// backoff grows with each failure, with jitter so that servers do not come back in step.
func (s *server) backoff(failures int) time.Duration {
	d := s.p.pace.backoffMax
	if failures < 16 {
		d = min(d, s.p.pace.backoff<<(failures-1))
	}
	return d - rand.N(d/4+1)
}

// wait is the time of being down.
func (s *server) wait(d time.Duration, err error) {
	select { // a hurry that came before belongs to the attempt that failed
	case <-s.hurryC:
	default:
	}
	s.set(func() { s.health, s.lastErr, s.next = Down, err, time.Now().Add(d) })
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.hurryC:
	case <-s.ctx.Done():
	}
}

// hurry makes a server that is down connect now.
func (s *server) hurry() {
	s.mu.Lock()
	down := s.health == Down
	s.mu.Unlock()
	if down {
		s.set(func() { s.health = Connecting })
		select {
		case s.hurryC <- struct{}{}:
		default:
		}
	}
}

// set changes the state and tells those who wait for it.
func (s *server) set(change func()) {
	s.mu.Lock()
	was := s.health
	change()
	if s.health != Down {
		s.next = time.Time{}
	}
	moved := s.health != was
	if moved {
		s.since = time.Now()
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if moved {
		s.p.d.OnStatus(s.status())
	}
}

func (s *server) current() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// connected is the connection that works now. patient: wait for a connect that is under way.
func (s *server) connected(ctx context.Context, patient bool) (*conn, error) {
	for {
		s.mu.Lock()
		c, health, changed, lastErr, next := s.conn, s.health, s.changed, s.lastErr, s.next
		s.mu.Unlock()
		switch {
		case c != nil && !c.isLost():
			return c, nil
		case s.ctx.Err() != nil:
			return nil, fault.New(fault.Unreachable, "server %s is not connected any more", s.cfg.Name)
		case health == Down:
			wait := max(time.Second, time.Until(next).Round(time.Second))
			return nil, fault.Wrap(fault.Unreachable, lastErr, "server %s is down: %s; next attempt in %d s", s.cfg.Name, s.p.public(lastErr), int(wait.Seconds()))
		case !patient:
			return nil, fault.New(fault.Unreachable, "server %s is still connecting: try again in a moment", s.cfg.Name)
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
		case <-ctx.Done():
			return nil, ctxError(ctx, s.cfg.Name)
		}
	}
}

// ctxError is the error of a call that ended before it was sent.
func ctxError(ctx context.Context, name string) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fault.Wrap(fault.Timeout, ctx.Err(), "server %s did not answer in time", name)
	}
	return fault.Wrap(fault.Cancelled, context.Cause(ctx), "the call was cancelled")
}

func (s *server) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{ServerID: s.cfg.ID, Health: s.health, Since: s.since, NextAttempt: s.next, Stderr: s.stderr}
	if s.lastErr != nil {
		st.LastError = s.p.text(s.lastErr)
	}
	if c := s.conn; c != nil {
		st.Era, st.ProtocolVersion = eraName(c.era), c.version
		st.ServerInfo, st.Capabilities, st.Instructions = c.info, c.caps, c.instructions
		st.PID, st.Stderr = c.link.pid(), c.link.stderr()
	}
	st.Stderr = string(s.p.d.Redact([]byte(st.Stderr)))
	return st
}

func eraName(e mcp.Era) string {
	if e == mcp.Modern {
		return "modern"
	}
	return "legacy"
}

// announce takes a notification that belongs to no call. It never waits.
func (s *server) announce(method string, params json.RawMessage) {
	s.newsMu.Lock()
	switch {
	case strings.HasSuffix(method, "/list_changed"):
		s.news[method] = true
	case method == resourceUpdated && len(s.updates) < maxUpdates:
		s.updates = append(s.updates, params)
	}
	s.newsMu.Unlock()
	select {
	case s.newsC <- struct{}{}:
	default:
	}
}

// watch passes on what the server announces until the connection is lost; the error says why.
func (s *server) watch(c *conn) error {
	relist := time.NewTimer(time.Hour)
	relist.Stop()
	defer relist.Stop()
	waiting := false
	tidy := time.NewTicker(max(s.p.pace.sessionIdle/30, time.Second))
	defer tidy.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-c.lost:
			return c.lostErr
		case <-tidy.C:
			c.link.tidy()
		case <-s.newsC:
			if s.deliver() && !waiting {
				waiting = true
				relist.Reset(s.p.pace.debounce)
			}
		case <-relist.C:
			waiting = false
			s.refresh(c)
			s.p.d.OnChanged(s.cfg.ID, toolsChanged, nil)
		}
	}
}

// deliver passes on the news that wait; tools: the list of tools must be read anew first.
func (s *server) deliver() (tools bool) {
	s.newsMu.Lock()
	news, updates := s.news, s.updates
	s.news, s.updates = map[string]bool{}, nil
	s.newsMu.Unlock()
	for method := range news {
		if method != toolsChanged {
			s.p.d.OnChanged(s.cfg.ID, method, nil)
		}
	}
	for _, params := range updates {
		s.p.d.OnChanged(s.cfg.ID, resourceUpdated, params)
	}
	return news[toolsChanged]
}

// refresh reads the list of tools and sets the health by it.
func (s *server) refresh(c *conn) { s.relist(s.ctx, c) }
