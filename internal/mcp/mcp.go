// Package mcp is the protocol, raw: envelopes, eras, headers, event streams,
// names, canonical JSON and the transports of client and server. Params,
// results, errors and ids stay bytes; it decodes only what a gateway must
// decide on. It knows no server, tool or caller.
package mcp

import "encoding/json"

// Era of a peer. Decided per peer and side, never forwarded.
type Era uint8

// The eras.
const (
	Legacy Era = iota // up to 2025-11-25: initialize, sessions
	Modern            // from 2026-07-28: _meta on every request, no session
)

// The protocol revisions.
const (
	V20241105 = "2024-11-05"
	V20250326 = "2025-03-26"
	V20250618 = "2025-06-18"
	V20251125 = "2025-11-25"
	V20260728 = "2026-07-28"
)

// The keys of _meta that the protocol defines for requests and results (2026-07-28).
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaServerInfo         = "io.modelcontextprotocol/serverInfo"
	MetaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
)

// Listing is the outcome of one walk through all pages of tools/list.
type Listing struct {
	Tools    []json.RawMessage // definitions, byte for byte
	Complete bool              // false: a page failed, a cursor repeated or the page cap was reached
	Err      error
}
