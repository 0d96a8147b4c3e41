package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

const (
	edge         = 4 << 10               // how much of both ends of a dropped line is looked at for its id
	directWrite  = 50 * time.Millisecond // how long a caller itself waits for the pipe
	stuckWrite   = 30 * time.Second      // a server that takes nothing for so long has failed
	maxUnwritten = 4 * DefaultMaxMessage // bytes that may wait for the pipe
)

// oversize is a line over the limit that was skipped; id is that of the message, 0 when it was not found.
type oversize struct{ id int64 }

func (o *oversize) Error() string { return fmt.Sprintf("a line is too long (message %d)", o.id) }

// lineReader reads lines of bounded length.
type lineReader struct {
	br  *bufio.Reader
	max int
}

// next returns the next line, the caller's to keep. A line over the limit is skipped and an *oversize error.
func (l *lineReader) next() ([]byte, error) {
	part, err := l.br.ReadSlice('\n')
	if len(part) > l.max+1 {
		return nil, l.skip(nil, part, err)
	}
	if err == nil || len(part) > 0 && !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.Clone(part), nil // the last line may lack its end; the error comes again
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	line := bytes.Clone(part)
	for {
		part, err = l.br.ReadSlice('\n')
		if len(line)+len(part) > l.max+1 {
			return nil, l.skip(line, part, err)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, nil
		}
	}
}

// skip reads on to the end of a line that is too long; it keeps its ends only.
func (l *lineReader) skip(line, part []byte, err error) error {
	head := append(bytes.Clone(line[:min(len(line), edge)]), part[:min(len(part), max(0, edge-len(line)))]...)
	tail := append(bytes.Clone(line[max(0, len(line)-edge):]), part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		tail = tail[:copy(tail, tail[max(0, len(tail)-edge):])]
		part, err = l.br.ReadSlice('\n')
		tail = append(tail, part...)
	}
	return &oversize{id: edgeID(head, tail)}
}

// lastID matches an id that ends the message: no text within a result can stand there.
var lastID = regexp.MustCompile(`[{,]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)

// edgeID finds the id of a message of which only both ends are known, 0 when it stands in neither.
func edgeID(head, tail []byte) (id int64) {
	members(head, func(m member) bool { // stops where the head is cut
		if m.is(head, "id") {
			id, _ = Int(head[m.value:m.end])
			return false
		}
		return true
	})
	if id == 0 {
		if f := lastID.FindSubmatch(tail); f != nil {
			id, _ = strconv.ParseInt(string(f[1]), 10, 64)
		}
	}
	return id
}

// oneLine makes JSON fit a line: outside of strings a line break is only white space, inside there is none.
func oneLine(b []byte) []byte {
	if bytes.IndexByte(b, '\n') < 0 && bytes.IndexByte(b, '\r') < 0 {
		return b
	}
	out := bytes.Clone(b)
	for i, c := range out {
		if c == '\n' || c == '\r' {
			out[i] = ' '
		}
	}
	return out
}

// lineWriter writes whole lines for many callers. Whoever finds nobody writing writes for all that come
// meanwhile; so there is no goroutine to wake, and few system calls under load. A pipe that is full is handed to
// a goroutine, so that no caller waits for a server that does not read.
type lineWriter struct {
	w        io.Writer
	deadline func(time.Time) error // nil where w has none
	failed   func(error)           // called once w has failed

	mu      sync.Mutex
	queue   []byte
	spare   []byte
	writing bool
	err     error
}

func (l *lineWriter) init(w io.Writer, failed func(error)) {
	l.w, l.failed = w, failed
	if d, ok := w.(interface{ SetWriteDeadline(time.Time) error }); ok && d.SetWriteDeadline(time.Time{}) == nil {
		l.deadline = d.SetWriteDeadline
	}
}

// write queues line, which it copies, and sees to it that somebody writes.
func (l *lineWriter) write(line []byte) error {
	l.mu.Lock()
	if l.err == nil && len(l.queue) > 0 && len(l.queue)+len(line) > maxUnwritten {
		l.mu.Unlock()
		return errors.New("it does not read its input")
	}
	if l.err != nil || l.writing {
		defer l.mu.Unlock()
		if l.err == nil {
			l.queue = append(l.queue, line...)
		}
		return l.err
	}
	l.queue = append(l.queue, line...)
	l.writing = true
	l.mu.Unlock()
	if rest := l.drain(nil, directWrite); rest != nil {
		go l.drain(rest, stuckWrite)
	}
	return nil
}

// drain writes what is queued. It returns the part that the pipe did not take in time, when that is short.
func (l *lineWriter) drain(rest []byte, within time.Duration) []byte {
	for {
		if len(rest) == 0 {
			l.mu.Lock()
			if len(l.queue) == 0 || l.err != nil {
				l.writing = false
				l.mu.Unlock()
				return nil
			}
			rest = l.queue
			l.queue, l.spare = l.spare[:0], nil
			l.mu.Unlock()
		}
		if l.deadline != nil {
			_ = l.deadline(time.Now().Add(within))
		}
		n, err := l.w.Write(rest)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && within < stuckWrite {
				return rest[n:]
			}
			l.close(err)
			l.failed(err)
			rest = nil
			continue
		}
		l.mu.Lock()
		if cap(rest) <= 256<<10 {
			l.spare = rest[:0]
		}
		l.mu.Unlock()
		rest = nil
	}
}

// close makes writes fail from now on.
func (l *lineWriter) close(err error) {
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrClosedPipe
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// getBuffer and putBuffer recycle buffers for one message.
func getBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

func putBuffer(b []byte) {
	if cap(b) <= 64<<10 {
		buffers.Put(&b)
	}
}
