package bridge

import (
	"errors"
	"sync"
)

// Stream is the one standing event stream of a session: a bounded queue between
// those who have something to tell the client and the connection that writes it.
type Stream struct {
	ch   chan []byte
	done chan struct{}
	once sync.Once
}

// streamQueue is how many messages a slow reader may be behind before its stream is closed.
const streamQueue = 64

// NewStream makes a stream that is not yet anybody's.
func NewStream() *Stream {
	return &Stream{ch: make(chan []byte, streamQueue), done: make(chan struct{})}
}

// Messages gives what is to be written; Done is closed when the stream has ended.
func (s *Stream) Messages() <-chan []byte { return s.ch }

// Done is closed when the stream has ended.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Close ends the stream.
func (s *Stream) Close() { s.once.Do(func() { close(s.done) }) }

// errStream: nobody reads.
var errStream = errors.New("the stream is closed")

// Send queues a message; it never blocks. A reader that is too far behind loses its
// stream and connects again, rather than silently missing one message.
func (s *Stream) Send(msg []byte) error {
	select {
	case <-s.done:
		return errStream
	default:
	}
	select {
	case s.ch <- msg:
		return nil
	default:
		s.Close()
		return errStream
	}
}

// Attach makes st the session's standing stream. One that was open before is closed: the newest
// connection is the one the client reads, an older one is often a connection that died unnoticed.
// False when the session has ended.
func (n *Session) Attach(st *Stream) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	if n.stream != nil {
		n.stream.Close()
	}
	n.stream = st
	return true
}

// Detach takes st off the session if it still is its stream.
func (n *Session) Detach(st *Stream) {
	n.mu.Lock()
	if n.stream == st {
		n.stream = nil
	}
	n.mu.Unlock()
	st.Close()
}

// Push sends a message on the standing stream; false when there is none.
func (n *Session) Push(msg []byte) bool {
	n.mu.Lock()
	st := n.stream
	n.mu.Unlock()
	return st != nil && st.Send(msg) == nil
}

// HasStream reports whether the session has a standing stream.
func (n *Session) HasStream() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stream != nil
}
