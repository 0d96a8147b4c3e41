package testkit

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The keys every gateway under test is started with.
const (
	AdminKey = "dw_test_admin_0123456789abcdefghijklmnop"
	AgentKey = "agent_test_0123456789abcdefghijklmnopqrst"
)

// Options of a gateway.
type Options struct {
	Data string   // data folder, default a new one that goes with the test
	Open bool     // also serve a loopback listener without key
	Env  []string // added to the environment, such as DOORWARD_APPROVALS_TTL=1s
	Args []string // added to "serve"
}

// Gateway is a running binary.
type Gateway struct {
	URL     string // http://127.0.0.1:port
	OpenURL string // of the listener without key
	Data    string
	PID     int

	t    testing.TB
	o    Options
	cmd  *exec.Cmd
	log  *tail
	done chan struct{}
	err  error
}

// Start starts the gateway and waits until it serves. It is stopped when the test ends; its log is shown when the test
// has failed.
func Start(t testing.TB, o Options) *Gateway {
	t.Helper()
	if o.Data == "" {
		o.Data = filepath.Join(t.TempDir(), "data")
	}
	g := &Gateway{t: t, o: o, Data: o.Data, log: &tail{}}
	if o.Open {
		g.OpenURL = "http://" + FreeAddr(t)
	}
	g.start()
	t.Cleanup(func() {
		g.Stop()
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", g.log.String())
		}
	})
	return g
}

// FreeAddr is a loopback address that was free a moment ago.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The address stands in the line that says so, whatever its language.
var listening = regexp.MustCompile(`(http://127\.0\.0\.1:[0-9]+)`)

func (g *Gateway) start() {
	g.t.Helper()
	args := append([]string{"serve", "--data", g.Data, "--listen", "127.0.0.1:0"}, g.o.Args...)
	cmd := exec.Command(Binary(g.t), args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "DOORWARD_") })
	cmd.Env = append(cmd.Env, "DOORWARD_BOOTSTRAP_ADMIN_KEY="+AdminKey, "DOORWARD_BOOTSTRAP_AGENT_KEY="+AgentKey)
	if g.o.Open {
		cmd.Env = append(cmd.Env, "DOORWARD_OPEN_LISTEN="+strings.TrimPrefix(g.OpenURL, "http://"))
	}
	cmd.Env = append(cmd.Env, g.o.Env...)
	cmd.Stderr = g.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := startBound(cmd); err != nil {
		g.t.Fatal(err)
	}
	g.cmd, g.PID, g.done = cmd, cmd.Process.Pid, make(chan struct{})
	addr := make(chan string, 1)
	go func() {
		defer close(g.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(g.log, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case addr <- m[1]:
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		g.err = cmd.Wait()
	}()
	select {
	case g.URL = <-addr:
	case <-g.done:
		g.t.Fatalf("the gateway ended before it served: %v\n%s", g.err, g.log.String())
	case <-time.After(30 * time.Second):
		g.Kill()
		g.t.Fatalf("the gateway printed no address in 30 s\n%s", g.log.String())
	}
	Eventually(g.t, 30*time.Second, "the gateway is ready", func() bool {
		r, err := http.Get(g.URL + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// Stop sends SIGTERM and waits for the end; after 20 s it kills.
func (g *Gateway) Stop() {
	select {
	case <-g.done:
		return
	default:
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.done:
	case <-time.After(20 * time.Second):
		g.t.Errorf("the gateway did not end within 20 s of SIGTERM")
		g.Kill()
	}
}

// Kill sends SIGKILL to the gateway alone, as a crash would, and waits for its end.
func (g *Gateway) Kill() {
	_ = g.cmd.Process.Kill()
	<-g.done
}

// Restart starts the gateway again on the same data folder; the address is a new one.
func (g *Gateway) Restart() {
	g.t.Helper()
	g.Stop()
	g.start()
}

// Log is what the gateway has printed so far (the last 256 KiB).
func (g *Gateway) Log() string { return g.log.String() }

// CLI runs another command of the binary and returns its output and exit code.
func (g *Gateway) CLI(args ...string) (out string, code int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(g.t), args...)
	cmd.Env = append(os.Environ(), "DOORWARD_URL="+g.URL, "DOORWARD_KEY="+AdminKey)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		g.t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// Eventually polls until ok or the deadline, and fails the test then.
func Eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(d)
	for wait := 2 * time.Millisecond; !ok(); wait = min(2*wait, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(wait)
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 256 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if len(w.b) > 2*tailSize {
		w.b = bytes.Clone(w.b[len(w.b)-tailSize:])
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}
