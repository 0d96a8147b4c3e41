package cases

import (
	"strings"
	"testing"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/testkit"
)

// The two-step confirmation (SC-82 to SC-87) through the real doors: a token and a key of one door hold on the others, kill -9 in
// between changes nothing, and the secret shows up nowhere.
func TestConfirmation(t *testing.T) {
	const secret = "a marker that stands for the confirmation secret"
	f := testkit.NewFake(t, testkit.ToolDef("deploy", "Deploys."))
	g := testkit.Start(t, testkit.Options{Env: []string{"SUPACLOUD_MCP_CONFIRMATION_SECRET=" + secret}})
	id := g.AddHTTP("fake", f.URL, nil).ID
	g.Approve(id, "ALLOW")
	g.Admin("PATCH", "/api/v1/mcp/servers/"+id+"/tools/"+g.Tool(id, "deploy").ID, map[string]any{"confirm": true}, nil)
	args := `{"app":"shop"}`
	step := func(c *testkit.Client) string {
		t.Helper()
		r := c.Call("deploy", args)
		ok(t, r, "confirmation_required")
		token, _ := mcp.String(mcp.GetPath(r.Result, "structuredContent", "confirmation_token"))
		if token == "" || f.Calls() != 0 && string(mcp.GetPath(r.Result, "structuredContent", "confirmation_required")) != "true" {
			t.Fatalf("first step: %v", r)
		}
		return token
	}
	legacy := g.Client("/mcp/fake", testkit.Legacy)
	token := step(legacy)
	if f.Calls() != 0 {
		t.Fatal("the first step ran the tool")
	}
	g.Kill()
	g.Restart()
	second := `{"app":"shop","confirmation_token":` + string(mcp.Quote(token)) + `,"idempotency_key":"k1"}`
	modern := g.Client("/mcp/fake", testkit.Modern)
	ok(t, modern.Call("deploy", second), "deploy")
	if f.Calls() != 1 {
		t.Fatalf("%d runs", f.Calls())
	}
	g.Kill()
	g.Restart()
	r := g.Client("/mcp/fake", testkit.Legacy).Call("deploy", second)
	ok(t, r, "deploy")
	if string(mcp.GetPath(r.Result, "_meta", "idempotent_replay")) != "true" || f.Calls() != 1 {
		t.Errorf("%d runs, %v", f.Calls(), r)
	}
	status, body := g.REST(testkit.AgentKey, "POST", "/tools/call", map[string]any{"name": "deploy",
		"arguments": map[string]any{"app": "other", "confirmation_token": token, "idempotency_key": "k1"}})
	if status != 422 || !strings.Contains(string(body), "confirmation_token_mismatch") {
		t.Errorf("other arguments: %d %s", status, body)
	}
	_, rows := g.REST(testkit.AdminKey, "GET", "/api/v1/audit?limit=100", nil)
	for _, text := range []string{string(rows), g.Log()} {
		if strings.Contains(text, secret) || strings.Contains(text, token) {
			t.Error("the record or the log holds the secret or a token")
		}
	}
}
