package app

import (
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/secret"
)

// openID makes the sign-in with a provider, nil when none is set.
func (a *App) openID(box *secret.Box) *auth.OpenID {
	c := a.cfg.OIDC
	if c.Issuer == "" {
		return nil
	}
	words, _ := c.RoleWords() // config has checked them
	roles := make(map[string]auth.Role, len(words))
	for value, word := range words {
		roles[value], _ = auth.ParseRole(word)
	}
	role, _ := auth.ParseRole(c.DefaultRole)
	return auth.NewOpenID(a.auth, box, auth.OpenIDConfig{
		Issuer: c.Issuer, ClientID: c.ClientID, ClientSecret: c.ClientSecret, Scopes: c.Scopes, Workspace: c.Workspace,
		RoleClaim: c.RoleClaim, Roles: roles, DefaultRole: role, Domains: c.AllowedDomains, Create: c.CreatePeople,
	})
}

// oauth makes the check of access tokens, nil when none are accepted.
func (a *App) oauth() *auth.OAuth {
	c := a.cfg.OAuth
	if len(c.Issuers) == 0 {
		return nil
	}
	if c.Audience == "" {
		c.Audience = a.PublicURL() + "/mcp"
	}
	return auth.NewOAuth(a.auth, auth.OAuthConfig{Issuers: c.Issuers, Audience: c.Audience, ReadScope: c.ReadScope, CallScope: c.CallScope})
}
