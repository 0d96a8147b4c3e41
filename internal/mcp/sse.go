package mcp

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// defaultEventBytes bounds the data of one event where the caller names no bound.
const defaultEventBytes = 16 << 20

// Event is one event of a text/event-stream.
type Event struct {
	ID   string // the last event id in force, may be of an earlier event
	Name string // "message" when the stream names none
	Data []byte // the caller's to keep; lines joined by \n
}

// EventReader reads an event stream. It is not safe for concurrent use.
type EventReader struct {
	br     *bufio.Reader
	max    int
	line   []byte // a line that does not fit the buffer of br
	skipLF bool   // the last line ended in CR: a LF belongs to it
	begun  bool
	lastID string
	retry  time.Duration
}

// NewEventReader reads events from r; maxEvent bounds the data of one event in
// bytes, zero means 16 MiB.
func NewEventReader(r io.Reader, maxEvent int) *EventReader {
	if maxEvent <= 0 {
		maxEvent = defaultEventBytes
	}
	return &EventReader{br: bufio.NewReaderSize(r, 4096), max: maxEvent}
}

// LastID is the id to resume from (Last-Event-ID), empty when the stream gave none.
func (r *EventReader) LastID() string { return r.lastID }

// Retry is the time to wait before a reconnect, zero when the stream gave none.
func (r *EventReader) Retry() time.Duration { return r.retry }

// Next returns the next event that has data. An event over the bound is a
// fault.TooLarge error, and the event after it can be read. Any other error is
// that of the underlying reader, io.EOF included; an event that was not
// complete is dropped, as the standard says.
func (r *EventReader) Next() (Event, error) {
	ev := Event{Name: "message"}
	tooLarge := false
	for {
		line, cut, err := r.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 && !cut {
			switch {
			case tooLarge:
				return Event{}, fault.New(fault.TooLarge, "an event is larger than %d bytes", r.max)
			case ev.Data != nil:
				ev.ID = r.lastID
				return ev, nil
			}
			ev = Event{Name: "message"}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch {
		case string(field) == "data":
			size := len(value)
			if ev.Data != nil {
				size += len(ev.Data) + 1
			}
			if tooLarge = tooLarge || cut || size > r.max; tooLarge {
				ev.Data = nil
				break
			}
			ev.Data = r.addData(ev.Data, line, value)
		case cut: // a comment or a field too long to mean anything
		default:
			r.field(&ev, string(field), value)
		}
	}
}

// addData adds a data line to data. The first line of an event that had to be
// put together in r.line is taken over, not copied: results may be megabytes.
func (r *EventReader) addData(data, line, value []byte) []byte {
	switch {
	case data != nil:
		return append(append(data, '\n'), value...)
	case len(value) > 0 && len(line) == len(r.line):
		r.line = nil
		return value
	}
	return append(make([]byte, 0, len(value)), value...)
}

func (r *EventReader) field(ev *Event, name string, value []byte) {
	switch name {
	case "event":
		if ev.Name = string(value); ev.Name == "" {
			ev.Name = "message"
		}
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.lastID = string(value)
		}
	case "retry":
		if n, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			r.retry = time.Duration(n) * time.Millisecond
		}
	}
}

// readLine returns a line without its end; it is valid until the next call.
// A line over the bound is cut to its beginning.
func (r *EventReader) readLine() (line []byte, cut bool, err error) {
	limit := r.max + len("data: ")
	r.line = r.line[:0]
	for {
		if _, err := r.br.Peek(1); err != nil {
			return nil, false, err
		}
		buf, _ := r.br.Peek(r.br.Buffered())
		if !r.begun {
			if buf, err = r.skipMark(); err != nil {
				return nil, false, err
			}
			if len(buf) == 0 {
				continue
			}
		}
		if r.skipLF {
			r.skipLF = false
			if buf[0] == '\n' {
				r.discard(1)
				continue
			}
		}
		end := bytes.IndexByte(buf, '\n')
		if end < 0 {
			end = len(buf)
		}
		if cr := bytes.IndexByte(buf[:end], '\r'); cr >= 0 {
			end = cr
			r.skipLF = true
		}
		part, whole := buf[:end], end < len(buf)
		if room := limit - len(r.line); len(part) > room {
			part, cut = part[:room], true
		}
		if !whole || len(r.line) > 0 {
			r.line = append(r.line, part...)
			part = r.line
		}
		if whole {
			r.discard(end + 1)
			return part, cut, nil
		}
		r.discard(end)
	}
}

