package app_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// keys of every kind of caller.
func (s *site) keys() map[string]string {
	s.t.Helper()
	keys := map[string]string{"guest": "", "agent": agentKey, "owner": adminKey, "wrong": "dw_not_a_key_0123456789"}
	for _, role := range []string{"viewer", "editor", "admin"} {
		p := s.admin("POST", "people", map[string]string{"name": role, "role": role})
		keys[role] = s.admin("POST", "keys", map[string]any{"person_id": p["id"], "name": "test"})["key"].(string)
	}
	return keys
}

// scenario is one request and what must and must not come of it.
type scenario struct {
	name         string
	as           string
	method, path string
	body         any
	status       int
	contains     []string
	without      []string
	record       []string // of the record's rows of this request: "method status"
}

func (s *site) play(t *testing.T, keys map[string]string, list []scenario) {
	t.Helper()
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			status, text := s.do(c.method, "/api/v1/"+c.path, keys[c.as], c.body)
			if status != c.status {
				t.Errorf("status = %d, want %d: %s", status, c.status, text)
			}
			for _, want := range c.contains {
				if !strings.Contains(text, want) {
					t.Errorf("%s does not contain %s", text, want)
				}
			}
			for _, bad := range c.without {
				if strings.Contains(text, bad) {
					t.Errorf("%s contains %s", text, bad)
				}
			}
			if status >= 400 {
				s.checkRecordOf(t, text, c)
			}
		})
	}
}

