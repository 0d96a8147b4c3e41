package testkit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// fakeVariable names the fake that a test binary runs as.
const fakeVariable = "DOORWARD_TEST_FAKE"

// fakes are the stdio servers that a test package has registered.
var fakes = map[string]func(*FakeStdio){}

// Register makes a fake stdio server known under a name. Call it from a package variable or before Main.
func Register(name string, fn func(*FakeStdio)) bool {
	fakes[name] = fn
	return true
}

// Reexec is the registration that starts the test binary as a fake.
func Reexec(name string, env map[string]string) Stdio {
	all := map[string]string{fakeVariable: name}
	for k, v := range env {
		all[k] = v
	}
	return Stdio{Command: os.Args[0], Env: all}
}

func runFake(name string) int {
	fn, ok := fakes[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no fake %q\n", name)
		return 2
	}
	fn(&FakeStdio{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: os.Stdout})
	return 0
}

// FakeStdio is the server's side of a stdio connection.
type FakeStdio struct {
	Tools []string // definitions
	// OnCall answers a call; it may write anything with Print before.
	OnCall func(name string, args json.RawMessage) (result, rpcErr string)

	in  *bufio.Reader
	mu  sync.Mutex
	out io.Writer
}

// Print writes one line, whatever it is.
func (s *FakeStdio) Print(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, line)
}

// Serve answers until stdin ends; calls run side by side.
func (s *FakeStdio) Serve() {
	for {
		line, err := s.in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string          `json:"protocolVersion"`
				Name            string          `json:"name"`
				Arguments       json.RawMessage `json:"arguments"`
			} `json:"params"`
		}
		if json.Unmarshal(line, &m) != nil || m.ID == nil {
			continue
		}
		switch m.Method {
		case "initialize":
			s.reply(m.ID, `{"protocolVersion":"`+min(m.Params.ProtocolVersion, Legacy)+`","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`, "")
		case "ping":
			s.reply(m.ID, `{}`, "")
		case "tools/list":
			s.reply(m.ID, `{"tools":[`+strings.Join(s.Tools, ",")+`]}`, "")
		case "tools/call":
			go func() {
				result, rpcErr := s.OnCall(m.Params.Name, m.Params.Arguments)
				s.reply(m.ID, result, rpcErr)
			}()
		default:
			s.reply(m.ID, "", `{"code":-32601,"message":"Method not found"}`)
		}
	}
}

func (s *FakeStdio) reply(id json.RawMessage, result, rpcErr string) {
	if rpcErr != "" {
		s.Print(`{"jsonrpc":"2.0","id":` + string(id) + `,"error":` + rpcErr + `}`)
		return
	}
	s.Print(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`)
}
