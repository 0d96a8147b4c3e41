package mcp_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// readAll reads a stream to its end; an event over the bound is "TOO LARGE".
func readAll(t *testing.T, r *mcp.EventReader) (out []string) {
	t.Helper()
	for {
		ev, err := r.Next()
		switch {
		case fault.Is(err, fault.TooLarge):
			out = append(out, "TOO LARGE")
		case err == io.EOF:
			return out
		case err != nil:
			t.Fatal(err)
		default:
			out = append(out, ev.ID+"|"+ev.Name+"|"+string(ev.Data))
		}
	}
}

func TestEventReader(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"one", "data: x\n\n", []string{"|message|x"}},
		{"all fields", "id: 7\nevent: e\ndata: x\n\n", []string{"7|e|x"}},
		{"CR", "id: 7\rdata: x\r\rdata: y\r\r", []string{"7|message|x", "7|message|y"}},
		{"CRLF", "data: x\r\ndata: y\r\n\r\ndata: z\r\n\r\n", []string{"|message|x\ny", "|message|z"}},
		{"mixed ends", "data: x\r\ndata: y\rdata: z\n\r\n", []string{"|message|x\ny\nz"}},
		{"byte order mark", "\ufeffdata: x\n\n", []string{"|message|x"}},
		{"byte order mark later is part of a name", "data: x\n\n\ufeffdata: y\n\n", []string{"|message|x"}},
		{"comments", ": hi\n:\n\ndata: x\n: there\n\n", []string{"|message|x"}},
		{"no space", "data:x\n\n", []string{"|message|x"}},
		{"one space only", "data:  x\n\n", []string{"|message| x"}},
		{"no colon", "data\n\n", []string{"|message|"}},
		{"empty data (priming event)", "id: 1\nretry: 500\ndata: \n\n", []string{"1|message|"}},
		{"empty lines of data", "data\ndata\n\n", []string{"|message|\n"}},
		{"no data", "event: e\n\ndata: x\n\n", []string{"|message|x"}},
		{"id stays", "id: 1\ndata: x\n\ndata: y\n\nid\ndata: z\n\n", []string{"1|message|x", "1|message|y", "|message|z"}},
		{"id without data counts", "id: 1\n\ndata: y\n\n", []string{"1|message|y"}},
		{"id with NUL is ignored", "id: a\x00b\ndata: y\n\n", []string{"|message|y"}},
		{"unknown field", "foo: bar\nDATA: x\n\ndata: y\n\n", []string{"|message|y"}},
		{"not complete", "data: x\n\ndata: y\n", []string{"|message|x"}},
		{"many empty lines", "\n\n\r\n\ndata: x\n\n\n\n", []string{"|message|x"}},
		{"empty", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := readAll(t, mcp.NewEventReader(strings.NewReader(tt.in), 0)); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			// The same byte by byte.
			if got := readAll(t, mcp.NewEventReader(iotest.OneByteReader(strings.NewReader(tt.in)), 0)); !slices.Equal(got, tt.want) {
				t.Errorf("byte by byte: got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestEventReaderRetryAndLastID(t *testing.T) {
	r := mcp.NewEventReader(strings.NewReader("retry: 1500\nid: 9\n\nretry: 1x\nretry: -1\nretry: 99999999999999999999\nid: 10\n"), 0)
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}
	if r.Retry() != 1500*time.Millisecond || r.LastID() != "10" {
		t.Errorf("retry %v, last id %q", r.Retry(), r.LastID())
	}
}

func TestEventReaderBound(t *testing.T) {
	const bound = 10_000
	x := func(n int) string { return strings.Repeat("x", n) }
	in := "data: " + x(bound) + "\n\n" + // just fits
		"id: 2\ndata: " + x(bound+1) + "\n\n" +
		"data: " + x(bound/2) + "\ndata: " + x(bound/2-1) + "\n\n" + // just fits, with its line feed
		"data: " + x(bound/2) + "\ndata: " + x(bound/2) + "\n\n" +
		"data: " + x(bound*100) + "\ndata: more\nid: 3\n\n" +
		": " + x(bound*3) + "\nevent: " + x(bound*3) + "\ndata: y\n\n"
	want := []string{"|message|" + x(bound), "TOO LARGE", "2|message|" + x(bound/2) + "\n" + x(bound/2-1), "TOO LARGE", "TOO LARGE", "3|message|y"}
	if got := readAll(t, mcp.NewEventReader(strings.NewReader(in), bound)); !slices.Equal(got, want) {
		for i := range got {
			t.Errorf("event %d: %.40q, %d bytes", i, got[i], len(got[i]))
		}
	}
}

func TestEventReaderKeepsNoBuffer(t *testing.T) {
	// Events read earlier must not change when later ones are read.
	line := strings.Repeat("a", 9000)
	r := mcp.NewEventReader(strings.NewReader("data: "+line+"\n\ndata: "+strings.Repeat("b", 9000)+"\n\ndata: c\n\n"), 0)
	first, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if string(first.Data) != line {
		t.Error("the data of an event changed")
	}
}

func TestEventReaderDoesNotWait(t *testing.T) {
	// An event ending in CR CR must come without waiting for a LF that may follow.
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = io.WriteString(pw, "data: x\r\r") }()
	r := mcp.NewEventReader(pr, 0)
	ev, err := r.Next()
	if err != nil || string(ev.Data) != "x" {
		t.Fatalf("%+v, %v", ev, err)
	}
}

