package testkit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Direct is a raw client of a stdio server without anything in between.
type Direct struct {
	t     testing.TB
	meta  string // of the modern era, added to every request
	write func(line string)
	mu    sync.Mutex
	wait  map[string]chan json.RawMessage
	id    int
}

// DirectStdio starts a server as a child of the test and does the handshake of a revision with it.
func DirectStdio(t testing.TB, s Stdio, version string) *Direct {
	t.Helper()
	cmd := exec.Command(s.Command, s.Args...)
	cmd.Dir = s.Cwd
	cmd.Env = append(os.Environ(), pairs(s.Env)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := &tail{}
	cmd.Stderr = log
	if err := startBound(cmd); err != nil {
		t.Fatal(err)
	}
	d := &Direct{t: t, wait: map[string]chan json.RawMessage{}}
	d.write = func(line string) { fmt.Fprintln(stdin, line) }
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", s.Command, log)
		}
	})
	go d.read(bufio.NewReaderSize(stdout, 1<<20))
	if version >= Modern {
		d.meta = modernMeta(version, "{}")
		return d
	}
	d.Request("initialize", `{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"testkit","version":"1"}}`)
	d.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return d
}

func pairs(env map[string]string) []string {
	var out []string
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	return out
}

// read hands responses to their requests; everything else a server says is dropped.
func (d *Direct) read(r *bufio.Reader) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal([]byte(line), &m) != nil || m.Method != "" || m.ID == nil {
			continue
		}
		d.mu.Lock()
		c := d.wait[string(m.ID)]
		delete(d.wait, string(m.ID))
		d.mu.Unlock()
		if c != nil {
			c <- json.RawMessage(strings.TrimSpace(line))
		}
	}
}

// Request sends a request and returns the result; an error fails the test.
func (d *Direct) Request(method, params string) json.RawMessage {
	d.t.Helper()
	if d.meta != "" {
		params = addMeta(params, d.meta)
	}
	c := make(chan json.RawMessage, 1)
	d.mu.Lock()
	d.id++
	id := fmt.Sprint(d.id)
	d.wait[id] = c
	d.mu.Unlock()
	d.write(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
	select {
	case raw := <-c:
		var m struct{ Result, Error json.RawMessage }
		Decode(d.t, raw, &m)
		if m.Error != nil {
			d.t.Fatalf("%s: %s", method, m.Error)
		}
		return m.Result
	case <-time.After(30 * time.Second):
		d.t.Fatalf("%s: no answer in 30 s", method)
		return nil
	}
}

// List lists all tools, page by page.
func (d *Direct) List() []json.RawMessage {
	d.t.Helper()
	var all []json.RawMessage
	for params := "{}"; ; {
		var page struct {
			Tools      []json.RawMessage `json:"tools"`
			NextCursor json.RawMessage   `json:"nextCursor"`
		}
		Decode(d.t, d.Request("tools/list", params), &page)
		all = append(all, page.Tools...)
		if page.NextCursor == nil {
			return all
		}
		params = `{"cursor":` + string(page.NextCursor) + `}`
	}
}
