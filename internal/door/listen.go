package door

import (
	"context"
	"encoding/json"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// maxListenURIs bounds the resources of one subscriptions/listen.
const maxListenURIs = 1000

// filter is what a client wants to hear, cut down to what there is to hear.
type filter struct {
	kinds kinds
	uris  []string
}

// listen answers subscriptions/listen: a stream that lasts until the client closes it or Doorward shuts down.
func (x *exchange) listen() {
	want, err := readFilter(mcp.Get(x.m.Params, "notifications"))
	if err != nil {
		x.refuse(x.m.ID, err)
		return
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	st := bridge.NewStream()
	l := &listener{
		who: func() (*auth.Caller, error) { return x.who(x.r) }, serverID: x.sc.serverID(), st: st, ctx: ctx,
		send: func(method string, params json.RawMessage) {
			st.Send(mcp.AppendNotification(nil, method, x.tagged(params)))
		},
	}
	have := x.honoured(want)
	l.kinds = have.kinds
	targets := x.targets(ctx, &have)
	l.uris = make(map[string]string, len(have.uris))
	for s, uris := range targets {
		for _, u := range uris {
			l.uris[u] = s.ID
		}
	}
	l.send("notifications/subscriptions/acknowledged", have.ack())
	x.d.listen(l, x.caller)
	defer x.d.leave(l, cancel)
	for s, uris := range targets {
		x.watchResources(l, s, uris)
	}
	if have.kinds == 0 && len(have.uris) == 0 { // nothing will ever come
		st.Close()
	}
	x.serveListen(st)
}

// tagged adds the subscription id, which is the id of the listen request.
func (x *exchange) tagged(params json.RawMessage) json.RawMessage {
	if !mcp.IsObject(params) {
		params = emptyResult
	}
	meta := mcp.Get(params, "_meta")
	if !mcp.IsObject(meta) {
		meta = emptyResult
	}
	return mcp.Set(params, "_meta", mcp.Set(meta, mcp.MetaSubscriptionID, x.m.ID))
}

// serveListen writes the stream; the end by Doorward's will is an empty result.
func (x *exchange) serveListen(st *bridge.Stream) {
	ev := x.serveStream(st, false)
	if x.r.Context().Err() != nil {
		return
	}
	for { // what was queued before the end still belongs to it
		select {
		case msg := <-st.Messages():
			ev.Event(mcp.Event{Data: msg})
			continue
		default:
		}
		break
	}
	end := []byte(`{"resultType":"complete","_meta":{"` + mcp.MetaSubscriptionID + `":` + string(x.m.ID) + `}}`)
	ev.Event(mcp.Event{Data: mcp.AppendResult(nil, x.m.ID, end)})
}

func readFilter(raw json.RawMessage) (f filter, err error) {
	if !mcp.IsObject(raw) {
		return f, fault.New(fault.InvalidParams, "params.notifications is missing: it says what to listen for")
	}
	for name, k := range map[string]kinds{"toolsListChanged": kindTools, "promptsListChanged": kindPrompts, "resourcesListChanged": kindResources} {
		if yes, _ := mcp.Bool(mcp.Get(raw, name)); yes {
			f.kinds |= k
		}
	}
	uris := mcp.Get(raw, "resourceSubscriptions")
	if uris == nil || mcp.IsNull(uris) {
		return f, nil
	}
	for _, e := range mcp.Elements(uris) {
		u, ok := mcp.String(e)
		if !ok {
			return f, fault.New(fault.InvalidParams, "params.notifications.resourceSubscriptions must be strings")
		}
		if len(f.uris) == maxListenURIs {
			return f, fault.New(fault.InvalidParams, "params.notifications.resourceSubscriptions holds more than %d resources", maxListenURIs)
		}
		f.uris = append(f.uris, u)
	}
	return f, nil
}

// honoured keeps of a filter what the capabilities of this scope promise.
func (x *exchange) honoured(want filter) (have filter) {
	caps := x.capabilities()
	for member, k := range map[string]kinds{"tools": kindTools, "prompts": kindPrompts, "resources": kindResources} {
		if yes, _ := mcp.Bool(mcp.GetPath(caps, member, "listChanged")); yes {
			have.kinds |= want.kinds & k
		}
	}
	if yes, _ := mcp.Bool(mcp.GetPath(caps, "resources", "subscribe")); yes {
		have.uris = want.uris
	}
	return have
}

// ack is the subset that is honoured, as the client is told it.
func (f *filter) ack() json.RawMessage {
	out := []byte(`{`)
	add := func(yes bool, member string) {
		if !yes {
			return
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, member...)
	}
	add(f.kinds&kindTools != 0, `"toolsListChanged":true`)
	add(f.kinds&kindPrompts != 0, `"promptsListChanged":true`)
	add(f.kinds&kindResources != 0, `"resourcesListChanged":true`)
	if len(f.uris) > 0 {
		add(true, `"resourceSubscriptions":`)
		out = append(out, quoteAll(f.uris)...)
	}
	return json.RawMessage(`{"notifications":` + string(out) + `}}`)
}

func quoteAll(list []string) []byte {
	out := []byte{'['}
	for i, s := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = mcp.AppendQuote(out, s)
	}
	return append(out, ']')
}

// targets finds the server of every resource; a resource that no usable server has is taken out of f.
func (x *exchange) targets(ctx context.Context, f *filter) map[*catalog.ServerView][]string {
	out := make(map[*catalog.ServerView][]string)
	var kept []string
	for _, u := range f.uris {
		s := x.sc.server
		if s == nil {
			s = x.resourceServer(ctx, u)
		}
		if s == nil || !x.d.d.Gate.Reaches(x.caller, s.ID) {
			continue
		}
		kept = append(kept, u)
		out[s] = append(out[s], u)
	}
	f.uris = kept
	return out
}

// watchResources keeps a listen of its own on one server for the resources of that server.
func (x *exchange) watchResources(l *listener, s *catalog.ServerView, uris []string) {
	c := &upstream.Client{Era: mcp.Modern, Version: x.version, Capabilities: x.caps,
		Notify: func(method string, params json.RawMessage) {
			if method == resourceUpdated && x.d.hears(l, s.ID) {
				l.send(method, x.d.redact(params))
			}
		},
	}
	params := json.RawMessage(`{"notifications":{"resourceSubscriptions":` + string(quoteAll(uris)) + `}}`)
	if meta := mcp.Get(x.m.Params, "_meta"); meta != nil {
		params = mcp.Set(params, "_meta", meta)
	}
	l.streams.Go(func() {
		if err := x.d.d.Upstream.Stream(l.ctx, s.ID, c, params); err != nil && l.ctx.Err() == nil {
			x.d.d.Log.Debug("listening for resources ended", "server", s.Name, "err", err)
		}
	})
}
