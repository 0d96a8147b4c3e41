package mcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// HTTPOptions of NewHTTP.
type HTTPOptions struct {
	URL        string
	Headers    map[string]string // configured for the server: the only ones that are not of this hop
	UserAgent  string
	MaxMessage int // bytes of one message, default 16 MiB
	Log        *slog.Logger
	TLS        *tls.Config                           // nil: the defaults
	Proxy      func(*http.Request) (*url.URL, error) // nil: from the environment
}

// HTTP is the client side of one streamable HTTP server of either era. It keeps connections, but no session: that
// is in each Call. Methods are safe for concurrent use.
type HTTP struct {
	opt    HTTPOptions
	url    *url.URL
	own    httpPool
	std    *http.Transport // instead of own where a proxy stands between
	heads  map[string][]byte
	fixed  http.Header
	nextID atomic.Int64

	mu     sync.Mutex
	behind sync.WaitGroup // cancellations on their way
	closed bool
}

// cancelTimeout is how long telling a server of a cancellation may take.
const cancelTimeout = 2 * time.Second

// HTTPError is the cause of an error: the server answered with this status and without a JSON-RPC message.
type HTTPError struct {
	Status int
	Body   string // its beginning
}

func (e *HTTPError) Error() string { return fmt.Sprintf("HTTP status %d: %q", e.Status, e.Body) }

// NewHTTP makes a client; it connects with the first call. Errors are of class fault.Config.
func NewHTTP(opt HTTPOptions) (*HTTP, error) {
	u, err := url.Parse(opt.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fault.New(fault.Config, "the server URL must be http:// or https:// with a host")
	}
	if opt.MaxMessage <= 0 {
		opt.MaxMessage = DefaultMaxMessage
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.UserAgent == "" {
		opt.UserAgent = "doorward"
	}
	h := &HTTP{opt: opt, url: u}
	if err := h.setHeaders(); err != nil {
		return nil, err
	}
	return h, h.choose()
}

// mediaType is the type without its parameters.
func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

const (
	typeJSON   = "application/json"
	typeEvents = "text/event-stream"
)

// send sends one HTTP request. lastID is for GET.
func (h *HTTP) send(ctx context.Context, method string, c *Call, body []byte, lastID string) (*httpReply, error) {
	var all [6][2]string
	fs := all[:0]
	switch method {
	case http.MethodPost:
		fs = append(fs, [2]string{"Content-Type", typeJSON}, [2]string{"Accept", typeJSON + ", " + typeEvents})
	case http.MethodGet:
		fs = append(fs, [2]string{"Accept", typeEvents})
		if lastID != "" {
			fs = append(fs, [2]string{"Last-Event-Id", lastID})
		}
	}
	if c.Version != "" {
		fs = append(fs, [2]string{HeaderVersion, c.Version})
	}
	if c.SessionID != "" {
		fs = append(fs, [2]string{HeaderSession, c.SessionID})
	}
	if h.std != nil {
		return h.sendStd(ctx, method, c, fs, body)
	}
	head := append(getBuffer(), h.heads[method]...)
	for _, f := range fs {
		head = appendField(head, f[0], f[1])
	}
	for key, values := range c.Header {
		if key != HeaderVersion || c.Version == "" {
			head = appendField(head, key, values[0])
		}
	}
	if method == http.MethodPost {
		head = appendField(head, "Content-Length", strconv.Itoa(len(body)))
	}
	head = append(head, "\r\n"...)
	reply, err := h.own.do(ctx, head, body, c.Safe || method == http.MethodGet)
	putBuffer(head)
	return reply, err
}

// sendStd is send through a proxy.
func (h *HTTP) sendStd(ctx context.Context, method string, c *Call, fs [][2]string, body []byte) (*httpReply, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	req.URL.User = nil
	req.Header = h.fixed.Clone()
	req.Host = req.Header.Get("Host")
	req.Header.Del("Host")
	for key, values := range c.Header {
		req.Header[key] = values
	}
	for _, f := range fs {
		req.Header.Set(f[0], f[1])
	}
	resp, err := h.std.RoundTrip(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") {
			err = fmt.Errorf("%w: %w", errNotSent, err)
		}
		return nil, err
	}
	closeBody := func() { _ = resp.Body.Close() }
	return &httpReply{
		status: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), session: resp.Header.Get(HeaderSession),
		location: resp.Header.Get("Location"), length: resp.ContentLength, body: resp.Body, close: closeBody, release: closeBody,
	}, nil
}

