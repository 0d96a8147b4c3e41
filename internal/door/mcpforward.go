package door

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

// forward takes a request that is no tool call to one server, through the gate. name is what it is about, for the record.
func (x *exchange) forward(ctx context.Context, s *catalog.ServerView, name string, params json.RawMessage) (json.RawMessage, error) {
	call := gate.Call{
		Caller: x.caller, Door: x.sc.door, Method: x.m.Method, Server: s.ID, Name: name,
		Params: params, Client: &x.client,
	}
	res, err := x.d.d.Gate.Forward(ctx, &call)
	if err != nil {
		x.traceID = call.TraceID
		return nil, err
	}
	x.used(&call)
	return res.Raw, nil
}

// forwardNamed answers prompts/get, resources/read and completion/complete.
func (x *exchange) forwardNamed(ctx context.Context) (json.RawMessage, error) {
	switch x.m.Method {
	case "prompts/get":
		name, err := x.stringParam("name")
		if err != nil {
			return nil, err
		}
		s, own, err := x.promptServer(ctx, name)
		if err != nil {
			return nil, err
		}
		params := x.m.Params
		if own != name {
			params = mcp.Set(params, "name", mcp.Quote(own))
		}
		return x.forward(ctx, s, own, params)
	case "resources/read":
		uri, err := x.stringParam("uri")
		if err != nil {
			return nil, err
		}
		res, _, err := x.forwardURI(ctx, uri)
		return res, err
	}
	return x.complete(ctx)
}

func (x *exchange) stringParam(name string) (string, error) {
	v, ok := mcp.String(mcp.Get(x.m.Params, name))
	if !ok || v == "" {
		return "", fault.New(fault.InvalidParams, "params.%s is missing", name)
	}
	return v, nil
}

// complete routes completion/complete by what it completes.
func (x *exchange) complete(ctx context.Context) (json.RawMessage, error) {
	ref := mcp.Get(x.m.Params, "ref")
	if !mcp.IsObject(ref) {
		return nil, fault.New(fault.InvalidParams, "params.ref is missing: it names the prompt or resource to complete")
	}
	if name, ok := mcp.String(mcp.Get(ref, "name")); ok {
		s, own, err := x.promptServer(ctx, name)
		if err != nil {
			return nil, err
		}
		params := x.m.Params
		if own != name {
			params = mcp.Set(params, "ref", mcp.Set(ref, "name", mcp.Quote(own)))
		}
		return x.forward(ctx, s, own, params)
	}
	uri, ok := mcp.String(mcp.Get(ref, "uri"))
	if !ok {
		return nil, fault.New(fault.InvalidParams, "params.ref must have a name or a uri")
	}
	res, _, err := x.forwardURI(ctx, uri)
	return res, err
}

// promptServer finds the server of a prompt, and the prompt's own name there.
func (x *exchange) promptServer(ctx context.Context, name string) (*catalog.ServerView, string, error) {
	if x.sc.server != nil {
		return x.sc.server, name, nil
	}
	list, err := x.merged(ctx, "prompts/list")
	if err == nil {
		for _, it := range list.items {
			if it.public == name {
				return it.server, it.own, nil
			}
		}
	}
	return nil, "", fault.New(fault.InvalidParams, "unknown prompt: %s", clip(name, 100))
}

// forwardURI sends a request about a resource to the server it belongs to, and says which that was.
func (x *exchange) forwardURI(ctx context.Context, uri string) (json.RawMessage, *catalog.ServerView, error) {
	if x.sc.server != nil {
		res, err := x.forward(ctx, x.sc.server, uri, x.m.Params)
		return res, x.sc.server, err
	}
	if s := x.resourceServer(ctx, uri); s != nil {
		res, err := x.forward(ctx, s, uri, x.m.Params)
		return res, s, err
	}
	// No list names it, which is allowed: whoever knows it answers.
	last := error(fault.New(fault.InvalidParams, "unknown resource: %s", clip(uri, 200)))
	for _, s := range x.capable("resources") {
		res, err := x.forward(ctx, s, uri, x.m.Params)
		if err == nil {
			return res, s, nil
		}
		if ctx.Err() != nil {
			return nil, nil, err
		}
		var re *mcp.RPCError
		if errors.As(err, &re) {
			last = err
		}
	}
	return nil, nil, last
}

