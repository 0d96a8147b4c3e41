package door_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// Owners of the first workspace make others; each has its own people and servers, and sees nothing of the rest.
func TestWorkspaces(t *testing.T) {
	w := newWorld(t)
	as := func(key string) *wire { return w.wire("/api/v1/workspaces").with("Authorization", "Bearer "+key) }
	a := as(w.adminKey).post(`{"slug":"second","owner":"olga"}`)
	var made struct{ ID, Slug, Name, Key string }
	ok(t, json.Unmarshal([]byte(a.body), &made))
	if a.status != 201 || made.Slug != "second" || made.Name != "second" || !strings.HasPrefix(made.Key, "dw_") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := as(w.adminKey).send("GET", ""); a.status != 200 || !strings.Contains(a.body, made.ID) || strings.Contains(a.body, made.Key) {
		t.Errorf("list: %d %s", a.status, a.body)
	}
	for _, c := range []struct {
		key, body, part string
		status          int
	}{
		{w.adminKey, `{"slug":"second"}`, "exists", 409},
		{w.adminKey, `{"slug":"Not A Slug"}`, "slug", 400},
		{w.adminKey, `{}`, "slug", 400},
		{made.Key, `{"slug":"third"}`, "INSUFFICIENT_PERMISSIONS", 403},
		{w.agentKey, `{"slug":"third"}`, "", 403},
	} {
		if a := as(c.key).post(c.body); a.status != c.status || !strings.Contains(a.body, c.part) {
			t.Errorf("%s: %d %s", c.body, a.status, a.body)
		}
	}
	if a := as(made.Key).send("GET", ""); a.status != 403 || strings.Contains(a.body, "efault") {
		t.Errorf("another workspace lists all: %d %s", a.status, a.body)
	}
	people := w.wire("/api/v1/people").with("Authorization", "Bearer "+made.Key).send("GET", "")
	if people.status != 200 || !strings.Contains(people.body, "olga") || strings.Contains(people.body, `"owner","role"`) {
		t.Errorf("people: %d %s", people.status, people.body)
	}
	if servers := w.wire("/api/v1/mcp/servers").with("Authorization", "Bearer "+made.Key).send("GET", ""); servers.status != 200 || !strings.Contains(servers.body, `"servers":[]`) {
		t.Errorf("servers: %d %s", servers.status, servers.body)
	}
}
