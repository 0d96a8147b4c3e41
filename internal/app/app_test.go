package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/app"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
)

// TestMain lets this binary be the server behind the door, as the real one is in the demo.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "demo-upstream" {
		if err := app.DemoUpstream(context.Background(), os.Args[3], os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// site is a running Doorward.
type site struct {
	*app.App
	t    *testing.T
	dir  string
	log  *lockedBuffer
	stop func() error // asks for the end and waits for it
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const (
	adminKey = "dw_test_admin_key_0123456789abcdef"
	agentKey = "agent_test_key_0123456789abcdef"
)

func open(t *testing.T, dir string, flags map[string]string, log io.Writer) (*app.App, error) {
	t.Helper()
	all := map[string]string{"data": dir, "listen": "127.0.0.1:0", "bootstrap.admin_key": adminKey, "bootstrap.agent_key": agentKey, "log.level": "debug"}
	for k, v := range flags {
		all[k] = v
	}
	cfg, err := config.Load(config.Source{Flags: all})
	if err != nil {
		t.Fatal(err)
	}
	return app.New(t.Context(), cfg, app.NewLogger(log, cfg.Log), nil)
}

func start(t *testing.T, dir string, flags map[string]string) *site {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	s := &site{t: t, dir: dir, log: &lockedBuffer{}}
	var err error
	if s.App, err = open(t, dir, flags, s.log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("end: %v\n%s", err, s.log)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatalf("it ended: %v\n%s", err, s.log)
	}
	return s
}

// do makes a request; body is JSON text or a value. It returns the status and the body.
func (s *site) do(method, path, key string, body any) (int, string) {
	s.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, s.PublicURL()+path, r)
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// admin makes a request that must succeed, and decodes the answer.
func (s *site) admin(method, path string, body any) map[string]any {
	s.t.Helper()
	status, text := s.do(method, "/api/v1/"+path, adminKey, body)
	if status >= 300 {
		s.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		s.t.Fatalf("%s %s: %v in %s", method, path, err, text)
	}
	return out
}

// notes registers, scans and approves the demo's server with its suggested rules; it returns its id.
func (s *site) notes() string {
	s.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	id := s.admin("POST", "mcp/servers", map[string]any{"name": "notes", "transport": "stdio", "command": exe,
		"args": []string{"demo-upstream", "--state", filepath.Join(s.dir, "turned")}})["id"].(string)
	scan := s.admin("POST", "mcp/servers/"+id+"/scan", nil)
	if scan["status"] != "ok" || scan["tools_found"] != 4.0 || scan["new"] != 4.0 {
		s.t.Fatalf("scan = %v", scan)
	}
	var choices []map[string]any
	for _, t := range s.admin("GET", "mcp/servers/"+id+"/tools", nil)["tools"].([]any) {
		t := t.(map[string]any)
		choices = append(choices, map[string]any{"tool_id": t["id"], "action": t["suggestion"].(map[string]any)["action"]})
	}
	s.admin("POST", "mcp/servers/"+id+"/approve", map[string]any{"tools": choices, "scan_id": scan["scan_id"]})
	s.healthy(id)
	return id
}

func (s *site) healthy(id string) {
	s.t.Helper()
	s.until("server is up", func() bool { return s.admin("GET", "mcp/servers/"+id, nil)["health"] == "up" })
}

func (s *site) until(what string, so func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s\n%s", what, s.log)
		}
	}
}

// tool gives the id of a tool.
func (s *site) tool(server, name string) string {
	s.t.Helper()
	for _, t := range s.admin("GET", "mcp/servers/"+server+"/tools", nil)["tools"].([]any) {
		if t := t.(map[string]any); t["name"] == name {
			return t["id"].(string)
		}
	}
	s.t.Fatalf("no tool %s", name)
	return ""
}

func TestFirstAndLaterStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	a, err := open(t, dir, map[string]string{"bootstrap.admin_key": "", "bootstrap.agent_key": ""}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	first := a.Keys
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if !first.Created || !strings.HasPrefix(first.Admin, "dw_") || !strings.HasPrefix(first.Agent, "agent_") {
		t.Fatalf("keys = %+v", first)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f.Name(), info.Mode())
		}
	}
	s := start(t, dir, nil) // with other bootstrap keys: they count only on the first start
	if s.Keys != (app.Keys{}) {
		t.Errorf("keys of a later start = %+v", s.Keys)
	}
	if status, _ := s.do("GET", "/api/v1/mcp/servers", first.Admin, nil); status != 200 {
		t.Errorf("the owner's key does not work any more: %d", status)
	}
	if status, _ := s.do("GET", "/api/v1/mcp/servers", adminKey, nil); status != 401 {
		t.Errorf("a later bootstrap key works: %d", status)
	}
	if status, _ := s.do("GET", "/tools", first.Agent, nil); status != 200 {
		t.Errorf("the agent's key does not work: %d", status)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	s := start(t, "", nil)
	if _, err := open(t, s.dir, nil, io.Discard); err == nil {
		t.Fatal("two of them serve one folder")
	}
	if status, _ := s.do("GET", "/readyz", "", nil); status != 200 {
		t.Errorf("the first one is not ready any more: %d", status)
	}
}

