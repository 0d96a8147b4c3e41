package config_test

import (
	"maps"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/config"
)

func TestIdentityProvider(t *testing.T) {
	good := map[string]string{"oidc.issuer": "https://login.example", "oidc.client_id": "doorward", "oidc.role_claim": "groups", "oidc.roles": "staff=editor"}
	for _, c := range []struct{ key, value, want string }{
		{"oidc.roles", "cn=a=admin,staff=editor", ""},
		{"oidc.issuer", "http://127.0.0.1:8080/realms/main", ""},
		{"oidc.issuer", "http://login.example", "only on loopback"},
		{"oidc.issuer", "https://login.example/?x=1", "not an https URL"},
		{"oidc.issuer", "", "must be set"},
		{"oidc.client_id", "", "must be set"},
		{"oidc.scopes", "email", "must hold openid"},
		{"oidc.roles", "staff=boss", "VALUE=ROLE"},
		{"oidc.roles", "staff=admin,staff=viewer", "two roles"},
		{"oidc.role_claim", "", "go together"},
		{"oidc.default_role", "owner", "is not one of"},
		{"oidc.allowed_domains", "@example.com", "is not a domain"},
		{"oidc.workspace", "", "must name"},
	} {
		flags := maps.Clone(good)
		flags[c.key] = c.value
		_, err := config.Load(config.Source{Flags: flags})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s = %q: %v, want %q", c.key, c.value, err, c.want)
		}
	}
	for _, c := range []struct{ key, value, want string }{
		{"oauth.issuers", "https://a.example,https://b.example", ""},
		{"oauth.issuers", "https://a.example,http://b.example", "only on loopback"},
		{"oauth.issuers", "https://a.example,https://a.example", "stands twice"},
		{"oauth.audience", "doorward", "must be an http"},
		{"oauth.read_scope", `a"b`, "must be one scope"},
		{"oauth.call_scope", "two words", "must be one scope"},
		{"oauth.call_scope", "tools:read", "must differ"},
	} {
		_, err := config.Load(config.Source{Flags: map[string]string{c.key: c.value}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s = %q: %v, want %q", c.key, c.value, err, c.want)
		}
	}
	_, err := config.Load(config.Source{Environ: []string{"DOORWARD_OIDC_CLIENT_SECRET=marker", "DOORWARD_OIDC_CLIENT_SECRET_FILE=/x"}, Flags: good})
	if err == nil || !strings.Contains(err.Error(), "keep one of them") || strings.Contains(err.Error(), "marker") {
		t.Errorf("value and file: %v", err)
	}
}
