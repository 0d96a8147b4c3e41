package door

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
)

// agentInfo is an agent as REST shows it.
type agentInfo struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	State       string            `json:"status"`
	Allowlist   []string          `json:"allowlist"`
	Unmatched   []string          `json:"unmatched,omitempty"` // entries that grant no tool there is now; only where one agent is shown
	Capability  map[string]string `json:"capability"`
	Scripts     []string          `json:"script_allowlist"` // null: every script
	StoppedAt   int64             `json:"stopped_at,omitempty"`
	StopReason  string            `json:"stop_reason,omitempty"`
	CreatedAt   int64             `json:"created_at"`
	ETag        string            `json:"etag"`
	Key         string            `json:"key,omitempty"` // only in the answer that creates it
}

func showAgentInfo(a *auth.Agent) agentInfo {
	out := agentInfo{
		ID: a.ID, Name: a.Name, Description: a.Description, State: a.State, Allowlist: []string{}, Capability: map[string]string{}, Scripts: a.ScriptAllowlist,
		StoppedAt: a.StoppedAt, StopReason: a.StopReason, CreatedAt: a.CreatedAt, ETag: a.Tag(),
	}
	for _, p := range a.Allowlist {
		out.Allowlist = append(out.Allowlist, p.Text)
	}
	for k, v := range a.Capability {
		out.Capability[k] = v
	}
	return out
}

// agentNamed finds an agent of a workspace by id or name, nil when there is none.
func (d *Door) agentNamed(ws, nameOrID string) *auth.Agent {
	var named *auth.Agent
	for _, a := range d.d.Auth.Agents(ws) {
		if a.ID == nameOrID {
			return a
		}
		if a.Name == nameOrID {
			named = a
		}
	}
	return named
}

func (d *Door) agent(c *restCall) (*auth.Agent, error) {
	a := d.agentNamed(c.caller.WorkspaceID, c.PathValue("id"))
	if a == nil {
		return nil, fault.New(fault.NotFound, "no such agent in this workspace")
	}
	c.target("agent", a.ID, a.Name)
	return a, nil
}

// target names what a change is about where the record has no column for it.
func (c *restCall) target(kind, id, name string) { c.row.Reason = kind + " " + id + " " + name }

func (d *Door) listAgents(c *restCall) (any, error) {
	list, next, err := pageOf(c, d.d.Auth.Agents(c.caller.WorkspaceID), func(a *auth.Agent) string { return ageKey(a.CreatedAt, a.ID) })
	if err != nil {
		return nil, err
	}
	out := []agentInfo{}
	for _, a := range list {
		out = append(out, showAgentInfo(a))
	}
	return agentList{out, next}, nil
}

func (d *Door) showAgent(c *restCall) (any, error) {
	a, err := d.agent(c)
	if err != nil {
		return nil, err
	}
	out := showAgentInfo(a)
	out.Unmatched = d.unmatched(a)
	return c.tagged(out, a.Tag()), nil
}

// unmatched are the entries of an allowlist that grant none of the tools that the servers of the workspace list now: mistyped
// ones, and those of what is gone.
func (d *Door) unmatched(a *auth.Agent) (entries []string) {
	servers := d.d.Catalog.Snapshot().Servers
	for i := range a.Allowlist {
		if p := &a.Allowlist[i]; !grantsAny(p, a.WorkspaceID, servers) {
			entries = append(entries, p.Text)
		}
	}
	return entries
}

func grantsAny(p *auth.Pattern, ws string, servers map[string]*catalog.ServerView) bool {
	for _, sv := range servers {
		if sv.WorkspaceID == ws && slices.ContainsFunc(sv.Tools, func(t *catalog.Tool) bool { return p.Grants(t.ServerName, t.Name, t.Tier) }) {
			return true
		}
	}
	return false
}

// agentInput is what may be set of an agent.
type agentInput struct {
	Name        *string            `json:"name"`
	Description *string            `json:"description"`
	Status      *string            `json:"status"`
	Allowlist   *[]string          `json:"allowlist"`
	Capability  *map[string]string `json:"capability"`
	Scripts     json.RawMessage    `json:"script_allowlist"` // null: every script
}

// apply puts the given fields onto a copy of an agent.
func (in agentInput) apply(a auth.Agent) (auth.Agent, error) {
	if in.Name != nil {
		a.Name = *in.Name
	}
	if in.Description != nil {
		a.Description = *in.Description
	}
	if in.Capability != nil {
		a.Capability = *in.Capability
	}
	if in.Scripts != nil {
		a.ScriptAllowlist = nil
		if err := json.Unmarshal(in.Scripts, &a.ScriptAllowlist); err != nil {
			return a, fault.New(fault.InvalidParams, "script_allowlist must be null or a list of slugs")
		}
	}
	if in.Allowlist != nil {
		a.Allowlist = nil
		for _, text := range *in.Allowlist {
			p, err := auth.ParsePattern(text)
			if err != nil {
				return a, err
			}
			a.Allowlist = append(a.Allowlist, p)
		}
	}
	return a, nil
}

// createAgent makes an agent with a key. Without a status it waits for approval, and its key does not work yet.
func (d *Door) createAgent(c *restCall) (any, error) {
	var in agentInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	want, err := in.apply(auth.Agent{})
	if err != nil {
		return nil, err
	}
	if in.Status != nil {
		want.State = *in.Status
	}
	a, err := d.d.Auth.CreateAgent(c.Context(), c.caller.WorkspaceID, want)
	if err != nil {
		return nil, err
	}
	c.target("agent", a.ID, a.Name)
	key, _, err := d.d.Auth.CreateKey(c.Context(), c.caller.WorkspaceID, a.ID, "", a.Name, 0)
	if err != nil {
		return nil, err
	}
	out := showAgentInfo(a)
	out.Key, c.status = key, http.StatusCreated
	return out, nil
}

