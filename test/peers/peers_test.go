// Package peers runs real MCP servers and a real client, pinned in package.json, with the built binary between them.
package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// peer is a real server and what is known to work with it offline.
type peer struct {
	name    string
	bin     string
	args    func(dir string) []string
	env     func(dir string) map[string]string
	version string // of the client that the lists are compared with; the server's own era
	tools   int
	calls   []call
}

// call is one call and a part of its answer.
type call struct {
	tool, args string
	want       string // part of the result's text; "" with offline
	offline    bool   // the tool needs the network: it must fail cleanly
}

func peers() []peer {
	return []peer{
		{name: "everything", bin: "mcp-server-everything", args: fixed("stdio"), tools: 13, calls: []call{
			{tool: "echo", args: `{"message":"h\u00e9llo <&> 9007199254740993"}`, want: "Echo: h\u00e9llo <&> 9007199254740993"},
			{tool: "get-sum", args: `{"a":2,"b":40}`, want: "42"},
		}},
		{name: "filesystem", bin: "mcp-server-filesystem", args: func(dir string) []string { return []string{dir} }, tools: 14, calls: []call{
			{tool: "list_directory", args: `{"path":"DIR"}`, want: "note.txt"},
			{tool: "read_text_file", args: `{"path":"DIR/note.txt"}`, want: "a note"},
			{tool: "write_file", args: `{"path":"DIR/new.txt","content":"x"}`, want: "Successfully wrote"},
		}},
		{name: "memory", bin: "mcp-server-memory", env: func(dir string) map[string]string {
			return map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")}
		}, tools: 9, calls: []call{
			{tool: "create_entities", args: `{"entities":[{"name":"Ada","entityType":"person","observations":["counts"]}]}`, want: "Ada"},
			{tool: "read_graph", args: `{}`, want: "counts"},
		}},
		{name: "thinking", bin: "mcp-server-sequential-thinking", tools: 1, calls: []call{
			{tool: "sequentialthinking", args: `{"thought":"one","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`, want: "thoughtHistoryLength"},
		}},
		{name: "playwright", bin: "playwright-mcp", args: fixed("--headless"), tools: 25},
		{name: "context7", bin: "context7-mcp", version: testkit.Modern, tools: 2, calls: []call{
			{tool: "resolve-library-id", args: `{"query":"react","libraryName":"react"}`, offline: true},
		}},
		{name: "notion", bin: "notion-mcp-server", env: constant("NOTION_TOKEN", "ntn_dummy"), tools: 24, calls: []call{
			{tool: "API-get-self", args: `{}`, offline: true},
		}},
		{name: "firecrawl", bin: "firecrawl-mcp", env: constant("FIRECRAWL_API_KEY", "fc-dummy"), version: "2025-06-18", tools: 26, calls: []call{
			{tool: "firecrawl_scrape", args: `{"url":"http://example.invalid/"}`, offline: true},
		}},
	}
}

func fixed(args ...string) func(string) []string { return func(string) []string { return args } }

func constant(k, v string) func(string) map[string]string {
	return func(string) map[string]string { return map[string]string{k: v} }
}

// stdio is the peer's registration, working in dir.
func (p peer) stdio(t *testing.T, dir string) testkit.Stdio {
	t.Helper()
	s := testkit.Stdio{Command: testkit.NPM(t, p.bin), Cwd: dir}
	if p.args != nil {
		s.Args = p.args(dir)
	}
	if p.env != nil {
		s.Env = p.env(dir)
	}
	return s
}

