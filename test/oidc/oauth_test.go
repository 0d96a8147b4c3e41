package oidc

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

// token asks the provider's token endpoint.
func (p *provider) token(client, secret string, form url.Values) string {
	p.t.Helper()
	req, err := http.NewRequest("POST", p.issuer+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		p.t.Fatal(err)
	}
	req.SetBasicAuth(client, secret)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var out struct {
		Token string `json:"access_token"`
	}
	if json.Unmarshal(text, &out) != nil || strings.Count(out.Token, ".") != 2 {
		p.t.Fatalf("the provider gives no JWT: %s", text)
	}
	return out.Token
}

// machine is a token of a client without a person.
func (p *provider) machine(client, resource, scope string) string {
	p.t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "resource": {resource}}
	if scope != "" {
		form.Set("scope", scope)
	}
	return p.token(client, "bots", form)
}

// on is a token of the client "app" that acts on behalf of login.
func (p *provider) on(login, resource, scope string) string {
	p.t.Helper()
	const verifier = "a-verifier-of-at-least-forty-three-characters-0123"
	sum := sha256.Sum256([]byte(verifier))
	q := url.Values{"response_type": {"code"}, "client_id": {"app"}, "redirect_uri": {"http://127.0.0.1:1/app"}, "scope": {"openid " + scope}, "resource": {resource},
		"state": {"x"}, "code_challenge_method": {"S256"}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}
	back, err := url.Parse(newBrowser(p.t).atProvider(p.issuer+"/auth?"+q.Encode(), login, "http://127.0.0.1:1/app"))
	if err != nil {
		p.t.Fatal(err)
	}
	return p.token("app", "apps", url.Values{"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")}, "code_verifier": {verifier},
		"redirect_uri": {"http://127.0.0.1:1/app"}, "resource": {resource}})
}

// resource is a gateway with a server "notes" behind it, which records what reaches it, and an agent without a key of the test's.
type resource struct {
	*site
	fake  *testkit.Fake
	agent string
}

func startResource(t *testing.T) *resource {
	t.Helper()
	s := startSite(t)
	fake := testkit.NewFake(t, testkit.ToolDef("read_note", "Read a note"), testkit.ToolDef("send_note", "Send a note"))
	s.Approve(s.AddHTTP("notes", fake.URL, nil).ID, "ALLOW")
	agent, _ := s.Agent("bot", "notes/*")
	return &resource{s, fake, agent}
}

func (r *resource) bind(client string) {
	r.t.Helper()
	if out, code := r.CLI("agent", "oauth", "add", "bot", client); code != 0 {
		r.t.Fatal(out)
	}
}

// call calls a tool in one request; its answer must have the status.
func (r *resource) call(path, token, tool string, status int) testkit.Reply {
	r.t.Helper()
	reply := testkit.NewClient(r.t, r.URL+path, token, testkit.Modern).Call(tool, `{}`)
	if reply.Status != status {
		r.t.Errorf("%s at %s: %v, want %d", tool, path, reply, status)
	}
	return reply
}

// challenged checks the header of a refusal; wants are parts of it.
func (r *resource) challenged(reply testkit.Reply, wants ...string) {
	r.t.Helper()
	header := reply.Header.Get("WWW-Authenticate")
	for _, want := range append(wants, `Bearer `, `resource_metadata="`+r.URL+`/.well-known/oauth-protected-resource/mcp`) {
		if !strings.Contains(header, want) {
			r.t.Errorf("challenge %q lacks %s", header, want)
		}
	}
}

