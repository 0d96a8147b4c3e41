package door

import (
	"net/http"
	"slices"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesOAuthClients bind the clients of authorization servers to agents.
func routesOAuthClients() []route {
	const p = "/api/v1/oauth/clients"
	return []route{
		operation("GET", p, auth.Admin, "oauth.list", (*Door).listOAuthClients, "List OAuth clients and the agents that they call as"),
		operation("POST", p, auth.Admin, "oauth.bind", (*Door).bindOAuthClient, "Let a client of an authorization server call as an agent"),
		operation("DELETE", p+"/{id}", auth.Admin, "oauth.unbind", (*Door).unbindOAuthClient, "Remove that; its tokens are refused at once"),
	}
}

func (d *Door) listOAuthClients(c *restCall) (any, error) {
	list, err := d.d.Auth.OAuthClients(c.Context(), c.caller.WorkspaceID)
	return clientList{orEmpty(list)}, err
}

type oauthInput struct {
	AgentID  string `json:"agent_id"`
	ClientID string `json:"client_id"`
	Issuer   string `json:"issuer,omitempty"` // may be left out where one issuer is trusted
}

func (d *Door) bindOAuthClient(c *restCall) (any, error) {
	var in oauthInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.AgentID == "" || in.ClientID == "" {
		return nil, fault.New(fault.InvalidParams, "agent_id and client_id must be given")
	}
	var issuers []string
	if d.d.OAuth != nil {
		issuers = d.d.OAuth.Config().Issuers
	}
	if in.Issuer == "" && len(issuers) == 1 {
		in.Issuer = issuers[0]
	}
	if len(issuers) > 0 && !slices.Contains(issuers, in.Issuer) {
		return nil, fault.New(fault.InvalidParams, "issuer must be one of the setting oauth.issuers, exactly as it stands there")
	}
	a := d.agentNamed(c.caller.WorkspaceID, in.AgentID)
	if a == nil {
		return nil, fault.New(fault.NotFound, "no such agent in this workspace")
	}
	c.target("agent", a.ID, a.Name)
	k, err := d.d.Auth.BindOAuthClient(c.Context(), c.caller.WorkspaceID, in.Issuer, in.ClientID, a.ID)
	if err != nil {
		return nil, err
	}
	c.target("oauth client "+k.ID+" agent", a.ID, a.Name)
	c.status = http.StatusCreated
	return k, nil
}

func (d *Door) unbindOAuthClient(c *restCall) (any, error) {
	id := c.PathValue("id")
	c.target("oauth client", clip(id, 64), "")
	return revoked{id}, d.d.Auth.UnbindOAuthClient(c.Context(), c.caller.WorkspaceID, id)
}