// world is a folder that a peer works in.
func world(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("a note"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestStdio: behind the gateway each server's tools are listed byte for byte as it lists them itself, and can be called.
func TestStdio(t *testing.T) {
	g := testkit.Start(t, testkit.Options{})
	all := peers()
	dirs, ids := map[string]string{}, map[string]string{}
	for _, p := range all { // registered first, so that they start side by side
		dirs[p.name] = world(t)
		ids[p.name] = g.AddStdio(p.name, p.stdio(t, dirs[p.name])).ID
	}
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			if p.version == "" {
				p.version = testkit.Legacy
			}
			g.Approve(ids[p.name], "ALLOW")
			direct := testkit.DirectStdio(t, p.stdio(t, world(t)), p.version).List()
			c := g.Client("/mcp/"+p.name, p.version)
			same(t, direct, c.List(), p.tools)
			for _, call := range p.calls {
				p.try(t, g, c, call, dirs[p.name])
			}
		})
	}
	t.Run("aggregate", func(t *testing.T) {
		total := 0
		for _, p := range all {
			total += p.tools
		}
		names := g.Client("/mcp", testkit.Legacy).Names()
		if len(names) != total || !slices.Contains(names, "everything__echo") || !slices.Contains(names, "notion__API-get-self") {
			t.Errorf("%d tools, want %d: %v", len(names), total, names)
		}
		for _, n := range names {
			if len(n) > 64 {
				t.Errorf("name %q is longer than clients accept", n)
			}
		}
	})
}

// same compares lists tool by tool, byte by byte.
func same(t *testing.T, direct, through []json.RawMessage, tools int) {
	t.Helper()
	if len(direct) != tools || len(through) != tools {
		t.Fatalf("%d tools directly, %d through the gateway, want %d", len(direct), len(through), tools)
	}
	for i := range direct {
		if !bytes.Equal(direct[i], through[i]) {
			t.Errorf("tool %d differs\ndirect  %s\nthrough %s", i, direct[i], through[i])
		}
	}
}

// try makes one call and checks the answer and its row in the record.
func (p peer) try(t *testing.T, g *testkit.Gateway, c *testkit.Client, call call, dir string) {
	t.Helper()
	r := c.Call(call.tool, strings.ReplaceAll(call.args, "DIR", dir))
	e := g.LastEvent(call.tool)
	if !call.offline {
		if r.Error != nil || r.IsError() || !strings.Contains(r.Text(), call.want) {
			t.Errorf("%s: %v", call.tool, r)
		}
		if e.Status != "ok" || e.Server != p.name || e.Decision != "ALLOW" {
			t.Errorf("%s: recorded as %+v", call.tool, e)
		}
		return
	}
	// Without a network these tools fail, each in its own way: as a tool or as a server, never as a success or a hang.
	if r.Took > 60*time.Second {
		t.Errorf("%s took %v", call.tool, r.Took)
	}
	switch {
	case r.IsError() && e.Status == "tool_error", r.Error != nil && e.Status == "upstream_error":
	case r.Error == nil && e.Status == "ok": // the server calls its failure a success; then the bytes are its own
		if !strings.Contains(strings.ToLower(r.Text()), "fail") && !strings.Contains(strings.ToLower(r.Text()), "error") {
			t.Errorf("%s: worked offline? %v", call.tool, r)
		}
	default:
		t.Errorf("%s: %v, recorded as %+v", call.tool, r, e)
	}
}

