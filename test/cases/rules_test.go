package cases

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

// Case 4: what each rule, no rule and an unknown word do to the tool and to its neighbour.
func TestCase04Rules(t *testing.T) {
	g, f, id, c := one(t, "ALLOW", testkit.ToolDef("tool", "One."), testkit.ToolDef("other", "Two."))
	remove := func(t *testing.T, tool string) {
		t.Helper()
		var out struct {
			Policies []struct {
				ID     string `json:"id"`
				ToolID string `json:"mcp_tool_id"`
			}
		}
		g.Admin("GET", "/api/v1/mcp/policies", nil, &out)
		for _, p := range out.Policies {
			if p.ToolID == g.Tool(id, tool).ID {
				g.Admin("DELETE", "/api/v1/mcp/policies/"+p.ID, nil, nil)
			}
		}
	}
	remove(t, "tool")
	remove(t, "other")
	for _, row := range []struct {
		rule   string // "" is none
		code   int    // 0: the call runs
		reason string
	}{
		{"", held, ""},
		{"DENY", denied, "RULE_DENY"},
		{"REQUIRE_APPROVAL", held, ""},
		{"LOG_ONLY", 0, ""},
		{"ALLOW", 0, ""},
	} {
		t.Run("rule "+row.rule, func(t *testing.T) {
			if row.rule == "" {
				remove(t, "tool")
			} else {
				g.Verdict(id, "tool", row.rule)
			}
			before := f.Calls()
			r := c.Call("tool", `{}`)
			if row.code == 0 {
				ok(t, r, "tool")
			} else {
				refused(t, r, row.code, row.reason)
				if f.Calls() != before {
					t.Error("the call reached the server")
				}
			}
			refused(t, c.Call("other", `{}`), held, "") // a rule of one tool says nothing about another
		})
	}
	t.Run("words that are no rule are refused when saved", func(t *testing.T) {
		for _, word := range []string{"", "MAYBE", "allow", " ALLOW", "DENY "} {
			status, body := g.REST(testkit.AdminKey, "POST", "/api/v1/mcp/policies", map[string]string{"action": word, "mcp_tool_id": g.Tool(id, "tool").ID})
			if status != 400 || !strings.Contains(string(body), "mcp_action_invalid") {
				t.Errorf("%q: status %d: %s", word, status, body)
			}
		}
	})
	for _, word := range []string{"MAYBE", "", "allow"} {
		t.Run("stored word "+word+" blocks", func(t *testing.T) {
			g.Verdict(id, "tool", "ALLOW")
			g.Stop()
			g.SQL(`UPDATE policy SET action = $1 WHERE mcp_tool_id IS NOT NULL`, word)
			g.Restart()
			c := g.Client("/mcp/fake", testkit.Legacy)
			refused(t, c.Call("tool", `{}`), denied, "RULE_UNKNOWN_ACTION")
			if names := c.Names(); slices.Contains(names, "tool") {
				t.Errorf("a blocked tool is listed: %v", names)
			}
		})
	}
}

// Case 4 and PV-14, PV-15: the strictest rule wins, and an agent's rule only tightens.
func TestCase04StrictestWins(t *testing.T) {
	g, _, id, c := one(t, "ALLOW", testkit.ToolDef("tool", "One."))
	agent, key := g.Agent("second", "*")
	second := testkit.NewClient(t, g.URL+"/mcp/fake", key, testkit.Legacy)
	second.Connect()
	ok(t, second.Call("tool", `{}`), "tool")
	add := func(action, tool, agent string) {
		t.Helper()
		body := map[string]string{"action": action, "reason": "test"}
		if tool != "" {
			body["mcp_tool_id"] = tool
		}
		if agent != "" {
			body["agent_id"] = agent
		}
		g.Admin("POST", "/api/v1/mcp/policies", body, nil)
	}
	tool := g.Tool(id, "tool").ID
	add("REQUIRE_APPROVAL", "", agent)
	refused(t, second.Call("tool", `{}`), held, "")
	ok(t, c.Call("tool", `{}`), "tool") // the rule is of the other agent
	add("DENY", tool, agent)
	refused(t, second.Call("tool", `{}`), denied, "RULE_DENY")
	add("DENY", tool, "")
	add("ALLOW", tool, "")
	refused(t, c.Call("tool", `{}`), denied, "RULE_DENY")
}

