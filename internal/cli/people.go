package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/gate"
)

const (
	agentsPath    = "/api/v1/agents"
	keysPath      = "/api/v1/keys"
	peoplePath    = "/api/v1/people"
	approvalsPath = "/api/v1/mcp/approvals"
)

// agent is an agent as REST shows it.
type agent struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	State      string            `json:"status"`
	Allowlist  []string          `json:"allowlist"`
	Unmatched  []string          `json:"unmatched"`
	Capability map[string]string `json:"capability"`
	StoppedAt  int64             `json:"stopped_at"`
	Key        string            `json:"key"`
}

func (e *env) agent(name string) (a agent, err error) {
	return a, e.call("GET", agentsPath+"/"+url.PathEscape(name), nil, &a)
}

type agentAddCmd struct {
	Name        string            `arg:"" help:"Name of the agent."`
	Allow       []string          `help:"Allowlist entry: *, SERVER/*, SERVER/TOOL, TOOL or of a tier, as supacloud.read.*. Without any, only the baseline is granted." placeholder:"PATTERN"`
	Capability  map[string]string `help:"Capability model: read, write, delete, send, execute, unknown or SERVER/TOOL = rule." placeholder:"CLASS=RULE" mapsep:"none"`
	Script      []string          `help:"Slug of a script that script.run may run; without any, every script." placeholder:"SLUG"`
	Description string            `help:"What the agent does." placeholder:"TEXT"`
	Pending     bool              `help:"Let it wait for approval instead of making it ACTIVE."`
}

func (c *agentAddCmd) Run(e *env) error {
	in := map[string]any{"name": c.Name, "description": c.Description, "allowlist": listed(c.Allow), "capability": mapped(c.Capability), "status": "ACTIVE"}
	if c.Script != nil {
		in["script_allowlist"] = c.Script
	}
	if c.Pending {
		in["status"] = "PENDING_APPROVAL"
	}
	return ask(e, "POST", agentsPath, in, func(a agent) {
		e.print("agent_added", a.Name, a.State)
		fmt.Fprintln(e.stdout, e.say("key_once", a.Key))
	})
}

func listed(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func mapped(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = strings.ToUpper(v)
	}
	return out
}

type agentListCmd struct{}

func (agentListCmd) Run(e *env) error {
	type list struct{ Agents []agent }
	return ask(e, "GET", agentsPath, nil, func(l list) {
		rows := [][]string{{"NAME", "STATUS", "STOPPED", "ALLOWLIST", "CAPABILITY", "ID"}}
		for _, a := range l.Agents {
			var capability []string
			for _, k := range slices.Sorted(maps.Keys(a.Capability)) {
				capability = append(capability, k+"="+a.Capability[k])
			}
			rows = append(rows, []string{a.Name, a.State, moment(a.StoppedAt), strings.Join(a.Allowlist, " "), strings.Join(capability, " "), a.ID})
		}
		e.table(rows)
	})
}

type agentShowCmd struct {
	Name string `arg:"" help:"Name or id of the agent."`
}

func (c *agentShowCmd) Run(e *env) error {
	return ask(e, "GET", agentsPath+"/"+url.PathEscape(c.Name), nil, func(a agent) {
		rows := [][]string{{"name", a.Name}, {"id", a.ID}, {"status", a.State}}
		if a.StoppedAt != 0 {
			rows = append(rows, []string{"stopped", moment(a.StoppedAt)})
		}
		for _, entry := range a.Allowlist {
			row := []string{"allowlist", entry}
			if slices.Contains(a.Unmatched, entry) {
				row = append(row, e.say("unmatched"))
			}
			rows = append(rows, row)
		}
		for _, k := range slices.Sorted(maps.Keys(a.Capability)) {
			rows = append(rows, []string{"capability", k + "=" + a.Capability[k]})
		}
		e.columns(rows)
	})
}

