package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// The limits of taking up a stream again (Last-Event-ID).
const (
	maxResumes   = 5 // in a row without an event
	defaultRetry = time.Second
	maxRetry     = 30 * time.Second
)

// inbound takes what comes in event streams: the answer of one call and what belongs to it, or a standing stream.
type inbound struct {
	h     *HTTP
	call  *Call
	id    int64           // of the call, 0 for a standing stream
	token json.RawMessage // the caller's progress token
	ctx   context.Context

	lastID string
	retry  time.Duration

	mu     sync.Mutex
	asks   map[string]context.CancelFunc // requests of the server that wait for an answer, by id
	asking sync.WaitGroup
}

// finish ends the questions that nobody waits for any more.
func (in *inbound) finish() {
	in.mu.Lock()
	for _, cancel := range in.asks {
		cancel()
	}
	in.mu.Unlock()
	in.asking.Wait()
}

// stream reads the answer of the call from reply and, where the server lets it, from streams that take it up.
func (in *inbound) stream(reply *httpReply) (json.RawMessage, error) {
	for tries := 0; ; {
		events, m, err := in.read(reply)
		if m != nil {
			return in.h.settle(in.call, m)
		}
		if in.ctx.Err() != nil || in.lastID == "" || in.call.Version >= V20260728 || fault.Is(err, fault.UpstreamError) {
			if fault.Is(err, fault.UpstreamError) {
				return nil, err
			}
			return nil, in.h.broken(in.ctx, in.call, err)
		}
		if events > 0 {
			tries = 0
		}
		if reply, err = in.resume(&tries); err != nil {
			return nil, err
		}
	}
}

// resume opens the stream again from the last event.
func (in *inbound) resume(tries *int) (*httpReply, error) {
	for {
		if *tries++; *tries > maxResumes {
			return nil, in.h.broken(in.ctx, in.call, errors.New("the stream cannot be taken up again"))
		}
		wait := in.retry
		if wait == 0 {
			wait = defaultRetry
		}
		select {
		case <-time.After(min(wait, maxRetry)):
		case <-in.ctx.Done():
			return nil, ended(in.ctx, in.call.Method)
		}
		reply, err := in.h.send(in.ctx, http.MethodGet, in.call, nil, in.lastID)
		if err != nil {
			continue
		}
		if kind := mediaType(reply.contentType); reply.status == http.StatusOK && kind == typeEvents {
			return reply, nil
		}
		reply.close()
		return nil, in.h.broken(in.ctx, in.call, &HTTPError{Status: reply.status, Body: "the stream cannot be taken up again"})
	}
}

// read reads one stream to its end or to the answer of the call, which it returns.
func (in *inbound) read(reply *httpReply) (events int, _ *Message, _ error) {
	er := NewEventReader(reply.body, in.h.opt.MaxMessage)
	for ; ; events++ {
		ev, err := er.Next()
		if er.LastID() != "" {
			in.lastID = er.LastID()
		}
		if er.Retry() > 0 {
			in.retry = er.Retry()
		}
		if fault.Is(err, fault.TooLarge) {
			if in.id != 0 { // it may be the answer: nobody can tell
				reply.close()
				return events, nil, fault.Wrap(fault.UpstreamError, err, "the server's answer is larger than %d bytes", in.h.opt.MaxMessage).Why("ANSWER_TOO_LARGE")
			}
			continue
		}
		if err != nil {
			reply.close()
			return events, nil, err
		}
		if ev.Name != "message" || len(ev.Data) == 0 {
			continue
		}
		m, err := in.event(ev.Data)
		if err != nil {
			reply.close()
			return events, nil, err
		}
		if m != nil {
			reply.release()
			return events, m, nil
		}
	}
}