func TestClientFindsItsWayIn(t *testing.T) {
	r := startResource(t)
	r.challenged(r.call("/mcp", "", "notes__read_note", 401), `scope="tools:read tools:call"`)
	r.challenged(r.call("/mcp", "eyJnonsense.x.y", "notes__read_note", 401), `error="invalid_token"`)
	r.challenged(r.call("/mcp/notes", "", "read_note", 401), `/mcp/notes"`)
	for path, want := range map[string]string{"": "/mcp", "/mcp": "/mcp", "/mcp/notes": "/mcp/notes"} {
		p := newBrowser(t).get(r.URL + "/.well-known/oauth-protected-resource" + path)
		var meta struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
			Scopes   []string `json:"scopes_supported"`
		}
		if err := json.Unmarshal([]byte(p.text), &meta); err != nil || meta.Resource != r.URL+want || len(meta.Servers) != 1 || meta.Servers[0] != r.issuer || len(meta.Scopes) != 2 {
			t.Errorf("%s: %d %s", path, p.status, p.text)
		}
	}

	token := r.machine("bot", r.URL+"/mcp", "tools:read tools:call")
	if reply := r.call("/mcp", token, "notes__read_note", 403); !strings.Contains(string(reply.Raw), "not bound") {
		t.Errorf("a client that nobody bound: %v", reply)
	}
	r.bind("bot")
	if out, code := r.CLI("agent", "oauth", "add", "bot", "bot"); code == 0 {
		t.Errorf("bound twice: %s", out)
	}
	// A legacy client with a session, and one without.
	legacy := testkit.NewClient(t, r.URL+"/mcp", token, testkit.Legacy)
	legacy.Connect()
	if names := legacy.Names(); len(names) != 2 {
		t.Errorf("tools: %v", names)
	}
	if reply := legacy.Call("notes__send_note", `{"a":1}`); reply.Error != nil || reply.IsError() {
		t.Errorf("send_note: %v", reply)
	}
	r.call("/mcp", token, "notes__read_note", 200)
	if e := r.LastEvent("send_note"); e.AgentID != r.agent || e.Status != "ok" || e.Decision != "ALLOW" {
		t.Errorf("recorded as %+v", e)
	}
	// Another client's token does not open the session.
	r.bind("stranger")
	other := testkit.NewClient(t, r.URL+"/mcp", r.machine("stranger", r.URL+"/mcp", "tools:call"), testkit.Legacy)
	other.Session = legacy.Session
	if reply := other.Request("tools/list", `{}`); reply.Status != 404 {
		t.Errorf("another client in the session: %v", reply)
	}

	// Case 14: no token goes on, in no header and no body.
	seen := 0
	for _, rec := range r.fake.Requests("") {
		seen++
		for k, v := range rec.Header {
			if strings.Contains(strings.Join(v, " "), token) || k == "Authorization" || k == "Cookie" {
				t.Errorf("the server behind got the header %s", k)
			}
		}
		if bytes.Contains(rec.Body, []byte(token[len(token)-20:])) {
			t.Errorf("the server behind got the token: %s", rec.Body)
		}
	}
	if seen == 0 || r.fake.Calls() != 2 {
		t.Errorf("%d requests, %d calls reached the server", seen, r.fake.Calls())
	}
	if strings.Contains(r.Log(), token) {
		t.Error("the token stands in the log")
	}

	// Removed: refused at once, although the token was good a moment ago.
	var list struct{ Clients []struct{ ID, Client string } }
	r.Admin("GET", "/api/v1/oauth/clients", nil, &list)
	for _, k := range list.Clients {
		if out, code := r.CLI("agent", "oauth", "remove", k.ID); code != 0 {
			t.Fatal(out)
		}
	}
	r.call("/mcp", token, "notes__read_note", 403)
}

func TestScopes(t *testing.T) {
	r := startResource(t)
	r.bind("bot")
	none, read := r.machine("bot", r.URL+"/mcp", ""), r.machine("bot", r.URL+"/mcp", "tools:read")
	r.challenged(r.call("/mcp", none, "notes__read_note", 403), `error="insufficient_scope"`, `scope="tools:read tools:call"`)
	r.call("/mcp", read, "notes__read_note", 200)
	r.challenged(r.call("/mcp", read, "notes__send_note", 403), `error="insufficient_scope"`, `scope="tools:call"`)
	if e := r.LastEvent("send_note"); e.Status != "denied" || e.Reason != "INSUFFICIENT_SCOPE" {
		t.Errorf("recorded as %+v", e)
	}
	legacy := testkit.NewClient(t, r.URL+"/mcp", read, testkit.Legacy)
	legacy.Connect()
	reply := legacy.Call("notes__send_note", `{}`)
	if r.challenged(reply, `error="insufficient_scope"`); reply.Status != 403 {
		t.Errorf("a legacy client: %v", reply)
	}
	if status, text := r.REST(read, "POST", "/tools/call", map[string]any{"name": "send_note", "arguments": map[string]any{}}); status != 403 || !strings.Contains(string(text), "INSUFFICIENT_SCOPE") {
		t.Errorf("POST /tools/call: %d %s", status, text)
	}
	if n := r.fake.Calls(); n != 1 {
		t.Errorf("%d calls reached the server", n)
	}
	// With the scope that the challenge names it goes.
	r.call("/mcp", r.machine("bot", r.URL+"/mcp", "tools:call"), "notes__send_note", 200)
}

