package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// keyServer is the part of an authorization server that checks need. What a real one does is tested in test/oidc; here the clock and the keys are the test's.
type keyServer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	keys    map[string]*ecdsa.PrivateKey
	fetched int
	down    bool
}

func newKeyServer(t *testing.T) *keyServer {
	s := &keyServer{t: t, keys: map[string]*ecdsa.PrivateKey{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.down {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if r.URL.Path != "/jwks" {
			json.NewEncoder(w).Encode(map[string]any{"issuer": s.URL, "jwks_uri": s.URL + "/jwks", "authorization_endpoint": s.URL, "token_endpoint": s.URL}) //nolint:errcheck
			return
		}
		s.fetched++
		list := []map[string]string{}
		for kid, k := range s.keys {
			point, _ := k.PublicKey.Bytes()
			list = append(list, map[string]string{"kty": "EC", "crv": "P-256", "kid": kid, "x": b64(point[1:33]), "y": b64(point[33:])})
		}
		json.NewEncoder(w).Encode(map[string]any{"keys": list}) //nolint:errcheck
	}))
	t.Cleanup(s.Close)
	s.key("one")
	return s
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// key makes a key, the only one of now on.
func (s *keyServer) key(kid string) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = map[string]*ecdsa.PrivateKey{kid: k}
}

func (s *keyServer) set(down bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	return s.fetched
}

// token signs claims with the key.
func (s *keyServer) token(kid string, claims map[string]any) string {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	h, _ := json.Marshal(map[string]string{"alg": "ES256", "typ": "at+jwt", "kid": kid})
	c, _ := json.Marshal(claims)
	signed := b64(h) + "." + b64(c)
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, s.keys[kid], sum[:])
	if err != nil {
		s.t.Fatal(err)
	}
	return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...))
}

func TestAccessTokens(t *testing.T) {
	w, s := newWorld(t), newKeyServer(t)
	const here = "https://door.example/mcp"
	o := auth.NewOAuth(w.Auth, auth.OAuthConfig{Issuers: []string{s.URL}, Audience: here, ReadScope: "r", CallScope: "c"})
	agent := w.caller(w.agent).AgentID
	bound, err := w.BindOAuthClient(t.Context(), w.ws, s.URL, "bot", agent)
	if err != nil {
		t.Fatal(err)
	}
	kid := "one"
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{"iss": s.URL, "sub": "u", "client_id": "bot", "aud": here, "scope": "c other", "exp": w.now.Add(time.Hour).Unix(), "iat": w.now.Unix()}
		for k, v := range change {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		return c
	}
	try := func(what, token string, want fault.Class) *auth.Caller {
		t.Helper()
		c, err := o.Authenticate(t.Context(), token, "")
		if (err == nil) != (want == "") || err != nil && !fault.Is(err, want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		return c
	}
	// go-oidc gives the answer of a request for keys also to whoever comes right after it, so the next one may need a moment.
	soon := func(what, token string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
			_, err := o.Authenticate(t.Context(), token, "")
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for _, c := range []struct {
		what   string
		change map[string]any
		want   fault.Class
	}{
		{"all is well", nil, ""},
		{"one of several audiences", map[string]any{"aud": []string{"x", here}}, ""},
		{"azp names the client", map[string]any{"client_id": nil, "azp": "bot"}, ""},
		{"scopes as a list", map[string]any{"scope": []string{"c"}}, ""},
		{"scopes in scp", map[string]any{"scope": nil, "scp": "c"}, ""},
		{"a prefix of the audience", map[string]any{"aud": "https://door.example"}, fault.Unauthenticated},
		{"an audience with a slash more", map[string]any{"aud": here + "/"}, fault.Unauthenticated},
		{"no audience", map[string]any{"aud": nil}, fault.Unauthenticated},
		{"expired", map[string]any{"exp": w.now.Add(-time.Second).Unix()}, fault.Unauthenticated},
		{"no expiry", map[string]any{"exp": nil}, fault.Unauthenticated},
		{"not valid yet", map[string]any{"nbf": w.now.Add(2 * time.Minute).Unix()}, fault.Unauthenticated},
		{"bound to a key", map[string]any{"cnf": map[string]string{"jkt": "x"}}, fault.Unauthenticated},
		{"no client", map[string]any{"client_id": nil}, fault.Unauthenticated},
		{"another client", map[string]any{"client_id": "x"}, fault.Forbidden},
		{"no scope of ours", map[string]any{"scope": "calls r2"}, fault.Forbidden},
		{"another issuer", map[string]any{"iss": "https://evil.example"}, fault.Unauthenticated},
	} {
		try(c.what, s.token(kid, claims(c.change)), c.want)
	}
	if n := s.set(false); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}

	token := s.token(kid, claims(nil))
	c := try("caller", token, "")
	if c.AgentID != agent || c.Agent == nil || c.WorkspaceID != w.ws || c.PersonID != "" || c.Role != auth.NoRole || c.LacksScope != "" || c.KeyID[:len(bound.ID)] != bound.ID {
		t.Errorf("caller %+v", c)
	}
	if c := try("read", s.token(kid, claims(map[string]any{"scope": "r"})), ""); c.LacksScope != "c" {
		t.Errorf("caller %+v", c)
	}
	if other := try("another subject", s.token(kid, claims(map[string]any{"sub": "v"})), ""); other.KeyID == c.KeyID {
		t.Error("two subjects share what hangs on a key")
	}
	if n := testing.AllocsPerRun(100, func() { o.Authenticate(t.Context(), token, "") }); n > 1 { //nolint:errcheck
		t.Errorf("%v allocations for a token that is known", n)
	}

	// A token of an unknown key makes it ask again, but not each time.
	s.key("two")
	kid = "two"
	fresh := s.token(kid, claims(nil))
	for range 5 {
		try("a new key, too early", fresh, fault.Unauthenticated)
	}
	w.now = w.now.Add(11 * time.Second)
	soon("a new key", fresh)
	try("verified before the key went", token, "")
	for range 5 {
		try("a key that nobody has", s.token(kid, claims(nil))+"x", fault.Unauthenticated)
	}
	if n := s.set(false); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}
	// A withdrawn key is good for minutes at most.
	w.now = w.now.Add(6 * time.Minute)
	try("the key is gone", token, fault.Unauthenticated)

	// What is not to be verified is not let in, and that is not the client's fault.
	s.set(true)
	w.now = w.now.Add(20 * time.Minute)
	try("the server is down", fresh, fault.Unavailable)
	s.set(false)
	w.now = w.now.Add(11 * time.Second)
	soon("it is back", fresh)
	w.now = w.now.Add(time.Hour)
	try("expired meanwhile", fresh, fault.Unauthenticated)

	if err := w.UnbindOAuthClient(t.Context(), "another", bound.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("of another workspace: %v", err)
	}
	again := s.token(kid, claims(nil))
	try("before it is unbound", again, "")
	if err := w.UnbindOAuthClient(t.Context(), w.ws, bound.ID); err != nil {
		t.Fatal(err)
	}
	try("unbound", again, fault.Forbidden)
}
