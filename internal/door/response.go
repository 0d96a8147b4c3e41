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
// question, or a comment after a time of silence; or for the result itself, when the client likes streams better.
type reply struct {
	w         http.ResponseWriter
	keepAlive time.Duration
	canStream bool // the client takes an event stream
	likes     bool // and likes it better than JSON
	retry     bool // tell on a stream how long to wait before a reconnect

	mu    sync.Mutex
	ev    *mcp.EventWriter // set once the answer is a stream
	done  bool
	timer *time.Timer
}

var errReplyDone = errors.New("the answer has been sent")

// newReply prepares an answer to a client of a revision and begins to watch for silence.
func (d *Door) newReply(w http.ResponseWriter, a accept, version string) *reply {
	p := &reply{w: w, keepAlive: d.d.KeepAlive, canStream: a.stream, likes: a.stream && a.first, retry: version == mcp.V20251125}
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
		if p.retry {
			p.ev.Retry(reconnectAfter)
		}
	}
}

// reconnectAfter is what clients of sessions are told to wait before they open a stream again.
const reconnectAfter = time.Second

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

// prefer opens the stream for a client that likes it better.
func (p *reply) prefer() {
	if !p.likes {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.open()
	}
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
	return p.ev
}

// message answers one complete message with a status; on a stream the status has been sent long ago.
func (p *reply) message(status int, msg []byte) {
	if status == http.StatusOK {
		p.prefer()
	}
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
	p.prefer()
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