// resourceServer finds the server whose lists name a resource, exactly or by a template; nil when none does.
func (x *exchange) resourceServer(ctx context.Context, uri string) *catalog.ServerView {
	if list, err := x.merged(ctx, "resources/list"); err == nil {
		for _, it := range list.items {
			if it.own == uri {
				return it.server
			}
		}
	}
	if list, err := x.merged(ctx, "resources/templates/list"); err == nil {
		for _, it := range list.items {
			if matchTemplate(it.own, uri) {
				return it.server
			}
		}
	}
	return nil
}

// matchTemplate reports whether uri can come from an RFC 6570 template: its literal parts
// stand in the uri in order. That is enough to find the server, which checks for itself.
func matchTemplate(template, uri string) bool {
	if template == uri {
		return true
	}
	first := true
	for {
		lit, rest, open := strings.Cut(template, "{")
		if !open {
			if first {
				return lit == uri
			}
			return strings.HasSuffix(uri, lit)
		}
		i := strings.Index(uri, lit)
		if i < 0 || first && i != 0 {
			return false
		}
		uri, first = uri[i+len(lit):], false
		if _, template, open = strings.Cut(rest, "}"); !open {
			return false
		}
	}
}

// subscribe answers resources/subscribe and resources/unsubscribe of older clients.
func (x *exchange) subscribe(ctx context.Context) (json.RawMessage, error) {
	uri, err := x.stringParam("uri")
	if err != nil {
		return nil, err
	}
	res, s, err := x.forwardURI(ctx, uri)
	if err != nil {
		return nil, err
	}
	if x.m.Method == "resources/unsubscribe" {
		x.sess.Unsubscribe(uri)
		return res, nil
	}
	if !x.sess.Subscribe(uri, s.ID) {
		return nil, fault.New(fault.Limit, "too many resource subscriptions in this session")
	}
	return res, nil
}

// setLevel remembers the log level of the session and tells the servers behind this door.
func (x *exchange) setLevel(ctx context.Context) (json.RawMessage, error) {
	level, err := x.stringParam("level")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(levels, level) {
		return nil, fault.New(fault.InvalidParams, "params.level must be one of debug, info, notice, warning, error, critical, alert, emergency")
	}
	if x.sc.server != nil {
		res, err := x.forward(ctx, x.sc.server, level, x.m.Params)
		if err == nil {
			x.sess.SetLevel(level)
		}
		return res, err
	}
	targets := x.capable("logging")
	if len(targets) == 0 {
		return nil, methodNotFound(x.m.Method)
	}
	x.sess.SetLevel(level)
	var wg sync.WaitGroup
	for _, s := range targets {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, mergeWait)
			defer cancel()
			call := gate.Call{Caller: x.caller, Door: x.sc.door, Method: x.m.Method, Server: s.ID, Name: level, Params: x.m.Params, Client: &x.client}
			if _, err := x.d.d.Gate.Forward(ctx, &call); err != nil {
				x.d.d.Log.Debug("a server did not take the log level", "server", s.Name, "err", err)
			}
		})
	}
	wg.Wait()
	return emptyResult, nil
}

// capable lists the usable servers that declare a capability.
func (x *exchange) capable(name string) []*catalog.ServerView {
	servers := x.servers()
	out := servers[:0]
	for _, s := range servers {
		if st, ok := x.d.d.Upstream.Status(s.ID); ok && has(st.Capabilities, name) {
			out = append(out, s)
		}
	}
	return out
}
