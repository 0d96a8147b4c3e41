package door

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

// lists that the aggregate merges: capability, member of the result, what names an item.
var mergedLists = map[string]struct{ capability, member, key string }{
	"prompts/list":             {"prompts", "prompts", "name"},
	"resources/list":           {"resources", "resources", "uri"},
	"resources/templates/list": {"resources", "resourceTemplates", "uriTemplate"},
}

const (
	mergeWait  = 5 * time.Second // what one server may take for its list
	mergePages = 100             // pages of one server
	mergeTTL   = 2 * time.Second // how long a merged list is used again
)

// item is one entry of a merged list.
type item struct {
	server      *catalog.ServerView
	own, public string
	raw         json.RawMessage // as the aggregate shows it
}

// mergedList is the lists of all servers behind the aggregate.
type mergedList struct {
	at    time.Time
	items []item
	sick  []string // servers whose list is missing or not whole
}

// listMerged answers prompts/list, resources/list and resources/templates/list: one server's
// answer as it comes on its own door, all of them in one page on the aggregate.
func (x *exchange) listMerged(ctx context.Context) (json.RawMessage, error) {
	if x.sc.server != nil {
		return x.forward(ctx, x.sc.server, "", x.m.Params)
	}
	if c := mcp.Get(x.m.Params, "cursor"); c != nil && !mcp.IsNull(c) {
		return nil, fault.New(fault.InvalidParams, "cursor is not one of %s: start again without a cursor", x.m.Method)
	}
	list, err := x.merged(ctx, x.m.Method)
	if err != nil {
		return nil, err
	}
	out := []byte(`{"` + mergedLists[x.m.Method].member + `":[`)
	for i, it := range list.items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, it.raw...)
	}
	out = append(append(out, ']'), x.listTail(list.sick)...)
	return append(out, '}'), nil
}

// mergedKey says whose list it is. Agent is the profile of one snapshot: a changed grant is another key.
type mergedKey struct {
	workspace, agentID, personID, method string
	era                                  mcp.Era
	agent                                *auth.Agent
}

// mergedCache keeps merged lists for a moment, per caller and never across callers.
type mergedCache struct {
	mu sync.Mutex
	m  map[mergedKey]*mergedList
}

const mergedCacheMax = 256

func (c *mergedCache) get(k mergedKey, now time.Time) *mergedList {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.m[k]; l != nil && now.Sub(l.at) < mergeTTL && !now.Before(l.at) {
		return l
	}
	return nil
}

func (c *mergedCache) put(k mergedKey, l *mergedList) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= mergedCacheMax {
		c.m = make(map[mergedKey]*mergedList)
	}
	c.m[k] = l
}

func (c *mergedCache) clear() {
	c.mu.Lock()
	c.m = nil
	c.mu.Unlock()
}

// merged asks every server that has such a list, side by side, each within its time.
func (x *exchange) merged(ctx context.Context, method string) (*mergedList, error) {
	servers := x.capable(mergedLists[method].capability)
	if len(servers) == 0 {
		return nil, methodNotFound(method)
	}
	key := mergedKey{x.caller.WorkspaceID, x.caller.AgentID, x.caller.PersonID, method, x.era, x.caller.Agent}
	now := x.d.d.Now()
	if l := x.d.merged.get(key, now); l != nil {
		return l, nil
	}
	parts := make([][]item, len(servers))
	whole := make([]bool, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, mergeWait)
			defer cancel()
			parts[i], whole[i] = x.allPages(ctx, s, method)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, fault.Wrap(fault.Cancelled, ctx.Err(), "the request was cancelled")
	}
	l := &mergedList{at: now}
	for i, s := range servers {
		l.items = append(l.items, parts[i]...)
		if !whole[i] {
			l.sick = append(l.sick, s.Name)
		}
	}
	if mergedLists[method].key == "name" {
		l.publish()
	}
	if len(l.sick) == 0 { // what is missing is asked for again the next time
		x.d.merged.put(key, l)
	}
	return l, nil
}

// publish gives items that are called by name the names of the aggregate.
func (l *mergedList) publish() {
	refs := make([]mcp.ToolRef, len(l.items))
	for i, it := range l.items {
		refs[i] = mcp.ToolRef{Server: it.server.Name, Tool: it.own}
	}
	for i, name := range mcp.PublicNames(refs) {
		l.items[i].public = name
		l.items[i].raw = mcp.Set(l.items[i].raw, "name", mcp.Quote(name))
	}
}

// allPages walks one server's list; false when it is not whole.
func (x *exchange) allPages(ctx context.Context, s *catalog.ServerView, method string) ([]item, bool) {
	kind := mergedLists[method]
	params := listParams(x.m.Params)
	var out []item
	seen := make(map[string]bool)
	for range mergePages {
		call := gate.Call{Caller: x.caller, Door: x.sc.door, Method: method, Server: s.ID, Params: params, Client: &x.client}
		res, err := x.d.d.Gate.Forward(ctx, &call)
		if err != nil {
			return out, false
		}
		for _, raw := range mcp.Elements(mcp.Get(res.Raw, kind.member)) {
			own, ok := mcp.String(mcp.Get(raw, kind.key))
			if !ok {
				continue
			}
			out = append(out, item{server: s, own: own, public: own, raw: raw})
		}
		next, ok := mcp.String(mcp.Get(res.Raw, "nextCursor"))
		if !ok || next == "" {
			return out, true
		}
		if seen[next] {
			return out, false
		}
		seen[next] = true
		params = mcp.Set(params, "cursor", mcp.Quote(next))
	}
	return out, false
}

// listParams is what each server is asked with: the client's _meta, but no cursor, argument or progress token of its request.
func listParams(params json.RawMessage) json.RawMessage {
	meta := mcp.Get(params, "_meta")
	if !mcp.IsObject(meta) {
		return json.RawMessage("{}")
	}
	return mcp.Set(json.RawMessage("{}"), "_meta", mcp.Delete(meta, "progressToken"))
}
