package door_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/mcp"
)

func TestPlainTools(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{
		json.RawMessage(`{"name":"add","description":"Adds.","inputSchema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"annotations":{"readOnlyHint":true}}`),
		def("same"),
	}}
	notes := w.addFake("notes", f)
	w.addFake("mail", &fake{defs: []json.RawMessage{def("same")}})
	a := w.wire("/tools").send("GET", "")
	want := `{"tools":[{"name":"mail/same","description":"Says same.","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}}},` +
		`{"name":"add","description":"Adds.","inputSchema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}},` +
		`{"name":"notes/same","description":"Says same.","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}]}`
	if a.status != 200 || a.body != want {
		t.Errorf("GET /tools: %d\n%s\n%s", a.status, a.body, want)
	}
	call := w.wire("/tools/call")
	for _, tc := range []struct {
		name, body string
		status     int
		has        []string
	}{
		{"own name", `{"name":"add","arguments":{"a":1}}`, 200, []string{`{"result":{"content":[{"type":"text","text":"add"}],"big":9007199254740993,"f":1.0}}`}},
		{"server/tool", `{"name":"notes/add","arguments":{"a":1}}`, 200, []string{`"result"`}},
		{"no arguments", `{"name":"notes/same"}`, 200, []string{`"result"`}},
		{"unknown", `{"name":"x"}`, 404, []string{`"error":"Tool not found: x"`, `"error_class":"ToolNotFound"`}},
		{"invalid arguments", `{"name":"add","arguments":{"a":"one"}}`, 422, []string{`"error_class":"InvalidArguments"`, `"details":`, `a`}},
		{"missing argument", `{"name":"add","arguments":{}}`, 422, []string{`"error_class":"InvalidArguments"`, `"details":`}},
		{"ambiguous", `{"name":"same"}`, 409, []string{`"candidates":["mail/same","notes/same"]`, `"error_class":"AmbiguousTool"`}},
		{"no name", `{"arguments":{}}`, 400, []string{`"error_class":"InvalidRequest"`}},
		{"two names", `{"name":"add","name":"same"}`, 400, []string{`"error_class":"InvalidRequest"`}},
		{"case variant", `{"name":"add","Name":"same"}`, 400, []string{`"error_class":"InvalidRequest"`}},
		{"arguments array", `{"name":"add","arguments":[1]}`, 400, []string{`"error_class":"InvalidRequest"`}},
		{"not JSON", `{"name":`, 400, []string{`"error_class":"InvalidRequest"`}},
		{"not an object", `["add"]`, 400, []string{`"error_class":"InvalidRequest"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := call.post(tc.body)
			if a.status != tc.status {
				t.Errorf("status %d: %s", a.status, a.body)
			}
			for _, s := range tc.has {
				if !strings.Contains(a.body, s) {
					t.Errorf("%s is not in %s", s, a.body)
				}
			}
		})
	}
	w.rule(notes.ID, "add", "REQUIRE_APPROVAL")
	held := call.post(`{"name":"add","arguments":{"a":1}}`)
	if held.status != 202 || !strings.Contains(held.body, `"code":-32004`) || !strings.Contains(held.body, `"approval_id"`) || !strings.Contains(held.body, `"reason":"APPROVAL_REQUIRED"`) {
		t.Errorf("held: %d %s", held.status, held.body)
	}
	w.rule(notes.ID, "add", "DENY")
	if denied := call.post(`{"name":"notes/add","arguments":{"a":1}}`); denied.status != 403 || !strings.Contains(denied.body, `"error_class":"Denied"`) || !strings.Contains(denied.body, `"code":-32003`) {
		t.Errorf("denied: %d %s", denied.status, denied.body)
	}
	for _, c := range []*wire{call.with("Authorization", ""), call.with("Authorization", "Basic x")} {
		if a := c.post(`{"name":"add"}`); a.status != 401 || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") || !strings.Contains(a.body, `"error_class"`) {
			t.Errorf("no key: %d %s", a.status, a.body)
		}
	}
}

// TestMetrics: a tool that failed and a server that failed are two things (case 16).
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{def("read")}}
	w.addFake("notes", f)
	call := func() { w.wire("/tools/call").post(`{"name":"read"}`) }
	call()
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage(`{"content":[{"type":"text","text":"\"isError\":true"}],"isError":true}`), nil
	}
	call()
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage(`{"content":[{"type":"text","text":"\"isError\":true"}]}`), nil
	}
	call()
	f.do = func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage("no JSON"), nil
	}
	call()
	w.wire("/tools/call").post(`{"name":"nothing"}`)
	a := w.wire("/metrics").with("Authorization", "").send("GET", "")
	for _, line := range []string{
		`doorward_calls_total{decision="ALLOW",status="ok"} 2`,
		`doorward_calls_total{decision="ALLOW",status="tool_error"} 1`,
		`doorward_calls_total{decision="ALLOW",status="upstream_error"} 1`,
		`doorward_calls_total{decision="DENY",status="invalid"} 1`,
		`doorward_upstreams{health="up"} 1`,
	} {
		if !strings.Contains(a.body, line+"\n") {
			t.Errorf("no line %s in\n%s", line, a.body[:strings.Index(a.body, "# HELP doorward_sess")])
		}
	}
	if strings.Contains(a.body, "notes") {
		t.Error("the name of a server is in the metrics")
	}
}

func TestOpenListenerNeedsNoKey(t *testing.T) {
	w := newWorld(t)
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp/notes").with("Authorization", "")
	c.url = w.openURL + "/mcp/notes"
	c = c.open(mcp.V20251125, `{}`)
	if got := names(t, c.post(listRequest)); got != "read" {
		t.Errorf("tools %s", got)
	}
	for _, path := range []string{"/tools", "/api/v1/mcp/servers"} {
		c.url = w.openURL + path
		if a := c.send("GET", ""); a.status != 404 {
			t.Errorf("%s without a key: %d", path, a.status)
		}
	}
}
