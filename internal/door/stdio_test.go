package door_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// stdio is a client's end of ProxyStdio.
type stdio struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func (w *world) stdio(t *testing.T, path string) *stdio {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &stdio{t: t, in: inW, out: bufio.NewReaderSize(outR, 1<<20), done: make(chan error, 1)}
	go func() {
		s.done <- door.ProxyStdio(t.Context(), w.url+path, w.agentKey, inR, outW)
		outW.Close()
	}()
	t.Cleanup(func() { inW.Close() })
	return s
}

func (s *stdio) send(line string) {
	s.t.Helper()
	_, err := io.WriteString(s.in, line+"\n")
	ok(s.t, err)
}

func (s *stdio) read() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	ok(s.t, err)
	return strings.TrimSuffix(line, "\n")
}

func TestStdioProxyByHand(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{def("read")}}
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage("{\n  \"content\": [],\r\n \"text\": \"a\\nb\"\n}"), nil
	}
	notes := w.addFake("notes", f)
	s := w.stdio(t, "/mcp/notes")
	s.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if got := s.read(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"`) {
		t.Fatal(got)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.send(`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"read"}}`)
	if got := s.read(); got != `{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[],"text":"a\nb"}}` {
		t.Error(got)
	}
	s.send(`{"jsonrpc":"2.0","id":`)
	if got := s.read(); !strings.Contains(got, `-32700`) {
		t.Error(got)
	}
	p, _ := modernParams(`{"name":"read"}`)
	s.send(`{"jsonrpc":"2.0","id":"m","method":"tools/call","params":` + p + `}`)
	if got := s.read(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":"m","result"`) {
		t.Error(got)
	}
	w.eventually("the standing stream is open", func() bool {
		return strings.Contains(w.wire("/metrics").send("GET", "").body, "doorward_streams 1\n")
	})
	w.rule(notes.ID, "read", "DENY")
	if got := s.read(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Error(got)
	}
	s.in.Close()
	ok(t, <-s.done)
	w.eventually("the session has ended", func() bool {
		return strings.Contains(w.wire("/metrics").send("GET", "").body, "doorward_sessions 0\n")
	})
}

// TestStdioProxyWithOfficialClient: questions and progress find their way over stdio too.
func TestStdioProxyWithOfficialClient(t *testing.T) {
	for _, version := range []string{mcp.V20251125, mcp.V20260728} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			ref := newReference(t, version != mcp.V20260728)
			w.add("ref", upstream.Config{Transport: "http", URL: ref.url})
			inR, inW := io.Pipe()
			outR, outW := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- door.ProxyStdio(t.Context(), w.url+"/mcp/ref", w.agentKey, inR, outW) }()
			c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, &sdk.ClientOptions{
				ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
					return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
				},
			})
			s, err := c.Connect(w.ctx, &sdk.IOTransport{Reader: outR, Writer: inW}, &sdk.ClientSessionOptions{ProtocolVersion: version})
			ok(t, err)
			if got := text(t, must(s.CallTool(t.Context(), &sdk.CallToolParams{Name: "chatty"}))(t)); got != "done" {
				t.Error(got)
			}
			if version != mcp.V20260728 {
				if got := text(t, must(s.CallTool(t.Context(), &sdk.CallToolParams{Name: "ask"}))(t)); got != "accept Ada" {
					t.Error(got)
				}
			}
			s.Close()
			inW.Close()
			ok(t, <-done)
			outW.Close()
		})
	}
}