// checkRecordOf looks up the rows of a refused request by its request id.
func (s *site) checkRecordOf(t *testing.T, text string, c scenario) {
	t.Helper()
	var e struct {
		Error struct {
			Code, Message string
			RequestID     string `json:"request_id"`
		}
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error.Code == "" || e.Error.Message == "" || e.Error.RequestID == "" {
		t.Errorf("not an error of the REST interface: %s", text)
		return
	}
	var rows []string
	for _, r := range s.admin("GET", "audit?trace_id="+e.Error.RequestID, nil)["events"].([]any) {
		r := r.(map[string]any)
		rows = append(rows, r["method"].(string)+" "+r["status"].(string))
	}
	if got, want := strings.Join(rows, ", "), strings.Join(c.record, ", "); got != want {
		t.Errorf("record = %q, want %q", got, want)
	}
}

func TestRoles(t *testing.T) {
	s := start(t, "", nil)
	keys := s.keys()
	id := s.notes()
	tool := s.tool(id, "read_note")
	servers := "mcp/servers"
	deny := map[string]string{"action": "DENY", "mcp_tool_id": tool}
	allow := map[string]string{"action": "ALLOW", "mcp_tool_id": tool}
	forbidden := []string{"INSUFFICIENT_PERMISSIONS"}
	s.play(t, keys, []scenario{
		{name: "no key", as: "guest", method: "GET", path: servers, status: 401, contains: []string{"MISSING_API_KEY"}, without: []string{"notes"}},
		{name: "wrong key", as: "wrong", method: "GET", path: servers, status: 401, contains: []string{"INVALID_API_KEY"}},
		{name: "unknown route without key", as: "guest", method: "GET", path: "nowhere", status: 401},
		{name: "unknown route", as: "viewer", method: "GET", path: "nowhere", status: 404, contains: []string{"not_found"}},
		{name: "agent reads", as: "agent", method: "GET", path: servers, status: 403, contains: forbidden, without: []string{"notes"}, record: []string{"server.list denied"}},
		{name: "agent registers", as: "agent", method: "POST", path: servers, body: `{"name":"x","command":"x"}`, status: 403, contains: forbidden, record: []string{"server.register denied"}},
		{name: "agent decides", as: "agent", method: "POST", path: "mcp/approvals/x/approve", status: 403, contains: forbidden, record: []string{"approval.approve denied"}},
		{name: "viewer reads", as: "viewer", method: "GET", path: servers, status: 200, contains: []string{`"notes"`, `"tool_count":4`, `"health":"up"`, "/api/v1/mcp/proxy/" + id}},
		{name: "viewer by name", as: "viewer", method: "GET", path: servers + "/notes", status: 200, contains: []string{`"id":"` + id}},
		{name: "viewer scans", as: "viewer", method: "POST", path: servers + "/" + id + "/scan", status: 403, contains: forbidden, record: []string{"server.scan denied"}},
		{name: "editor scans", as: "editor", method: "POST", path: servers + "/" + id + "/scan", status: 200, contains: []string{`"status":"ok"`, `"tools_found":4`, `"new":0`}},
		{name: "editor approves", as: "editor", method: "POST", path: servers + "/" + id + "/approve", body: `{}`, status: 403, contains: forbidden, record: []string{"server.approve denied"}},
		{name: "editor stops", as: "editor", method: "POST", path: "mcp/emergency-stop", body: `{"scope":"server","target_id":"x"}`, status: 403, contains: forbidden, record: []string{"emergency_stop denied"}},
		{name: "editor loosens", as: "editor", method: "POST", path: "mcp/policies", body: allow, status: 403, contains: forbidden, record: []string{"policy.create denied", "policy.create started"}},
		{name: "editor tightens", as: "editor", method: "POST", path: "mcp/policies", body: deny, status: 201, contains: []string{`"action":"DENY"`, `"created_by":"editor"`}},
		{name: "editor reads keys", as: "editor", method: "GET", path: "keys", status: 403, contains: forbidden, record: []string{"key.list denied"}},
		{name: "admin loosens", as: "admin", method: "POST", path: "mcp/policies", body: allow, status: 201},
		{name: "admin makes an owner", as: "admin", method: "POST", path: "people", body: `{"name":"boss","role":"owner"}`, status: 403, contains: forbidden, record: []string{"person.create denied", "person.create started"}},
		{name: "keys by prefix only", as: "admin", method: "GET", path: "keys", status: 200, contains: []string{`"prefix"`}, without: []string{adminKey, agentKey, keys["viewer"], `"hash"`}},
	})
}

// An admin does not become the owner by making a key for the owner, nor lock the owner out.
func TestNoWayUp(t *testing.T) {
	s := start(t, "", nil)
	keys := s.keys()
	var owner string
	for _, p := range s.admin("GET", "people", nil)["people"].([]any) {
		if p := p.(map[string]any); p["role"] == "owner" {
			owner = p["id"].(string)
		}
	}
	var key string
	for _, k := range s.admin("GET", "keys", nil)["keys"].([]any) {
		if k := k.(map[string]any); k["person_id"] == owner {
			key = k["id"].(string)
		}
	}
	s.play(t, keys, []scenario{
		{name: "key for the owner", as: "admin", method: "POST", path: "keys", body: map[string]string{"person_id": owner}, status: 403, without: []string{"dw_"}, record: []string{"key.create denied", "key.create started"}},
		{name: "revoke the owner's key", as: "admin", method: "DELETE", path: "keys/" + key, status: 403, record: []string{"key.revoke denied", "key.revoke started"}},
		{name: "the owner still works", as: "owner", method: "GET", path: "keys", status: 200},
	})
}

func TestBodiesAreStrict(t *testing.T) {
	s := start(t, "", nil)
	keys := map[string]string{"owner": adminKey}
	bad := func(name, body, code string, status int) scenario {
		return scenario{name: name, as: "owner", method: "POST", path: "mcp/policies", body: body, status: status, contains: []string{code},
			record: []string{"policy.create invalid", "policy.create started"}}
	}
	s.play(t, keys, []scenario{
		bad("unknown field", `{"action":"DENY","tool":"x"}`, `unknown field \"tool\"`, 400),
		bad("not JSON", `{"action"`, "parse_error", 400),
		bad("array", `[]`, "must be a JSON object", 400),
		bad("wrong type", `{"action":1}`, "action must be a string", 400),
		bad("trailing", `{"action":"DENY"} {}`, "parse_error", 400),
		bad("too large", `{"reason":"`+strings.Repeat("x", 1<<20)+`"}`, "too_large", 413),
		bad("no target", `{"action":"DENY"}`, "mcp_policy_target_required", 400),
		bad("no action", `{"action":"MAYBE","agent_id":"x"}`, "mcp_action_invalid", 400),
		bad("agent rule allows", `{"action":"ALLOW","agent_id":"`+s.agentID()+`"}`, "mcp_agent_rule_ineffective", 400),
	})
	if status, text := s.do("POST", "/api/v1/mcp/emergency-stop", adminKey, `{"scope":"all"}`); status != 400 || !strings.Contains(text, "mcp_scope_all_removed") {
		t.Errorf("scope all: %d %s", status, text)
	}
}

func (s *site) agentID() string {
	s.t.Helper()
	return s.admin("GET", "agents/default", nil)["id"].(string)
}

func TestServerLife(t *testing.T) {
	s := start(t, "", nil)
	keys := map[string]string{"owner": adminKey}
	s.play(t, keys, []scenario{
		{name: "short form", as: "owner", method: "POST", path: "mcp/servers", body: `{"name":"web","server_url":"http://127.0.0.1:1/mcp","connector_type":"custom","is_proxied":true}`, status: 201,
			contains: []string{`"status":"PENDING_APPROVAL"`, `"proxy_endpoint":"http`, `"transport":"http"`}},
		{name: "name taken", as: "owner", method: "POST", path: "mcp/servers", body: `{"name":"web","command":"x"}`, status: 409, record: []string{"server.register invalid", "server.register started"}},
		{name: "name like another", as: "owner", method: "POST", path: "mcp/servers", body: `{"name":"WEB","command":"x"}`, status: 409, contains: []string{"NAME_LOOKS_ALIKE"},
			record: []string{"server.register invalid", "server.register started"}},
		{name: "approve unscanned", as: "owner", method: "POST", path: "mcp/servers/web/approve", body: `{"tools":[]}`, status: 409, contains: []string{"mcp_scan_required"},
			record: []string{"server.approve invalid", "server.approve started"}},
		{name: "scan fails", as: "owner", method: "POST", path: "mcp/servers/web/scan", status: 200, contains: []string{`"status":"failed"`, `"error":"`}},
		{name: "import", as: "owner", method: "POST", path: "mcp/servers/import", body: `{"mcpServers":{"a":{"command":"x"},"web":{"url":"http://h/"}}}`, status: 201, contains: []string{`"a"`, `"skipped":[{"name":"web"`}},
		{name: "renamed like another", as: "owner", method: "PATCH", path: "mcp/servers/a", body: `{"name":"Web"}`, status: 409, contains: []string{"NAME_LOOKS_ALIKE"},
			record: []string{"server.update invalid", "server.update started"}},
		{name: "its own name in another case", as: "owner", method: "PATCH", path: "mcp/servers/a", body: `{"name":"A"}`, status: 200},
		{name: "and back", as: "owner", method: "PATCH", path: "mcp/servers/A", body: `{"name":"a"}`, status: 200},
		{name: "describe", as: "owner", method: "PATCH", path: "mcp/servers/a", body: `{"description":"new words"}`, status: 200, contains: []string{"new words", `"transport":"stdio"`}},
		{name: "remove", as: "owner", method: "DELETE", path: "mcp/servers/a", status: 200},
		{name: "gone", as: "owner", method: "GET", path: "mcp/servers/a", status: 404},
	})
}

// A tool goes through its life on an active server: ruled, loosened with a confirmation, changed, admitted again.
func TestToolLife(t *testing.T) {
	s := start(t, "", nil)
	id := s.notes()
	read := "mcp/servers/" + id + "/tools/" + s.tool(id, "read_note")
	send := "mcp/servers/" + id + "/tools/" + s.tool(id, "send_mail")
	call := `{"name":"send_mail","arguments":{"to":"a","text":"b"}}`
	status, text := s.do("POST", "/tools/call", agentKey, call)
	if status != 202 || !strings.Contains(text, "APPROVAL_REQUIRED") {
		t.Fatalf("call: %d %s", status, text)
	}
	pending := s.admin("GET", "mcp/approvals?status=PENDING", nil)["approvals"].([]any)
	if len(pending) != 1 {
		t.Fatalf("approvals = %v", pending)
	}
	approval := pending[0].(map[string]any)["id"].(string)
	poll := "/api/v1/approvals/status?trace_id=" + pending[0].(map[string]any)["trace_id"].(string)
	if status, text := s.do("GET", poll, agentKey, nil); status != 200 || !strings.Contains(text, `"effective_status":"PENDING"`) {
		t.Errorf("the agent asks about its call: %d %s", status, text)
	}
	if status, text := s.do("GET", poll, agentKey, nil); status != 200 || !strings.Contains(text, `"auto_expired":false`) || !strings.Contains(text, `"anchor_status":"`) {
		t.Errorf("all of the contract: %d %s", status, text)
	}
	for query, want := range map[string]int{"agent_id=default": 1, "agent_id=another": 0, "older_than=1h": 0, "older_than=0s&limit=1": 1, "escalated=true": 0} {
		if list := s.admin("GET", "mcp/approvals?"+query, nil)["approvals"].([]any); len(list) != want {
			t.Errorf("%s: %d approvals, want %d", query, len(list), want)
		}
	}
	for _, query := range []string{"older_than=old", "escalated=perhaps", "cursor=x", "urgency=HIGH", "status=OPEN"} {
		if status, text := s.do("GET", "/api/v1/mcp/approvals?"+query, adminKey, nil); status != 400 {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	other := s.admin("POST", "agents", map[string]any{"name": "other", "status": "ACTIVE", "allowlist": []string{"*"}})["key"].(string)
	if status, text := s.do("GET", poll, other, nil); status != 404 {
		t.Errorf("another agent asks: %d %s", status, text)
	}
	keys := map[string]string{"owner": adminKey}
	invalid := func(method string) []string { return []string{method + " invalid", method + " started"} }
	s.play(t, keys, []scenario{
		{name: "deny ends approvals", as: "owner", method: "POST", path: send + "/verdict", body: `{"action":"DENY","reason":"no mail"}`, status: 200, contains: []string{`"policy_action":"DENY"`}},
		{name: "expired", as: "owner", method: "GET", path: "mcp/approvals/" + approval, status: 200, contains: []string{`"status":"EXPIRED"`}},
		{name: "loosen unconfirmed", as: "owner", method: "POST", path: send + "/verdict", body: `{"action":"ALLOW"}`, status: 409, contains: []string{"mcp_loosening_confirmation_required"}, record: invalid("tool.verdict")},
		{name: "loosen", as: "owner", method: "POST", path: send + "/verdict", body: `{"action":"ALLOW","confirm_loosening":true}`, status: 200},
		{name: "stale fingerprint", as: "owner", method: "POST", path: read + "/admit", body: `{"action":"ALLOW","fingerprint":"v1:none"}`, status: 409, contains: []string{"mcp_tool_changed"}, record: invalid("tool.admit")},
		{name: "explain", as: "owner", method: "POST", path: "explain", body: `{"agent":"default","tool":"notes/read_note","arguments":{"title":"plan"}}`, status: 200, contains: []string{`"decision":"ALLOW"`}},
		{name: "pause", as: "owner", method: "PATCH", path: "mcp/servers/" + id, body: `{"status":"PAUSED"}`, status: 200, contains: []string{`"status":"PAUSED"`}},
	})
	if status, text := s.do("POST", "/tools/call", agentKey, `{"name":"read_note","arguments":{"title":"plan"}}`); status != 403 || !strings.Contains(text, "SERVER_PAUSED") {
		t.Errorf("call of a paused server: %d %s", status, text)
	}
	s.admin("POST", "mcp/servers/"+id+"/resume", nil)
	s.healthy(id)
	if status, text := s.do("POST", "/tools/call", agentKey, call); status != 200 {
		t.Errorf("call after ALLOW: %d %s", status, text)
	}
}

// Agents: a new one waits, works when ACTIVE, is refused when paused; the stop is lifted by release.
func TestAgentLife(t *testing.T) {
	s := start(t, "", nil)
	s.notes()
	made := s.admin("POST", "agents", map[string]any{"name": "helper", "allowlist": []string{"notes/read_note"}, "capability": map[string]string{}})
	key := made["key"].(string)
	if made["status"] != "PENDING_APPROVAL" || !strings.HasPrefix(key, "agent_") {
		t.Fatalf("made = %v", made)
	}
	call := func() (int, string) {
		return s.do("POST", "/tools/call", key, `{"name":"read_note","arguments":{"title":"plan"}}`)
	}
	if status, text := call(); status == 200 {
		t.Errorf("a waiting agent may call: %s", text)
	}
	s.admin("PATCH", "agents/helper", map[string]string{"status": "ACTIVE"})
	if status, text := call(); status != 200 {
		t.Errorf("call: %d %s", status, text)
	}
	if status, text := s.do("POST", "/tools/call", key, `{"name":"write_note","arguments":{"title":"a","text":"b"}}`); status != 404 {
		t.Errorf("a tool that is not granted: %d %s", status, text)
	}
	stop := s.admin("POST", "mcp/emergency-stop", map[string]string{"scope": "agent", "target_id": "helper"})
	if stop["changed"] != true {
		t.Errorf("stop = %v", stop)
	}
	if status, text := call(); status != 403 || !strings.Contains(text, "AGENT_EMERGENCY_STOP") {
		t.Errorf("stopped: %d %s", status, text)
	}
	s.admin("POST", "agents/helper/release", nil)
	if status, text := call(); status != 200 {
		t.Errorf("released: %d %s", status, text)
	}
	if v := s.admin("POST", "audit/verify", nil); v["whole"] != true {
		t.Errorf("verify = %v", v)
	}
}
