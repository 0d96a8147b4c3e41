package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// endTime is how long the ends of sessions may take.
const endTime = 2 * time.Second

// httpLink is a streamable HTTP server. An older one has sessions: one that all share, which declares nothing,
// and one for each session of a client, which declares what that client can do, so that what the server asks within
// it reaches exactly this client.
type httpLink struct {
	c      *conn
	wire   *mcp.HTTP
	shared *session

	mu       sync.Mutex
	sessions map[string]*session // by the id of the client's session
	closed   bool
	ending   chan struct{} // bounds DELETEs at once
}

func (s *server) openHTTP(ctx context.Context) (*conn, error) {
	wire, err := mcp.NewHTTP(mcp.HTTPOptions{
		URL: s.cfg.URL, Headers: s.cfg.Headers, UserAgent: "doorward/" + s.p.d.Version,
		MaxMessage: s.p.d.MaxMessage, Log: s.p.d.Log.With("server", s.cfg.Name),
	})
	if err != nil {
		return nil, err
	}
	c := s.newConn()
	l := &httpLink{c: c, wire: wire, sessions: map[string]*session{}, ending: make(chan struct{}, 16)}
	l.shared = &session{l: l, version: mcp.V20251125, caps: noCapabilities}
	c.link = l
	if err := c.handshake(ctx, s.known()); err != nil {
		c.close()
		return nil, err
	}
	c.useBreaker()
	c.beside.Go(c.listen)
	return c, nil
}

func (l *httpLink) call(ctx context.Context, call *mcp.Call, r *Request) (json.RawMessage, error) {
	if l.c.era == mcp.Modern {
		var schema json.RawMessage
		if r != nil {
			schema = r.ToolSchema
		}
		call.Header = make(http.Header, 4)
		mcp.SetModernHeaders(call.Header, call.Method, call.Params, schema)
		call.Version = call.Header.Get(mcp.HeaderVersion)
		return l.wire.Call(ctx, call)
	}
	s := l.shared
	if r != nil && r.Client != nil && r.Client.Session != "" {
		s = l.session(r.Client)
		s.users.Add(1)
		defer s.release()
	} else {
		call.Ask = nil // the shared session is nobody's: it declared that it cannot be asked
	}
	return s.call(ctx, call)
}

func (l *httpLink) notify(ctx context.Context, method string, params json.RawMessage) error {
	st, err := l.shared.get(ctx)
	if err != nil {
		return err
	}
	return l.wire.Notify(ctx, &mcp.Call{Version: st.version, SessionID: st.id}, method, params)
}

// session is the one of a client's session; it is opened by its first call.
func (l *httpLink) session(c *Client) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[c.Session]
	if s == nil {
		version := c.Version
		if !mcp.Known(version) || mcp.EraOf(version) == mcp.Modern {
			version = mcp.V20251125
		}
		s = &session{l: l, version: version, caps: c.Capabilities}
		s.used.Store(time.Now().UnixNano())
		s.ended = l.closed
		l.sessions[c.Session] = s
	}
	return s
}

// endSession ends the session of a client's session.
func (l *httpLink) endSession(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil && !l.closed {
		delete(l.sessions, id)
		l.c.beside.Go(s.end)
	}
}

// tidy ends the sessions and connections that no client has used for long.
func (l *httpLink) tidy() {
	l.wire.Tidy()
	limit := time.Now().Add(-l.c.s.p.pace.sessionIdle).UnixNano()
	l.mu.Lock()
	var idle []string
	for id, s := range l.sessions {
		if s.users.Load() == 0 && s.used.Load() < limit {
			idle = append(idle, id)
		}
	}
	l.mu.Unlock()
	for _, id := range idle {
		l.endSession(id)
	}
}

// close ends all sessions, as far as the server can be told in time.
func (l *httpLink) close() {
	l.mu.Lock()
	l.closed = true
	sessions := l.sessions
	l.sessions = map[string]*session{}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range sessions {
		all.Go(s.end)
	}
	all.Go(l.shared.end)
	all.Wait()
	l.wire.Close()
}

func (l *httpLink) pid() int       { return 0 }
func (l *httpLink) stderr() string { return "" }

