package door

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"doorward.dev/doorward/internal/mcp"
)

// reply is the answer to one POST. It starts as plain JSON and becomes an event
// stream only when something has to be sent before the result: a notification, a
// question, or a comment after a time of silence.
type reply struct {
	w         http.ResponseWriter
	keepAlive time.Duration
	canJSON   bool // the client takes JSON
	canStream bool // the client takes an event stream

	mu    sync.Mutex
	ev    *mcp.EventWriter // set once the answer is a stream
	done  bool
	timer *time.Timer
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

const keepAliveText = "keep-alive"

// tick writes a comment after a time of silence, so that nothing between here and the client takes the line for dead.
func (p *reply) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return
	}
	p.open()
	p.ev.Comment(keepAliveText)
	p.timer.Reset(p.keepAlive)
}

// open makes the answer an event stream; p.mu is held.
func (p *reply) open() {
	if p.ev == nil {
		p.ev = mcp.NewEventWriter(p.w)
		p.ev.Start()
	}
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
	return p.ev.Event(mcp.Event{Data: msg})
}

// finish takes the answer out of the hands of notifiers; not nil when it has become a stream. It must
// have run when the handler returns, however that comes about: nobody may write after it.
func (p *reply) finish() *mcp.EventWriter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.done = true
	if !p.canJSON && p.canStream {
		p.open()
	}
	return p.ev
}

// message answers one complete message with a status; on a stream the status has been sent long ago.
func (p *reply) message(status int, msg []byte) {
	if ev := p.finish(); ev != nil {
		ev.Event(mcp.Event{Data: msg})
		return
	}
	writeJSON(p.w, status, msg)
}

// largeResult is the size from which a result is written as it lies instead of being copied behind its envelope.
const largeResult = 16 << 10

// result answers with the result object of a request.
func (p *reply) result(id, result json.RawMessage) {
	if ev := p.finish(); ev != nil {
		ev.Event(mcp.Event{Data: mcp.AppendResult(nil, id, result)})
		return
	}
	buf := bufs.Get().(*[]byte)
	defer putBuf(buf)
	*buf = append(append(append((*buf)[:0], `{"jsonrpc":"2.0","id":`...), id...), `,"result":`...)
	setJSONHeaders(p.w.Header(), len(*buf)+len(result)+1)
	if len(result) < largeResult {
		*buf = append(append(*buf, result...), '}')
		p.w.Write(*buf)
		return
	}
	p.w.Write(*buf)
	p.w.Write(result)
	p.w.Write([]byte{'}'})
}

var bufs = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

func putBuf(b *[]byte) {
	if cap(*b) <= keepBody {
		bufs.Put(b)
	}
}

// accepted answers a notification or a response.
func accepted(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) }

var jsonType = []string{"application/json"}

func setJSONHeaders(h http.Header, n int) {
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(n)}
}

// writeJSON answers a complete JSON body.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	setJSONHeaders(w.Header(), len(body))
	w.WriteHeader(status)
	w.Write(body)
}
