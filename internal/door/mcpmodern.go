package door

import (
	"bytes"
	"encoding/json"
	"net/http"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// postModern handles one message of 2026-07-28. Everything the request needs is in it:
// a session id that came along is ignored. It reports whether nothing of the message is in use any more.
func (p *peer) postModern(m *mcp.Message, acc accept) (clean bool) {
	switch {
	case m.IsResponse():
		p.fail(http.StatusBadRequest, m.ID, fault.New(fault.InvalidRequest, "revision 2026-07-28 has no responses from clients: send inputResponses with the request"))
		return true
	case m.IsNotification():
		accepted(p.w) // cancelling is closing the connection here, so there is nothing to do
		return true
	}
	if err := p.d.unable(); err != nil {
		p.refuse(m.ID, err)
		return true
	}
	x := &exchange{peer: p, m: m, era: mcp.Modern}
	if err := x.readMeta(); err != nil {
		p.refuse(m.ID, err)
		return true
	}
	if m.Method == "subscriptions/listen" {
		x.listen()
		return false
	}
	x.out = p.d.newReply(p.w, acc, x.version)
	defer x.out.finish()
	result, err := x.request(p.r.Context())
	x.respond(result, err)
	return err == nil
}

// readMeta checks the headers against the body and takes from _meta what this side needs.
func (x *exchange) readMeta() error {
	if err := mcp.CheckModern(x.r.Header, x.m); err != nil {
		return err
	}
	if schema := x.toolSchema(); schema != nil {
		if err := mcp.CheckParamHeaders(x.r.Header, x.m.Params, schema); err != nil {
			return err
		}
	}
	meta := mcp.Get(x.m.Params, "_meta")
	x.version = mcp.MetaVersion(x.m.Params)
	x.caps = bytes.Clone(mcp.Get(meta, mcp.MetaClientCapabilities)) // may be kept with a connection; the body is not
	x.level, _ = mcp.String(mcp.Get(meta, mcp.MetaLogLevel))
	x.client = upstream.Client{Era: mcp.Modern, Version: x.version, Capabilities: x.caps, Notify: x.notify}
	return nil
}

// toolSchema is the input schema of the called tool, when it asks for arguments in headers and the
// caller may know the tool: a hidden tool must answer as one that does not exist.
func (x *exchange) toolSchema() json.RawMessage {
	if x.m.Method != "tools/call" {
		return nil
	}
	name, _ := mcp.String(mcp.Get(x.m.Params, "name"))
	tools := x.snap.Lookup(x.caller.WorkspaceID, name)
	if x.sc.server != nil {
		tools = nil
		if t := x.sc.server.Tool(name); t != nil {
			tools = append(tools, t)
		}
	}
	for _, t := range tools {
		if x.caller.Granted(t.ServerName, t.Name, t.Tier) && bytes.Contains(t.Definition, []byte(`"x-mcp-header"`)) {
			return mcp.Get(t.Definition, "inputSchema")
		}
	}
	return nil
}
