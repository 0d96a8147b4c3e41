package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// pipePeer is the server end of a Stdio: a test reads its lines and answers by hand.
type pipePeer struct {
	t   *testing.T
	in  *bufio.Reader
	out *os.File
	rd  *os.File
}

func newStdio(t *testing.T, opt mcp.StdioOptions) (*mcp.Stdio, *pipePeer) {
	t.Helper()
	goleakLater(t)
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := mcp.NewStdio(r1, w2, opt)
	t.Cleanup(func() {
		w1.Close()
		<-s.Done()
		r1.Close()
		w2.Close()
		r2.Close()
	})
	return s, &pipePeer{t: t, in: bufio.NewReader(r2), out: w1, rd: r2}
}

func goleakLater(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}

type wireMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  json.RawMessage `json:"error"`
	Result json.RawMessage `json:"result"`
}

func (p *pipePeer) read() wireMessage {
	p.t.Helper()
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		p.t.Errorf("reading what the client wrote: %v", err)
		return wireMessage{}
	}
	var m wireMessage
	if err := json.Unmarshal(line, &m); err != nil {
		p.t.Errorf("the client wrote %q: %v", line, err)
	}
	return m
}

func (p *pipePeer) write(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.out, format+"\n", args...); err != nil {
		p.t.Errorf("write: %v", err)
	}
}

// outcome of a call that runs in the background.
type outcome struct {
	result json.RawMessage
	err    error
}

func goCall(ctx context.Context, s *mcp.Stdio, c *mcp.Call) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		r, err := s.Call(ctx, c)
		ch <- outcome{r, err}
	}()
	return ch
}

func TestStdioSplicesResultAndError(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	res := goCall(t.Context(), s, &mcp.Call{Method: "tools/call", Params: json.RawMessage("{\"n\": 9007199254740993,\n\"f\":1.0}")})
	m := peer.read()
	if string(m.Params) != `{"n": 9007199254740993, "f":1.0}` {
		t.Errorf("params on the wire: %s", m.Params)
	}
	peer.write(`{"result":{"x": 1.0,"y":9007199254740993},"jsonrpc":"2.0","id":%s}`, m.ID)
	if o := <-res; o.err != nil || string(o.result) != `{"x": 1.0,"y":9007199254740993}` {
		t.Errorf("got %s, %v", o.result, o.err)
	}
	res = goCall(t.Context(), s, &mcp.Call{Method: "tools/call"})
	m = peer.read()
	peer.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no","data":{"k":1.0}}}`, m.ID)
	var rpc *mcp.RPCError
	if o := <-res; !errors.As(o.err, &rpc) || string(rpc.Raw) != `{"code":-32602,"message":"no","data":{"k":1.0}}` {
		t.Errorf("error = %v", o.err)
	}
}

func TestStdioToleratesJunkLateAndDoubleAnswers(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	res := goCall(t.Context(), s, &mcp.Call{Method: "a"})
	m := peer.read()
	peer.write("Server listening…\n{broken\n[1,2]\n\x00\xff\n{\"jsonrpc\":\"2.0\",\"id\":99999,\"result\":{}}")
	peer.write(`{"jsonrpc":"2.0","id":%s,"result":{"first":true}}`, m.ID)
	peer.write(`{"jsonrpc":"2.0","id":%s,"result":{"first":false}}`, m.ID)
	if o := <-res; string(o.result) != `{"first":true}` {
		t.Errorf("got %s, %v", o.result, o.err)
	}
	res = goCall(t.Context(), s, &mcp.Call{Method: "b"})
	peer.write(`{"jsonrpc":"2.0","id":%s,"result":{"second":true}}`, peer.read().ID)
	if o := <-res; string(o.result) != `{"second":true}` {
		t.Errorf("got %s, %v", o.result, o.err)
	}
	if n := s.Junk(); n != 4 {
		t.Errorf("junk = %d, want 4", n)
	}
}

