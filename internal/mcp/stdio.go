package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"doorward.dev/doorward/internal/fault"
)

// eventQueue is how many notifications one call may be behind before the newest are dropped: a caller that does
// not read must not hold up the others on the same pipe.
const eventQueue = 64

// StdioOptions of NewStdio. Callbacks run in the reading goroutine and must not wait.
type StdioOptions struct {
	MaxMessage int // bytes of one line, default 16 MiB
	Log        *slog.Logger
	// Notify receives notifications that belong to no call. nil: dropped.
	Notify func(method string, params json.RawMessage)
}

// Stdio is the client side of one server on a pair of pipes: a line is a message. Any number of calls run at
// once. Requests of the server are declined, but for ping: nobody knows which call they belong to.
type Stdio struct {
	opt    StdioOptions
	out    lineWriter
	nextID atomic.Int64
	junk   atomic.Int64

	mu    sync.Mutex
	calls map[int64]*pending // nil once the connection has ended
	err   error
	done  chan struct{}
}

// pending is a call that waits. Only the reading goroutine sends to ch.
type pending struct {
	ch    chan stdioEvent // one place is kept free for the answer
	token json.RawMessage // the caller's progress token
}

// stdioEvent is a notification, or the answer of a call when method is empty.
type stdioEvent struct {
	method string
	data   json.RawMessage
	err    error
}

// NewStdio speaks over r and w until r ends. Reading from r must end when the server does.
func NewStdio(r io.Reader, w io.Writer, opt StdioOptions) *Stdio {
	if opt.MaxMessage <= 0 {
		opt.MaxMessage = DefaultMaxMessage
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stdio{opt: opt, calls: make(map[int64]*pending), done: make(chan struct{})}
	s.out.init(w, s.end)
	go s.read(r)
	return s
}

// Done is closed when the connection has ended; Err then says why.
func (s *Stdio) Done() <-chan struct{} { return s.done }

// Err says why the connection ended, nil while it lasts.
func (s *Stdio) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Junk is the number of lines that were no messages.
func (s *Stdio) Junk() int64 { return s.junk.Load() }

// Call sends a request and waits for its answer. Errors: *RPCError as the server sent it, and *fault.Error:
// Unreachable (not sent), OutcomeUnknown (the server ended before it answered), UpstreamError (an answer that
// cannot be used), Timeout and Cancelled (ctx ended; the server was told).
func (s *Stdio) Call(ctx context.Context, c *Call) (json.RawMessage, error) {
	id := s.nextID.Add(1)
	params, token := swapToken(c.Params, id)
	p := &pending{token: token, ch: make(chan stdioEvent, 1)}
	if c.Notify != nil {
		p.ch = make(chan stdioEvent, eventQueue)
	}
	if err := s.register(id, p); err != nil {
		return nil, err
	}
	buf := append(AppendRequest(getBuffer(), formatID(id), c.Method, oneLine(params)), '\n')
	err := s.out.write(buf)
	putBuffer(buf)
	if err != nil {
		s.forget(id)
		return nil, fault.Wrap(fault.Unreachable, err, "the server does not take requests")
	}
	for {
		select {
		case ev := <-p.ch:
			if ev.method == "" {
				return ev.data, ev.err
			}
			c.Notify(ev.method, ev.data)
		case <-ctx.Done():
			s.forget(id)
			s.cancel(id, c.Method)
			return nil, ended(ctx, c.Method)
		}
	}
}

// Notify sends a notification.
func (s *Stdio) Notify(method string, params json.RawMessage) error {
	return s.out.write(append(AppendNotification(nil, method, oneLine(params)), '\n'))
}

// cancel tells the server that nobody waits any more. initialize must not be cancelled.
func (s *Stdio) cancel(id int64, method string) {
	if method == "initialize" {
		return
	}
	params := append(strconv.AppendInt([]byte(`{"requestId":`), id, 10), `,"reason":"the caller went away"}`...)
	_ = s.Notify("notifications/cancelled", params)
}

func (s *Stdio) register(id int64, p *pending) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		return fault.Wrap(fault.Unreachable, s.err, "the server has ended")
	}
	s.calls[id] = p
	return nil
}

func (s *Stdio) forget(id int64) {
	s.mu.Lock()
	delete(s.calls, id)
	s.mu.Unlock()
}