// Call sends a request and waits for its answer. Errors: *RPCError as the server sent it, and *fault.Error:
// Unreachable (it did not run), SessionNotFound (it did not run; the session must be made anew), OutcomeUnknown (the
// connection ended before the answer), UpstreamError, Timeout and Cancelled. The context ends the connection.
func (h *HTTP) Call(ctx context.Context, c *Call) (json.RawMessage, error) {
	id := h.nextID.Add(1)
	result, err := h.call(ctx, c, id)
	if err != nil && ctx.Err() != nil && c.Version < V20260728 && c.Method != "initialize" {
		// To an older server a closed connection means nothing.
		h.mu.Lock()
		if !h.closed {
			h.behind.Go(func() { h.cancel(c, id) })
		}
		h.mu.Unlock()
	}
	return result, err
}

// cancel tells a legacy server that nobody waits for a call any more.
func (h *HTTP) cancel(c *Call, id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	params := append(strconv.AppendInt([]byte(`{"requestId":`), id, 10), `,"reason":"the caller went away"}`...)
	to := &Call{Version: c.Version, SessionID: c.SessionID, Header: c.Header}
	if err := h.Notify(ctx, to, "notifications/cancelled", params); err != nil {
		h.opt.Log.Debug("a cancellation was not delivered", "err", err)
	}
}

func (h *HTTP) call(ctx context.Context, c *Call, id int64) (json.RawMessage, error) {
	params, token := swapToken(c.Params, id)
	body := AppendRequest(getBuffer(), formatID(id), c.Method, params)
	reply, err := h.send(ctx, http.MethodPost, c, body, "")
	putBuffer(body)
	if err != nil {
		return nil, h.broken(ctx, c, err)
	}
	c.NewSession = reply.session
	kind := mediaType(reply.contentType)
	if reply.status/100 == 2 && kind == typeEvents {
		in := inbound{h: h, call: c, id: id, token: token, ctx: ctx}
		defer in.finish()
		return in.stream(reply)
	}
	defer reply.close()
	if reply.status/100 == 2 && kind != typeJSON {
		if reply.status == http.StatusAccepted {
			return nil, fault.New(fault.UpstreamError, "the server accepted %s but gave no answer", c.Method)
		}
		return nil, fault.New(fault.UpstreamError, "the server answered with content of type %q instead of JSON", excerpt([]byte(kind)))
	}
	raw, err := h.readBody(reply)
	if reply.status/100 != 2 {
		return nil, h.refused(c, reply, raw)
	}
	if err != nil {
		if ctx.Err() != nil || !fault.Is(err, fault.UpstreamError) {
			err = h.broken(ctx, c, err)
		}
		return nil, err
	}
	return h.single(c, id, raw)
}

// single reads the one message of a JSON answer.
func (h *HTTP) single(c *Call, id int64, raw []byte) (json.RawMessage, error) {
	m, err := Parse(raw, Limits{})
	if err != nil {
		return nil, fault.Wrap(fault.UpstreamError, err, "the server's answer is not valid: %s", fault.From(err).Message)
	}
	if got, ok := Int(m.ID); !m.IsResponse() || (!ok || got != id) && (m.ID != nil || m.Error == nil) {
		return nil, fault.New(fault.UpstreamError, "the server's answer belongs to another request")
	}
	return h.settle(c, &m)
}

// settle is what a response means; an error may say that the session has ended.
func (h *HTTP) settle(c *Call, m *Message) (json.RawMessage, error) {
	result, err := answer(m)
	var rpc *RPCError
	if errors.As(err, &rpc) && sessionGone(c, rpc) {
		return nil, fault.Wrap(fault.SessionNotFound, rpc, "the server ended the session")
	}
	return result, err
}

// goneText is how servers that do not answer 404 say that they do not know a session (spec/iac-code 2.2.5).
var goneText = regexp.MustCompile(`(?i)session.{0,40}(terminated|expired|not found|unknown)|invalid session|unknown session|(missing|invalid) mcp-session-id`)

