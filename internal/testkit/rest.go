package testkit

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite" // for SQL
)

// REST sends a request to /api/v1… with a key ("" for none) and returns status and body. body is
// marshalled unless it is nil or already bytes.
func (g *Gateway) REST(key, method, path string, body any) (status int, answer json.RawMessage) {
	g.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	default:
		raw, err := json.Marshal(body)
		if err != nil {
			g.t.Fatal(err)
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.URL+path, r)
	if err != nil {
		g.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, answer
}

// Admin sends a request as the owner, expects a 2xx and decodes the answer into out (nil: not).
func (g *Gateway) Admin(method, path string, body, out any) {
	g.t.Helper()
	status, answer := g.REST(AdminKey, method, path, body)
	if status/100 != 2 {
		g.t.Fatalf("%s %s: status %d: %s", method, path, status, answer)
	}
	if out != nil {
		Decode(g.t, answer, out)
	}
}

// Decode decodes JSON or fails the test.
func Decode(t testing.TB, raw []byte, out any) {
	t.Helper()
	if err := json.Unmarshal(raw, out); err != nil {
		t.Fatalf("%v in %.500s", err, raw)
	}
}

// Server is what the tests need of a server.
type Server struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Status string `json:"status"`
	ScanID string `json:"scan_id"`
}

// Tool is what the tests need of a tool (fields of the REST interface).
type Tool struct {
	ID                  string          `json:"id"`
	Name                string          `json:"name"`
	Description         string          `json:"description"`
	Definition          json.RawMessage `json:"definition"`
	Action              string          `json:"action"`
	Present             bool            `json:"present"`
	Admission           string          `json:"admission"`
	PolicyAction        *string         `json:"policy_action"`
	Fingerprint         string          `json:"fingerprint"`
	AdmittedFingerprint string          `json:"admitted_fingerprint"`
	Suggestion          *struct {
		Action string `json:"action"`
		Source string `json:"source"`
	} `json:"suggestion"`
}

// Stdio is the registration of a server that is started as a child.
type Stdio struct {
	Command string
	Args    []string
	Env     map[string]string
	Cwd     string
}

// AddStdio registers a server; it is not yet approved.
func (g *Gateway) AddStdio(name string, s Stdio) Server {
	g.t.Helper()
	var out Server
	g.Admin("POST", "/api/v1/mcp/servers", map[string]any{"name": name, "transport": "stdio", "command": s.Command, "args": s.Args, "env": s.Env, "cwd": s.Cwd}, &out)
	return out
}

// AddHTTP registers a server; it is not yet approved.
func (g *Gateway) AddHTTP(name, url string, headers map[string]string) Server {
	g.t.Helper()
	var out Server
	g.Admin("POST", "/api/v1/mcp/servers", map[string]any{"name": name, "transport": "http", "server_url": url, "headers": headers}, &out)
	return out
}

