package mcp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The limits of the HTTP/1.1 client.
const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
	maxIdle     = 128      // connections
	maxHead     = 64 << 10 // bytes of the head of a response
	maxInterim  = 10       // 1xx responses before the real one

	drainTimeout = time.Second // for the rest of a stream after its answer
	maxDrain     = 64 << 10    // bytes of it
)

// errNotSent: the request did not go out in full, so the server cannot have run it.
var errNotSent = errors.New("the request was not sent")

// httpReply is the head of a response and its body. Close gives the connection back or closes it.
type httpReply struct {
	status      int
	contentType string
	session     string // Mcp-Session-Id
	location    string
	length      int64 // of the body, -1: not known
	body        io.Reader
	close       func() // call it once; a body that was not read to its end costs the connection
	release     func() // instead of close: reads what is left in the background, for a stream whose rest is of no interest
}

// httpPool is a small HTTP/1.1 client for one origin. Unlike net/http it has no goroutine per connection: request
// and response happen in the goroutine of the caller, which is worth a third of the time of a small call.
type httpPool struct {
	addr string
	tls  *tls.Config // nil: plain

	mu     sync.Mutex
	idle   []*httpConn // the newest last
	closed bool
}

type httpConn struct {
	net.Conn
	raw    net.Conn // under TLS
	br     *bufio.Reader
	reused bool
	since  time.Time // when it became idle
}

// do sends one whole request and reads the head of its response. safe: it may be sent again. An error that
// wraps errNotSent means that the server cannot have run it.
func (p *httpPool) do(ctx context.Context, head, body []byte, safe bool) (*httpReply, error) {
	for {
		c, err := p.conn(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNotSent, err)
		}
		reply, answered, err := p.exchange(ctx, c, head, body)
		// A kept connection may have been closed by the server just now: that says nothing about the server.
		if err == nil || !c.reused || answered || ctx.Err() != nil || !safe && !errors.Is(err, errNotSent) {
			return reply, err
		}
	}
}

// exchange does one request on c. answered: a byte of a response came.
func (p *httpPool) exchange(ctx context.Context, c *httpConn, head, body []byte) (_ *httpReply, answered bool, err error) {
	stop := func() bool { return true }
	if ctx.Done() != nil {
		// Closing the connection is also how a modern server hears of a cancellation.
		stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	}
	fail := func(err error) error {
		stop()
		_ = c.Close()
		return err
	}
	sent := c.send(head, body)
	if err := sent; err != nil {
		// The server may have said why before it closed.
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, peek := c.br.Peek(1); peek != nil || c.reused {
			return nil, false, fail(fmt.Errorf("%w: %w", errNotSent, err))
		}
	}
	if _, err := c.br.Peek(1); err != nil {
		return nil, false, fail(err)
	}
	reply, framing, err := readHead(c.br)
	if err != nil {
		return nil, true, fail(err)
	}
	framing.keep = framing.keep && sent == nil
	giveBack := func() {
		if !framing.keep || !framing.ended() || c.br.Buffered() > 0 {
			_ = c.Close()
			return
		}
		p.put(c)
	}
	reply.body, reply.length = framing.body, framing.length
	reply.close = func() {
		if !stop() {
			framing.keep = false
		}
		giveBack()
	}
	reply.release = func() {
		if !stop() || !framing.keep {
			_ = c.Close()
			return
		}
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(drainTimeout))
			_, _ = io.CopyN(io.Discard, reply.body, maxDrain)
			_ = c.SetReadDeadline(time.Time{})
			giveBack()
		}()
	}
	return reply, true, nil
}

func (c *httpConn) send(head, body []byte) error {
	if len(body) <= 32<<10 {
		_, err := c.Write(append(head, body...))
		return err
	}
	bufs := net.Buffers{head, body}
	_, err := bufs.WriteTo(c.Conn)
	return err
}

// conn takes an idle connection that still lives, or dials.
func (p *httpPool) conn(ctx context.Context) (*httpConn, error) {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return p.dial(ctx)
		}
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if time.Since(c.since) < idleTimeout && c.lives() {
			c.reused = true
			return c, nil
		}
		_ = c.Close()
	}
}