// discard drops bytes that Peek has shown.
func (r *EventReader) discard(n int) { _, _ = r.br.Discard(n) }

// skipMark drops a byte order mark at the start and returns what is buffered.
func (r *EventReader) skipMark() ([]byte, error) {
	r.begun = true
	if b, _ := r.br.Peek(1); b[0] == 0xef {
		if b, err := r.br.Peek(3); err == nil && string(b) == "\ufeff" {
			r.discard(3)
		} else if err != nil && len(b) < 3 && err != io.EOF {
			return nil, err
		}
	}
	return r.br.Peek(r.br.Buffered())
}

// EventWriter writes an event stream as an HTTP response, each event flushed
// at once. It is not safe for concurrent use: the owner of the stream locks.
type EventWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf []byte
}

// NewEventWriter makes a writer on w; nothing is sent before Start.
func NewEventWriter(w http.ResponseWriter) *EventWriter {
	return &EventWriter{w: w, rc: http.NewResponseController(w)}
}

// Start sends the headers of the stream with status 200.
func (e *EventWriter) Start() error {
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // proxies that buffer would hold events back
	e.w.WriteHeader(http.StatusOK)
	return e.rc.Flush()
}

// Event sends one event. An empty ID and an empty Name (or "message") are left
// out. An ID or Name with a line break is refused: it would be another field.
func (e *EventWriter) Event(ev Event) error {
	if strings.ContainsAny(ev.ID, "\r\n\x00") || strings.ContainsAny(ev.Name, "\r\n") {
		return fault.New(fault.Internal, "an event id or name must be one line")
	}
	e.buf = e.buf[:0]
	if ev.ID != "" {
		e.buf = append(append(append(e.buf, "id: "...), ev.ID...), '\n')
	}
	if ev.Name != "" && ev.Name != "message" {
		e.buf = append(append(append(e.buf, "event: "...), ev.Name...), '\n')
	}
	for rest, more := ev.Data, true; more; {
		var line []byte
		line, rest, more = cutLine(rest)
		e.buf = append(append(append(e.buf, "data: "...), line...), '\n')
	}
	return e.send()
}

// Comment sends a line that clients ignore, to keep the stream open.
func (e *EventWriter) Comment(text string) error {
	text = strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
	e.buf = append(append(append(e.buf[:0], ": "...), text...), '\n')
	return e.send()
}

// Retry tells the client how long to wait before it reconnects, in whole milliseconds.
func (e *EventWriter) Retry(d time.Duration) error {
	e.buf = append(strconv.AppendInt(append(e.buf[:0], "retry: "...), d.Milliseconds(), 10), '\n')
	return e.send()
}

// maxKeptBuffer bounds what a quiet stream holds on to.
const maxKeptBuffer = 64 << 10

func (e *EventWriter) send() error {
	e.buf = append(e.buf, '\n')
	_, err := e.w.Write(e.buf)
	if cap(e.buf) > maxKeptBuffer {
		e.buf = nil
	}
	if err != nil {
		return err
	}
	return e.rc.Flush()
}

// cutLine cuts at the first CRLF, CR or LF.
func cutLine(b []byte) (line, rest []byte, more bool) {
	i := bytes.IndexAny(b, "\r\n")
	if i < 0 {
		return b, nil, false
	}
	n := 1
	if b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n' {
		n = 2
	}
	return b[:i], b[i+n:], true
}
