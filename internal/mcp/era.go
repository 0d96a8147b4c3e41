package mcp

import (
	"net/http"
	"slices"
)

// versions are the revisions spoken here, newest first.
var versions = []string{V20260728, V20251125, V20250618, V20250326, V20241105}

// Supported returns the revisions spoken here, newest first.
func Supported() []string { return slices.Clone(versions) }

// Known reports whether a revision is spoken here.
func Known(version string) bool { return slices.Contains(versions, version) }

// EraOf returns the era a revision belongs to. Revisions are dates, so one not
// known here is still of an era; what is no date is Legacy.
func EraOf(version string) Era {
	if isDate(version) && version >= V20260728 {
		return Modern
	}
	return Legacy
}

// isDate reports whether version looks like 2006-01-02.
func isDate(version string) bool {
	if len(version) != len(V20260728) {
		return false
	}
	for i := range len(version) {
		if dash := i == 4 || i == 7; dash != (version[i] == '-') || !dash && version[i]-'0' > 9 {
			return false
		}
	}
	return true
}

// NegotiateLegacy answers the revision an initialize asks for: the same when
// it is a known legacy one, else the newest legacy revision.
func NegotiateLegacy(requested string) string {
	if Known(requested) && EraOf(requested) == Legacy {
		return requested
	}
	return V20251125
}

// DetectEra finds the era of one POSTed message: modern when the _meta of the
// body says so, legacy for any other initialize, else what the version header
// says. A session id does not make a modern message legacy. GET and DELETE
// are legacy; they have no message to ask about.
func DetectEra(header http.Header, msg *Message) Era {
	if EraOf(MetaVersion(msg.Params)) == Modern {
		return Modern
	}
	if msg.Method == "initialize" {
		return Legacy
	}
	return EraOf(header.Get(HeaderVersion))
}

// MetaVersion returns the protocol revision in the _meta of params, empty when there is none.
func MetaVersion(params []byte) string {
	v, _ := String(GetPath(params, "_meta", MetaProtocolVersion))
	return v
}

// Features are what differs between the revisions of the legacy era, and
// between it and the modern one.
type Features struct {
	Batching          bool // JSON-RPC batches
	ToolAnnotations   bool // annotations of a tool
	Audio             bool // audio content
	StructuredContent bool // structuredContent and outputSchema
	AnyStructured     bool // structuredContent may be any value, not just an object
	ResourceLink      bool // resource_link content
	Elicitation       bool // elicitation/create, form mode
	URLElicitation    bool // elicitation in url mode
	Icons             bool // icons of tools and servers
	LegacyTasks       bool // the experimental tasks of 2025-11-25
	HeaderRequired    bool // MCP-Protocol-Version on every request after initialize
	StreamableHTTP    bool // one endpoint; else HTTP with an SSE endpoint
	ResultType        bool // resultType in every result
}

// FeaturesOf returns the features of a revision; one not known here has those
// of the newest revision of its era.
func FeaturesOf(version string) Features {
	switch {
	case Known(version):
	case EraOf(version) == Modern:
		version = V20260728
	default:
		version = V20251125
	}
	since := func(v string) bool { return version >= v }
	return Features{
		Batching:          version == V20250326,
		ToolAnnotations:   since(V20250326),
		Audio:             since(V20250326),
		StructuredContent: since(V20250618),
		AnyStructured:     since(V20260728),
		ResourceLink:      since(V20250618),
		Elicitation:       since(V20250618),
		URLElicitation:    since(V20251125),
		Icons:             since(V20251125),
		LegacyTasks:       version == V20251125,
		HeaderRequired:    since(V20250618),
		StreamableHTTP:    since(V20250326),
		ResultType:        since(V20260728),
	}
}