func (d *Door) updateAgent(c *restCall) (any, error) {
	a, err := d.agent(c)
	if err != nil {
		return nil, err
	}
	var in agentInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	a, err = d.d.Auth.ChangeAgent(c.Context(), c.caller.WorkspaceID, a.ID, func(g auth.Agent) (auth.Agent, error) {
		if in.Status != nil {
			g.State = *in.Status
		}
		return in.apply(g)
	})
	if err != nil {
		return nil, err
	}
	return c.tagged(showAgentInfo(a), a.Tag()), nil
}

func (d *Door) releaseAgent(c *restCall) (any, error) {
	a, err := d.agent(c)
	if err != nil {
		return nil, err
	}
	if a, err = d.d.Auth.ReleaseAgent(c.Context(), c.caller.WorkspaceID, a.ID); err != nil {
		return nil, err
	}
	return showAgentInfo(a), nil
}

func (d *Door) listKeys(c *restCall) (any, error) {
	list, err := d.d.Auth.Keys(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return nil, err
	}
	list, next, err := pageOf(c, list, func(k auth.KeyInfo) string { return ageKey(k.CreatedAt, k.ID) })
	return keyList{orEmpty(list), next}, err
}

type keyInput struct {
	AgentID   string `json:"agent_id"`
	PersonID  string `json:"person_id"`
	Name      string `json:"name"`
	ExpiresAt int64  `json:"expires_at"` // unix microseconds
	ExpiresIn string `json:"expires_in"` // a duration such as 720h
}

// createKey makes a key for an agent or a person. Nobody makes a key that may do more than they may.
func (d *Door) createKey(c *restCall) (any, error) {
	var in keyInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.ExpiresIn != "" {
		life, err := time.ParseDuration(in.ExpiresIn)
		if err != nil || life <= 0 || in.ExpiresAt != 0 {
			return nil, fault.New(fault.InvalidParams, "expires_in must be a duration such as 720h, and not stand beside expires_at")
		}
		in.ExpiresAt = d.d.Now().Add(life).UnixMicro()
	}
	if in.AgentID != "" {
		a := d.agentNamed(c.caller.WorkspaceID, in.AgentID)
		if a == nil {
			return nil, fault.New(fault.NotFound, "no such agent in this workspace")
		}
		in.AgentID = a.ID
		c.target("agent", a.ID, a.Name)
	}
	if in.PersonID != "" {
		p, err := d.personNamed(c, in.PersonID)
		if err != nil {
			return nil, err
		}
		in.PersonID = p.ID
		c.target("person", p.ID, p.Name)
	}
	key, info, err := d.d.Auth.CreateKey(c.Context(), c.caller.WorkspaceID, in.AgentID, in.PersonID, in.Name, in.ExpiresAt)
	if err != nil {
		return nil, err
	}
	c.status = http.StatusCreated
	return keyCreated{info, key}, nil
}

// personNamed finds a person by id or name whose role is not above the caller's.
func (d *Door) personNamed(c *restCall, nameOrID string) (auth.Person, error) {
	people, err := d.d.Auth.People(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return auth.Person{}, err
	}
	for _, p := range people {
		if p.ID != nameOrID && p.Name != nameOrID {
			continue
		}
		if role, _ := auth.ParseRole(p.Role); role > c.caller.Role {
			return p, fault.New(fault.Forbidden, "%s has the role %s, which is above yours", p.Name, p.Role).Why("INSUFFICIENT_PERMISSIONS")
		}
		return p, nil
	}
	return auth.Person{}, fault.New(fault.NotFound, "no such person in this workspace")
}

func (d *Door) revokeKey(c *restCall) (any, error) {
	id := c.PathValue("id")
	c.target("key", clip(id, 64), "")
	keys, err := d.d.Auth.Keys(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.ID == id && k.PersonID != "" { // an admin does not lock the owner out
			if _, err := d.personNamed(c, k.PersonID); err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
		}
	}
	return revoked{id}, d.d.Auth.RevokeKey(c.Context(), c.caller.WorkspaceID, id)
}

func (d *Door) listPeople(c *restCall) (any, error) {
	list, err := d.d.Auth.People(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return nil, err
	}
	list, next, err := pageOf(c, list, func(p auth.Person) string { return ageKey(p.CreatedAt, p.ID) })
	return personList{orEmpty(list), next}, err
}

type personInput struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	OIDCEmail string `json:"oidc_email,omitempty"`
}

func (d *Door) createPerson(c *restCall) (any, error) {
	var in personInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	role, ok := auth.ParseRole(in.Role)
	if !ok {
		return nil, fault.New(fault.InvalidParams, "role must be viewer, editor, admin or owner")
	}
	if role > c.caller.Role {
		return nil, fault.New(fault.Forbidden, "the role %s is above yours", role).Why("INSUFFICIENT_PERMISSIONS")
	}
	p, err := d.d.Auth.InvitePerson(c.Context(), c.caller.WorkspaceID, in.Name, role, in.OIDCEmail)
	if err != nil {
		return nil, err
	}
	c.target("person", p.ID, p.Name)
	c.status = http.StatusCreated
	return p, nil
}
