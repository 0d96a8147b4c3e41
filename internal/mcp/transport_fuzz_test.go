package mcp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzHTTPResponse holds our reading of a response against that of net/http: where both take it, they must
// agree on where it ends, or an answer could be taken for another's.
func FuzzHTTPResponse(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, not this",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\nnext",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\nA: b\n c: folded\n\nbody",
		"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nab",
		"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nab",
		"HTTP/1.1 200 OK\r\n\r\nuntil the end",
		"HTTP/2 200\r\n\r\n", "\x16\x03\x01", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		br := bufio.NewReaderSize(bytes.NewReader(raw), 4<<10)
		reply, fr, err := readHead(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(fr.body)
		if err != nil || bytes.HasPrefix(raw, []byte("HTTP/1.1 1")) || bytes.HasPrefix(raw, []byte("HTTP/1.0 1")) {
			return
		}
		std, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		if err != nil {
			return
		}
		want, err := io.ReadAll(std.Body)
		if err != nil {
			return
		}
		if reply.status != std.StatusCode || !bytes.Equal(body, want) {
			t.Errorf("status %d, body %q; net/http reads %d, %q", reply.status, body, std.StatusCode, want)
		}
		if fr.keep && std.Close {
			t.Error("we would use the connection again, net/http would not")
		}
	})
}

// FuzzLines: lines come out as they went in, or as too long, whatever the size of the buffer.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nbb\r\n"+strings.Repeat("x", 5000)+"\nlast"), 100)
	f.Add([]byte(strings.Repeat("y", 70000)+"\n"+strings.Repeat("z", 10)+"\n"), 1000)
	f.Fuzz(func(t *testing.T, raw []byte, limit int) {
		if limit <= 0 || limit > 1<<20 {
			return
		}
		l := lineReader{br: bufio.NewReaderSize(bytes.NewReader(raw), 16), max: limit}
		for _, want := range bytes.SplitAfter(raw, []byte("\n")) {
			if len(want) == 0 {
				break
			}
			got, err := l.next()
			_, tooLong := err.(*oversize)
			if tooLong != (len(want) > limit+1) || !tooLong && (err != nil || !bytes.Equal(got, want)) {
				t.Fatalf("line of %d bytes, limit %d: got %d bytes, %v", len(want), limit, len(got), err)
			}
		}
		if _, err := l.next(); err != io.EOF {
			t.Fatalf("after the last line: %v", err)
		}
	})
}

// The id of a message that was too long is found where servers write it, and no other number is taken for it.
func TestEdgeID(t *testing.T) {
	text := strings.Repeat(`x \"id\":9,{\"id\":9} `, 1000)
	for _, tt := range []struct {
		msg  string
		want int64
	}{
		{`{"jsonrpc":"2.0","id":7,"result":{"t":"%s"}}`, 7},
		{`{"id": 7 ,"result":{"t":"%s"},"jsonrpc":"2.0"}`, 7},
		{`{"result":{"t":"%s"},"jsonrpc":"2.0","id":7}`, 7},
		{`{"result":{"t":"%s"},"id":7,"jsonrpc":"2.0"}`, 7},
		{`{"result":{"id":9,"t":"%s","id":9},"id":7}`, 7},
		{`{"result":{"t":"%s","id":9}}`, 0},
		{`{"result":{"t":"%s","o":{"id":9}},"jsonrpc":"2.0"}`, 0},
		{`{"jsonrpc":"2.0","id":"7","result":"%s"}`, 0},
		{`{"jsonrpc":"2.0","method":"m","params":{"id":9,"t":"%s"}}`, 0},
	} {
		line := fmt.Sprintf(tt.msg, text) + "\n"
		l := lineReader{br: bufio.NewReaderSize(strings.NewReader(line), 64<<10), max: 100}
		_, err := l.next()
		big, ok := err.(*oversize)
		if !ok || big.id != tt.want {
			t.Errorf("%.60s…: %v, want id %d", tt.msg, err, tt.want)
		}
	}
}
