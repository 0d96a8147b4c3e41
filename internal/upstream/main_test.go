package upstream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// The test binary is its own stdio server: role says which.
const role = "UPSTREAM_TEST_ROLE"

func TestMain(m *testing.M) {
	if r := os.Getenv(role); r != "" {
		play(r)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func play(r string) {
	switch r {
	case "sdk":
		_ = sdkServer().Run(context.Background(), &sdk.StdioTransport{})
		return
	case "grandchild":
		signal.Ignore(syscall.SIGTERM)
		select {}
	case "fragile": // ends at what it does not know
		serveLines(func(m mcp.Message) string {
			if m.Method == "server/discover" {
				os.Exit(1)
			}
			return legacyAnswer(m)
		})
		return
	case "nasty":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("Listening on stdio!\n{not json")
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), role+"=grandchild")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, strings.Repeat("e", 10<<20))
		fmt.Fprintln(os.Stderr, "child", c.Process.Pid)
		serveLines(legacyAnswer)
		select {} // ignores the end of stdin too
	default:
		serveLines(legacyAnswer)
	}
}

// serveLines answers each line of stdin, in a goroutine of its own.
func serveLines(answer func(mcp.Message) string) {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := mcp.Parse(line, mcp.Limits{})
		if err != nil {
			continue
		}
		go func() {
			if a := answer(m); a != "" {
				printLine(a)
			}
		}()
	}
}

var printing sync.Mutex

func printLine(s string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(s)
}

const tools2 = `{"name":"echo","inputSchema":{"type":"object"},"x": 1.0},{"name":"die","inputSchema":{"type":"object"}}`

// legacyAnswer is a small server of 2025-11-25 on a pipe.
func legacyAnswer(m mcp.Message) string {
	ok := func(format string, args ...any) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, fmt.Sprintf(format, args...))
	}
	switch m.Method {
	case "initialize":
		return ok(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"},"instructions":"be kind"}`)
	case "ping":
		return ok(`{}`)
	case "tools/list":
		return ok(`{"tools":[%s]}`, tools2)
	case "tools/call":
		name, _ := mcp.String(mcp.Get(m.Params, "name"))
		switch name {
		case "die":
			os.Exit(1)
		case "hang":
			return ""
		case "big":
			return ok(`{"content":[{"type":"text","text":"%s"}]}`, strings.Repeat("b", 5<<20))
		case "progress":
			token := mcp.GetPath(m.Params, "_meta", "progressToken")
			printLine(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, token))
		case "change":
			printLine(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		return ok(`{"content":[],"params":%s}`, m.Params)
	}
	if m.ID == nil {
		return ""
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, m.ID)
}

// events collects what a pool tells.
type events struct {
	mu       sync.Mutex
	listings map[string][]mcp.Listing
	changed  []string
}

// newPool runs a pool until the test ends.
func newPool(t testing.TB, change func(*upstream.Deps)) (*upstream.Pool, *events) {
	t.Helper()
	ev := &events{listings: map[string][]mcp.Listing{}}
	d := upstream.Deps{
		OnListing: func(_ context.Context, id string, l mcp.Listing) {
			ev.mu.Lock()
			defer ev.mu.Unlock()
			ev.listings[id] = append(ev.listings[id], l)
		},
		OnChanged: func(id, method string, params json.RawMessage) {
			ev.mu.Lock()
			defer ev.mu.Unlock()
			ev.changed = append(ev.changed, id+" "+method+" "+string(params))
		},
		KillGrace: 100 * time.Millisecond, Version: "1.2.3",
	}
	if change != nil {
		change(&d)
	}
	p := upstream.New(d)
	p.Hasten()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return p, ev
}

func (ev *events) count(id string) int {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	return len(ev.listings[id])
}

func (ev *events) last(id string) mcp.Listing {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	l := ev.listings[id]
	if len(l) == 0 {
		return mcp.Listing{}
	}
	return l[len(l)-1]
}

func (ev *events) heard(what string) bool {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	for _, c := range ev.changed {
		if strings.Contains(c, what) {
			return true
		}
	}
	return false
}

// eventually polls until ok, at most 10 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func health(p *upstream.Pool, id string) upstream.Health {
	st, _ := p.Status(id)
	return st.Health
}

func up(t testing.TB, p *upstream.Pool, id string) upstream.Status {
	t.Helper()
	eventually(t, id+" is up", func() bool {
		h := health(p, id)
		return h == upstream.Up || h == upstream.Degraded
	})
	st, _ := p.Status(id)
	return st
}

func stdioServer(id, r string) upstream.Config {
	return upstream.Config{ID: id, Name: id, Transport: "stdio", Command: os.Args[0], Env: map[string]string{role: r}, Revision: "1"}
}

func httpServer(id, url string) upstream.Config {
	return upstream.Config{ID: id, Name: id, Transport: "http", URL: url, Revision: "1"}
}

func legacyClient(session string) *upstream.Client {
	return &upstream.Client{Era: mcp.Legacy, Version: mcp.V20251125, Session: session, Capabilities: json.RawMessage(`{"elicitation":{}}`)}
}

func callTool(id, tool string, c *upstream.Client) *upstream.Request {
	return &upstream.Request{ServerID: id, Method: "tools/call", Params: json.RawMessage(`{"name":"` + tool + `","arguments":{"n": 9007199254740993}}`), Client: c}
}

func wantClass(t *testing.T, err error, c fault.Class) {
	t.Helper()
	if !fault.Is(err, c) {
		t.Errorf("err = %v, want %s", err, c)
	}
}