func sessionGone(c *Call, e *RPCError) bool {
	if c.SessionID == "" {
		return false
	}
	switch e.Code {
	case -32600, 32600, -32603, 32603, -32000, -32001, -32002:
		return goneText.MatchString(e.Message)
	}
	return false
}

// refused is the error of a status that is not 2xx; body is what came with it.
func (h *HTTP) refused(c *Call, r *httpReply, body []byte) error {
	if r.status == http.StatusNotFound && c.SessionID != "" {
		return fault.New(fault.SessionNotFound, "the server ended the session")
	}
	if m, err := Parse(body, Limits{}); err == nil && m.Error != nil {
		_, err := h.settle(c, &m)
		return err
	}
	cause := &HTTPError{Status: r.status, Body: excerpt(body)}
	switch s := r.status; {
	case s/100 == 3:
		return fault.Wrap(fault.UpstreamError, cause, "the server redirects to another address (HTTP %d%s): configure the final URL", s, target(r.location))
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return fault.Wrap(fault.UpstreamError, cause, "the server refused the configured credentials (HTTP %d)", s).Why("NEEDS_AUTH")
	case s == http.StatusBadGateway, s == http.StatusGatewayTimeout:
		return fault.Wrap(fault.OutcomeUnknown, cause, "something before the server answered HTTP %d; the call may have run", s)
	}
	return fault.Wrap(fault.UpstreamError, cause, "the server answered HTTP %d", r.status)
}

// target names the address of a redirect without what may be secret in it.
func target(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" {
		return ""
	}
	return ", " + excerpt([]byte(u.Scheme+"://"+u.Host+u.EscapedPath()))
}

// broken is the error of a connection that failed.
func (h *HTTP) broken(ctx context.Context, c *Call, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx, c.Method)
	case errors.Is(err, errNotSent):
		return fault.Wrap(fault.Unreachable, err, "the server cannot be reached")
	}
	return fault.Wrap(fault.OutcomeUnknown, err, "the connection to the server ended before it answered; the call may have run")
}

// readBody reads a body of bounded size.
func (h *HTTP) readBody(r *httpReply) ([]byte, error) {
	limit := int64(h.opt.MaxMessage)
	tooLarge := func() error {
		return fault.New(fault.UpstreamError, "the server's answer is larger than %d bytes", limit).Why("ANSWER_TOO_LARGE")
	}
	if r.length > limit {
		return nil, tooLarge()
	}
	if r.length >= 0 {
		b := make([]byte, r.length)
		_, err := io.ReadFull(r.body, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(r.body, limit+1))
	if int64(len(b)) > limit {
		return nil, tooLarge()
	}
	return b, err
}

// Notify sends a notification; of c only what is for HTTP counts.
func (h *HTTP) Notify(ctx context.Context, c *Call, method string, params json.RawMessage) error {
	return h.tell(ctx, c, AppendNotification(nil, method, params))
}

// tell posts a message that has no answer.
func (h *HTTP) tell(ctx context.Context, c *Call, body []byte) error {
	reply, err := h.send(ctx, http.MethodPost, c, body, "")
	if err != nil {
		return h.broken(ctx, c, err)
	}
	defer reply.close()
	if reply.status/100 == 2 {
		_, _ = io.CopyN(io.Discard, reply.body, min(max(reply.length, 0), maxDrain))
		return nil
	}
	raw, _ := h.readBody(reply)
	return h.refused(c, reply, raw)
}

// End ends a legacy session.
func (h *HTTP) End(ctx context.Context, version, session string) {
	c := &Call{Version: version, SessionID: session, Safe: true}
	if reply, err := h.send(ctx, http.MethodDelete, c, nil, ""); err == nil {
		_, _ = io.CopyN(io.Discard, reply.body, min(max(reply.length, 0), maxDrain))
		reply.close()
	}
}

// Tidy closes connections that no call has used for long.
func (h *HTTP) Tidy() { h.own.tidy() }

// Close closes what is idle now, and the rest when its call has ended.
func (h *HTTP) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.behind.Wait()
	h.own.closeIdle()
	if h.std != nil {
		h.std.CloseIdleConnections()
	}
}
