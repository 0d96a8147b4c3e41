package door_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/db"
)

// pages reads a list page by page; between decides what happens between two pages.
func (w *world) pages(t *testing.T, path, member string, limit int, between func(page int)) (ids []string) {
	t.Helper()
	cursor := ""
	for page := 0; page < 1000; page++ {
		a := w.wire(fmt.Sprintf("/api/v1/%s?limit=%d&cursor=%s", path, limit, cursor)).with("Authorization", "Bearer "+w.adminKey).send("GET", "")
		var out map[string]json.RawMessage
		var items []struct{ ID string }
		ok(t, json.Unmarshal([]byte(a.body), &out))
		ok(t, json.Unmarshal(out[member], &items))
		if len(items) > limit {
			t.Fatalf("%s: a page of %d", path, len(items))
		}
		for _, it := range items {
			ids = append(ids, it.ID)
		}
		if out["next_cursor"] == nil {
			return ids
		}
		ok(t, json.Unmarshal(out["next_cursor"], &cursor))
		between(page)
	}
	t.Fatal("the list does not end")
	return nil
}

// TestPages: pages have every item once, also when others come and go between them.
func TestPages(t *testing.T) {
	w := newWorld(t)
	own, _ := w.furnish("own")
	ws := w.owner.WorkspaceID
	for i := range 6 {
		must(w.auth.CreatePerson(w.ctx, ws, fmt.Sprint("person", i), auth.Viewer))(t)
		w.key(fmt.Sprint("agent", i), "own-server/*")
		w.addFake(fmt.Sprint("server", i), &fake{defs: []json.RawMessage{def("read")}})
		_, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t"}, 0)
		ok(t, err)
	}
	for _, c := range []struct{ path, member, table string }{
		{"agents", "agents", "agent"}, {"keys", "keys", "api_key"}, {"people", "people", "person"}, {"mcp/policies", "policies", "policy"},
		{"tasks", "tasks", "task"}, {"mcp/servers", "servers", "server"},
	} {
		var want int
		ok(t, w.db.Read.QueryRowContext(w.ctx, `SELECT COUNT(*) FROM `+c.table+` WHERE workspace_id = $1`, ws).Scan(&want))
		for _, limit := range []int{1, 3, 200} {
			seen := map[string]bool{}
			for _, id := range w.pages(t, c.path, c.member, limit, func(int) {}) {
				seen[id] = true
			}
			if len(seen) != want || want < 6 {
				t.Errorf("%s by %d: %d of %d", c.path, limit, len(seen), want)
			}
		}
		if a := w.wire("/api/v1/"+c.path).with("Authorization", "Bearer "+w.adminKey).send("GET", ""); strings.Contains(a.body, "next_cursor") {
			t.Errorf("%s: a whole list has a next page", c.path)
		}
		if a := w.wire("/api/v1/"+c.path+"?limit=x").with("Authorization", "Bearer "+w.adminKey).send("GET", ""); a.status != 400 {
			t.Errorf("%s?limit=x: %d", c.path, a.status)
		}
	}
	if a := w.wire("/api/v1/agents?cursor=%21").with("Authorization", "Bearer "+w.adminKey).send("GET", ""); a.status != 400 || !strings.Contains(a.body, "next_cursor") {
		t.Errorf("a cursor of nowhere: %d %s", a.status, a.body)
	}
	// The policy that a cursor names goes away, and a new one comes: the rest is still there once.
	all := w.pages(t, "mcp/policies", "policies", 200, func(int) {})
	got := w.pages(t, "mcp/policies", "policies", 2, func(page int) {
		if page == 0 {
			ok(t, w.catalog.DeletePolicy(w.ctx, ws, all[1]))
			w.rule(own["servers"], "own_open", "DENY")
		}
	})
	for _, id := range all[2:] {
		n := 0
		for _, g := range got {
			if g == id {
				n++
			}
		}
		var kept int
		ok(t, w.db.Read.QueryRowContext(w.ctx, `SELECT COUNT(*) FROM policy WHERE id = $1`, id).Scan(&kept))
		if n != kept {
			t.Errorf("a rule came %d times, of %d", n, kept)
		}
	}
}

// TestTenThousandRules: such a workspace can still be listed, reloaded and decided in.
func TestTenThousandRules(t *testing.T) {
	w := newWorld(t)
	own, _ := w.furnish("own")
	ws, n := w.owner.WorkspaceID, 10000
	for at := 0; at < n; at += 500 {
		var rows []string
		for i := range 500 {
			rows = append(rows, fmt.Sprintf(`('%s', '%s', '%s', '%s', 'REQUIRE_APPROVAL', '', FALSE, 'x', %d)`, db.NewID(), ws, own["tools"], own["agents"], (at+i)/7+1))
		}
		_, err := w.db.Write.ExecContext(w.ctx, `INSERT INTO policy (id, workspace_id, mcp_tool_id, agent_id, action, reason, is_auto_generated, created_by, created_at) VALUES `+strings.Join(rows, ","))
		ok(t, err)
	}
	_, err := w.db.Write.ExecContext(w.ctx, `UPDATE revision SET n = n + 1 WHERE id = 1`)
	ok(t, err)
	ok(t, w.catalog.Reload(w.ctx))
	whole := w.wire("/api/v1/mcp/policies").with("Authorization", "Bearer "+w.adminKey).send("GET", "")
	if got := strings.Count(whole.body, `"created_at"`); whole.status != 200 || got < n {
		t.Errorf("%d rules in one list, %d", got, whole.status)
	}
	ids, cursor := map[string]bool{}, ""
	for range 3 {
		a := w.wire("/api/v1/mcp/policies?limit=200&cursor="+cursor).with("Authorization", "Bearer "+w.adminKey).send("GET", "")
		var page struct {
			Policies []struct{ ID string }
			Next     string `json:"next_cursor"`
		}
		ok(t, json.Unmarshal([]byte(a.body), &page))
		for _, p := range page.Policies {
			ids[p.ID] = true
		}
		cursor = url.QueryEscape(page.Next)
	}
	if len(ids) != 600 {
		t.Errorf("%d rules in three pages", len(ids))
	}
	if a := w.wire("/api/v1/explain").with("Authorization", "Bearer "+w.adminKey).post(`{"agent":"own-agent","tool":"own-server/own_open"}`); a.status != 200 || !strings.Contains(a.body, `"decision":"REQUIRE_APPROVAL"`) {
		t.Errorf("explain: %d %.300s", a.status, a.body)
	}
}
