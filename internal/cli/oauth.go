package cli

import (
	"net/url"

	"doorward.dev/doorward/internal/auth"
)

const clientsPath = "/api/v1/oauth/clients"

type oauthAddCmd struct {
	Agent  string `arg:"" help:"Name or id of the agent."`
	Client string `arg:"" help:"Client id at the authorization server."`
	Issuer string `help:"Issuer of the client's tokens; may be left out where the server trusts one." placeholder:"URL"`
}

func (c *oauthAddCmd) Run(e *env) error {
	in := map[string]string{"agent_id": c.Agent, "client_id": c.Client, "issuer": c.Issuer}
	return ask(e, "POST", clientsPath, in, func(k auth.OAuthClient) { e.print("oauth_added", k.ClientID, c.Agent, k.ID) })
}

type oauthListCmd struct{}

func (oauthListCmd) Run(e *env) error {
	type list struct{ Clients []auth.OAuthClient }
	return ask(e, "GET", clientsPath, nil, func(l list) {
		rows := [][]string{{"CLIENT", "ISSUER", "AGENT", "CREATED", "ID"}}
		for _, k := range l.Clients {
			rows = append(rows, []string{k.ClientID, k.Issuer, k.AgentID, moment(k.CreatedAt), k.ID})
		}
		e.table(rows)
	})
}

type oauthRemoveCmd struct {
	ID string `arg:"" help:"Id of the binding."`
}

func (c *oauthRemoveCmd) Run(e *env) error {
	return ask(e, "DELETE", clientsPath+"/"+url.PathEscape(c.ID), nil, func(struct{}) { e.print("oauth_removed", c.ID) })
}