func TestAddressInUse(t *testing.T) {
	s := start(t, "", nil)
	_, err := open(t, t.TempDir(), map[string]string{"listen": s.Addr()}, io.Discard)
	if !fault.Is(err, fault.Config) {
		t.Errorf("err = %v", err)
	}
}

// The keys of the first start are told even when the start fails after they were made: nobody could get in ever after.
func TestKeysAreToldWhenTheStartFails(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{Flags: map[string]string{"data": t.TempDir(), "listen": "127.0.0.1:0", "mcp_config": broken}})
	if err != nil {
		t.Fatal(err)
	}
	var told app.Keys
	_, err = app.New(t.Context(), cfg, app.NewLogger(io.Discard, cfg.Log), func(k app.Keys) { told = k })
	if !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("err = %v", err)
	}
	if !strings.HasPrefix(told.Admin, "dw_") {
		t.Errorf("told = %+v", told)
	}
}

func TestBuiltinsWaitUnlessTheOperatorAdmitsThem(t *testing.T) {
	docs := t.TempDir()
	if err := os.WriteFile(filepath.Join(docs, "hello.txt"), []byte("hello from the tree"), 0o600); err != nil {
		t.Fatal(err)
	}
	call := `{"name":"filesystem/read_file","arguments":{"path":"hello.txt"}}`
	t.Run("waiting", func(t *testing.T) {
		s := start(t, "", map[string]string{"builtins.filesystem.root": docs})
		server := s.admin("GET", "mcp/servers/filesystem", nil)
		if server["status"] != "PENDING_APPROVAL" || server["origin"] != "builtin" {
			t.Errorf("server = %v", server)
		}
		if status, text := s.do("POST", "/tools/call", agentKey, call); status != 403 || !strings.Contains(text, "SERVER_PENDING_APPROVAL") {
			t.Errorf("call: %d %s", status, text)
		}
	})
	t.Run("admitted", func(t *testing.T) {
		s := start(t, "", map[string]string{"builtins.filesystem.root": docs, "builtins.admit": "true"})
		s.healthy("filesystem")
		if status, text := s.do("POST", "/tools/call", agentKey, call); status != 200 || !strings.Contains(text, "hello from the tree") {
			t.Errorf("call: %d %s", status, text)
		}
		if rows := s.admin("GET", "audit?kind=admin&method=server.approve", nil)["events"].([]any); len(rows) != 2 {
			t.Errorf("the record has %d approvals of built-in servers, want 2", len(rows))
		}
		if tools := s.admin("GET", "mcp/servers/filesystem/tools", nil)["tools"].([]any); tools[0].(map[string]any)["admitted_by"] != "bootstrap" {
			t.Errorf("admitted by %v", tools[0])
		}
	})
}

func TestServersOfAFile(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), ".mcp.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"mcpServers": {"one": {"command": "one-server", "args": ["-x"], "env": {"TOKEN": "${SOME_VARIABLE:-none}"}}, /* a comment */ }}`)
	s := start(t, dir, map[string]string{"mcp_config": file})
	one := s.admin("GET", "mcp/servers/one", nil)
	if one["status"] != "PENDING_APPROVAL" || one["origin"] != "config" || one["origin_path"] != file {
		t.Errorf("one = %v", one)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir, map[string]string{"mcp_config": file})
	if again := s.admin("GET", "mcp/servers/one", nil); again["updated_at"] != one["updated_at"] {
		t.Errorf("an unchanged file changed the server: %v, %v", one, again)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	write(`{"mcpServers": {"one": {"command": "other-server"}}}`)
	s = start(t, dir, map[string]string{"mcp_config": file})
	if spec := s.admin("GET", "mcp/servers/one", nil)["spec"].(map[string]any); spec["command"] != "other-server" {
		t.Errorf("spec = %v", spec)
	}
}

func TestOpenListenerActsAsItsAgent(t *testing.T) {
	s := start(t, "", map[string]string{"open_listen": "127.0.0.1:0"})
	s.notes()
	res, err := http.Get("http://" + s.OpenAddr() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("readyz = %d", res.StatusCode)
	}
	res, err = http.Get("http://" + s.OpenAddr() + "/api/v1/mcp/servers")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 404 {
		t.Errorf("REST without a key = %d", res.StatusCode)
	}
}

func TestDemo(t *testing.T) {
	var out, log lockedBuffer
	err := app.Demo(t.Context(), app.DemoOptions{Out: &out, Log: &log, Listen: "127.0.0.1:0", Exit: true})
	http.DefaultClient.CloseIdleConnections()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &log)
	}
	for _, want := range []string{
		"SERVER_PENDING_APPROVAL", `ran: "Ship on Friday."`, "-32004", "APPROVED", `ran: "sent to all@example.com"`,
		"RULE_DENY", "TOOL_CHANGED", "AGENT_EMERGENCY_STOP", "whole: true",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the walk does not show %q:\n%s", want, &out)
		}
	}
}
