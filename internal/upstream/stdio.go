package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/sandbox"
)

// stdioLink is a child process. It is shared by all clients and declares no capabilities of any of them.
type stdioLink struct {
	c     *conn
	child *sandbox.Child
	wire  *mcp.Stdio
}

// openStdio starts the child and shakes hands. A server that ends at the question for its era is started
// again and greeted as an old one.
func (s *server) openStdio(ctx context.Context, known *mcp.Era) (*conn, error) {
	c := s.newConn()
	child, err := sandbox.Start(ctx, sandbox.Command{
		Path: s.cfg.Command, Args: s.cfg.Args, Env: s.cfg.Env, Dir: s.cfg.Cwd, Grace: s.p.d.KillGrace,
	})
	if err != nil {
		c.cancel()
		return nil, err
	}
	l := &stdioLink{c: c, child: child}
	l.wire = mcp.NewStdio(child.Stdout, child.Stdin, mcp.StdioOptions{
		MaxMessage: s.p.d.MaxMessage, Log: s.p.d.Log.With("server", s.cfg.Name), Notify: s.announce,
	})
	c.link = l
	c.beside.Go(l.mourn)
	if err = c.handshake(ctx, known); err == nil {
		c.beside.Go(c.listen)
		return c, nil
	}
	died := false
	select {
	case <-l.wire.Done():
		<-c.lost
		died = true
	default:
	}
	c.close()
	s.mu.Lock()
	s.stderr = child.Stderr()
	s.mu.Unlock()
	if died && known == nil && ctx.Err() == nil {
		legacy := mcp.Legacy
		return s.openStdio(ctx, &legacy)
	}
	if died {
		return nil, c.lostErr
	}
	return nil, err
}

// mourn makes the end of the child the end of the connection.
func (l *stdioLink) mourn() {
	<-l.wire.Done()
	err := l.wire.Err()
	l.child.Stop() // one that closed its stdout is of no use, even if it lives
	var exit *exec.ExitError
	if errors.As(l.child.Err(), &exit) {
		err = exit
	}
	l.c.lose(fault.Wrap(fault.Unreachable, err, "the process of the server ended"))
}

func (l *stdioLink) call(ctx context.Context, c *mcp.Call, _ *Request) (json.RawMessage, error) {
	c.Ask = nil
	return l.wire.Call(ctx, c)
}

func (l *stdioLink) notify(_ context.Context, method string, params json.RawMessage) error {
	return l.wire.Notify(method, params)
}

func (l *stdioLink) tidy()          {}
func (l *stdioLink) pid() int       { return l.child.PID() }
func (l *stdioLink) stderr() string { return l.child.Stderr() }

// close ends the child and waits for it.
func (l *stdioLink) close() {
	l.child.Stop()
	<-l.wire.Done()
}
