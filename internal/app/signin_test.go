package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// browser is a client that has a cookie and says from which page it asks.
type browser struct {
	s      *site
	cookie *http.Cookie
	header map[string]string
}

func (b *browser) do(method, path, body string) (int, string, *http.Response) {
	b.s.t.Helper()
	req, err := http.NewRequest(method, b.s.PublicURL()+"/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		b.s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range b.header {
		req.Header.Set(k, v)
	}
	if b.cookie != nil {
		req.AddCookie(b.cookie)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.s.t.Fatal(err)
	}
	for _, c := range res.Cookies() {
		b.cookie = c
		if c.MaxAge < 0 {
			b.cookie = nil
		}
	}
	return res.StatusCode, string(text), res
}

func (b *browser) want(status int, method, path, body string) string {
	b.s.t.Helper()
	got, text, _ := b.do(method, path, body)
	if got != status {
		b.s.t.Errorf("%s %s: %d, want %d: %s", method, path, got, status, text)
	}
	return text
}

const signInBody = `{"name":"owner","password":"a long enough password"}`

func TestSignInAndOut(t *testing.T) {
	s := start(t, "", nil)
	b := &browser{s: s}
	if text := b.want(401, "POST", "auth/login", signInBody); !strings.Contains(text, "INVALID_CREDENTIALS") {
		t.Error(text)
	}
	s.admin("POST", "people/owner/password", map[string]string{"password": "a long enough password"})
	_, text, res := b.do("POST", "auth/login", signInBody)
	if b.cookie == nil || !b.cookie.HttpOnly || b.cookie.SameSite != http.SameSiteLaxMode || b.cookie.Path != "/" || b.cookie.Secure || b.cookie.Name != "doorward_session" {
		t.Fatalf("cookie %+v of %s", b.cookie, text)
	}
	if strings.Contains(text, b.cookie.Value) || res.Header.Get("Cache-Control") != "no-store" {
		t.Error("the answer holds the cookie or may be stored")
	}
	if text := b.want(200, "GET", "auth/me", ""); !strings.Contains(text, `"role":"owner"`) || !strings.Contains(text, `"session"`) {
		t.Error(text)
	}
	b.want(201, "POST", "people", `{"name":"ada","role":"admin"}`)

	// A page of another site makes the browser send the cookie; nothing comes of it.
	for _, h := range []map[string]string{{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}} {
		evil := &browser{s: s, cookie: b.cookie, header: h}
		evil.want(403, "POST", "people", `{"name":"eve","role":"owner"}`)
		evil.want(403, "POST", "auth/login", signInBody)
	}
	(&browser{s: s, cookie: b.cookie, header: map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": s.PublicURL()}}).want(201, "POST", "people", `{"name":"bob","role":"viewer"}`)

	// The cookie opens the administrative interface and nothing else, and no key stands behind it.
	req, err := http.NewRequest("GET", s.PublicURL()+"/tools", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(b.cookie)
	if res, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 401 {
		t.Errorf("GET /tools with a cookie: %d", res.StatusCode)
	}
	(&browser{s: s, cookie: b.cookie, header: map[string]string{"Authorization": "Bearer wrong"}}).want(401, "GET", "auth/me", "")

	old := *b
	b.want(403, "POST", "people/owner/password", `{"password":"another long password","current":"wrong"}`)
	b.want(200, "POST", "people/owner/password", `{"password":"another long password","current":"a long enough password"}`)
	old.want(401, "GET", "auth/me", "")
	b.want(200, "POST", "auth/login", `{"name":"owner","password":"another long password"}`)
	old = *b
	b.want(200, "POST", "auth/logout", "")
	if b.cookie != nil {
		t.Error("the cookie stays")
	}
	if text := old.want(401, "GET", "auth/me", ""); !strings.Contains(text, "SESSION_INVALID") {
		t.Error(text)
	}
	var rows []string
	for _, r := range s.admin("GET", "audit?kind=admin&limit=100", nil)["events"].([]any) {
		if r := r.(map[string]any); r["method"] == "auth.login" {
			reason, _ := r["reason"].(string)
			rows = append(rows, r["status"].(string)+reason)
			if raw, _ := json.Marshal(r); strings.Contains(string(raw), "long enough") {
				t.Errorf("the record holds the password: %s", raw)
			}
		}
	}
	if got := strings.Join(rows, ","); got != "ok,ok,deniedINVALID_CREDENTIALS" {
		t.Errorf("record %s", got)
	}
	if strings.Contains(s.log.String(), "long enough password") {
		t.Error("the log holds a password")
	}
}

func TestSignInLocks(t *testing.T) {
	s := start(t, "", nil)
	b := &browser{s: s}
	for range 5 {
		b.want(401, "POST", "auth/login", signInBody)
	}
	status, text, res := b.do("POST", "auth/login", signInBody)
	if status != 429 || !strings.Contains(text, "SIGN_IN_LOCKED") || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, text)
	}
}

func TestPeopleRoles(t *testing.T) {
	s := start(t, "", nil)
	keys := s.keys()
	s.play(t, keys, []scenario{
		{name: "last owner", as: "owner", method: "PATCH", path: "people/owner", body: `{"role":"viewer"}`, status: 409, contains: []string{"LAST_OWNER"}, record: []string{"person.update invalid", "person.update started"}},
		{name: "viewer raises itself", as: "viewer", method: "PATCH", path: "people/viewer", body: `{"role":"owner"}`, status: 403, record: []string{"person.update denied"}},
		{name: "admin raises itself", as: "admin", method: "PATCH", path: "people/admin", body: `{"role":"owner"}`, status: 403, record: []string{"person.update denied", "person.update started"}},
		{name: "admin takes the owner over", as: "admin", method: "POST", path: "people/owner/password", body: `{"password":"a long enough password"}`, status: 403, record: []string{"person.password denied", "person.password started"}},
		{name: "viewer takes an editor over", as: "viewer", method: "POST", path: "people/editor/password", body: `{"password":"a long enough password"}`, status: 403, record: []string{"person.password denied", "person.password started"}},
		{name: "short password", as: "viewer", method: "POST", path: "people/viewer/password", body: `{"password":"short"}`, status: 400, record: []string{"person.password invalid", "person.password started"}},
		{name: "agent asks who it is", as: "agent", method: "GET", path: "auth/me", status: 200, contains: []string{`"agent"`}, without: []string{`"person"`}},
		{name: "viewer starts a task", as: "viewer", method: "POST", path: "tasks", body: `{"title":"x"}`, status: 403, record: []string{"task.create denied"}},
		{name: "agent starts a task", as: "agent", method: "POST", path: "tasks", body: `{"title":"x"}`, status: 403, record: []string{"task.create denied"}},
		{name: "editor starts a task", as: "editor", method: "POST", path: "tasks", body: `{"title":"x","agent_id":"default","ttl":"30m"}`, status: 201, contains: []string{`"token":"task_`, `"status":"running"`}},
		{name: "task of no agent", as: "editor", method: "POST", path: "tasks", body: `{"title":"x","agent_id":"nobody"}`, status: 404, record: []string{"task.create invalid", "task.create started"}},
		{name: "no such task", as: "editor", method: "POST", path: "tasks/x/finish", status: 404, record: []string{"task.finish invalid", "task.finish started"}},
		{name: "disable", as: "admin", method: "PATCH", path: "people/viewer", body: `{"disabled":true}`, status: 200, contains: []string{`"disabled_at"`}},
		{name: "disabled", as: "viewer", method: "GET", path: "auth/me", status: 401},
		{name: "enable", as: "admin", method: "PATCH", path: "people/viewer", body: `{"disabled":false}`, status: 200, without: []string{`"disabled_at"`}},
		{name: "enabled", as: "viewer", method: "GET", path: "auth/me", status: 200},
	})
}

// A token works at the doors until the task is finished, and opens no administration.
func TestTaskAtTheDoors(t *testing.T) {
	s := start(t, "", nil)
	s.notes()
	task := s.admin("POST", "tasks", map[string]string{"title": "Look at the notes"})
	token := task["token"].(string)
	if status, text := s.do("GET", "/tools", token, nil); status != 200 || !strings.Contains(text, "read_note") || strings.Contains(text, "write_note") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.do("POST", "/tools/call", token, `{"name":"write_note","arguments":{"title":"a","text":"b"}}`); status != 404 {
		t.Errorf("%d %s", status, text)
	}
	for _, path := range []string{"agents", "auth/me", "tasks"} {
		if status, text := s.do("GET", "/api/v1/"+path, token, nil); status != 403 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	s.admin("POST", "tasks/"+task["id"].(string)+"/finish", nil)
	if status, text := s.do("GET", "/tools", token, nil); status != 401 || !strings.Contains(text, "TASK_ENDED") {
		t.Errorf("%d %s", status, text)
	}
}
