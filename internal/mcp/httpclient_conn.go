package mcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
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
	c.since = time.Now()
	p.mu.Lock()
	old := p.expired(c.since)
	switch {
	case p.closed:
		old = append(old, c)
	default:
		if len(p.idle) >= maxIdle {
			old = append(old, p.takeOldest(1)...)
		}
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// closeIdle closes what is idle, now and later.
func (p *httpPool) closeIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// tidy closes what has been idle for too long.
func (p *httpPool) tidy() {
	p.mu.Lock()
	old := p.expired(time.Now())
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// expired takes out what has been idle for too long; the oldest come first. p.mu is held.
func (p *httpPool) expired(now time.Time) []*httpConn {
	n := 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) > idleTimeout {
		n++
	}
	return p.takeOldest(n)
}

func (p *httpPool) takeOldest(n int) []*httpConn {
	if n == 0 {
		return nil
	}
	old := append([]*httpConn(nil), p.idle[:n]...)
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	return old
}
