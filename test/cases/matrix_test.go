package cases

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"doorward.dev/doorward/internal/testkit"
)

// hiddenMark is in every name that the caller of the matrix must never learn.
const hiddenMark = "zzhidden"

// offering serves tools, one prompt and one resource, all named after the server.
func offering(t *testing.T, name string, tools ...string) string {
	s := sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, nil)
	for _, tool := range tools {
		sdk.AddTool(s, &sdk.Tool{Name: tool, Description: "Does " + tool + ".", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
			func(context.Context, *sdk.CallToolRequest, any) (*sdk.CallToolResult, any, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "ran " + tool}}}, nil, nil
			})
	}
	s.AddPrompt(&sdk.Prompt{Name: name + "_prompt"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "prompt of " + name}}}}, nil
	})
	s.AddResource(&sdk.Resource{Name: name + "_resource", URI: name + "://one"}, func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Text: "text of " + name}}}, nil
	})
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h.URL
}

// matrix is the gateway with one caller of few rights.
type matrix struct {
	t   *testing.T
	g   *testkit.Gateway
	id  string // of the server notes
	key string
	all []byte // every byte the caller was ever told
}

func newMatrix(t *testing.T) *matrix {
	m := &matrix{t: t, g: testkit.Start(t, testkit.Options{})}
	tools := map[string]string{"read": "ALLOW", "denied": "DENY", "held": "REQUIRE_APPROVAL", hiddenMark + "_ungranted": "ALLOW"}
	m.id = m.g.AddHTTP("notes", offering(t, "notes", "read", "denied", "held", "fresh", hiddenMark+"_ungranted"), nil).ID
	choices := []map[string]string{}
	m.g.Scan(m.id)
	for tool, action := range tools { // fresh is not admitted
		choices = append(choices, map[string]string{"tool_id": m.g.Tool(m.id, tool).ID, "action": action})
	}
	m.g.Admin("POST", "/api/v1/mcp/servers/"+m.id+"/approve", map[string]any{"tools": choices}, nil)
	other := m.g.AddHTTP(hiddenMark, offering(t, hiddenMark, hiddenMark+"_send"), nil)
	m.g.Approve(other.ID, "ALLOW")
	_, m.key = m.g.Agent("few", "notes/read", "notes/denied", "notes/held", "notes/fresh")
	return m
}

// told notes an answer, without the words that the caller had sent itself.
func (m *matrix) told(sent string, b []byte) {
	m.all = append(append(m.all, bytes.ReplaceAll(b, []byte(sent), nil)...), '\n')
}

// said is an answer in one word: ok, or code and reason of the refusal.
func said(code int, reason string) string {
	if code == 0 {
		return "ok"
	}
	return strings.TrimSpace(fmt.Sprint(code, " ", reason))
}

// matrixDoor is one way to call and list.
type matrixDoor struct {
	name   string
	prefix string // of the names of tools
	rpc    func(method, params string) testkit.Reply
}

func (m *matrix) wire(name, path, version, prefix string) matrixDoor {
	c := testkit.NewClient(m.t, m.g.URL+path, m.key, version)
	c.Connect()
	return matrixDoor{name + " " + version, prefix, c.Request}
}

