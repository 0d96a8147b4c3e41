package bridge

import (
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// The members that results have since 2026-07-28.
const (
	resultType = "resultType"
	ttlMs      = "ttlMs"
	cacheScope = "cacheScope"
)

var complete = json.RawMessage(`"complete"`)

// ModernMeta gives params what every request to a modern server has in its _meta. What stands there already
// under these keys is replaced; all else stays.
func ModernMeta(params json.RawMessage, version string, clientInfo, capabilities json.RawMessage) json.RawMessage {
	meta := mcp.Get(params, "_meta")
	if meta != nil && !mcp.IsObject(meta) {
		meta = nil
	}
	meta = mcp.Set(meta, mcp.MetaProtocolVersion, mcp.Quote(version))
	meta = mcp.Set(meta, mcp.MetaClientInfo, clientInfo)
	meta = mcp.Set(meta, mcp.MetaClientCapabilities, capabilities)
	return mcp.Set(params, "_meta", meta)
}

// LegacyParams takes from params what only a modern server understands: the reserved keys of _meta. An empty
// _meta goes too.
func LegacyParams(params json.RawMessage) json.RawMessage {
	meta := mcp.Get(params, "_meta")
	if meta == nil {
		return params
	}
	var drop []string
	n := 0
	mcp.Each(meta, func(key string, _ json.RawMessage) bool {
		n++
		// An extension's own keys are for whoever understands them.
		switch key {
		case mcp.MetaProtocolVersion, mcp.MetaClientCapabilities, mcp.MetaClientInfo, mcp.MetaLogLevel:
			drop = append(drop, key)
		}
		return true
	})
	switch {
	case len(drop) == 0:
		return params
	case len(drop) == n:
		return mcp.Delete(params, "_meta")
	}
	for _, key := range drop {
		meta = mcp.Delete(meta, key)
	}
	return mcp.Set(params, "_meta", meta)
}

// LegacyResult gives the result of a modern server the shape for an older client. Errors are of class
// UpstreamError: the server asks a question that cannot be passed on, or answers with an unknown type of result.
func LegacyResult(result json.RawMessage, clientVersion string) (json.RawMessage, error) {
	switch kind, _ := mcp.String(mcp.Get(result, resultType)); kind {
	case "", "complete":
	case "input_required":
		return nil, fault.New(fault.UpstreamError,
			"the server asks the user a question that cannot be passed to a client of an older protocol version yet: use a client that speaks %s", mcp.V20260728).
			Why("INPUT_REQUIRED")
	default:
		return nil, fault.New(fault.UpstreamError, "the server answered with a type of result that a client of an older protocol version does not know").
			Why("UNKNOWN_RESULT_TYPE")
	}
	for _, key := range [...]string{resultType, ttlMs, cacheScope} {
		result = mcp.Delete(result, key)
	}
	if meta := mcp.Get(result, "_meta"); mcp.Get(meta, mcp.MetaServerInfo) != nil {
		if meta = mcp.Delete(meta, mcp.MetaServerInfo); emptyObject(meta) {
			result = mcp.Delete(result, "_meta")
		} else {
			result = mcp.Set(result, "_meta", meta)
		}
	}
	// The text beside it says the same: older clients refuse anything but an object here.
	if sc := mcp.Get(result, "structuredContent"); sc != nil && (!mcp.IsObject(sc) || !mcp.FeaturesOf(clientVersion).StructuredContent) {
		result = mcp.Delete(result, "structuredContent")
	}
	return result, nil
}

// ModernResult gives the result of an older server the shape for a modern client: complete, and where the protocol
// asks for it not to be kept or shared.
func ModernResult(method string, result json.RawMessage) json.RawMessage {
	if mcp.Get(result, resultType) == nil {
		result = mcp.Set(result, resultType, complete)
	}
	if !cacheable(method) {
		return result
	}
	if mcp.Get(result, ttlMs) == nil {
		result = mcp.Set(result, ttlMs, []byte("0"))
	}
	if mcp.Get(result, cacheScope) == nil {
		result = mcp.Set(result, cacheScope, []byte(`"private"`))
	}
	return result
}

// cacheable: results of the method must say how long they hold, and for whom.
func cacheable(method string) bool {
	return strings.HasSuffix(method, "/list") || method == "resources/read" || method == "server/discover"
}

// ModernError gives an error of an older server the code that it has since 2026-07-28.
func ModernError(method string, e *mcp.RPCError) *mcp.RPCError {
	if method != "resources/read" || e.Code != -32002 {
		return e
	}
	return &mcp.RPCError{Code: -32602, Message: e.Message, Raw: mcp.Set(e.Raw, "code", []byte("-32602"))}
}

// LegacyTool gives the definition of a modern tool the shape for an older client: an output schema that does not
// describe an object is left out.
func LegacyTool(def json.RawMessage) json.RawMessage {
	schema := mcp.Get(def, "outputSchema")
	if schema == nil {
		return def
	}
	if root, _ := mcp.String(mcp.Get(schema, "type")); root == "object" {
		return def
	}
	return mcp.Delete(def, "outputSchema")
}

// ModernTool gives the definition of an older server's tool the shape for a modern client, which has no execution.
func ModernTool(def json.RawMessage) json.RawMessage { return mcp.Delete(def, "execution") }

func emptyObject(raw []byte) bool {
	empty := true
	mcp.Each(raw, func(string, json.RawMessage) bool { empty = false; return false })
	return empty
}