func TestTokensThatAreNotForUs(t *testing.T) {
	r := startResource(t)
	r.bind("bot")
	const scope = "tools:read tools:call"
	good := r.machine("bot", r.URL+"/mcp", scope)
	part := strings.Split(good, ".")
	forge := func(header map[string]any, change func(claims map[string]any), sign func(signed string) string) string {
		text, err := base64.RawURLEncoding.DecodeString(part[1])
		if err != nil {
			t.Fatal(err)
		}
		var claims map[string]any
		if err := json.Unmarshal(text, &claims); err != nil {
			t.Fatal(err)
		}
		change(claims)
		h, _ := json.Marshal(header)
		c, _ := json.Marshal(claims)
		signed := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(c)
		return signed + "." + sign(signed)
	}
	same := func(map[string]any) {}
	none := func(string) string { return "" }
	theirs := func(string) string { return part[2] }
	res, err := http.Get(r.issuer + "/jwks")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var set struct{ Keys []map[string]any }
	if err := json.NewDecoder(res.Body).Decode(&set); err != nil {
		t.Fatal(err)
	}
	public := func(signed string) string { // HS256 with what everybody knows
		key, _ := json.Marshal(set.Keys[0])
		m := hmac.New(sha256.New, key)
		m.Write([]byte(signed))
		return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
	}
	kid := set.Keys[1]["kid"]
	r.call("/mcp", good, "notes__read_note", 200)
	for name, token := range map[string]string{
		"another audience":     r.machine("bot", "https://other.example/mcp", scope),
		"one server's":         r.machine("bot", r.URL+"/mcp/notes", scope),
		"alg none":             forge(map[string]any{"alg": "none"}, same, none),
		"HS256":                forge(map[string]any{"alg": "HS256", "kid": kid}, same, public),
		"more life":            forge(map[string]any{"alg": "ES256", "kid": kid}, func(c map[string]any) { c["exp"] = 4102444800 }, theirs),
		"another issuer":       forge(map[string]any{"alg": "ES256", "kid": kid}, func(c map[string]any) { c["iss"] = "https://evil.example" }, theirs),
		"a signature cut off":  part[0] + "." + part[1] + ".",
		"a signature changed":  part[0] + "." + part[1] + "." + strings.Repeat("A", len(part[2])),
		"in the query instead": "",
	} {
		path := "/mcp"
		if token == "" {
			path += "?access_token=" + good
		}
		if reply := r.call(path, token, "notes__read_note", 401); token != "" {
			if !strings.Contains(reply.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
				t.Errorf("%s: %v", name, reply.Header)
			}
		}
	}
	r.call("/mcp/notes", r.machine("bot", r.URL+"/mcp/notes", scope), "read_note", 200) // the door of that one server
	if n := r.fake.Calls(); n != 2 {
		t.Errorf("%d calls reached the server", n)
	}

	r.control(map[string]any{"ttl": 2})
	short := r.machine("bot", r.URL+"/mcp", scope)
	r.call("/mcp", short, "notes__read_note", 200)
	testkit.Eventually(t, 20*time.Second, "an expired token is refused", func() bool {
		return testkit.NewClient(t, r.URL+"/mcp", short, testkit.Modern).Call("notes__read_note", `{}`).Status == 401
	})

	// New keys are found out; not more often than every ten seconds, or strangers could make Doorward ask all the time.
	r.control(map[string]any{"ttl": 300, "rotate": true})
	fresh := r.machine("bot", r.URL+"/mcp", scope)
	testkit.Eventually(t, 20*time.Second, "a token of a new key is accepted", func() bool {
		return testkit.NewClient(t, r.URL+"/mcp", fresh, testkit.Modern).Call("notes__read_note", `{}`).Status == 200
	})
}

func TestTokenActsOnBehalfOfALinkedPerson(t *testing.T) {
	r := startResource(t)
	r.bind("app")
	r.CLI("person", "add", "countess", "--oidc-email", "ada@example.com")
	stranger := r.on("ada", r.URL+"/mcp", "tools:call") // good, but nobody's whom we know
	r.call("/mcp", stranger, "notes__send_note", 200)
	person := func() string {
		var list struct{ Events []event }
		r.Admin("GET", "/api/v1/audit?kind=call&limit=1", nil, &list)
		return list.Events[0].PersonID
	}
	if id := person(); id != "" {
		t.Errorf("recorded on behalf of %s", id)
	}
	if p := r.signIn(newBrowser(t), "ada"); p.status != 200 {
		t.Fatalf("%d %s", p.status, p.text)
	}
	want := r.lastSignIn().PersonID
	r.call("/mcp", stranger, "notes__send_note", 200)
	if id := person(); id != want {
		t.Errorf("recorded on behalf of %q, want %s", id, want)
	}
	if out, code := r.CLI("person", "set", "countess", "--disable"); code != 0 {
		t.Fatal(out)
	}
	if reply := r.call("/mcp", stranger, "notes__send_note", 403); !strings.Contains(string(reply.Raw), "may not act any more") {
		t.Errorf("on behalf of a disabled person: %v", reply)
	}
}
