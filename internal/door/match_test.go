package door_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// etag is the header of an answer, which its body repeats.
func (a answer) etag(t *testing.T) string {
	t.Helper()
	var body struct {
		ETag string `json:"etag"`
	}
	ok(t, json.Unmarshal([]byte(a.body), &body))
	if tag := a.header.Get("ETag"); a.status != 200 || tag == "" || tag != body.ETag || !strings.HasPrefix(tag, `"`) {
		t.Fatalf("%d, ETag %s: %s", a.status, tag, a.body)
	}
	return body.ETag
}

// TestIfMatch: of two admins who decide from the same state, one is told that it is not that any more.
func TestIfMatch(t *testing.T) {
	w := newWorld(t)
	own, _ := w.furnish("own")
	admin := func(path string, kv ...string) *wire {
		return w.wire("/api/v1/" + path).with(append([]string{"Authorization", "Bearer " + w.adminKey}, kv...)...)
	}
	tool := "mcp/servers/" + own["servers"] + "/tools/" + own["tools"]
	tag := func(path string) string { return admin(path).send("GET", "").etag(t) }
	toolTag := func(string) string {
		var list struct{ Tools []struct{ ID, ETag string } }
		ok(t, json.Unmarshal([]byte(admin("mcp/servers/"+own["servers"]+"/tools").send("GET", "").body), &list))
		for _, x := range list.Tools {
			if x.ID == own["tools"] {
				return x.ETag
			}
		}
		t.Fatal("no such tool")
		return ""
	}
	words := []string{"DENY", "REQUIRE_APPROVAL"}
	for _, c := range []struct {
		name, method, path string
		read               func(string) string
		body               func(i int) string
	}{
		{"agent", "PATCH", "agents/own-agent", tag, func(i int) string { return fmt.Sprintf(`{"description":"%d"}`, i) }},
		{"server", "PATCH", "mcp/servers/own-server", tag, func(i int) string { return fmt.Sprintf(`{"description":"%d"}`, i) }},
		{"verdict", "POST", tool + "/verdict", toolTag, func(i int) string { return `{"action":"` + words[i%2] + `","confirm_loosening":true}` }},
		{"tool", "PATCH", tool, toolTag, func(i int) string { return fmt.Sprintf(`{"confirm":%v,"confirm_loosening":true}`, i%2 == 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := func(i int, kv ...string) answer { return admin(c.path, kv...).send(c.method, c.body(i)) }
			old := c.read(c.path)
			now := change(1, "If-Match", old).etag(t)
			if now == old || now != c.read(c.path) {
				t.Errorf("tags: %s, then %s, then %s", old, now, c.read(c.path))
			}
			for _, stale := range []string{old, "W/" + now, `"x"`, "x", `"x", ` + old} {
				if a := change(2, "If-Match", stale); a.status != 412 || !strings.Contains(a.body, `"code":"precondition_failed"`) || !strings.Contains(a.body, "read it again") {
					t.Errorf("If-Match %s: %d %s", stale, a.status, a.body)
				}
			}
			if got := c.read(c.path); got != now {
				t.Errorf("a refused change changed it: %s", got)
			}
			for i, good := range []string{"*", `"x", TAG`, ""} {
				if a := change(4+i, "If-Match", strings.Replace(good, "TAG", c.read(c.path), 1)); a.status != 200 {
					t.Errorf("If-Match %s: %d %s", good, a.status, a.body)
				}
			}
			shared := c.read(c.path)
			results := make(chan int, 8)
			var wg sync.WaitGroup
			for range cap(results) {
				wg.Go(func() { results <- change(7, "If-Match", shared).status })
			}
			wg.Wait()
			close(results)
			count := map[int]int{}
			for status := range results {
				count[status]++
			}
			if count[200] != 1 || count[412] != 7 {
				t.Errorf("eight changes from one state: %v", count)
			}
		})
	}
	if a := admin("keys", "If-Match", `"x"`).post(`{"agent_id":"own-agent"}`); a.status != 400 || !strings.Contains(a.body, "If-Match") {
		t.Errorf("where it is not heeded: %d %s", a.status, a.body)
	}
}

// TestPatchKeepsTheRest: what a change does not name stays as it is in the database, also when only the scripts change.
func TestPatchKeepsTheRest(t *testing.T) {
	w := newWorld(t)
	w.furnish("own")
	c := w.wire("/api/v1/agents/own-agent").with("Authorization", "Bearer "+w.adminKey)
	if a := c.send("PATCH", `{"script_allowlist":["nightly"]}`); a.status != 200 || !strings.Contains(a.body, `"script_allowlist":["nightly"]`) || !strings.Contains(a.body, `"allowlist":["*"]`) {
		t.Errorf("scripts: %d %s", a.status, a.body)
	}
	if a := c.send("PATCH", `{"status":"PAUSED","description":"d"}`); a.status != 200 || !strings.Contains(a.body, `"status":"PAUSED"`) || !strings.Contains(a.body, `["nightly"]`) {
		t.Errorf("state: %d %s", a.status, a.body)
	}
	if a := c.send("PATCH", `{"status":"REJECTED","description":"lost"}`); a.status != 409 {
		t.Errorf("transition: %d %s", a.status, a.body)
	}
	if a := c.send("GET", ""); strings.Contains(a.body, "lost") {
		t.Errorf("half of a refused change was made: %s", a.body)
	}
}
