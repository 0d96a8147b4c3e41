package gate

import (
	"context"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/upstream"
)

const reasonUnknownServer = "UNKNOWN_SERVER"

// Forward is Call for the requests that are not tools: prompts, resources, completion. server names the
// target; stop, grant (any tool of the server), server state and record apply. A rule that denies an agent everything holds
// here too; one that asks for approval is about tools.
func (g *Gate) Forward(ctx context.Context, c *Call) (Result, error) {
	if err := g.DB.Current(); err != nil {
		return Result{}, err
	}
	a := g.begin(c)
	a.event.Arguments = c.Params
	defer a.leave()
	if err := a.passOther(ctx); err != nil {
		return a.refused(ctx, err)
	}
	raw, err := g.carry(a.run.ctx, &upstream.Request{
		ServerID: a.server.ID, Method: c.Method, Params: c.Params, Safe: safeMethod(c.Method), Client: c.Client,
	})
	a.returned()
	return a.outcome(ctx, raw, err)
}

// passOther takes a request that is no tool call through its stages.
func (a *attempt) passOther(ctx context.Context) error {
	if a.call.Method == "tools/call" {
		a.decided(policy.Deny, policy.StageCaller, "", "NOT_FORWARDED")
		return a.refusal(fault.Internal, "NOT_FORWARDED", "a tool call must pass the gate as one")
	}
	sv := a.snap.ServerByName(a.caller.WorkspaceID, a.call.Server)
	if sv != nil {
		a.server = sv
		a.event.ServerID, a.event.Server = sv.ID, sv.Name
	}
	v := serverVerdict(a.snap, a.caller, sv)
	a.verdict = v
	switch {
	case v.Hidden: // one answer for a server that does not exist and one that the caller must not know
		a.decided(policy.Deny, v.Stage, "", v.Reason)
		if sv == nil {
			a.event.Reason = reasonUnknownServer
		}
		return a.refusal(fault.NotFound, reasonUnknownServer, "unknown server: %s", cut(a.call.Server, nameLimit))
	case v.Action == policy.Deny:
		return a.refusedBy(v)
	}
	a.decided(policy.Allow, policy.StageServer, "", "") // the last stage there is for it
	return a.enter(ctx)
}

// serverVerdict is the decision about a request to a server that is no tool call; sv is nil when there is no such server.
func serverVerdict(snap *catalog.Snapshot, c *auth.Caller, sv *catalog.ServerView) policy.Verdict {
	f := callerFacts(c)
	f.Admission, f.ServerRules = policy.Admitted, everyoneMay
	if sv != nil {
		f.Granted = grantsServer(c, sv)
		f.ServerState, f.ServerReason = sv.State, sv.StateReason
		f.AgentRules = snap.AgentRules[c.AgentID][""]
	}
	return policy.Decide(&f)
}

// Reaches reports whether Forward would let the caller reach a server (id or name) now. It is for what is no single
// request: capabilities, merged lists, and what a server says by itself on a standing stream.
func (g *Gate) Reaches(caller *auth.Caller, server string) bool {
	caller, snap := g.current(caller), g.Catalog.Snapshot()
	sv := snap.ServerByName(caller.WorkspaceID, server)
	return sv != nil && serverVerdict(snap, caller, sv).Action != policy.Deny
}

// Knows reports whether the caller may learn that a server exists: any of its tools is granted, or all of them are. A key whose
// agent is gone gets past here, because the decision names that reason.
func Knows(c *auth.Caller, sv *catalog.ServerView) bool {
	return c.AgentID != "" && c.Agent == nil || grantsServer(c, sv)
}

// grantsServer: any tool of the server is granted, or all of them would be.
func grantsServer(c *auth.Caller, sv *catalog.ServerView) bool {
	return c.GrantedAll(sv.Name) || slices.ContainsFunc(sv.Tools, func(t *catalog.Tool) bool { return granted(c, t) })
}

// safeMethod: the request changes nothing and may be sent again when its fate is unknown.
func safeMethod(method string) bool {
	return strings.HasSuffix(method, "/list") || method == "prompts/get" || method == "resources/read" || method == "completion/complete"
}

// serversOf gives the servers of a workspace by name.
func serversOf(snap *catalog.Snapshot, ws string) []*catalog.ServerView {
	var out []*catalog.ServerView
	for _, sv := range snap.Servers {
		if sv.WorkspaceID == ws {
			out = append(out, sv)
		}
	}
	slices.SortFunc(out, func(a, b *catalog.ServerView) int { return strings.Compare(a.Name, b.Name) })
	return out
}