// Case 5: a rule that cannot match is refused when saved, with the reason.
func TestCase05RulesThatCannotMatch(t *testing.T) {
	g, _, id, c := one(t, "ALLOW", testkit.ToolDef("tool", "One."))
	tool := g.Tool(id, "tool").ID
	agent, _ := g.Agent("second", "*")
	for name, row := range map[string]struct {
		body   any
		status int
		reason string
	}{
		"no target":           {map[string]string{"action": "DENY"}, 400, "mcp_policy_target_required"},
		"agent ALLOW":         {map[string]string{"action": "ALLOW", "agent_id": agent}, 400, "mcp_agent_rule_ineffective"},
		"agent LOG_ONLY":      {map[string]string{"action": "LOG_ONLY", "agent_id": agent, "mcp_tool_id": tool}, 400, "mcp_agent_rule_ineffective"},
		"tool that is none":   {map[string]string{"action": "DENY", "mcp_tool_id": "nothing"}, 404, ""},
		"agent that is none":  {map[string]string{"action": "DENY", "agent_id": "nothing"}, 404, ""},
		"misspelt member":     {json.RawMessage(`{"action":"DENY","mcp_tool":"` + tool + `"}`), 400, ""},
		"misspelt second one": {json.RawMessage(`{"action":"DENY","mcp_tool_id":"` + tool + `","agentid":"` + agent + `"}`), 400, ""},
	} {
		status, answer := g.REST(testkit.AdminKey, "POST", "/api/v1/mcp/policies", row.body)
		if status != row.status || !strings.Contains(string(answer), row.reason) {
			t.Errorf("%s: status %d: %s", name, status, answer)
		}
	}
	for _, pattern := range []string{"", "/", "fake/", "/tool", "fa*e/tool", "fake/to*", "**"} {
		status, answer := g.REST(testkit.AdminKey, "POST", "/api/v1/agents", map[string]any{"name": "a" + pattern, "allowlist": []string{pattern}})
		if status != 400 && status != 422 {
			t.Errorf("allowlist entry %q: status %d: %s", pattern, status, answer)
		}
	}
	t.Run("a broken capability model denies", func(t *testing.T) {
		ok(t, c.Call("tool", `{}`), "tool")
		for _, broken := range []string{`{"unknown":"NOPE"}`, `{"unknown":`, `[]`} {
			g.Stop()
			g.SQL(`UPDATE agent SET capability = $1 WHERE name = 'default'`, broken)
			g.Restart()
			r := testkit.NewClient(t, g.URL+"/mcp/fake", testkit.AgentKey, testkit.Modern).Call("tool", `{}`)
			if r.Error == nil || r.Error.Code == held {
				t.Errorf("capability %s: %v", broken, r)
			}
		}
	})
}

// Case 6: what is hidden cannot be called by any name through any door, and the answer is that of a tool that does not exist.
func TestCase06Hidden(t *testing.T) {
	g, f, id, _ := one(t, "ALLOW", testkit.ToolDef("shown", "One."), testkit.ToolDef("hidden", "Two."))
	_, key := g.Agent("narrow", "fake/shown")
	client := func(path, version string) *testkit.Client {
		c := testkit.NewClient(t, g.URL+path, key, version)
		c.Connect()
		return c
	}
	for _, version := range []string{testkit.Legacy, testkit.Modern} {
		for path, prefix := range map[string]string{"/mcp/fake": "", "/mcp": "fake__", "/api/v1/mcp/proxy/" + id: ""} {
			c := client(path, version)
			if names := c.Names(); !slices.Equal(names, []string{prefix + "shown"}) {
				t.Errorf("%s lists %v", path, names)
			}
			ok(t, c.Call(prefix+"shown", `{}`), "shown")
			for _, form := range []string{"NAME", "fake/NAME", "fake__NAME", "mcp__fake__NAME"} {
				hidden, absent := c.Call(strings.Replace(form, "NAME", "hidden", 1), `{}`), c.Call(strings.Replace(form, "NAME", "absent", 1), `{}`)
				refused(t, hidden, unknownTool, "")
				alike(t, path+" "+form, hidden, absent)
			}
		}
	}
	plain := func(name string) testkit.Reply {
		c := testkit.NewClient(t, g.URL+"/tools/call", key, testkit.Legacy)
		return c.Post(t.Context(), []byte(testkit.CallParams(name, `{}`)), "", "")
	}
	for _, form := range []string{"NAME", "fake/NAME", "fake__NAME", "mcp__fake__NAME"} {
		hidden, absent := plain(strings.Replace(form, "NAME", "hidden", 1)), plain(strings.Replace(form, "NAME", "absent", 1))
		if hidden.Status != 404 {
			t.Errorf("/tools/call %s: %v", form, hidden)
		}
		alike(t, "/tools/call "+form, hidden, absent)
	}
	if status, body := g.REST(key, "GET", "/tools", nil); status != 200 || strings.Contains(string(body), "hidden") || !strings.Contains(string(body), "shown") {
		t.Errorf("GET /tools: %d %s", status, body)
	}
	for _, r := range f.Requests("tools/call") {
		if strings.Contains(string(r.Body), "hidden") {
			t.Error("a hidden tool was called")
		}
	}
	e := g.LastEvent("hidden")
	if e.Stage != "grant" || e.Decision != "DENY" {
		t.Errorf("the record does not have the true reason: %+v", e)
	}
}

// alike: two answers differ in nothing but the name and the trace.
func alike(t *testing.T, what string, hidden, absent testkit.Reply) {
	t.Helper()
	clean := func(r testkit.Reply) string {
		text := string(r.Raw)
		if r.Error != nil && r.Error.Data.TraceID != "" {
			text = strings.ReplaceAll(text, r.Error.Data.TraceID, "TRACE")
		}
		text = traceID.ReplaceAllString(text, "TRACE")
		text = requestID.ReplaceAllString(text, `"id":0`)
		return strings.NewReplacer("hidden", "NAME", "absent", "NAME").Replace(text)
	}
	if hidden.Status != absent.Status || clean(hidden) != clean(absent) {
		t.Errorf("%s: the hidden tool shows\nhidden %v\nabsent %v", what, hidden, absent)
	}
}