func TestStdioBadAnswerFailsOnlyItsCall(t *testing.T) {
	for name, answer := range map[string]string{
		"lone surrogate":           `{"jsonrpc":"2.0","id":%s,"result":{"t":"\ud800"}}`,
		"invalid UTF-8":            "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"t\":\"\xff\"}}",
		"over the limit, id first": `{"jsonrpc":"2.0","id":%s,"result":{"t":"` + strings.Repeat("x", 200<<10) + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, peer := newStdio(t, mcp.StdioOptions{MaxMessage: 100 << 10})
			bad := goCall(t.Context(), s, &mcp.Call{Method: "bad"})
			m := peer.read()
			good := goCall(t.Context(), s, &mcp.Call{Method: "good"})
			m2 := peer.read()
			peer.write(answer, m.ID)
			peer.write(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m2.ID)
			if o := <-bad; !fault.Is(o.err, fault.UpstreamError) {
				t.Errorf("bad answer: %s, %v", o.result, o.err)
			}
			if o := <-good; o.err != nil {
				t.Errorf("good call: %v", o.err)
			}
		})
	}
}

func TestStdioOversizeWithIDAtTheEnd(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{MaxMessage: 100 << 10})
	res := goCall(t.Context(), s, &mcp.Call{Method: "big"})
	m := peer.read()
	// An id within the text must not be taken for that of the message.
	peer.write(`{"result":{"t":"%s \"id\":77}"},"jsonrpc":"2.0","id":%s}`, strings.Repeat("x", 300<<10), m.ID)
	if o := <-res; !fault.Is(o.err, fault.UpstreamError) || fault.From(o.err).Reason != "ANSWER_TOO_LARGE" {
		t.Errorf("got %v", o.err)
	}
}

func TestStdioTakesLinesUpToTheLimit(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	res := goCall(t.Context(), s, &mcp.Call{Method: "big"})
	m := peer.read()
	text := strings.Repeat("y", 5<<20)
	go peer.write(`{"jsonrpc":"2.0","id":%s,"result":{"t":"%s"}}`, m.ID, text)
	if o := <-res; len(o.result) != len(text)+8 {
		t.Errorf("got %d bytes, %v", len(o.result), o.err)
	}
}

