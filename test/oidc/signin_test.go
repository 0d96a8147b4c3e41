package oidc

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

// site is a gateway with a provider that its people sign in with.
type site struct {
	*testkit.Gateway
	*provider
	t *testing.T
}

func startSite(t *testing.T, env ...string) *site {
	t.Helper()
	addr := testkit.FreeAddr(t)
	p := startProvider(t, "http://"+addr)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(clientSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env = append([]string{"DOORWARD_OIDC_ISSUER=" + p.issuer, "DOORWARD_OIDC_CLIENT_ID=doorward", "DOORWARD_OIDC_CLIENT_SECRET_FILE=" + secret,
		"DOORWARD_LOG_LEVEL=debug", "DOORWARD_OAUTH_ISSUERS=" + p.issuer}, env...)
	g := testkit.Start(t, testkit.Options{Args: []string{"--listen", addr}, Env: env})
	p.control(map[string]any{"accounts": map[string]any{
		"ada":     account("Ada@Example.com", true, "staff", "admins"),
		"mallory": account("ada@example.com", false),
		"twin":    account("ada@example.com", true),
		"bob":     account("bob@example.com", true, "staff"),
		"eve":     account("eve@evil.example", true, "admins"),
		"kelvin":  account("bo\u212a@example.com", true),
	}})
	return &site{g, p, t}
}

func account(email string, verified bool, groups ...string) map[string]any {
	return map[string]any{"email": email, "email_verified": verified, "name": "owner", "groups": groups}
}

const startPath = "/api/v1/signin/oidc"

// signIn goes the whole way and returns the answer of the callback.
func (s *site) signIn(b *browser, login string) page {
	s.t.Helper()
	start := b.get(s.URL + startPath)
	if start.status != http.StatusSeeOther {
		s.t.Fatalf("start: %d %s", start.status, start.text)
	}
	return b.get(b.atProvider(start.location, login, s.URL))
}

// refused signs in with a new browser and wants a refusal with a reason, in the record too.
func (s *site) refused(login, reason string) {
	s.t.Helper()
	b := newBrowser(s.t)
	p := s.signIn(b, login)
	if p.status != http.StatusForbidden || !strings.Contains(p.text, `"code":"`+reason+`"`) {
		s.t.Errorf("%s: %d %s, want %s", login, p.status, p.text, reason)
	}
	if me := b.get(s.URL + "/api/v1/auth/me"); me.status != http.StatusUnauthorized {
		s.t.Errorf("%s was refused and is signed in: %s", login, me.text)
	}
	if e := s.lastSignIn(); e.Status != "denied" || e.Reason != reason {
		s.t.Errorf("%s: recorded as %+v, want %s", login, e, reason)
	}
}

// event is a row of the record.
type event struct {
	Method   string `json:"method"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	PersonID string `json:"person_id"`
}

func (s *site) lastSignIn() event {
	s.t.Helper()
	var list struct{ Events []event }
	s.Admin("GET", "/api/v1/audit?kind=admin&method=auth.login_oidc&limit=1", nil, &list)
	if len(list.Events) == 0 {
		s.t.Fatal("no sign-in in the record")
	}
	return list.Events[0]
}

// me is who the browser's session is.
func (s *site) me(b *browser) (name, role string) {
	s.t.Helper()
	p := b.get(s.URL + "/api/v1/auth/me")
	var out struct{ Person struct{ Name, Role string } }
	if err := json.Unmarshal([]byte(p.text), &out); err != nil || p.status != 200 {
		s.t.Fatalf("me: %d %s", p.status, p.text)
	}
	return out.Person.Name, out.Person.Role
}

func TestInvitedPersonSignsIn(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { invitedPersonSignsIn(t, startSite(t)) })
	t.Run("postgres", func(t *testing.T) { invitedPersonSignsIn(t, startSite(t, "DOORWARD_DATABASE="+testkit.PostgresURL(t))) })
}

func invitedPersonSignsIn(t *testing.T, s *site) {
	s.refused("ada", "PERSON_UNKNOWN")
	if out, code := s.CLI("person", "add", "countess", "--role", "editor", "--oidc-email", "ADA@example.com"); code != 0 {
		t.Fatal(out)
	}
	if status, text := s.REST(testkit.AdminKey, "POST", "/api/v1/people", map[string]string{"name": "second", "role": "viewer", "oidc_email": "ada@example.com"}); status != 409 {
		t.Errorf("two invitations of one address: %d %s", status, text)
	}
	s.refused("mallory", "EMAIL_NOT_VERIFIED")

	b := newBrowser(t)
	start := b.get(s.URL + startPath + "?return=" + url.QueryEscape("/api/v1/auth/me?x=1"))
	to, err := url.Parse(start.location)
	if err != nil || start.status != http.StatusSeeOther || !strings.HasPrefix(start.location, s.issuer+"/auth?") {
		t.Fatalf("start: %d %s", start.status, start.location)
	}
	if q := to.Query(); q.Get("code_challenge_method") != "S256" || len(q.Get("state")) < 40 || len(q.Get("nonce")) < 40 {
		t.Errorf("the request to the provider lacks something: %v", q)
	}
	cookie := start.header.Get("Set-Cookie")
	for _, part := range []string{"HttpOnly", "SameSite=Lax", "Max-Age=600", "Path=/"} {
		if !strings.Contains(cookie, part) {
			t.Errorf("cookie %q lacks %s", cookie, part)
		}
	}
	for _, shown := range []string{to.Query().Get("state"), to.Query().Get("nonce")} {
		if strings.Contains(cookie, shown) {
			t.Error("the cookie is not sealed")
		}
	}
	answer := b.atProvider(start.location, "ada", s.URL)
	done := b.get(answer)
	if done.status != http.StatusSeeOther || done.location != s.URL+"/api/v1/auth/me?x=1" {
		t.Fatalf("callback: %d %q %s", done.status, done.location, done.text)
	}
	if name, role := s.me(b); name != "countess" || role != "editor" {
		t.Errorf("signed in as %s, %s", name, role)
	}
	if e := s.lastSignIn(); e.Status != "ok" || e.Reason != "linked by invitation" || e.PersonID == "" {
		t.Errorf("recorded as %+v", e)
	}
	// The answer works once, and only for the browser that began.
	if again := b.get(answer); again.status != http.StatusBadRequest || !strings.Contains(again.text, "SIGN_IN_STATE") {
		t.Errorf("again: %d %s", again.status, again.text)
	}

	// From now on the subject counts: another address, no address, it stays the same person; the invitation is used up.
	s.control(map[string]any{"accounts": map[string]any{"ada": account("other@example.com", false), "twin": account("ada@example.com", true)}})
	b = newBrowser(t)
	if p := s.signIn(b, "ada"); p.status != 200 || !strings.Contains(p.text, `"countess"`) {
		t.Errorf("second time: %d %s", p.status, p.text)
	}
	s.refused("twin", "PERSON_UNKNOWN")

	// Disabled: the session ends, and no new one begins.
	if out, code := s.CLI("person", "set", "countess", "--disable"); code != 0 {
		t.Fatal(out)
	}
	if p := b.get(s.URL + "/api/v1/auth/me"); p.status != http.StatusUnauthorized {
		t.Errorf("the session of a disabled person: %d", p.status)
	}
	s.refused("ada", "PERSON_DISABLED")
}

func TestAnswersThatBelongToNoSignIn(t *testing.T) {
	s := startSite(t, "DOORWARD_OIDC_CREATE_PEOPLE=true")
	victim, attacker := newBrowser(t), newBrowser(t)
	foreign := attacker.atProvider(attacker.get(s.URL+startPath).location, "eve", s.URL)
	if p := victim.get(foreign); p.status != http.StatusBadRequest || !strings.Contains(p.text, "SIGN_IN_STATE") {
		t.Errorf("an answer of another browser, without a sign-in: %d %s", p.status, p.text)
	}
	victim.get(s.URL + startPath)
	if p := victim.get(foreign); p.status != http.StatusBadRequest || !strings.Contains(p.text, "SIGN_IN_STATE") {
		t.Errorf("an answer of another browser, within a sign-in: %d %s", p.status, p.text)
	}
	state := func(p page) string {
		u, err := url.Parse(p.location)
		if err != nil {
			t.Fatal(err)
		}
		return url.QueryEscape(u.Query().Get("state"))
	}

	// What the provider says is hostile: it is neither repeated nor believed.
	const hostile = "<script>alert(1)</script>"
	for name, query := range map[string]string{
		"error":  "&error=" + url.QueryEscape(hostile) + "&error_description=" + url.QueryEscape(hostile),
		"code":   "&iss=" + url.QueryEscape(s.issuer) + "&code=" + url.QueryEscape(hostile),
		"issuer": "&iss=https%3A%2F%2Fevil.example&code=x",
		"no iss": "&code=x",
	} {
		b := newBrowser(t)
		p := b.get(s.URL + startPath + "/callback?state=" + state(b.get(s.URL+startPath)) + query)
		if p.status != http.StatusForbidden || strings.Contains(p.text, "script") || p.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", name, p.status, p.text)
		}
		if e := s.lastSignIn(); e.Status != "denied" || strings.Contains(e.Reason, "script") {
			t.Errorf("%s: recorded as %+v", name, e)
		}
	}
	s.refused("", "PROVIDER_REFUSED") // cancelled there
	for _, back := range []string{"https://evil.example/", "//evil.example", `/\evil.example`, "evil", "/\t/evil.example", "javascript:alert(1)"} {
		if p := victim.get(s.URL + startPath + "?return=" + url.QueryEscape(back)); p.status != http.StatusBadRequest {
			t.Errorf("return=%q: %d %s", back, p.status, p.location)
		}
	}
}

func TestProviderDecidesWhoAndWhat(t *testing.T) {
	s := startSite(t, "DOORWARD_OIDC_CREATE_PEOPLE=true", "DOORWARD_OIDC_ALLOWED_DOMAINS=example.com",
		"DOORWARD_OIDC_ROLE_CLAIM=groups", "DOORWARD_OIDC_ROLES=staff=editor,admins=admin")
	s.refused("eve", "EMAIL_DOMAIN")
	s.refused("kelvin", "EMAIL_NOT_VERIFIED") // K is no k
	s.refused("mallory", "EMAIL_NOT_VERIFIED")
	ada := newBrowser(t)
	if p := s.signIn(ada, "ada"); p.status != 200 {
		t.Fatalf("%d %s", p.status, p.text)
	}
	if name, role := s.me(ada); name != "ada@example.com" || role != "admin" { // and not "owner", as she calls herself
		t.Errorf("signed in as %s, %s", name, role)
	}
	// A group that is taken away takes the role, and what was begun with it.
	s.control(map[string]any{"accounts": map[string]any{"ada": account("ada@example.com", true)}})
	again := newBrowser(t)
	if p := s.signIn(again, "ada"); p.status != 200 {
		t.Fatalf("%d %s", p.status, p.text)
	}
	if _, role := s.me(again); role != "viewer" {
		t.Errorf("the role is %s", role)
	}
	if p := ada.get(s.URL + "/api/v1/auth/me"); p.status != http.StatusUnauthorized {
		t.Errorf("the session of the admin goes on: %d", p.status)
	}
	if e := s.lastSignIn(); e.Reason != "role by the identity provider: viewer" {
		t.Errorf("recorded as %+v", e)
	}
}

func TestTooManyRefusalsLockTheAddress(t *testing.T) {
	s := startSite(t)
	b := newBrowser(t)
	last := 0
	for range 31 {
		u, err := url.Parse(b.get(s.URL + startPath).location)
		if err != nil {
			t.Fatal(err)
		}
		p := b.get(s.URL + startPath + "/callback?error=access_denied&state=" + url.QueryEscape(u.Query().Get("state")))
		if last = p.status; last == http.StatusTooManyRequests && p.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the 31st refusal is %d", last)
	}
	s.CLI("person", "add", "bob", "--oidc-email", "bob@example.com")
	if p := s.signIn(newBrowser(t), "bob"); p.status != http.StatusTooManyRequests {
		t.Errorf("the lock does not hold for a good sign-in: %d", p.status)
	}
}

// Case 15: the client's secret shows nowhere, also not when the provider refuses it or is gone.
func TestClientSecretShowsNowhere(t *testing.T) {
	const wrong = "marker-oidc-wrong-secret-4721"
	s := startSite(t, "DOORWARD_OIDC_CLIENT_SECRET_FILE=", "DOORWARD_OIDC_CLIENT_SECRET="+wrong)
	var seen strings.Builder
	see := func(p page) {
		seen.WriteString(p.text + p.location)
		for k, v := range p.header {
			seen.WriteString(k + strings.Join(v, " "))
		}
	}
	b := newBrowser(t)
	start := b.get(s.URL + startPath)
	see(start)
	p := b.get(b.atProvider(start.location, "ada", s.URL))
	see(p)
	if p.status != http.StatusForbidden || !strings.Contains(p.text, "PROVIDER_REFUSED") {
		t.Errorf("with a wrong secret: %d %s", p.status, p.text)
	}
	see(b.get(s.URL + "/metrics"))
	for _, path := range []string{"people", "agents", "keys", "audit?limit=100", "auth/me", "mcp/servers", "tasks"} {
		_, text := s.REST(testkit.AdminKey, "GET", "/api/v1/"+path, nil)
		seen.Write(text)
	}
	s.Stop()
	seen.WriteString(s.Log())
	err := filepath.WalkDir(s.Data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		seen.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(seen.String(), wrong) {
		t.Error("the client secret shows")
	}
}