// stdio is a client of "doorward stdio".
func (m *matrix) stdio(version, prefix string, args ...string) matrixDoor {
	m.t.Helper()
	cmd := m.command(append([]string{"stdio"}, args...)...)
	in, err := cmd.StdinPipe()
	m.good(err)
	out, err := cmd.StdoutPipe()
	m.good(err)
	m.good(cmd.Start())
	m.t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			m.t.Errorf("stdio ended: %v", err)
		}
	})
	lines, n := bufio.NewReaderSize(out, 1<<20), 0
	rpc := func(method, params string) testkit.Reply {
		m.t.Helper()
		if params == "" {
			params = "{}"
		}
		if version == testkit.Modern {
			params = strings.TrimSuffix(params, "}")
			if params != "{" {
				params += ","
			}
			params += `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}`
		}
		n++
		_, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", n, method, params)
		m.good(err)
		for {
			line, err := lines.ReadBytes('\n')
			m.good(err)
			r := testkit.Reply{Raw: line}
			var msg struct {
				ID     *int
				Result json.RawMessage
				Error  *testkit.RPCError
			}
			m.good(json.Unmarshal(line, &msg))
			if msg.ID == nil {
				continue
			}
			r.Result, r.Error = msg.Result, msg.Error
			return r
		}
	}
	if version != testkit.Modern {
		rpc("initialize", `{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
		_, err := io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
		m.good(err)
	}
	return matrixDoor{"stdio " + strings.Join(args, " ") + " " + version, prefix, rpc}
}

func (m *matrix) good(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// command runs the binary with the caller's key.
func (m *matrix) command(args ...string) *exec.Cmd {
	cmd := exec.Command(testkit.Binary(m.t), args...) // the client ends it by closing its input
	cmd.Env = append(os.Environ(), "DOORWARD_URL="+m.g.URL, "DOORWARD_KEY="+m.key)
	return cmd
}

// plain calls POST /tools/call.
func (m *matrix) plain(name string) string {
	_, body := m.g.REST(m.key, "POST", "/tools/call", map[string]any{"name": name, "arguments": map[string]any{}})
	m.told(name, body)
	var a struct {
		Code   int
		Reason string
	}
	m.good(json.Unmarshal(body, &a))
	return said(a.Code, a.Reason)
}

func members(raw json.RawMessage, list, member string) []string {
	var all map[string]json.RawMessage
	var items []map[string]any
	if json.Unmarshal(raw, &all) != nil || json.Unmarshal(all[list], &items) != nil {
		return nil
	}
	out := []string{}
	for _, it := range items {
		out = append(out, fmt.Sprint(it[member]))
	}
	slices.Sort(out)
	return out
}

// TestDoorMatrix: one caller of few rights is told the same at every door, and never a name of what it may not use.
func TestDoorMatrix(t *testing.T) {
	m := newMatrix(t)
	const other = hiddenMark + "/" + hiddenMark + "_send"
	want := []struct{ tool, call, explain string }{
		{"notes/read", "ok", "ALLOW rules RULE_ALLOW"},
		{"notes/denied", "-32003 RULE_DENY", "DENY rules RULE_DENY"},
		{"notes/held", "-32004 APPROVAL_REQUIRED", "REQUIRE_APPROVAL rules APPROVAL_REQUIRED"},
		{"notes/fresh", "-32002 TOOL_NOT_ADMITTED", "DENY admission TOOL_NOT_ADMITTED"},
		{"notes/" + hiddenMark + "_ungranted", "-32602 UNKNOWN_TOOL", "DENY grant NOT_GRANTED"},
		{other, "-32602 UNKNOWN_TOOL", "DENY grant NOT_GRANTED"},
		{"notes/absent", "-32602 UNKNOWN_TOOL", ""},
	}
	doors := []matrixDoor{m.stdio(testkit.Legacy, "notes__"), m.stdio(testkit.Modern, "notes__"), m.stdio(testkit.Legacy, "", "--server", "notes")}
	for _, version := range []string{testkit.Legacy, testkit.Modern} {
		doors = append(doors, m.wire("/mcp", "/mcp", version, "notes__"), m.wire("/mcp/notes", "/mcp/notes", version, ""),
			m.wire("proxy", "/api/v1/mcp/proxy/"+m.id, version, ""))
	}
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			ask := func(method, params, sent string) testkit.Reply {
				r := d.rpc(method, params)
				m.told(sent, r.Raw)
				return r
			}
			for _, c := range want {
				server, own, _ := strings.Cut(c.tool, "/")
				for _, name := range []string{own, c.tool, server + "__" + own, "mcp__" + server + "__" + own} {
					r := ask("tools/call", testkit.CallParams(name, `{}`), name)
					got := "ok"
					if r.Error != nil {
						got = said(r.Error.Code, r.Error.Data.Reason)
					}
					if got != c.call {
						t.Errorf("%s: %s, want %s: %s", name, got, c.call, r.Raw)
					}
				}
			}
			if got := members(ask("tools/list", "", "").Result, "tools", "name"); !slices.Equal(got, []string{d.prefix + "held", d.prefix + "read"}) {
				t.Errorf("tools: %v", got)
			}
			for method, c := range map[string]struct{ list, member, want string }{
				"prompts/list": {"prompts", "name", "notes_prompt"}, "resources/list": {"resources", "uri", "notes://one"},
			} {
				if got := members(ask(method, "", "").Result, c.list, c.member); len(got) != 1 || !strings.HasSuffix(got[0], c.want) {
					t.Errorf("%s: %v", method, got)
				}
			}
			if r := ask("resources/read", `{"uri":"notes://one"}`, ""); !strings.Contains(string(r.Result), "text of notes") {
				t.Errorf("resource: %s", r.Raw)
			}
			if r := ask("resources/read", `{"uri":"`+hiddenMark+`://one"}`, hiddenMark+"://one"); r.Error == nil {
				t.Errorf("a hidden resource: %s", r.Raw)
			}
			for _, prompt := range []string{hiddenMark + "_prompt", hiddenMark + "__" + hiddenMark + "_prompt"} {
				if r := ask("prompts/get", `{"name":"`+prompt+`"}`, prompt); r.Error == nil {
					t.Errorf("a hidden prompt: %s", r.Raw)
				}
			}
		})
	}
	m.plainDoor()
	for _, c := range want {
		if got := m.plain(c.tool); got != c.call {
			t.Errorf("POST /tools/call %s: %s, want %s", c.tool, got, c.call)
		}
		m.explained(c.tool, c.explain)
	}
	m.administrative()
	if i := bytes.Index(m.all, []byte(hiddenMark)); i >= 0 {
		t.Errorf("a hidden name was told: %s", m.all[max(0, i-300):min(len(m.all), i+100)])
	}
}

// plainDoor lists with GET /tools.
func (m *matrix) plainDoor() {
	m.t.Helper()
	_, body := m.g.REST(m.key, "GET", "/tools", nil)
	m.told("", body)
	if got := members(body, "tools", "name"); !slices.Equal(got, []string{"held", "read"}) {
		m.t.Errorf("GET /tools: %v", got)
	}
}

// explained asks an admin's REST and CLI about the caller: both say what the caller got, and why.
func (m *matrix) explained(tool, want string) {
	m.t.Helper()
	out, code := m.g.CLI("explain", "--json", "--agent", "few", "--tool", tool)
	status, body := m.g.REST(testkit.AdminKey, "POST", "/api/v1/explain", map[string]string{"agent": "few", "tool": tool})
	if want == "" {
		if code == 0 || status != 404 {
			m.t.Errorf("explain %s: %d %d %s", tool, code, status, out)
		}
		return
	}
	var e struct{ Decision, Stage, Reason string }
	m.good(json.Unmarshal(body, &e))
	if got := e.Decision + " " + e.Stage + " " + e.Reason; status != 200 || got != want {
		m.t.Errorf("explain %s: %d %s, want %s", tool, status, got, want)
	}
	if code != 0 || strings.TrimSpace(out) != strings.TrimSpace(string(body)) {
		m.t.Errorf("explain %s: the CLI says (%d) %s, REST %s", tool, code, out, body)
	}
}

// administrative: the caller opens neither REST nor the commands that use it.
func (m *matrix) administrative() {
	m.t.Helper()
	for _, path := range []string{"mcp/servers", "mcp/servers/notes", "agents", "mcp/policies", "audit", "traces", "explain?tool=notes/read", "people", "mcp/approvals", "nowhere"} {
		status, body := m.g.REST(m.key, "GET", "/api/v1/"+path, nil)
		m.told("", body)
		if status != 403 && path != "nowhere" {
			m.t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, args := range [][]string{{"server", "list"}, {"policy", "list"}, {"agent", "list"}, {"audit", "list"}, {"explain", "--tool", "notes/read"}} {
		out, err := m.command(args...).CombinedOutput()
		m.told("", out)
		if err == nil {
			m.t.Errorf("%v: %s", args, out)
		}
	}
}
