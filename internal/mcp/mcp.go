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

// Message is one JSON-RPC message, split but not decoded. All fields are slices of the input.
type Message struct {
	ID     json.RawMessage // nil: a notification
	Method string          // empty: a response
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// IsRequest, IsNotification and IsResponse tell the three kinds apart.
func (m *Message) IsRequest() bool      { return m.Method != "" && m.ID != nil }
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID == nil }
func (m *Message) IsResponse() bool     { return m.Method == "" }

// Limits of parsing.
type Limits struct {
	Depth int // nesting, default 128
}

// Parse checks that b is one valid JSON-RPC message (strict JSON, UTF-8, no duplicate or case-variant
// envelope members, no lone surrogates, bounded depth) and splits it. Errors are *fault.Error (Parse, InvalidRequest);
// when the id could be read, it is in Message all the same, so that the error can be answered to it.
func Parse(b []byte, lim Limits) (Message, error) { panic("pending") }

// ParseAny is Parse for revisions with batches: one message or a non-empty array of them.
func ParseAny(b []byte, lim Limits) (msgs []Message, batch bool, err error) { panic("pending") }

// Check reports whether b is one valid JSON value by the same strict rules.
func Check(b []byte, lim Limits) error { panic("pending") }

// The functions below work on valid JSON (from Parse or Check) and copy nothing but what they return anew.

// Get returns the raw value of a member of an object, nil when absent.
func Get(obj []byte, key string) json.RawMessage { panic("pending") }

// GetPath is Get through nested objects.
func GetPath(obj []byte, keys ...string) json.RawMessage { panic("pending") }

// Each calls fn for every member of an object until it returns false.
func Each(obj []byte, fn func(key string, value json.RawMessage) bool) { panic("pending") }

// Elements returns the raw elements of an array.
func Elements(arr []byte) []json.RawMessage { panic("pending") }

// Set returns obj with a member replaced or added; every other byte stays.
func Set(obj []byte, key string, value []byte) json.RawMessage { panic("pending") }

// Delete returns obj without a member; every other byte stays.
func Delete(obj []byte, key string) json.RawMessage { panic("pending") }

// String decodes a JSON string; false when raw is not one.
func String(raw []byte) (string, bool) { panic("pending") }

// Quote encodes a string as JSON.
func Quote(s string) json.RawMessage { panic("pending") }

// Canonical returns RFC 8785 JSON: members sorted, no white space, numbers normalised; a number that a float64
// would not hold exactly keeps its own (normalised) digits, so that different numbers stay different.
func Canonical(raw []byte) ([]byte, error) { panic("pending") }

// AppendRequest, AppendNotification, AppendResult and AppendError write one message around raw parts.
func AppendRequest(dst []byte, id json.RawMessage, method string, params json.RawMessage) []byte {
	panic("pending")
}
func AppendNotification(dst []byte, method string, params json.RawMessage) []byte { panic("pending") }
func AppendResult(dst []byte, id, result json.RawMessage) []byte                  { panic("pending") }
func AppendError(dst []byte, id, rpcErr json.RawMessage) []byte                   { panic("pending") }

// RPCError is a JSON-RPC error as a peer sent it; Raw is the error object byte for byte.
type RPCError struct {
	Code    int64
	Message string
	Raw     json.RawMessage
}

func (e *RPCError) Error() string { return e.Message }

// PublicName is the name of a tool on the aggregate door: <server>__<tool>, characters outside
// [A-Za-z0-9_-] as _, at most 64 bytes (cut names end in _ and 8 hex of a digest).
func PublicName(server, tool string) string { panic("pending") }

// Listing is the outcome of one walk through all pages of tools/list.
type Listing struct {
	Tools    []json.RawMessage // definitions, byte for byte
	Complete bool              // false: a page failed, a cursor repeated or the page cap was reached
	Err      error
}
