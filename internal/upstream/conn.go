package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// tripAfter is how many transport failures in a row end a connection over HTTP.
const tripAfter = 5

var noCapabilities = json.RawMessage(`{}`)

// link is the transport of a connection. r is what a call is made for, nil for Doorward itself.
type link interface {
	call(ctx context.Context, c *mcp.Call, r *Request) (json.RawMessage, error)
	notify(ctx context.Context, method string, params json.RawMessage) error
	tidy() // ends what nobody has used for long
	close()
	pid() int
	stderr() string
}

// conn is one connection that has shaken hands.
type conn struct {
	s            *server
	link         link
	era          mcp.Era
	version      string
	info, caps   json.RawMessage
	instructions string
	breaker      *gobreaker.TwoStepCircuitBreaker[struct{}] // nil where the end of a process says it all

	ctx     context.Context // of what runs beside calls
	cancel  context.CancelFunc
	beside  sync.WaitGroup
	lost    chan struct{}
	lose1   sync.Once
	lostErr error // valid once lost is closed
}

func (s *server) newConn() *conn {
	c := &conn{s: s, lost: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// useBreaker counts transport failures. What a tool or server answers, whatever it is, is none.
func (c *conn) useBreaker() {
	var last error // gobreaker calls both under its lock
	c.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        c.s.cfg.Name,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool {
			if transportFailure(err) {
				last = err
				return false
			}
			return true
		},
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				c.lose(last)
			}
		},
		IsExcluded: func(err error) bool {
			return err != nil && (fault.Is(err, fault.Cancelled) || fault.Is(err, fault.Timeout))
		},
	})
}

// transportFailure: the server could not be reached, or what it sends is not the protocol.
func transportFailure(err error) bool {
	var f *fault.Error
	if err == nil || !errors.As(err, &f) {
		return false
	}
	switch f.Class {
	case fault.Unreachable, fault.OutcomeUnknown:
		return true
	case fault.UpstreamError: // one with a reason is about this call only
		return f.Reason == "" || f.Reason == "NEEDS_AUTH"
	}
	return false
}

// lose ends the connection; the owner makes a new one.
func (c *conn) lose(err error) {
	c.lose1.Do(func() {
		c.lostErr = err
		close(c.lost)
	})
}

func (c *conn) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// close ends the connection and waits for all that belongs to it.
func (c *conn) close() {
	c.lose(fault.New(fault.Unreachable, "the connection was closed"))
	c.cancel()
	c.link.close()
	c.beside.Wait()
}

// own makes a request of Doorward itself.
func (c *conn) own(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	return c.link.call(ctx, &mcp.Call{Method: method, Params: c.ownParams(params), Safe: true}, nil)
}

func (c *conn) ownParams(params json.RawMessage) json.RawMessage {
	if c.era == mcp.Modern {
		return bridge.ModernMeta(params, mcp.V20260728, c.s.p.clientInfo, noCapabilities)
	}
	return params
}

// sleep waits; false when the connection ended meanwhile.
func (c *conn) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.lost:
	case <-c.ctx.Done():
	}
	return false
}