type agentSetCmd struct {
	Name        string            `arg:"" help:"Name or id of the agent."`
	State       string            `help:"ACTIVE, PAUSED, SUSPENDED, REVOKED or REJECTED." placeholder:"STATE"`
	Allow       []string          `help:"New allowlist." placeholder:"PATTERN"`
	AllowNone   bool              `help:"Empty the allowlist."`
	Script      []string          `help:"New list of scripts that script.run may run." placeholder:"SLUG"`
	ScriptAny   bool              `help:"Let script.run run every script."`
	Capability  map[string]string `help:"New capability model." placeholder:"CLASS=RULE" mapsep:"none"`
	Description *string           `help:"New description." placeholder:"TEXT"`
}

func (c *agentSetCmd) Run(e *env) error {
	in := map[string]any{}
	if c.State != "" {
		in["status"] = strings.ToUpper(c.State)
	}
	if c.Allow != nil || c.AllowNone {
		in["allowlist"] = listed(c.Allow)
	}
	if c.Script != nil || c.ScriptAny {
		in["script_allowlist"] = c.Script
	}
	if c.Capability != nil {
		in["capability"] = mapped(c.Capability)
	}
	if c.Description != nil {
		in["description"] = *c.Description
	}
	return ask(e, "PATCH", agentsPath+"/"+url.PathEscape(c.Name), in, func(a agent) { e.print("state", a.Name, a.State) })
}