func TestStdioProgressTokens(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	type call struct {
		res  <-chan outcome
		seen chan string
		wire wireMessage
	}
	calls := make([]call, 2) // both callers use the same token
	for i := range calls {
		c := &calls[i]
		c.seen = make(chan string, 10)
		c.res = goCall(t.Context(), s, &mcp.Call{Method: "tools/call",
			Params: json.RawMessage(`{"name":"t","_meta":{"progressToken":"same","other":1}}`),
			Notify: func(method string, params json.RawMessage) { c.seen <- method + string(params) }})
		c.wire = peer.read()
	}
	token := func(m wireMessage) json.RawMessage { return mcp.GetPath(m.Params, "_meta", "progressToken") }
	if a, b := token(calls[0].wire), token(calls[1].wire); string(a) == string(b) || string(a) == `"same"` {
		t.Fatalf("tokens on the wire: %s and %s", a, b)
	}
	for i := range calls {
		peer.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token(calls[i].wire), i)
	}
	peer.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"same","progress":7}}`)
	for i := range calls {
		peer.write(`{"jsonrpc":"2.0","id":%s,"result":{}}`, calls[i].wire.ID)
		if o := <-calls[i].res; o.err != nil {
			t.Fatal(o.err)
		}
		close(calls[i].seen)
		var got []string
		for n := range calls[i].seen {
			got = append(got, n)
		}
		want := fmt.Sprintf(`notifications/progress{"progressToken":"same","progress":%d}`, i)
		if len(got) != 1 || got[0] != want {
			t.Errorf("caller %d saw %q, want %q", i, got, want)
		}
	}
}

func TestStdioCancel(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	for _, method := range []string{"tools/call", "initialize"} {
		ctx, cancel := context.WithCancel(t.Context())
		res := goCall(ctx, s, &mcp.Call{Method: method})
		m := peer.read()
		cancel()
		if o := <-res; !fault.Is(o.err, fault.Cancelled) {
			t.Errorf("%s: %v", method, o.err)
		}
		next := goCall(t.Context(), s, &mcp.Call{Method: "next"})
		got := peer.read()
		if method == "tools/call" {
			if got.Method != "notifications/cancelled" || string(mcp.Get(got.Params, "requestId")) != string(m.ID) {
				t.Errorf("after the cancellation came %s %s", got.Method, got.Params)
			}
			got = peer.read()
		}
		if got.Method != "next" {
			t.Errorf("%s: came %s; initialize must not be cancelled", method, got.Method)
		}
		peer.write(`{"jsonrpc":"2.0","id":%s,"result":{"late":true}}`, m.ID)
		peer.write(`{"jsonrpc":"2.0","id":%s,"result":{}}`, got.ID)
		if o := <-next; o.err != nil || string(o.result) != "{}" {
			t.Errorf("the call after: %s, %v", o.result, o.err)
		}
	}
}

func TestStdioDeclinesRequestsAndAnswersPing(t *testing.T) {
	_, peer := newStdio(t, mcp.StdioOptions{})
	peer.write(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	if m := peer.read(); string(m.ID) != `"p"` || string(m.Result) != "{}" {
		t.Errorf("ping was answered %+v", m)
	}
	peer.write(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
	if m := peer.read(); string(m.ID) != "7" || string(mcp.Get(m.Error, "code")) != "-32601" {
		t.Errorf("roots/list was answered %+v", m)
	}
}

func TestStdioEnd(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	res := goCall(t.Context(), s, &mcp.Call{Method: "tools/call"})
	peer.read()
	peer.out.Close()
	if o := <-res; !fault.Is(o.err, fault.OutcomeUnknown) {
		t.Errorf("the running call: %v", o.err)
	}
	<-s.Done()
	if _, err := s.Call(t.Context(), &mcp.Call{Method: "x"}); !fault.Is(err, fault.Unreachable) {
		t.Errorf("a call after the end: %v", err)
	}
	if !errors.Is(s.Err(), io.EOF) {
		t.Errorf("Err = %v", s.Err())
	}
}

// A server that does not read its input must not hold up a caller that gives up.
func TestStdioServerThatDoesNotRead(t *testing.T) {
	s, _ := newStdio(t, mcp.StdioOptions{})
	big := json.RawMessage(`{"t":"` + strings.Repeat("z", 1<<20) + `"}`)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := s.Call(ctx, &mcp.Call{Method: "x", Params: big}); !fault.Is(err, fault.Cancelled) {
				t.Errorf("err = %v", err)
			}
		})
	}
	cancel()
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("callers hang on a full pipe")
	}
}

func TestStdioManyCallers(t *testing.T) {
	s, peer := newStdio(t, mcp.StdioOptions{})
	go func() { // an echo server
		for {
			line, err := peer.in.ReadBytes('\n')
			if err != nil {
				return
			}
			m, err := mcp.Parse(line, mcp.Limits{})
			if err != nil {
				t.Errorf("%q: %v", line, err)
				return
			}
			if _, err := peer.out.Write(append(mcp.AppendResult(nil, m.ID, m.Params), '\n')); err != nil {
				return
			}
		}
	}()
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 300 {
				p := fmt.Sprintf(`{"g":%d,"i":%d}`, g, i)
				r, err := s.Call(t.Context(), &mcp.Call{Method: "echo", Params: json.RawMessage(p)})
				if err != nil || string(r) != p {
					t.Errorf("got %s, %v, want %s", r, err, p)
					return
				}
			}
		})
	}
	all.Wait()
	peer.out.Close()
	<-s.Done()
	peer.rd.Close()
}
