package app_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The request of docs/simulate.md, sent as it stands there but for the ids.
func TestSimulateDocs(t *testing.T) {
	s := start(t, "", nil)
	keys := s.keys()
	id := s.notes()
	for _, call := range []string{`{"name":"notes/read_note","arguments":{"title":"plan"}}`, `{"name":"notes/read_note","arguments":{"title":"other"}}`} {
		if status, text := s.do("POST", "/tools/call", agentKey, call); status != 200 {
			t.Fatal(status, text)
		}
	}
	page, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(page), "```json\nPOST /api/v1/mcp/policies/simulate\n")
	if !ok {
		t.Fatal("simulate.md has lost its example")
	}
	example, _, _ = strings.Cut(example, "```")
	example = strings.NewReplacer("READ_NOTE", s.tool(id, "read_note"), "WRITE_NOTE", s.tool(id, "write_note")).Replace(example)
	status, text := s.do("POST", "/api/v1/mcp/policies/simulate", keys["editor"], example)
	var out struct {
		Totals  map[string]int
		Changes []struct {
			TraceID  string `json:"trace_id"`
			Change   string
			Proposed struct{ Decision, Rule string }
		}
	}
	if status != 200 || json.Unmarshal([]byte(text), &out) != nil {
		t.Fatal(status, text)
	}
	if out.Totals["calls"] != 2 || out.Totals["changed"] != 1 || len(out.Changes) != 1 || out.Changes[0].Change != "stricter" || out.Changes[0].Proposed.Rule != "add[0]" {
		t.Errorf("%s", text)
	}
	for _, member := range []string{`"totals"`, `"changes"`, `"pairs"`, `"unjudged"`, `"truncated"`, `"basis"`, `"recorded_differs"`} {
		if !strings.Contains(text, member) || !strings.Contains(string(page), strings.Trim(member, `"`)) {
			t.Errorf("%s is missing in the answer or on the page", member)
		}
	}
	rules := s.admin("GET", "mcp/policies", nil)["policies"].([]any)
	if len(rules) != 4 {
		t.Errorf("asking made rules: %v", rules)
	}

	tool := s.tool(id, "read_note")
	deny := `"add":[{"action":"DENY","mcp_tool_id":"` + tool + `"`
	path := "mcp/policies/simulate"
	invalid := []string{"policy.simulate invalid"}
	s.play(t, keys, []scenario{
		{name: "no key", as: "guest", method: "POST", path: path, body: `{}`, status: 401},
		{name: "agent", as: "agent", method: "POST", path: path, body: `{}`, status: 403, record: []string{"policy.simulate denied"}},
		{name: "viewer", as: "viewer", method: "POST", path: path, body: `{}`, status: 403, record: []string{"policy.simulate denied"}},
		{name: "editor may ask what only an admin may save", as: "editor", method: "POST", path: path, body: `{"add":[{"action":"ALLOW","mcp_tool_id":"` + tool + `"}]}`,
			status: 200, contains: []string{`"calls":2`, `"changed":0`, `"changes":[]`, `"pairs":[]`}},
		{name: "nothing proposed", as: "editor", method: "POST", path: path, body: `{"days":7}`, status: 400, contains: []string{"mcp_proposal_empty"}, record: invalid},
		{name: "unknown field", as: "editor", method: "POST", path: path, body: `{"ad":[]}`, status: 400, contains: []string{"unknown field"}, record: invalid},
		{name: "unknown field of a rule", as: "editor", method: "POST", path: path, body: `{` + deny + `,"if":"x"}]}`, status: 400, contains: []string{"unknown field"}, record: invalid},
		{name: "condition", as: "editor", method: "POST", path: path, body: `{` + deny + `,"condition":"args.n"}]}`, status: 400,
			contains: []string{"mcp_condition_invalid", `"line":1`, `"column":1`, `"item":"add[0]"`}, record: invalid},
		{name: "days and from", as: "editor", method: "POST", path: path, body: `{` + deny + `}],"days":1,"from":"2026-01-01T00:00:00Z"}`, status: 400, record: invalid},
		{name: "days", as: "editor", method: "POST", path: path, body: `{` + deny + `}],"days":-1}`, status: 400, contains: []string{"days"}, record: invalid},
		{name: "limit", as: "editor", method: "POST", path: path, body: `{` + deny + `}],"limit":1001}`, status: 400, contains: []string{"limit"}, record: invalid},
		{name: "a span that ends before it begins", as: "editor", method: "POST", path: path, body: `{` + deny + `}],"from":"2026-01-02T00:00:00Z","to":"2026-01-01T00:00:00Z"}`,
			status: 400, contains: []string{"before"}, record: invalid},
		{name: "a span without calls", as: "editor", method: "POST", path: path, body: `{` + deny + `}],"to":"2020-01-02T00:00:00Z"}`, status: 200, contains: []string{`"calls":0`}},
		{name: "who asked", as: "viewer", method: "GET", path: "audit?kind=admin&method=policy.simulate&status=ok", status: 200, contains: []string{`"policy.simulate"`}, without: []string{"started"}},
	})
}
