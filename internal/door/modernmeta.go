package door

import (
	"encoding/json"
	"net/http"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

type modernMeta struct {
	Version      string
	Capabilities json.RawMessage
	LogLevel     string
}

const metaProtocolVersion = "io.modelcontextprotocol/protocolVersion"

func checkModern(h http.Header, m *mcp.Message, _ []byte) (out modernMeta, err error) {
	meta := mcp.Get(m.Params, "_meta")
	version, ok := mcp.String(mcp.Get(meta, metaProtocolVersion))
	header := h.Get("Mcp-Protocol-Version")
	switch {
	case !ok:
		return out, fault.New(fault.InvalidParams, "params._meta must hold %q", metaProtocolVersion)
	case header != version:
		return out, fault.New(fault.HeaderMismatch, "header MCP-Protocol-Version is not the revision of _meta")
	case version != mcp.V20260728:
		return out, fault.New(fault.BadVersion, "revision %s is not supported", clip(version, 40)).With("supported", discoverVersions).With("requested", version)
	}
	if out.Capabilities = mcp.Get(meta, "io.modelcontextprotocol/clientCapabilities"); !mcp.IsObject(out.Capabilities) {
		return out, fault.New(fault.InvalidParams, "params._meta must hold the client's capabilities")
	}
	out.LogLevel, _ = mcp.String(mcp.Get(meta, "io.modelcontextprotocol/logLevel"))
	out.Version = version
	if h.Get("Mcp-Method") != m.Method {
		return out, fault.New(fault.HeaderMismatch, "header Mcp-Method is not the method of the body")
	}
	return out, nil
}

func setModernHeaders(h http.Header, m *mcp.Message, _ json.RawMessage) {
	h.Set("Mcp-Protocol-Version", metaVersion(m))
	h.Set("Mcp-Method", m.Method)
	for _, k := range [...]string{"name", "uri"} {
		if v, ok := mcp.String(mcp.Get(m.Params, k)); ok {
			h.Set("Mcp-Name", v)
		}
	}
}
