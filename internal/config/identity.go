package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// roleWords are the roles that oidc.roles may give.
var roleWords = []string{"viewer", "editor", "admin", "owner"}

// RoleWords are the roles of oidc.roles by value of the claim.
func (o *OIDC) RoleWords() (map[string]string, error) {
	out := map[string]string{}
	for _, entry := range o.Roles {
		i := strings.LastIndexByte(entry, '=')
		if i < 1 || !slices.Contains(roleWords, entry[i+1:]) {
			return nil, fmt.Errorf("%q is not VALUE=ROLE with one of %s", entry, strings.Join(roleWords, ", "))
		}
		if _, twice := out[entry[:i]]; twice {
			return nil, fmt.Errorf("%q has two roles", entry[:i])
		}
		out[entry[:i]] = entry[i+1:]
	}
	return out, nil
}

// identity checks the settings of sign-in with a provider.
func (c *Config) identity(bad func(key, format string, args ...any)) {
	o := &c.OIDC
	if o.Issuer == "" {
		if o.ClientID != "" || o.ClientSecret != "" || o.CreatePeople {
			bad("oidc.issuer", "must be set where other settings of oidc are")
		}
		return
	}
	if err := issuerURL(o.Issuer); err != nil {
		bad("oidc.issuer", "%v", err)
	}
	if o.ClientID == "" {
		bad("oidc.client_id", "must be set where oidc.issuer is")
	}
	if !slices.Contains(o.Scopes, "openid") {
		bad("oidc.scopes", "must hold openid")
	}
	if o.Workspace == "" {
		bad("oidc.workspace", "must name a workspace")
	}
	if _, err := o.RoleWords(); err != nil {
		bad("oidc.roles", "%v", err)
	}
	if (len(o.Roles) > 0) != (o.RoleClaim != "") {
		bad("oidc.roles", "oidc.roles and oidc.role_claim go together")
	}
	for _, d := range o.AllowedDomains {
		if strings.ContainsAny(d, "@*/ ") || d == "" {
			bad("oidc.allowed_domains", "%q is not a domain such as example.com", d)
		}
	}
}

// oauth checks the settings of access tokens.
func (c *Config) oauth(bad func(key, format string, args ...any)) {
	o := &c.OAuth
	for i, issuer := range o.Issuers {
		if err := issuerURL(issuer); err != nil {
			bad("oauth.issuers", "%v", err)
		} else if slices.Contains(o.Issuers[:i], issuer) {
			bad("oauth.issuers", "%q stands twice", issuer)
		}
	}
	if o.Audience != "" && !webURL(o.Audience, true) {
		bad("oauth.audience", "must be an http or https URL without user, query and fragment")
	}
	const one = "must be one scope: printable characters without spaces, quotes and backslashes"
	if !scopeToken.MatchString(o.ReadScope) {
		bad("oauth.read_scope", one)
	}
	if !scopeToken.MatchString(o.CallScope) {
		bad("oauth.call_scope", one)
	}
	if o.ReadScope == o.CallScope {
		bad("oauth.call_scope", "must differ from oauth.read_scope")
	}
}

// scopeToken is a scope of RFC 6749; it stands in a header between quotes.
var scopeToken = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]{1,200}$`)

// issuerURL refuses issuers whose keys a stranger on the network could replace.
func issuerURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || !webURL(s, true) {
		return fmt.Errorf("%q is not an https URL without user, query and fragment", s)
	}
	host := u.Host
	if u.Port() == "" {
		host += ":80"
	}
	if loop, err := loopback(host); u.Scheme != "https" && (err != nil || !loop) {
		return fmt.Errorf("%q must be an https URL: only on loopback is http safe", s)
	}
	return nil
}
