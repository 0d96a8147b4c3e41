package door

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// reply is the answer to one POST. It starts as plain JSON and becomes an event
// stream only when something has to be sent before the result: a notification, a
// question, or a comment after a time of silence.
type reply struct {
	w         http.ResponseWriter
	keepAlive time.Duration
	canJSON   bool // the client takes JSON
	canStream bool // the client takes an event stream

	mu     sync.Mutex
	stream bool
	done   bool
	timer  *time.Timer
}

var errReplyDone = errors.New("the answer has been sent")

// newReply prepares an answer and begins to watch for silence.
func (d *Door) newReply(w http.ResponseWriter, a accept) *reply {
	p := &reply{w: w, keepAlive: d.d.KeepAlive, canJSON: a.json, canStream: a.stream}
	if p.canStream {
		p.mu.Lock() // tick may run before AfterFunc has returned
		p.timer = time.AfterFunc(p.keepAlive, p.tick)
		p.mu.Unlock()
	}
	return p
}

// tick writes a comment after a time of silence, so that nothing between here and the client takes the line for dead.
func (p *reply) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return
	}
	p.open()
	p.write(keepAliveComment)
	p.timer.Reset(p.keepAlive)
}

var keepAliveComment = []byte(": keep-alive\n\n")

// open makes the answer an event stream; p.mu is held.
func (p *reply) open() {
	if p.stream {
		return
	}
	p.stream = true
	setStreamHeaders(p.w.Header())
	p.w.WriteHeader(http.StatusOK)
}

// write writes and flushes; p.mu is held.
func (p *reply) write(b []byte) error {
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(p.w).Flush()
}

// send sends a message before the result. A client that takes no stream misses it.
func (p *reply) send(msg []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || !p.canStream {
		return errReplyDone
	}
	p.open()
	p.timer.Reset(p.keepAlive)
	return p.write(appendEvent(make([]byte, 0, len(msg)+32), msg))
}

// finish takes the answer out of the hands of notifiers; true when it has become a stream.
func (p *reply) finish() (stream bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.done = true
	if !p.stream && !p.canJSON && p.canStream {
		p.open()
	}
	return p.stream
}

// message answers one complete message with a status; on a stream the status has been sent long ago.
func (p *reply) message(status int, msg []byte) {
	if p.finish() {
		p.write(appendEvent(make([]byte, 0, len(msg)+32), msg))
		return
	}
	writeJSON(p.w, status, msg)
}

// largeResult is the size from which a result is written as it lies instead of being copied behind its envelope.
const largeResult = 16 << 10

var resultHead, resultMid = []byte(`{"jsonrpc":"2.0","id":`), []byte(`,"result":`)

// result answers with the result object of a request.
func (p *reply) result(id, result json.RawMessage) {
	if p.finish() {
		buf := getBuf()
		*buf = append(*buf, resultHead...)
		*buf = append(append(append(append(*buf, id...), resultMid...), result...), '}')
		p.write(appendEvent(make([]byte, 0, len(*buf)+32), *buf))
		putBuf(buf)
		return
	}
	n := len(resultHead) + len(id) + len(resultMid) + len(result) + 1
	buf := getBuf()
	*buf = append(append(append(*buf, resultHead...), id...), resultMid...)
	setJSONHeaders(p.w.Header(), n)
	if len(result) < largeResult {
		*buf = append(append(*buf, result...), '}')
		p.w.Write(*buf)
	} else {
		p.w.Write(*buf)
		p.w.Write(result)
		p.w.Write(closing)
	}
	putBuf(buf)
}

var closing = []byte{'}'}

var bufs = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

func getBuf() *[]byte { return bufs.Get().(*[]byte) }

func putBuf(b *[]byte) {
	if cap(*b) <= keepBody {
		*b = (*b)[:0]
		bufs.Put(b)
	}
}

// accepted answers a notification or a response.
func accepted(w http.ResponseWriter) {
	w.WriteHeader(http.StatusAccepted)
}

var jsonType = []string{"application/json"}

func setJSONHeaders(h http.Header, n int) {
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(n)}
}

func setStreamHeaders(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx and its like hand events on at once
}

// appendEvent writes one event. Line breaks are white space in JSON; in an event each begins a new data line.
func appendEvent(dst, msg []byte) []byte {
	dst = append(dst, "event: message\n"...)
	if bytes.IndexByte(msg, '\n') < 0 && bytes.IndexByte(msg, '\r') < 0 {
		return append(append(append(dst, "data: "...), msg...), "\n\n"...)
	}
	for more := true; more; {
		line := msg
		if i := bytes.IndexAny(msg, "\r\n"); i >= 0 {
			line, msg = msg[:i], msg[i+1:]
		} else {
			more = false
		}
		dst = append(append(append(dst, "data: "...), line...), '\n')
	}
	return append(dst, '\n')
}
