package testkit

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Line is a TCP proxy that stands for the network between a program and its database, and can break.
type Line struct {
	Addr string

	target string
	mu     sync.Mutex
	gate   *sync.Cond // told when quiet changes
	conns  map[net.Conn]bool
	cut    bool
	quiet  bool
}

// NewLine starts a proxy in front of the host of a URL and returns the URL that leads through it.
func NewLine(t testing.TB, to string) (*Line, string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{Addr: listener.Addr().String(), target: u.Host, conns: map[net.Conn]bool{}}
	l.gate = sync.NewCond(&l.mu)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		l.Cut()
		wg.Wait()
	})
	u.Host = l.Addr
	return l, u.String()
}

// Cut breaks every connection; new ones break at once.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.quiet = true, false
	for c := range l.conns {
		c.Close()
	}
	l.gate.Broadcast()
}

// Quiet keeps connections open but lets nothing through, as a network does that loses every packet.
func (l *Line) Quiet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet = true
}

// Mend ends Cut and Quiet.
func (l *Line) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.quiet = false, false
	l.gate.Broadcast()
}

// keep adds a connection, unless the line is cut.
func (l *Line) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.conns[c] = true
	}
	return !l.cut
}

func (l *Line) drop(c net.Conn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

func (l *Line) serve(near net.Conn) {
	defer l.drop(near)
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.drop(far)
	if !l.keep(near) || !l.keep(far) {
		return
	}
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.Copy(patient{way[1], l}, way[0])
			near.Close()
			far.Close()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

// patient writes when the line is not quiet.
type patient struct {
	net.Conn
	l *Line
}

func (p patient) Write(b []byte) (int, error) {
	p.l.mu.Lock()
	for p.l.quiet {
		p.l.gate.Wait()
	}
	p.l.mu.Unlock()
	return p.Conn.Write(b)
}