// lives looks whether the server has closed an idle connection, without waiting.
func (c *httpConn) lives() bool {
	n, open := peekSocket(c.raw)
	if !open || n == 0 {
		return open
	}
	if c.raw == c.Conn {
		return false // nobody asked for anything
	}
	// Under TLS it may be a session ticket, which is read here, or the alert before the end.
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.br.Peek(1)
	_ = c.SetReadDeadline(time.Time{})
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

func (p *httpPool) dial(ctx context.Context) (*httpConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	c := &httpConn{Conn: raw, raw: raw}
	if p.tls != nil {
		t := tls.Client(raw, p.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		c.Conn = t
	}
	c.br = bufio.NewReaderSize(c.Conn, 4<<10)
	return c, nil
}

func (p *httpPool) put(c *httpConn) {
	now := time.Now()
	c.since = now
	var old []*httpConn
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) > idleTimeout { // the oldest come first
		n++
	}
	if len(p.idle)-n >= maxIdle {
		n++
	}
	if n > 0 {
		old = append(old, p.idle[:n]...)
		p.idle = append(p.idle[:0], p.idle[n:]...)
	}
	if p.closed {
		old = append(old, c)
	} else {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// closeIdle closes what is idle; final: also what becomes idle later.
func (p *httpPool) closeIdle(final bool) {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.closed = p.closed || final
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// framing is how the body of a response ends.
type framing struct {
	body   io.Reader
	length int64 // -1: not known
	keep   bool  // the connection may be used again after it
	ended  func() bool
}

// readHead reads the head of a response, interim ones skipped.
func readHead(br *bufio.Reader) (*httpReply, *framing, error) {
	for range maxInterim {
		r := &httpReply{}
		f, err := readOneHead(br, r)
		if err != nil {
			return nil, nil, fmt.Errorf("the response is not HTTP/1.1: %w", err)
		}
		if r.status >= 200 {
			return r, f, nil
		}
		if r.status == 101 {
			return nil, nil, errors.New("the server switched protocols unasked")
		}
	}
	return nil, nil, errors.New("the server sent too many interim responses")
}

// header fields that frame the body
type fields struct {
	length      int64 // -1: not given
	chunked     bool
	close, keep bool
}

func readOneHead(br *bufio.Reader, r *httpReply) (*framing, error) {
	left := maxHead
	line, err := headLine(br, &left)
	if err != nil {
		return nil, err
	}
	proto, rest, _ := bytes.Cut(line, []byte{' '})
	code, _, _ := bytes.Cut(rest, []byte{' '})
	old := string(proto) == "HTTP/1.0"
	r.status, err = strconv.Atoi(string(code))
	if err != nil || len(code) != 3 || r.status < 100 || !old && string(proto) != "HTTP/1.1" {
		return nil, errors.New("malformed status line")
	}
	fs := fields{length: -1, close: old}
	for {
		if line, err = headLine(br, &left); err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if old && fs.chunked {
				return nil, errors.New("chunked in HTTP/1.0")
			}
			return fs.framing(br, r.status), nil
		}
		if err := fs.add(r, line); err != nil {
			return nil, err
		}
	}
}

func (fs *fields) add(r *httpReply, line []byte) error {
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || !isToken(string(name)) { // also a continuation line, which begins with a space
		return errors.New("malformed header field")
	}
	value = bytes.TrimSpace(value)
	switch {
	case equalFold(name, "content-type"):
		r.contentType = string(value)
	case equalFold(name, "mcp-session-id"):
		r.session = string(value)
	case equalFold(name, "location"):
		r.location = string(value)
	case equalFold(name, "content-length"):
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil || fs.length >= 0 && fs.length != int64(n) {
			return errors.New("malformed Content-Length")
		}
		fs.length = int64(n)
	case equalFold(name, "transfer-encoding"):
		if fs.chunked || !equalFold(value, "chunked") {
			return errors.New("unknown Transfer-Encoding")
		}
		fs.chunked = true
	case equalFold(name, "connection"):
		for opt := range strings.SplitSeq(strings.ToLower(string(value)), ",") {
			switch strings.TrimSpace(opt) {
			case "close":
				fs.close = true
			case "keep-alive":
				fs.keep = true
			}
		}
	}
	return nil
}

func (fs *fields) framing(br *bufio.Reader, status int) *framing {
	keep := !fs.close || fs.keep
	switch {
	case status < 200 || status == 204 || status == 304:
		return &framing{body: bytes.NewReader(nil), keep: keep, ended: func() bool { return true }}
	case fs.chunked:
		b := &chunkedBody{br: br, r: httputil.NewChunkedReader(br)}
		return &framing{body: b, length: -1, keep: keep && fs.length < 0, ended: func() bool { return b.ended }}
	case fs.length >= 0:
		b := &lengthBody{br: br, left: fs.length}
		return &framing{body: b, length: fs.length, keep: keep, ended: func() bool { return b.left == 0 }}
	}
	return &framing{body: br, length: -1, ended: func() bool { return false }}
}

// headLine reads one line of a head; left counts down the bytes a head may have.
func headLine(br *bufio.Reader, left *int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) && len(long) <= *left {
			line, err = br.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if *left -= len(line); *left < 0 {
		return nil, errors.New("the head is too large")
	}
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}), nil
}

// lengthBody is a body with Content-Length. One that is cut short is an error, not an end.
type lengthBody struct {
	br   *bufio.Reader
	left int64
}

func (b *lengthBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.br.Read(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// chunkedBody reads on to the end of the trailer, so that the connection can be used again.
type chunkedBody struct {
	br    *bufio.Reader
	r     io.Reader
	ended bool
}

func (b *chunkedBody) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.r.Read(p)
	if err != io.EOF {
		return n, err
	}
	for left := maxHead; ; {
		line, lerr := headLine(b.br, &left)
		if lerr != nil {
			return n, lerr
		}
		if len(line) == 0 {
			b.ended = true
			return n, io.EOF
		}
	}
}
