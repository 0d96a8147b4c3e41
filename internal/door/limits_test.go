package door_test

import (
	"encoding/json"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/mcp"
)

// A limit that is used up is HTTP 403 and JSON-RPC -32005 with the same text, on every door (SC-81).
func TestLimitOnEveryDoor(t *testing.T) {
	w := newWorld(t)
	f := &fake{defs: []json.RawMessage{def("same")}}
	s := w.addFake("notes", f)
	w.rule(s.ID, "same", "ALLOW")
	tool := must(w.catalog.Tools(w.ctx, w.owner.WorkspaceID, s.ID))(t)[0].ID
	must(w.catalog.CreateLimit(w.ctx, w.owner.WorkspaceID, catalog.Limit{ToolID: tool, Per: "day", N: 1}, "owner"))(t)
	ok(t, w.catalog.Reload(w.ctx))
	if a := w.wire("/tools/call").post(`{"name":"same"}`); a.status != 200 {
		t.Fatalf("first call: %d %s", a.status, a.body)
	}
	const text = "Tool daily limit reached for this MCP tool (1/1)"
	a := w.wire("/tools/call").post(`{"name":"same"}`)
	if a.status != 403 || !strings.Contains(a.body, `"error":"`+text+`"`) {
		t.Errorf("POST /tools/call: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/mcp", "/mcp/notes", "/api/v1/mcp/proxy/" + s.ID} {
		name := "same"
		if path == "/mcp" {
			name = "notes__same"
		}
		a := w.wire(path).open(mcp.V20251125, `{}`).post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + name + `"}}`)
		for _, part := range []string{`"code":-32005`, `"message":"` + text + `"`, `"http_status":403`, `"reason":"RATE_LIMITED"`, `"used":1`, `"limit":1`} {
			if !strings.Contains(a.body, part) {
				t.Errorf("%s: %s is not in %s", path, part, a.body)
			}
		}
	}
	if n := f.count(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// An editor may set a limit, which tightens; only an admin may remove one. A viewer sees them.
func TestLimitRoutes(t *testing.T) {
	w := newWorld(t)
	as := map[auth.Role]*wire{}
	for _, role := range []auth.Role{auth.Viewer, auth.Editor, auth.Admin} {
		p := must(w.auth.CreatePerson(w.ctx, w.owner.WorkspaceID, role.String(), role))(t)
		key, _, err := w.auth.CreateKey(w.ctx, w.owner.WorkspaceID, "", p.ID, role.String(), 0)
		ok(t, err)
		as[role] = w.wire("/api/v1/mcp/limits").with("Authorization", "Bearer "+key)
	}
	ok(t, w.auth.Reload(w.ctx))
	const body = `{"per":"hour","n":5,"reason":"busy"}`
	if a := as[auth.Viewer].post(body); a.status != 403 {
		t.Errorf("a viewer set one: %d %s", a.status, a.body)
	}
	a := as[auth.Editor].post(body)
	id, _ := mcp.String(mcp.Get(json.RawMessage(a.body), "id"))
	if a.status != 201 || id == "" {
		t.Fatalf("an editor: %d %s", a.status, a.body)
	}
	for _, bad := range []string{`{"per":"hour"}`, `{"per":"hour","n":-1}`, `{"per":"hour","n":1000000001}`, `{"per":"hour","n":1.5}`, `{"per":"hour","n":"5"}`, `{"n":5}`, `{"per":"week","n":5}`, `{"per":"day","n":5,"more":1}`} {
		if a := as[auth.Admin].post(bad); a.status != 400 {
			t.Errorf("%s: %d %s", bad, a.status, a.body)
		}
	}
	if a := as[auth.Viewer].send("GET", ""); a.status != 200 || !strings.Contains(a.body, `"n":5`) {
		t.Errorf("list: %d %s", a.status, a.body)
	}
	usage := *as[auth.Viewer]
	usage.url += "/usage"
	if a := usage.send("GET", ""); a.status != 200 || !strings.Contains(a.body, `"what":"the limit `+id+`","per":"hour","used":0,"limit":5`) {
		t.Errorf("usage: %d %s", a.status, a.body)
	}
	for _, c := range []struct {
		role   auth.Role
		status int
	}{{auth.Editor, 403}, {auth.Admin, 200}, {auth.Admin, 404}} {
		one := *as[c.role]
		one.url += "/" + id
		if a := one.send("DELETE", ""); a.status != c.status {
			t.Errorf("%s removes: %d %s", c.role, a.status, a.body)
		}
	}
}