// TestStreamableHTTP: server-everything over HTTP, with what a session can do beside tools.
func TestStreamableHTTP(t *testing.T) {
	addr := testkit.FreeAddr(t)
	cmd := exec.Command(testkit.NPM(t, "mcp-server-everything"), "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+addr[strings.LastIndexByte(addr, ':')+1:])
	cmd.Dir = world(t)
	testkit.Run(t, cmd, addr)
	url := "http://" + addr + "/mcp"

	g := testkit.Start(t, testkit.Options{})
	g.Approve(g.AddHTTP("everything", url, nil).ID, "ALLOW")
	direct := testkit.NewClient(t, url, "", testkit.Legacy)
	direct.Connect()
	through := g.Client("/mcp/everything", testkit.Legacy)
	same(t, direct.List(), through.List(), 13)

	for _, request := range []struct{ method, params string }{
		{"prompts/list", `{}`},
		{"prompts/get", `{"name":"simple-prompt"}`},
		{"prompts/get", `{"name":"args-prompt","arguments":{"city":"Z\u00fcrich"}}`},
		{"resources/templates/list", `{}`},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"completable-prompt"},"argument":{"name":"department","value":"E"}}`},
		{"tools/call", testkit.CallParams("get-structured-content", `{"location":"New York"}`)},
		{"tools/call", testkit.CallParams("get-annotated-message", `{"messageType":"success","includeImage":true}`)},
		{"tools/call", testkit.CallParams("get-tiny-image", `{}`)},
	} {
		a, b := direct.Request(request.method, request.params), through.Request(request.method, request.params)
		if a.Result == nil || !bytes.Equal(a.Result, b.Result) {
			t.Errorf("%s %s differs\ndirect  %v\nthrough %v", request.method, request.params, a, b)
		}
	}
	t.Run("progress", func(t *testing.T) {
		r := through.Request("tools/call", `{"_meta":{"progressToken":"mine"},"name":"trigger-long-running-operation","arguments":{"duration":1,"steps":4}}`)
		if r.Error != nil || r.IsError() || len(r.Notifications) < 4 {
			t.Fatalf("%d notifications, %v", len(r.Notifications), r)
		}
		for _, n := range r.Notifications {
			if !bytes.Contains(n, []byte(`"progressToken":"mine"`)) {
				t.Errorf("not our token: %s", n)
			}
		}
	})
	t.Run("session ends", func(t *testing.T) {
		if status := through.Close(); status/100 != 2 {
			t.Errorf("DELETE: status %d", status)
		}
	})
}

// inspector runs the Inspector's command line under Node 22.
func inspector(t *testing.T, url, era string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	all := []string{testkit.NPM(t, "mcp-inspector"), "--cli", url, "--transport", "http", "--header", "Authorization: Bearer " + testkit.AgentKey,
		"--protocol-era", era, "--format", "json", "-q"}
	cmd := exec.CommandContext(ctx, testkit.NPM(t, "node"), append(all, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestInspector: a real client lists and calls in every era, through both MCP doors.
func TestInspector(t *testing.T) {
	g := testkit.Start(t, testkit.Options{})
	everything := peers()[0]
	context7 := peers()[5]
	g.Approve(g.AddStdio("everything", everything.stdio(t, world(t))).ID, "ALLOW")
	g.Approve(g.AddStdio("context7", context7.stdio(t, world(t))).ID, "ALLOW")
	g.Approve(g.AddHTTP("reference", testkit.ReferenceServer(t, true), nil).ID, "ALLOW")
	for _, c := range []struct {
		era, path string
		list      string // a tool in the list
		call, arg string // a call, "" for none
		want      string
	}{
		{"legacy", "/mcp/everything", "echo", "echo", "message=hi", "Echo: hi"},
		{"legacy", "/mcp", "everything__echo", "everything__echo", "message=hi", "Echo: hi"},
		{"auto", "/mcp/everything", "get-sum", "echo", "message=hi", "Echo: hi"},
		{"auto", "/mcp", "context7__resolve-library-id", "everything__echo", "message=hi", "Echo: hi"},
		{"auto", "/mcp/reference", "test_simple_text", "test_simple_text", "", "simple text"},
		{"modern", "/mcp/reference", "test_simple_text", "test_simple_text", "", "simple text"},
		{"modern", "/mcp", "everything__echo", "reference__test_simple_text", "", "simple text"},
		{"modern", "/mcp/context7", "resolve-library-id", "", "", ""},
	} {
		t.Run(c.era+strings.ReplaceAll(c.path, "/", "_"), func(t *testing.T) {
			out, err := inspector(t, g.URL+c.path, c.era, "--method", "tools/list")
			if err != nil || !strings.Contains(out, `"`+c.list+`"`) {
				t.Fatalf("tools/list: %v\n%.2000s", err, out)
			}
			if c.call == "" {
				return
			}
			args := []string{"--method", "tools/call", "--tool-name", c.call}
			if c.arg != "" {
				args = append(args, "--tool-arg", c.arg)
			}
			out, err = inspector(t, g.URL+c.path, c.era, args...)
			if err != nil || !strings.Contains(out, c.want) {
				t.Fatalf("tools/call: %v\n%.2000s", err, out)
			}
		})
	}
	t.Run("wrong key", func(t *testing.T) {
		c := testkit.NewClient(t, g.URL+"/mcp", "wrong", testkit.Legacy)
		if r := c.Request("initialize", `{}`); r.Status != http.StatusUnauthorized {
			t.Errorf("%v", r)
		}
	})
}