// event takes one message; it returns the answer of the call. A broken one ends the call that it answers.
func (in *inbound) event(data []byte) (*Message, error) {
	m, err := Parse(data, Limits{})
	id, ok := Int(m.ID)
	mine := ok && id == in.id && m.Method == "" && in.id != 0
	switch {
	case err != nil && mine:
		return nil, fault.Wrap(fault.UpstreamError, err, "the server's answer is not valid: %s", fault.From(err).Message)
	case err != nil:
		in.h.opt.Log.Warn("an event of the server is no message", "err", err)
	case m.IsRequest():
		in.request(&m)
	case m.IsNotification():
		in.notification(&m)
	case mine, m.ID == nil && in.id != 0:
		return &m, nil
	default:
		in.h.opt.Log.Debug("an answer that nobody waits for was dropped", "id", excerpt(m.ID))
	}
	return nil, nil
}

func (in *inbound) notification(m *Message) {
	if m.Method == "notifications/cancelled" { // the server takes a question back
		in.mu.Lock()
		if cancel := in.asks[string(Get(m.Params, "requestId"))]; cancel != nil {
			cancel()
		}
		in.mu.Unlock()
		return
	}
	if in.call.Notify == nil {
		return
	}
	params, ok := m.Params, true
	if in.id != 0 {
		params, ok = restoreToken(m.Method, m.Params, in.id, in.token)
	}
	if ok {
		in.call.Notify(m.Method, params)
	}
}

// maxAsks bounds the questions of one stream that wait at once.
const maxAsks = 32

// request answers a request of the server, in a goroutine: it may take a person.
func (in *inbound) request(m *Message) {
	id := string(m.ID)
	in.mu.Lock()
	_, twice := in.asks[id]
	if m.Method == "ping" || in.call.Ask == nil || twice || len(in.asks) >= maxAsks {
		in.mu.Unlock()
		out := AppendError(nil, m.ID, ErrNoMethod)
		if m.Method == "ping" {
			out = AppendResult(nil, m.ID, nil)
		}
		in.asking.Go(func() { in.reply(out) })
		return
	}
	ctx, cancel := context.WithCancel(in.ctx)
	if in.asks == nil {
		in.asks = map[string]context.CancelFunc{}
	}
	in.asks[id] = cancel
	in.mu.Unlock()
	in.asking.Go(func() {
		result, rpcErr := in.call.Ask(ctx, m.Method, m.Params)
		withdrawn := ctx.Err() != nil
		cancel()
		in.mu.Lock()
		delete(in.asks, id)
		in.mu.Unlock()
		switch {
		case withdrawn:
		case rpcErr != nil:
			in.reply(AppendError(nil, m.ID, rpcErr))
		default:
			in.reply(AppendResult(nil, m.ID, result))
		}
	})
}

func (in *inbound) reply(body []byte) {
	ctx, cancel := context.WithTimeout(in.ctx, dialTimeout)
	defer cancel()
	c := &Call{Version: in.call.Version, SessionID: in.call.SessionID}
	if err := in.h.tell(ctx, c, body); err != nil {
		in.h.opt.Log.Debug("the answer to a request of the server was not delivered", "err", err)
	}
}

// Listen reads the standing stream of a legacy session (GET) until it ends, and takes it up again where the server
// gives event ids and ends it itself. c.Notify and c.Ask receive what comes. The error says why it ended; its cause is
// *HTTPError when the server has no such stream.
func (h *HTTP) Listen(ctx context.Context, c *Call) error {
	in := inbound{h: h, call: c, ctx: ctx}
	defer in.finish()
	reply, err := h.send(ctx, http.MethodGet, c, nil, "")
	if err != nil {
		return h.broken(ctx, c, err)
	}
	kind := mediaType(reply.contentType)
	if reply.status != http.StatusOK || kind != typeEvents {
		defer reply.close()
		if reply.status == http.StatusOK {
			return fault.Wrap(fault.UpstreamError, &HTTPError{Status: http.StatusMethodNotAllowed}, "the server has no event stream")
		}
		raw, _ := h.readBody(reply)
		return h.refused(c, reply, raw)
	}
	for tries := 0; ; {
		events, _, err := in.read(reply)
		if ctx.Err() != nil || in.lastID == "" {
			return h.broken(ctx, c, err)
		}
		if events > 0 {
			tries = 0
		}
		if reply, err = in.resume(&tries); err != nil {
			return err
		}
	}
}