// Scan is the answer of a scan.
type Scan struct {
	ID      string `json:"scan_id"`
	Status  string `json:"status"`
	Found   int    `json:"tools_found"`
	New     int    `json:"new"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
	Error   string `json:"error"`
}

// Scan scans a server and returns what the answer says, also of a scan that failed.
func (g *Gateway) Scan(id string) Scan {
	g.t.Helper()
	var out Scan
	g.Admin("POST", "/api/v1/mcp/servers/"+id+"/scan", nil, &out)
	return out
}

// Tools lists the tools of a server.
func (g *Gateway) Tools(id string) []Tool {
	g.t.Helper()
	var out struct{ Tools []Tool }
	g.Admin("GET", "/api/v1/mcp/servers/"+id+"/tools", nil, &out)
	return out.Tools
}

// Tool finds a tool of a server by its own name.
func (g *Gateway) Tool(id, name string) Tool {
	g.t.Helper()
	for _, t := range g.Tools(id) {
		if t.Name == name {
			return t
		}
	}
	g.t.Fatalf("server %s has no tool %s", id, name)
	return Tool{}
}

// Approve scans a server (until a scan succeeds) and approves it with all its tools under rule; "" takes each tool's
// suggestion.
func (g *Gateway) Approve(id, rule string) {
	g.t.Helper()
	g.ApproveWith(id, func(t Tool) string {
		if rule != "" || t.Suggestion == nil {
			return rule
		}
		return t.Suggestion.Action
	})
}

// ApproveWith is Approve with a rule of its own for each tool; "" leaves the tool not admitted.
func (g *Gateway) ApproveWith(id string, rule func(Tool) string) {
	g.t.Helper()
	var scan Scan
	Eventually(g.t, 40*time.Second, "a scan succeeds", func() bool {
		scan = g.Scan(id)
		return scan.Status == "ok"
	})
	choices := []map[string]string{}
	for _, t := range g.Tools(id) {
		if word := rule(t); word != "" {
			choices = append(choices, map[string]string{"tool_id": t.ID, "action": word})
		}
	}
	g.Admin("POST", "/api/v1/mcp/servers/"+id+"/approve", map[string]any{"tools": choices}, nil)
}

// Admit admits the current state of a tool with a rule.
func (g *Gateway) Admit(serverID, tool, rule string) {
	g.t.Helper()
	t := g.Tool(serverID, tool)
	g.Admin("POST", "/api/v1/mcp/servers/"+serverID+"/tools/"+t.ID+"/admit", map[string]string{"action": rule, "fingerprint": t.Fingerprint}, nil)
}

// Verdict sets the server-wide rule of a tool, loosening confirmed.
func (g *Gateway) Verdict(serverID, tool, rule string) {
	g.t.Helper()
	t := g.Tool(serverID, tool)
	g.Admin("POST", "/api/v1/mcp/servers/"+serverID+"/tools/"+t.ID+"/verdict", map[string]any{"action": rule, "confirm_loosening": true}, nil)
}

// Decide approves or denies a held call as the owner.
func (g *Gateway) Decide(approvalID, verb string) {
	g.t.Helper()
	g.Admin("POST", "/api/v1/mcp/approvals/"+approvalID+"/"+verb, map[string]string{"reason": "test"}, nil)
}

// EmergencyStop is the targeted emergency stop.
func (g *Gateway) EmergencyStop(scope, id string) {
	g.t.Helper()
	g.Admin("POST", "/api/v1/mcp/emergency-stop", map[string]string{"scope": scope, "target_id": id, "reason": "test"}, nil)
}

// SQL changes the database of a gateway that is stopped, to store what the interface refuses.
func (g *Gateway) SQL(statement string, args ...any) {
	g.t.Helper()
	d := g.DB()
	defer d.Close()
	r, err := d.ExecContext(g.t.Context(), statement, args...)
	if err != nil {
		g.t.Fatalf("%s: %v", statement, err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		g.t.Fatalf("%s changed nothing (%v)", statement, err)
	}
}

// DB opens the SQLite file of a gateway; close it.
func (g *Gateway) DB() *sql.DB {
	g.t.Helper()
	d, err := sql.Open("sqlite", filepath.Join(g.Data, "doorward.db"))
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

// Event is a row of the record.
type Event struct {
	Seq        int64  `json:"seq"`
	Kind       string `json:"kind"`
	TraceID    string `json:"trace_id"`
	AgentID    string `json:"agent_id"`
	Door       string `json:"door"`
	Method     string `json:"method"`
	Server     string `json:"server_name"`
	Tool       string `json:"tool_name"`
	Decision   string `json:"decision"`
	Stage      string `json:"stage"`
	Reason     string `json:"reason"`
	ApprovalID string `json:"approval_id"`
	Status     string `json:"status"`
	ErrorClass string `json:"error_class"`
	ArgsBody   string `json:"args_body"`
	ResultBody string `json:"result_body"`
}

// Events lists the newest rows of the record, newest first; query is "&status=ok" or the like.
func (g *Gateway) Events(query string) []Event {
	g.t.Helper()
	var out struct{ Events []Event }
	g.Admin("GET", "/api/v1/audit?limit=200"+query, nil, &out)
	return out.Events
}

// LastEvent is the newest outcome of a tool.
func (g *Gateway) LastEvent(tool string) Event {
	g.t.Helper()
	for _, e := range g.Events("&kind=call") {
		if e.Tool == tool {
			return e
		}
	}
	g.t.Fatalf("no event of tool %s", tool)
	return Event{}
}

// Agent makes an agent with an allowlist and a key of its own.
func (g *Gateway) Agent(name string, allowlist ...string) (id, key string) {
	g.t.Helper()
	var agent struct {
		ID    string `json:"id"`
		State string `json:"status"`
		Key   string `json:"key"`
	}
	g.Admin("POST", "/api/v1/agents", map[string]any{"name": name, "allowlist": allowlist}, &agent)
	if agent.State != "ACTIVE" {
		g.Admin("PATCH", "/api/v1/agents/"+agent.ID, map[string]string{"status": "ACTIVE"}, nil)
	}
	if agent.Key == "" {
		var k struct {
			Key string `json:"key"`
		}
		g.Admin("POST", "/api/v1/keys", map[string]any{"agent_id": agent.ID, "name": name}, &k)
		agent.Key = k.Key
	}
	return agent.ID, agent.Key
}
