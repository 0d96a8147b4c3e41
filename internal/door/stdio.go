package door

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// Limits of ProxyStdio.
const (
	stdioMessage   = 16 << 20         // bytes of one line or event
	stdioDrain     = 30 * time.Second // how long open requests may go on after the client closed its end
	stdioReconnect = time.Second      // first wait before the standing stream is opened again, doubled up to a minute
)

// ProxyStdio connects a client that speaks stdio with the MCP door of a running Doorward at url, in
// either era: every line is posted, every answer and event is a line. key is the bearer key. It returns when
// the client closes its end and what was open is answered, or when ctx ends.
func ProxyStdio(ctx context.Context, url, key string, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	defer t.CloseIdleConnections()
	p := &stdioProxy{url: url, key: key, w: w, client: &http.Client{Transport: t, CheckRedirect: noRedirect},
		open: make(map[string][]*openRequest), schemas: make(map[string]json.RawMessage)}
	defer p.end()
	lines := make(chan []byte)
	readErr := make(chan error, 1)
	go func() {
		defer close(lines)
		readErr <- readLines(r, func(line []byte) bool {
			select {
			case lines <- line:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	for {
		select {
		case <-ctx.Done():
			cancel()
			p.running.Wait()
			return ctx.Err()
		case line, ok := <-lines:
			if ok {
				p.take(ctx, line)
				continue
			}
			p.drain(cancel)
			if err := <-readErr; err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("reading from the client: %w", err)
			}
			return nil
		}
	}
}

// noRedirect: the key goes to the address it was given for, and nowhere else.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// stdioProxy is one client on stdio.
type stdioProxy struct {
	url, key string
	client   *http.Client
	running  sync.WaitGroup // requests and the standing stream

	writing sync.Mutex
	w       io.Writer

	mu       sync.Mutex
	session  string // Mcp-Session-Id, from the answer to initialize
	version  string // revision that was agreed on
	first    []byte // the initialize request, to repeat it when the session is gone
	stream   bool   // the standing stream has been started
	open     map[string][]*openRequest
	schemas  map[string]json.RawMessage // tool name -> input schema, where it asks for arguments in headers
	requests sync.WaitGroup
}

// openRequest is a request of 2026-07-28 on its way; there, cancelling is closing its connection.
type openRequest struct{ cancel context.CancelFunc }

// readLines gives every line of r to fn until it says no; a line that is too long is answered by nobody and skipped.
func readLines(r io.Reader, fn func([]byte) bool) error {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		var line []byte
		tooLong := false
		for {
			part, err := br.ReadSlice('\n')
			if len(line)+len(part) > stdioMessage {
				tooLong, line = true, nil
			}
			if !tooLong {
				line = append(line, part...)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				if len(bytes.TrimSpace(line)) > 0 && !fn(bytes.TrimSpace(line)) {
					return nil
				}
				return err
			}
		}
		if tooLong {
			line = []byte("!") // not JSON: is answered with a parse error
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && !fn(line) {
			return nil
		}
	}
}

// line writes one message to the client.
func (p *stdioProxy) line(msg []byte) {
	if bytes.ContainsAny(msg, "\r\n") { // white space between tokens: in strings they are escaped
		var out bytes.Buffer
		if json.Compact(&out, msg) != nil {
			return
		}
		msg = out.Bytes()
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	p.w.Write(append(bytes.Clone(msg), '\n'))
}

// take forwards one line. Requests run side by side; what has no answer goes in its order.
func (p *stdioProxy) take(ctx context.Context, line []byte) {
	msgs, batch, err := mcp.ParseAny(line, mcp.Limits{})
	if err != nil {
		var id json.RawMessage
		if len(msgs) == 1 && !batch {
			id = msgs[0].ID
		}
		p.line(rpcError(id, err, ""))
		return
	}
	m := &msgs[0]
	switch {
	case batch || m.IsRequest() && m.Method != "initialize":
		p.start(ctx, m, batch, line)
	case m.Method == "initialize":
		p.mu.Lock()
		p.first, p.session, p.version = line, "", ""
		p.mu.Unlock()
		p.post(ctx, m, line)
	case m.Method == "notifications/cancelled" && p.cancelOpen(mcp.Get(m.Params, "requestId")):
	default:
		p.post(ctx, m, line)
		if m.Method == "notifications/initialized" {
			p.startStream(ctx)
		}
	}
}

func (p *stdioProxy) start(ctx context.Context, m *mcp.Message, batch bool, line []byte) {
	ctx, cancel := context.WithCancel(ctx)
	done := func() {}
	if !batch && modernMessage(m) {
		done = p.noteOpen(string(m.ID), cancel)
	}
	p.running.Add(1)
	p.requests.Add(1)
	go func() {
		defer p.running.Done()
		defer p.requests.Done()
		defer cancel()
		defer done()
		p.post(ctx, m, line)
	}()
}

func (p *stdioProxy) noteOpen(id string, cancel context.CancelFunc) (done func()) {
	o := &openRequest{cancel}
	p.mu.Lock()
	p.open[id] = append(p.open[id], o)
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		list := p.open[id]
		for i, have := range list {
			if have == o {
				list = append(list[:i:i], list[i+1:]...)
				break
			}
		}
		if p.open[id] = list; len(list) == 0 {
			delete(p.open, id)
		}
	}
}

// cancelOpen cancels requests of 2026-07-28 with the id; false when there are none, so that an older session must be told.
func (p *stdioProxy) cancelOpen(id json.RawMessage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.open[string(id)]
	for _, o := range list {
		o.cancel()
	}
	return len(list) > 0
}

// post sends one message and writes what comes back.
func (p *stdioProxy) post(ctx context.Context, m *mcp.Message, line []byte) {
	res, err := p.send(ctx, m, line)
	if err == nil && res.StatusCode == http.StatusNotFound && p.reopen(ctx, m, res) {
		res, err = p.send(ctx, m, line)
	}
	if err != nil {
		if ctx.Err() == nil && m.IsRequest() {
			p.line(rpcError(m.ID, fault.Wrap(fault.Unreachable, err, "doorward cannot be reached at its address: is it running?"), ""))
		}
		return
	}
	defer res.Body.Close()
	if m.Method == "initialize" {
		p.mu.Lock()
		p.session = res.Header.Get(mcp.HeaderSession)
		p.mu.Unlock()
	}
	answered := false
	p.answers(res, func(msg []byte) {
		answered = answered || m.IsRequest() && isAnswer(msg, m.ID)
		p.learn(m, msg)
		p.line(msg)
	})
	if !answered && m.IsRequest() && ctx.Err() == nil {
		p.line(rpcError(m.ID, fault.New(fault.Unreachable, "doorward answered with HTTP status %d and no message", res.StatusCode), ""))
	}
}

func isAnswer(msg []byte, id json.RawMessage) bool {
	got, err := mcp.Parse(msg, mcp.Limits{})
	return err == nil && got.IsResponse() && (bytes.Equal(got.ID, id) || got.ID == nil)
}

func (p *stdioProxy) send(ctx context.Context, m *mcp.Message, line []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(line))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	p.headers(req, m)
	return p.client.Do(req)
}

// headers puts on what this hop needs, by the era of the message.
func (p *stdioProxy) headers(req *http.Request, m *mcp.Message) {
	req.Header.Set("Authorization", "Bearer "+p.key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if m != nil && modernMessage(m) {
		name, _ := mcp.String(mcp.Get(m.Params, "name"))
		mcp.SetModernHeaders(req.Header, m.Method, m.Params, p.schemas[name])
		return
	}
	if p.session != "" {
		req.Header.Set(mcp.HeaderSession, p.session)
	}
	if p.version != "" && p.version >= mcp.V20250618 {
		req.Header.Set(mcp.HeaderVersion, p.version)
	}
}

// answers gives every message of a response to fn: the one of a JSON body, or those of a stream.
func (p *stdioProxy) answers(res *http.Response, fn func([]byte)) {
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		body, err := io.ReadAll(io.LimitReader(res.Body, 4*stdioMessage))
		if body = bytes.TrimSpace(body); err == nil && len(body) > 0 && (body[0] == '{' || body[0] == '[') {
			fn(body)
		}
		return
	}
	p.events(res.Body, fn)
}

// events gives the data of every event of a stream to fn until the stream ends; an event that is too large is left out.
func (p *stdioProxy) events(r io.Reader, fn func([]byte)) {
	er := mcp.NewEventReader(r, stdioMessage)
	for {
		ev, err := er.Next()
		if fault.Is(err, fault.TooLarge) {
			continue
		}
		if err != nil {
			return
		}
		if len(bytes.TrimSpace(ev.Data)) > 0 {
			fn(ev.Data)
		}
	}
}

// learn takes from an answer what later requests need.
func (p *stdioProxy) learn(m *mcp.Message, msg []byte) {
	switch m.Method {
	case "initialize":
		if v, ok := mcp.String(mcp.GetPath(msg, "result", "protocolVersion")); ok {
			p.mu.Lock()
			p.version = v
			p.mu.Unlock()
		}
	case "tools/list":
		if !bytes.Contains(msg, []byte(`"x-mcp-header"`)) {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, t := range mcp.Elements(mcp.GetPath(msg, "result", "tools")) {
			if name, ok := mcp.String(mcp.Get(t, "name")); ok && bytes.Contains(t, []byte(`"x-mcp-header"`)) {
				p.schemas[name] = mcp.Get(t, "inputSchema")
			}
		}
	}
}

// reopen opens a new session with the client's own initialize when the old one is gone: a client on stdio knows no sessions and could not.
func (p *stdioProxy) reopen(ctx context.Context, m *mcp.Message, old *http.Response) bool {
	used := old.Request.Header.Get(mcp.HeaderSession)
	if used == "" || m.Method == "initialize" {
		return false
	}
	p.mu.Lock()
	first, current := p.first, p.session
	p.mu.Unlock()
	if current != used { // somebody else did it
		old.Body.Close()
		return true
	}
	hello, err := mcp.Parse(first, mcp.Limits{})
	if first == nil || err != nil {
		return false
	}
	p.mu.Lock()
	p.session, p.version = "", ""
	p.mu.Unlock()
	res, err := p.send(ctx, &hello, first)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	p.answers(res, func(msg []byte) { p.learn(&hello, msg) }) // the client has had this answer once
	p.mu.Lock()
	p.session = res.Header.Get(mcp.HeaderSession)
	ok := p.session != ""
	p.mu.Unlock()
	if ok {
		old.Body.Close()
	}
	return ok
}

// startStream keeps the session's standing stream open.
func (p *stdioProxy) startStream(ctx context.Context) {
	p.mu.Lock()
	started := p.stream || p.session == ""
	p.stream = true
	p.mu.Unlock()
	if started {
		return
	}
	p.running.Go(func() {
		wait := stdioReconnect
		for ctx.Err() == nil {
			began := time.Now()
			if !p.readStream(ctx) {
				return
			}
			if time.Since(began) > time.Minute {
				wait = stdioReconnect
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Minute)
		}
	})
}

// readStream reads the standing stream once; false when there will never be one.
func (p *stdioProxy) readStream(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return false
	}
	req.Header.Set("Accept", "text/event-stream")
	p.headers(req, nil)
	res, err := p.client.Do(req)
	if err != nil {
		return true
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode != http.StatusMethodNotAllowed && res.StatusCode != http.StatusUnauthorized
	}
	p.events(res.Body, p.line)
	return true
}

// drain lets open requests end, within reason, after the client closed its end.
func (p *stdioProxy) drain(cancel context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		p.requests.Wait()
		close(done)
	}()
	limit := time.NewTimer(stdioDrain)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
	cancel()
	<-done
	p.running.Wait()
}

// end closes the session, so that nothing of it stays behind in Doorward.
func (p *stdioProxy) end() {
	p.mu.Lock()
	session := p.session
	p.mu.Unlock()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, p.url, nil)
	if err != nil {
		return
	}
	p.headers(req, nil)
	if res, err := p.client.Do(req); err == nil {
		res.Body.Close()
	}
}
