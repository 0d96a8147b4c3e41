package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// IdleAfter is how long the soft state of an unused session is kept. Evicting it
// ends nothing: the next request with the id makes it anew.
const IdleAfter = 30 * time.Minute

// Sessions issues session ids and keeps the soft state that hangs on them. Safe
// for concurrent use; finding a session takes no lock.
type Sessions struct {
	sign  signer
	now   func() time.Time
	base  context.Context
	live  sync.Map // id -> *Session
	count atomic.Int64

	mu    sync.Mutex
	ended map[[nonceLen]byte]int64 // nonce -> unix seconds when the id is too old anyway
}

// NewSessions makes an empty table. key signs the ids; base ends every session's context.
func NewSessions(base context.Context, key []byte, now func() time.Time) *Sessions {
	return &Sessions{sign: signer{key}, now: now, base: base, ended: make(map[[nonceLen]byte]int64)}
}

// Session is the soft state of one session.
type Session struct {
	ID           string
	Version      string
	Capabilities json.RawMessage // what the client declared, compact

	owner  [16]byte
	nonce  [nonceLen]byte
	ctx    context.Context
	cancel context.CancelFunc
	used   atomic.Int64 // unix seconds
	level  atomic.Pointer[string]

	mu     sync.Mutex
	calls  []*InFlight
	asks   map[string]chan answer
	asked  uint64
	subs   map[string]string   // resource uri -> server id
	uses   map[string]struct{} // servers that this session has an upstream session on
	stream *Stream
}

// New opens a session and its id.
func (s *Sessions) New(o Owner, version string, caps json.RawMessage) *Session {
	t := ticket{version: version, issued: s.now().Unix(), nonce: newNonce(), owner: o.digest(), caps: compactCaps(caps)}
	return s.add(s.sign.sign(&t), &t)
}

func (s *Sessions) add(id string, t *ticket) *Session {
	n := &Session{ID: id, Version: t.version, Capabilities: t.caps, owner: t.owner, nonce: t.nonce}
	n.ctx, n.cancel = context.WithCancel(s.base)
	n.used.Store(s.now().Unix())
	if had, loaded := s.live.LoadOrStore(id, n); loaded {
		n.cancel()
		return had.(*Session)
	}
	s.count.Add(1)
	return n
}

// Find gives the session of an id to its owner. Every other case is one answer,
// fault.SessionNotFound: a forged, an ended, an outdated id, and another owner's.
func (s *Sessions) Find(id string, o Owner) (*Session, error) {
	now := s.now().Unix()
	if v, ok := s.live.Load(id); ok {
		n := v.(*Session)
		if n.owner != o.digest() {
			return nil, notFound()
		}
		if n.used.Load() != now {
			n.used.Store(now)
		}
		return n, nil
	}
	t, ok := s.sign.verify(id)
	if !ok || t.owner != o.digest() || now-t.issued > int64(MaxAge/time.Second) {
		return nil, notFound()
	}
	s.mu.Lock()
	_, gone := s.ended[t.nonce]
	s.mu.Unlock()
	if gone {
		return nil, notFound()
	}
	return s.add(id, &t), nil
}

func notFound() error {
	return fault.New(fault.SessionNotFound, "no such session: send initialize to open a new one")
}

// End ends a session for good: its running calls are cancelled and its id is not accepted again.
func (s *Sessions) End(n *Session) {
	s.mu.Lock()
	s.ended[n.nonce] = s.now().Add(MaxAge).Unix()
	s.mu.Unlock()
	s.drop(n)
}

func (s *Sessions) drop(n *Session) {
	if s.live.CompareAndDelete(n.ID, n) {
		s.count.Add(-1)
	}
	n.cancel()
	n.mu.Lock()
	st := n.stream
	n.stream = nil
	n.mu.Unlock()
	if st != nil {
		st.Close()
	}
}

// Sweep evicts idle sessions and returns them, so that what is kept for them elsewhere can go too.
func (s *Sessions) Sweep() []*Session {
	now := s.now().Unix()
	var out []*Session
	s.live.Range(func(_, v any) bool {
		n := v.(*Session)
		if now-n.used.Load() > int64(IdleAfter/time.Second) && n.idle() {
			out = append(out, n)
			s.drop(n)
		}
		return true
	})
	s.mu.Lock()
	for k, until := range s.ended {
		if now > until {
			delete(s.ended, k)
		}
	}
	s.mu.Unlock()
	return out
}

// Count is the number of sessions with soft state.
func (s *Sessions) Count() int64 { return s.count.Load() }

// idle: nothing runs, no stream is open and nothing is subscribed to.
func (n *Session) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.calls) == 0 && n.stream == nil && len(n.asks) == 0
}

// SetLevel remembers the least severe log level the client wants to see.
func (n *Session) SetLevel(level string) { n.level.Store(&level) }

// Level is the log level, "" when none was set.
func (n *Session) Level() string {
	if p := n.level.Load(); p != nil {
		return *p
	}
	return ""
}

// Use notes that the session talks to a server; true the first time.
func (n *Session) Use(serverID string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.uses[serverID]; ok {
		return false
	}
	if n.uses == nil {
		n.uses = make(map[string]struct{}, 1)
	}
	n.uses[serverID] = struct{}{}
	return true
}