// take removes and returns a call that waits, nil when there is none (any more).
func (s *Stdio) take(id int64) *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.calls[id]
	delete(s.calls, id)
	return p
}

// find is take without removing.
func (s *Stdio) find(id int64) *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

// read is the reading goroutine.
func (s *Stdio) read(r io.Reader) {
	lines := lineReader{br: bufio.NewReaderSize(r, 64<<10), max: s.opt.MaxMessage}
	for {
		line, err := lines.next()
		var big *oversize
		switch {
		case err == nil:
			s.line(line)
		case errors.As(err, &big):
			s.tooLarge(big)
		default:
			s.end(err)
			return
		}
	}
}

// end fails all calls that wait: the server may have run them. Each waits for one answer, and the place for
// it is free, so sends do not wait here either.
func (s *Stdio) end(err error) {
	s.mu.Lock()
	calls := s.calls
	if calls == nil {
		s.mu.Unlock()
		return
	}
	s.calls = nil
	s.err = err
	s.mu.Unlock()
	s.out.close(err)
	for _, p := range calls {
		p.ch <- stdioEvent{err: fault.Wrap(fault.OutcomeUnknown, err, "the server ended while the call ran; it may have run")}
	}
	close(s.done)
}

// line takes one line of the server.
func (s *Stdio) line(line []byte) {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 {
		return
	}
	switch trimmed[0] {
	case '{':
		m, err := Parse(trimmed, Limits{})
		if err == nil {
			s.message(&m)
			return
		}
		if id, ok := Int(m.ID); ok { // an answer that breaks a rule ends the call it belongs to, and no other
			if p := s.take(id); p != nil {
				p.ch <- stdioEvent{err: fault.Wrap(fault.UpstreamError, err, "the server's answer is not valid: %s", fault.From(err).Message)}
				return
			}
		}
	case '[': // batches of 2025-03-26
		if msgs, _, err := ParseAny(trimmed, Limits{}); err == nil {
			for i := range msgs {
				s.message(&msgs[i])
			}
			return
		}
	}
	// Powers of two: a server that only prints junk does not fill the log.
	if n := s.junk.Add(1); n&(n-1) == 0 {
		s.opt.Log.Warn("the server printed a line that is no message", "lines", n, "begins", excerpt(trimmed))
	}
}

func (s *Stdio) message(m *Message) {
	switch {
	case m.IsRequest():
		s.decline(m)
	case m.IsNotification():
		s.notification(m)
	default:
		id, ok := Int(m.ID)
		p := s.take(id)
		if !ok || p == nil { // late, or a second answer
			s.opt.Log.Debug("an answer that nobody waits for was dropped", "id", excerpt(m.ID))
			return
		}
		result, err := answer(m)
		p.ch <- stdioEvent{data: result, err: err}
	}
}

func (s *Stdio) decline(m *Message) {
	var out []byte
	if m.Method == "ping" {
		out = AppendResult(nil, m.ID, nil)
	} else {
		s.opt.Log.Debug("a request of the server was declined: it cannot be told whose call it belongs to", "method", m.Method)
		out = AppendError(nil, m.ID, ErrNoMethod)
	}
	_ = s.out.write(append(oneLine(out), '\n'))
}

// notification finds the call that a notification names, by progress token or subscription.
func (s *Stdio) notification(m *Message) {
	ref := GetPath(m.Params, "_meta", MetaSubscriptionID)
	if m.Method == "notifications/progress" {
		ref = Get(m.Params, "progressToken")
	}
	if ref == nil {
		if m.Method != "notifications/progress" && s.opt.Notify != nil {
			s.opt.Notify(m.Method, m.Params)
		}
		return
	}
	id, ok := Int(ref)
	p := s.find(id)
	if !ok || p == nil || len(p.ch) >= cap(p.ch)-1 { // cap 1: the call takes no notifications
		return
	}
	if params, ok := restoreToken(m.Method, m.Params, id, p.token); ok {
		p.ch <- stdioEvent{method: m.Method, data: params}
	}
}

func (s *Stdio) tooLarge(big *oversize) {
	err := fault.New(fault.UpstreamError, "the server's answer is larger than %d bytes", s.opt.MaxMessage).Why("ANSWER_TOO_LARGE")
	if p := s.take(big.id); p != nil {
		p.ch <- stdioEvent{err: err}
		return
	}
	s.opt.Log.Warn("a line of the server was dropped: larger than the limit", "limit", s.opt.MaxMessage)
}
