package door

import (
	"encoding/json"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// discoverVersions is what server/discover and a refused version list, newest first.
var discoverVersions = json.RawMessage(`["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`)

func sortServers(s []*catalog.ServerView) {
	slices.SortFunc(s, func(a, b *catalog.ServerView) int { return strings.Compare(a.Name, b.Name) })
}

// capabilities is what this scope offers: tools always, since what is granted can
// change, and of the rest what the servers behind it have and the door passes on.
func (p *peer) capabilities() json.RawMessage {
	if p.sc.server != nil {
		st, ok := p.status(p.sc.server)
		if !ok {
			return json.RawMessage(`{"tools":{"listChanged":true}}`)
		}
		return oneServer(st.Capabilities)
	}
	var prompts, resources, subscribe, logging, completions bool
	for _, s := range p.servers() {
		st, ok := p.d.d.Upstream.Status(s.ID)
		if !ok || !mcp.IsObject(st.Capabilities) {
			continue
		}
		prompts = prompts || has(st.Capabilities, "prompts")
		resources = resources || has(st.Capabilities, "resources")
		logging = logging || has(st.Capabilities, "logging")
		completions = completions || has(st.Capabilities, "completions")
		sub, _ := mcp.Bool(mcp.GetPath(st.Capabilities, "resources", "subscribe"))
		subscribe = subscribe || sub
	}
	out := []byte(`{"tools":{"listChanged":true}`)
	add := func(yes bool, member string) {
		if yes {
			out = append(out, member...)
		}
	}
	add(prompts, `,"prompts":{"listChanged":true}`)
	add(resources && subscribe, `,"resources":{"subscribe":true,"listChanged":true}`)
	add(resources && !subscribe, `,"resources":{"listChanged":true}`)
	add(logging, `,"logging":{}`)
	add(completions, `,"completions":{}`)
	return append(out, '}')
}

// oneServer is what of a server's capabilities passes through its door.
func oneServer(caps json.RawMessage) json.RawMessage {
	out := []byte(`{"tools":{"listChanged":true}`)
	if mcp.IsObject(caps) {
		for _, name := range [...]string{"prompts", "resources", "logging", "completions"} {
			if v := mcp.Get(caps, name); mcp.IsObject(v) {
				out = append(append(append(append(out, `,"`...), name...), `":`...), v...)
			}
		}
		const ui = "io.modelcontextprotocol/ui" // rides on resources and _meta, which pass untouched
		if v := mcp.GetPath(caps, "extensions", ui); v != nil {
			out = append(append(append(out, `,"extensions":{"`+ui+`":`...), v...), '}')
		}
	}
	return append(out, '}')
}

func has(caps json.RawMessage, name string) bool { return mcp.Get(caps, name) != nil }

// status is what is known of the connection to a server the caller can use.
func (p *peer) status(s *catalog.ServerView) (upstream.Status, bool) {
	if !p.d.d.Gate.Reaches(p.caller, s.ID) {
		return upstream.Status{}, false
	}
	return p.d.d.Upstream.Status(s.ID)
}

// serverInfo names who answers: the server itself on its own door, Doorward on the aggregate.
func (p *peer) serverInfo() json.RawMessage {
	if p.sc.server != nil {
		if st, ok := p.status(p.sc.server); ok && mcp.IsObject(st.ServerInfo) {
			return st.ServerInfo
		}
	}
	return p.d.ownInfo()
}

func (d *Door) ownInfo() json.RawMessage {
	return json.RawMessage(`{"name":"doorward","title":"Doorward","version":` + string(mcp.Quote(d.d.Version)) + `}`)
}

// instructions are a server's own, on its own door.
func (p *peer) instructions() string {
	if p.sc.server == nil {
		return ""
	}
	st, _ := p.status(p.sc.server)
	return st.Instructions
}

func (p *peer) initializeResult(version string) json.RawMessage {
	out := []byte(`{"protocolVersion":"` + version + `","capabilities":`)
	out = append(out, p.capabilities()...)
	out = append(append(out, `,"serverInfo":`...), p.serverInfo()...)
	if text := p.instructions(); text != "" {
		out = append(append(out, `,"instructions":`...), mcp.Quote(text)...)
	}
	return append(out, '}')
}

// modernTail ends a result object that Doorward makes for 2026-07-28. Lists depend on the caller's grants,
// so nothing between here and the client may share them, and they can change at any time.
const modernTail = `,"resultType":"complete","ttlMs":5000,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":`

func (x *exchange) discover() json.RawMessage {
	out := append([]byte(`{"supportedVersions":`), discoverVersions...)
	out = append(append(out, `,"capabilities":`...), x.capabilities()...)
	if text := x.instructions(); text != "" {
		out = append(append(out, `,"instructions":`...), mcp.Quote(text)...)
	}
	out = append(append(out, modernTail...), x.serverInfo()...)
	return append(out, "}}"...)
}