func TestEventReaderError(t *testing.T) {
	broken := errors.New("broken")
	r := mcp.NewEventReader(io.MultiReader(strings.NewReader("data: x\n"), iotest.ErrReader(broken)), 0)
	if _, err := r.Next(); err != broken {
		t.Errorf("err = %v", err)
	}
}

func TestEventWriter(t *testing.T) {
	rec := httptest.NewRecorder()
	w := mcp.NewEventWriter(rec)
	steps := []error{
		w.Start(),
		w.Event(mcp.Event{ID: "1", Name: "message", Data: []byte(`{"a":1}`)}),
		w.Event(mcp.Event{Name: "endpoint", Data: []byte("a\r\nb\nc\rd")}),
		w.Event(mcp.Event{}),
		w.Comment("keep\nalive"),
		w.Retry(1500 * time.Millisecond),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	want := "id: 1\ndata: {\"a\":1}\n\nevent: endpoint\ndata: a\ndata: b\ndata: c\ndata: d\n\ndata: \n\n: keep alive\n\nretry: 1500\n\n"
	if got := rec.Body.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if h := rec.Header(); h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || !rec.Flushed {
		t.Errorf("headers %v, flushed %v", h, rec.Flushed)
	}
	for _, bad := range []mcp.Event{{ID: "a\nb"}, {ID: "\x00"}, {Name: "a\rb"}} {
		if err := w.Event(bad); !fault.Is(err, fault.Internal) {
			t.Errorf("%+v: err = %v", bad, err)
		}
	}
	if rec.Body.String() != want {
		t.Error("a refused event was written")
	}
}

func TestEventWriterNeedsFlush(t *testing.T) {
	var w struct{ http.ResponseWriter }
	w.ResponseWriter = httptest.NewRecorder()
	noFlush := mcp.NewEventWriter(struct{ writerOnly }{writerOnly{w.ResponseWriter}})
	if err := noFlush.Start(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("err = %v", err)
	}
}

// writerOnly hides Flush.
type writerOnly struct{ w http.ResponseWriter }

func (o writerOnly) Header() http.Header         { return o.w.Header() }
func (o writerOnly) Write(b []byte) (int, error) { return o.w.Write(b) }
func (o writerOnly) WriteHeader(code int)        { o.w.WriteHeader(code) }

// FuzzSSE: the reader gives the same events however the bytes arrive, holds
// its bound, and reads what the writer wrote.
func FuzzSSE(f *testing.F) {
	for _, s := range []string{"data: x\n\n", "\ufeffid: 1\r\ndata: a\r\ndata\r\n\r\n", ":\r\rdata:x\r\r\n\n", "retry: 5\nevent: \n\n", "\xef\xbb", "data: 0123456789012345\n\ndata: y\n\n"} {
		f.Add([]byte(s), "id", "name", []byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte, id, name string, data []byte) {
		const bound = 12
		whole := readAll(t, mcp.NewEventReader(bytes.NewReader(stream), bound))
		bytewise := readAll(t, mcp.NewEventReader(iotest.OneByteReader(bytes.NewReader(stream)), bound))
		if !slices.Equal(whole, bytewise) {
			t.Fatalf("%q: %q, byte by byte %q", stream, whole, bytewise)
		}
		r := mcp.NewEventReader(bytes.NewReader(stream), bound)
		for {
			ev, err := r.Next()
			if len(ev.Data) > bound {
				t.Fatalf("%q: %d bytes", stream, len(ev.Data))
			}
			if err != nil && !fault.Is(err, fault.TooLarge) {
				break
			}
		}
		rec := httptest.NewRecorder()
		w := mcp.NewEventWriter(rec)
		if w.Event(mcp.Event{ID: id, Name: name, Data: data}) != nil {
			return
		}
		_ = w.Comment(name)
		ev, err := mcp.NewEventReader(rec.Body, 0).Next()
		if name == "" {
			name = "message"
		}
		text := strings.ReplaceAll(strings.ReplaceAll(string(data), "\r\n", "\n"), "\r", "\n")
		if err != nil || ev.ID != id || ev.Name != name || string(ev.Data) != text {
			t.Fatalf("wrote %q %q %q, read %+v, %v", id, name, data, ev, err)
		}
	})
}

func BenchmarkEventReader64K(b *testing.B) {
	in := []byte("event: message\ndata: " + strings.Repeat("x", 64<<10) + "\n\n")
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mcp.NewEventReader(bytes.NewReader(in), 0).Next(); err != nil {
			b.Fatal(err)
		}
	}
}