// Uses lists the servers the session has talked to.
func (n *Session) Uses() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, 0, len(n.uses))
	for id := range n.uses {
		out = append(out, id)
	}
	return out
}

// maxSubscriptions bounds what one client can make a session remember.
const maxSubscriptions = 1000

// Subscribe remembers a resource subscription; false when there are too many.
func (n *Session) Subscribe(uri, serverID string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.subs) >= maxSubscriptions {
		return false
	}
	if n.subs == nil {
		n.subs = make(map[string]string, 1)
	}
	n.subs[uri] = serverID
	return true
}

// Unsubscribe forgets one.
func (n *Session) Unsubscribe(uri string) {
	n.mu.Lock()
	delete(n.subs, uri)
	n.mu.Unlock()
}

// Subscribed reports whether the session subscribed to a resource of a server.
func (n *Session) Subscribed(uri, serverID string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.subs[uri] == serverID && serverID != ""
}

// InFlight is a running call of a session. Calls are told apart by request, not
// by id: some clients give every call the same id.
type InFlight struct {
	id     []byte
	cancel context.CancelFunc
}

// Begin notes a running call and returns its context, which ends with the
// session, not with the connection: a lost connection is no cancellation here.
func (n *Session) Begin(id json.RawMessage) (context.Context, *InFlight) {
	ctx, cancel := context.WithCancel(n.ctx)
	c := &InFlight{id: id, cancel: cancel}
	n.mu.Lock()
	n.calls = append(n.calls, c)
	n.mu.Unlock()
	return ctx, c
}

// Done forgets a call.
func (n *Session) Done(c *InFlight) {
	n.mu.Lock()
	for i, have := range n.calls {
		if have == c {
			last := len(n.calls) - 1
			n.calls[i] = n.calls[last]
			n.calls[last] = nil
			n.calls = n.calls[:last]
			break
		}
	}
	n.mu.Unlock()
	c.cancel()
}

// Cancel cancels every running call with the id (compared byte for byte) and says how many there were.
func (n *Session) Cancel(id json.RawMessage) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := 0
	for _, c := range n.calls {
		if bytes.Equal(c.id, id) {
			c.cancel()
			found++
		}
	}
	return found
}

type answer struct{ result, rpcErr json.RawMessage }

// AskTimeout is how long a client may take to answer a question of a server.
const AskTimeout = 10 * time.Minute

// maxAsks bounds the open questions of one session.
const maxAsks = 64

// capability that a client must have declared to be asked.
var capability = map[string]string{
	"elicitation/create":     "elicitation",
	"sampling/createMessage": "sampling",
	"roots/list":             "roots",
}

// Ask puts a server's question to the client through send and waits for the
// answer. A client that did not declare the capability is not asked.
func (n *Session) Ask(ctx context.Context, method string, params json.RawMessage, send func(msg []byte) error) (result, rpcErr json.RawMessage, err error) {
	name, known := capability[method]
	if !known || mcp.Get(n.Capabilities, name) == nil {
		return nil, Declined(method), nil
	}
	ch := make(chan answer, 1)
	n.mu.Lock()
	if len(n.asks) >= maxAsks {
		n.mu.Unlock()
		return nil, nil, fault.New(fault.Limit, "too many open questions to this client")
	}
	n.asked++
	id := `"dw-` + strconv.FormatUint(n.asked, 36) + `"`
	if n.asks == nil {
		n.asks = make(map[string]chan answer, 1)
	}
	n.asks[id] = ch
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.asks, id)
		n.mu.Unlock()
	}()

	if err := send(mcp.AppendRequest(nil, json.RawMessage(id), method, params)); err != nil {
		return nil, nil, fault.Wrap(fault.Cancelled, err, "the client cannot be asked: its stream is gone")
	}
	limit := time.NewTimer(AskTimeout)
	defer limit.Stop()
	select {
	case a := <-ch:
		return a.result, a.rpcErr, nil
	case <-ctx.Done():
		select { // an answer that came first is one
		case a := <-ch:
			return a.result, a.rpcErr, nil
		default:
		}
		send(mcp.AppendNotification(nil, "notifications/cancelled", json.RawMessage(`{"requestId":`+id+`}`)))
		return nil, nil, fault.Wrap(fault.Cancelled, ctx.Err(), "the call ended before the client answered")
	case <-n.ctx.Done():
		return nil, nil, fault.New(fault.Cancelled, "the session ended before the client answered")
	case <-limit.C:
		return nil, nil, fault.New(fault.Timeout, "the client did not answer in %s", AskTimeout)
	}
}

// Answer delivers a client's response to the question it answers; false when no question of this session waits for it.
func (n *Session) Answer(m *mcp.Message) bool {
	n.mu.Lock()
	ch, ok := n.asks[string(m.ID)]
	if ok {
		delete(n.asks, string(m.ID)) // one answer only
	}
	n.mu.Unlock()
	if !ok {
		return false
	}
	// The message lies in the buffer of its request, which is used again once that is answered.
	ch <- answer{bytes.Clone(m.Result), bytes.Clone(m.Error)}
	return true
}

// Declined is the error object a server gets when the client cannot be asked.
func Declined(method string) json.RawMessage {
	return json.RawMessage(`{"code":-32601,"message":` + string(mcp.Quote("the client does not support "+method)) + `}`)
}