type stopServerCmd struct {
	Name   string `arg:"" help:"Name or id."`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (c *stopServerCmd) Run(e *env) error { return e.stop("server", c.Name, c.Reason) }

type stopAgentCmd struct {
	Name   string `arg:"" help:"Name or id."`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (c *stopAgentCmd) Run(e *env) error { return e.stop("agent", c.Name, c.Reason) }

func (e *env) stop(scope, target, reason string) error {
	in := gate.StopRequest{Scope: scope, TargetID: target, Reason: reason}
	return ask(e, "POST", "/api/v1/mcp/emergency-stop", in, func(r gate.StopResult) {
		if r.Changed {
			e.print("stopped", scope, target, r.ExpiredApprovals)
		} else {
			e.print("stop_unchanged", scope, target)
		}
	})
}

type shutdownCmd struct {
	Reason  string `help:"Shut down, for this reason." xor:"what" placeholder:"TEXT"`
	Release bool   `help:"Lift the shutdown. The owner's." xor:"what"`
}

const shutdownPath = "/api/v1/emergency-shutdown"

func (c *shutdownCmd) Run(e *env) error {
	switch {
	case c.Release:
		return ask(e, "POST", shutdownPath+"/release", nil, func(struct{}) { e.print("reopened") })
	case c.Reason != "":
		return ask(e, "POST", shutdownPath, gate.ShutdownRequest{Reason: c.Reason}, func(r gate.ShutdownResult) {
			if r.Changed {
				e.print("shut_down", r.ExpiredApprovals)
			} else {
				e.print("shut_already")
			}
		})
	}
	return ask(e, "GET", shutdownPath, nil, func(s struct {
		Active bool   `json:"active"`
		At     int64  `json:"at"`
		Reason string `json:"reason"`
		By     string `json:"by"`
	}) {
		if s.Active {
			e.print("shutdown_active", moment(s.At), s.By, oneLine(s.Reason, 200))
		} else {
			e.print("shutdown_none")
		}
	})
}

type releaseAgentCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *releaseAgentCmd) Run(e *env) error {
	return ask(e, "POST", agentsPath+"/"+url.PathEscape(c.Name)+"/release", nil, func(a agent) { e.print("released", a.Name) })
}

type keyAddCmd struct {
	Agent   string `help:"For this agent." xor:"owner" required:"" placeholder:"NAME"`
	Person  string `help:"For this person." xor:"owner" required:"" placeholder:"NAME"`
	Name    string `help:"What the key is for." placeholder:"TEXT"`
	Expires string `help:"Life of the key, such as 720h." placeholder:"DURATION"`
}

func (c *keyAddCmd) Run(e *env) error {
	in := map[string]string{"agent_id": c.Agent, "person_id": c.Person, "name": c.Name, "expires_in": c.Expires}
	return ask(e, "POST", keysPath, in, func(k struct{ Key string }) { fmt.Fprintln(e.stdout, e.say("key_once", k.Key)) })
}

type keyListCmd struct{}

func (keyListCmd) Run(e *env) error {
	type list struct{ Keys []auth.KeyInfo }
	return ask(e, "GET", keysPath, nil, func(l list) {
		rows := [][]string{{"PREFIX", "NAME", "AGENT", "PERSON", "CREATED", "EXPIRES", "REVOKED", "ID"}}
		for _, k := range l.Keys {
			rows = append(rows, []string{k.Prefix, k.Name, k.AgentID, k.PersonID, moment(k.CreatedAt), moment(k.ExpiresAt), moment(k.RevokedAt), k.ID})
		}
		e.table(rows)
	})
}

type keyRevokeCmd struct {
	ID string `arg:"" help:"Id of the key."`
}

func (c *keyRevokeCmd) Run(e *env) error {
	return ask(e, "DELETE", keysPath+"/"+url.PathEscape(c.ID), nil, func(struct{}) { e.print("key_revoked", c.ID) })
}

type personAddCmd struct {
	Name string `arg:"" help:"Name."`
	Role string `help:"viewer, editor, admin or owner." default:"viewer" enum:"viewer,editor,admin,owner"`
	OIDC string `name:"oidc-email" help:"Invite: the first sign-in with the identity provider and this verified e-mail address is this person." placeholder:"ADDRESS"`
}

func (c *personAddCmd) Run(e *env) error {
	in := map[string]string{"name": c.Name, "role": c.Role, "oidc_email": c.OIDC}
	return ask(e, "POST", peoplePath, in, func(p auth.Person) { e.print("person_added", p.Name, p.Role) })
}

type personListCmd struct{}

func (personListCmd) Run(e *env) error {
	type list struct{ People []auth.Person }
	return ask(e, "GET", peoplePath, nil, func(l list) {
		rows := [][]string{{"NAME", "ROLE", "INVITED", "ID"}}
		for _, p := range l.People {
			rows = append(rows, []string{p.Name, p.Role, p.OIDCEmail, p.ID})
		}
		e.table(rows)
	})
}

type approvalsListCmd struct {
	Status    string `help:"PENDING, APPROVED, DENIED, EXPIRED or CONSUMED; empty for all." default:"PENDING" placeholder:"STATUS"`
	Agent     string `help:"Only calls of this agent, name or id." placeholder:"AGENT"`
	OlderThan string `help:"Only calls that were held so long ago, such as 10m." placeholder:"DURATION"`
	Escalated bool   `help:"Only calls that were escalated."`
}

func (c *approvalsListCmd) Run(e *env) error {
	type list struct{ Approvals []gate.Approval }
	q := url.Values{"status": {strings.ToUpper(c.Status)}, "agent_id": {c.Agent}, "older_than": {c.OlderThan}}
	if c.Escalated {
		q.Set("escalated", "true")
	}
	return ask(e, "GET", approvalsPath+"?"+q.Encode(), nil, func(l list) {
		rows := [][]string{{"ID", "STATUS", "TOOL", "BY", "EXPIRES", "ARGUMENTS"}}
		for _, a := range l.Approvals {
			by := cmp.Or(a.AgentName, a.AgentID, a.PersonID)
			status := a.Status
			if a.EscalatedAt > 0 && status == "PENDING" {
				status += " (escalated)"
			}
			rows = append(rows, []string{a.ID, status, a.Server + "/" + a.Tool, by, moment(a.ExpiresAt), oneLine(string(a.Arguments), 200)})
		}
		e.table(rows)
	})
}

type approvalsApproveCmd struct {
	ID     string `arg:"" help:"Id of the approval."`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (c *approvalsApproveCmd) Run(e *env) error { return e.decide(c.ID, "/approve", c.Reason) }

type approvalsDenyCmd struct {
	ID     string `arg:"" help:"Id of the approval."`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (c *approvalsDenyCmd) Run(e *env) error { return e.decide(c.ID, "/deny", c.Reason) }

func (e *env) decide(id, op, reason string) error {
	return ask(e, "POST", approvalsPath+"/"+url.PathEscape(id)+op, map[string]string{"reason": reason}, func(a gate.Approval) {
		e.print("decided", a.ID, a.Status)
	})
}