// session is a session of a legacy server, opened when it is first needed and again when the server has lost it.
type session struct {
	l       *httpLink
	version string // asked for
	caps    json.RawMessage
	users   atomic.Int64
	used    atomic.Int64 // unix nanoseconds

	mu      sync.Mutex
	open    *opened
	opening chan struct{} // closed when the handshake under way has ended
	err     error         // of the last handshake
	ended   bool
}

// opened is a session that the server knows; id is empty where the server has no sessions.
type opened struct {
	id, version string
	result      json.RawMessage // of initialize; only the shared session keeps it
}

func (s *session) release() {
	s.used.Store(time.Now().UnixNano())
	s.users.Add(-1)
}

// call makes one call in the session. Where the server has lost the session the call did not run, and is made
// again in a new one, once.
func (s *session) call(ctx context.Context, call *mcp.Call) (json.RawMessage, error) {
	for again := false; ; again = true {
		st, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		call.SessionID, call.Version = st.id, st.version
		result, err := s.l.wire.Call(ctx, call)
		if err == nil || !fault.Is(err, fault.SessionNotFound) {
			return result, err
		}
		s.expire(st)
		if again {
			return nil, fault.Wrap(fault.UpstreamError, err, "the server ended the session twice")
		}
	}
}

// get is the open session. All who need it wait for one handshake.
func (s *session) get(ctx context.Context) (*opened, error) {
	s.mu.Lock()
	if s.open != nil {
		defer s.mu.Unlock()
		return s.open, nil
	}
	if s.ended {
		defer s.mu.Unlock()
		return nil, fault.New(fault.Unreachable, "the session has ended")
	}
	if s.opening == nil {
		s.opening = make(chan struct{})
		go s.handshake(s.opening)
	}
	opening := s.opening
	s.mu.Unlock()
	select {
	case <-opening:
	case <-ctx.Done():
		return nil, ctxError(ctx, s.l.c.s.cfg.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return nil, s.err
	}
	return s.open, nil
}

// handshake opens the session; end waits for it. It is nobody's call: a caller that goes away must not fail the others.
func (s *session) handshake(done chan struct{}) {
	ctx, cancel := context.WithTimeout(s.l.c.ctx, s.l.c.s.p.d.ConnectTimeout)
	defer cancel()
	st, err := s.initialize(ctx)
	s.mu.Lock()
	ended := s.ended
	if ended && err == nil {
		err = fault.New(fault.Unreachable, "the session has ended")
	}
	s.err, s.opening = err, nil
	if err == nil {
		s.open = st
	}
	s.mu.Unlock()
	if ended && st != nil {
		s.forget(st)
	}
	close(done)
}

func (s *session) initialize(ctx context.Context) (*opened, error) {
	call := &mcp.Call{Method: "initialize", Params: s.l.c.s.p.initializeParams(s.version, s.caps), Safe: true}
	result, err := s.l.wire.Call(ctx, call)
	if err != nil {
		return nil, err
	}
	st := &opened{id: call.NewSession}
	if s == s.l.shared {
		st.result = result
	}
	if st.version, err = legacyVersion(result); err != nil {
		return nil, err
	}
	return st, s.l.wire.Notify(ctx, &mcp.Call{Version: st.version, SessionID: st.id}, "notifications/initialized", nil)
}

// expire forgets what the server has lost. Whoever comes late with the same session changes nothing. A server
// that lost a session has likely started anew, so its tools are read again.
func (s *session) expire(st *opened) {
	s.mu.Lock()
	mine := s.open == st
	if mine {
		s.open = nil
	}
	s.mu.Unlock()
	if mine {
		s.l.c.s.announce(toolsChanged, nil)
	}
}

// end ends the session for good.
func (s *session) end() {
	s.mu.Lock()
	st := s.open
	s.open, s.ended = nil, true
	opening := s.opening
	s.mu.Unlock()
	if opening != nil {
		<-opening
	}
	if st != nil {
		s.forget(st)
	}
}

// forget tells the server.
func (s *session) forget(st *opened) {
	if st.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	select {
	case s.l.ending <- struct{}{}:
		defer func() { <-s.l.ending }()
	case <-ctx.Done():
		return
	}
	s.l.wire.End(ctx, st.version, st.id)
}
