package gate

import (
	"sync"
	"sync/atomic"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/policy"
)

// Visible lists the tools that caller may call now, of one server or ("") of all: exactly those whose
// decision is not a refusal. The result is cached per snapshot and shared: do not change it.
func (g *Gate) Visible(caller *auth.Caller, server string) []*catalog.Tool {
	caller, snap := g.current(caller), g.Catalog.Snapshot()
	if callerVerdict(caller).Action == policy.Deny {
		return nil
	}
	var sv *catalog.ServerView
	if server != "" {
		if sv = snap.ServerByName(caller.WorkspaceID, server); sv == nil {
			return nil
		}
	}
	k := visibleKey{workspace: caller.WorkspaceID, agent: caller.Agent, readOnly: caller.ReadOnly(), role: roleOf(caller), kind: kindOf(caller)}
	if sv != nil {
		k.server = sv.ID
	}
	page := g.visible.of(snap)
	if list, ok := page.lists.Load(k); ok {
		return list.([]*catalog.Tool) //nolint:forcetypeassert // the map holds nothing else
	}
	list := listVisible(snap, caller, sv)
	page.keep(k, list)
	return list
}

// listVisible asks the decision about every tool, server by server in the order of their names.
func listVisible(snap *catalog.Snapshot, caller *auth.Caller, only *catalog.ServerView) []*catalog.Tool {
	servers := []*catalog.ServerView{only}
	if only == nil {
		servers = serversOf(snap, caller.WorkspaceID)
	}
	var list []*catalog.Tool
	for _, sv := range servers {
		for _, t := range sv.Tools {
			if v := verdictOf(snap, caller, t, listing); v.Action != policy.Deny {
				list = append(list, t)
			}
		}
	}
	return list
}

// visibleCache holds the lists of one snapshot. Snapshots and agents are immutable and replaced
// when they change, so their addresses are the version: a key can only meet what it was made from.
type visibleCache struct{ page atomic.Pointer[visiblePage] }

type visibleKey struct {
	workspace string
	agent     *auth.Agent // nil: a person; all people of a role see the same
	readOnly  bool        // a task without an agent
	role      auth.Role   // conditions may ask for it
	kind      string      // person, agent, task
	server    string      // id, "" for all
}

type visiblePage struct {
	snap  *catalog.Snapshot
	lists sync.Map // visibleKey -> []*catalog.Tool
	n     atomic.Int64
}

// visibleLimit bounds the lists kept per snapshot; a list that finds no place is made anew each time.
const visibleLimit = 4096

func (c *visibleCache) of(snap *catalog.Snapshot) *visiblePage {
	page := c.page.Load()
	if page != nil && page.snap == snap {
		return page
	}
	fresh := &visiblePage{snap: snap}
	if !c.page.CompareAndSwap(page, fresh) {
		// Somebody else turned the page; ours is as good for this one answer.
		if now := c.page.Load(); now.snap == snap {
			return now
		}
	}
	return fresh
}

func (p *visiblePage) keep(k visibleKey, list []*catalog.Tool) {
	if p.n.Add(1) > visibleLimit {
		p.lists.Clear() // agents were edited often under one snapshot: most of these are of the past
		p.n.Store(1)
	}
	p.lists.Store(k, list)
}
