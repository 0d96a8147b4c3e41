// Package fault is the one error type of Doorward.
//
// It owns the classes of errors and the one table that maps a class to an HTTP
// status, a JSON-RPC code and an exit code. It knows nothing of the doors:
// each door renders an Error in its own form.
package fault

import (
	"errors"
	"fmt"
)

// Class says what kind of error it is. Classes are part of the public
// interface: they stand in audit events and in error answers.
type Class string

// The classes. Each has a row in table.
const (
	Parse           Class = "parse_error"         // not JSON
	InvalidRequest  Class = "invalid_request"     // JSON, but not a valid message
	InvalidParams   Class = "invalid_params"      // parameters or arguments are wrong
	MethodNotFound  Class = "method_not_found"    // no such method here
	HeaderMismatch  Class = "header_mismatch"     // a header contradicts the body (2026-07-28)
	MissingCap      Class = "missing_capability"  // the client did not declare a needed capability (2026-07-28)
	BadVersion      Class = "unsupported_version" // protocol revision not spoken here
	SessionNotFound Class = "session_not_found"   // unknown or ended Mcp-Session-Id
	TooLarge        Class = "too_large"           // over a size limit
	Unauthenticated Class = "unauthenticated"     // no key, or a key that is not valid now
	Forbidden       Class = "forbidden"           // the caller may not do this
	NotFound        Class = "not_found"           // no such thing in this workspace
	UnknownTool     Class = "unknown_tool"        // no such tool for this caller
	Conflict        Class = "conflict"            // the thing moved, or exists
	Precondition    Class = "precondition_failed" // it is not as the caller said it must be
	Blocked         Class = "blocked"             // -32001: server blocked or not active, agent stopped
	NotAdmitted     Class = "not_admitted"        // -32002: tool not admitted or changed
	Denied          Class = "denied"              // -32003: a rule denies
	Held            Class = "held"                // -32004: a person must approve first
	Limit           Class = "limit"               // -32005: a limit or budget is used up
	TooMany         Class = "too_many"            // too many attempts; wait
	UpstreamError   Class = "upstream_error"      // -32006: the server behind the tool failed
	Unreachable     Class = "unreachable"         // -32007: the server behind the tool cannot be reached
	OutcomeUnknown  Class = "outcome_unknown"     // -32007: the call may have run; it is not repeated
	Timeout         Class = "timeout"             // -32007: no answer within the tool's time
	Cancelled       Class = "cancelled"           // the caller went away or cancelled
	Unavailable     Class = "unavailable"         // Doorward itself cannot serve now (database, draining)
	Config          Class = "config"              // a setting is wrong
	Internal        Class = "internal"            // a fault of Doorward
)

// Codes are the numbers a class is shown with.
type Codes struct {
	HTTP int // HTTP status
	RPC  int // JSON-RPC error code
	Exit int // exit code of the command line
}

// table is the only place where classes meet numbers. -32001 to -32007 are
// fixed by spec/palveron 4.2.2, -32020 to -32022 by MCP 2026-07-28.
var table = map[Class]Codes{
	Parse:           {400, -32700, 2},
	InvalidRequest:  {400, -32600, 2},
	InvalidParams:   {400, -32602, 2},
	MethodNotFound:  {404, -32601, 2},
	HeaderMismatch:  {400, -32020, 2},
	MissingCap:      {400, -32021, 2},
	BadVersion:      {400, -32022, 2},
	SessionNotFound: {404, -32600, 2},
	TooLarge:        {413, -32600, 2},
	Unauthenticated: {401, -32600, 3},
	Forbidden:       {403, -32600, 3},
	NotFound:        {404, -32602, 4},
	UnknownTool:     {404, -32602, 4},
	Conflict:        {409, -32600, 5},
	Precondition:    {412, -32600, 5},
	Blocked:         {403, -32001, 6},
	NotAdmitted:     {403, -32002, 6},
	Denied:          {403, -32003, 6},
	Held:            {202, -32004, 6},
	Limit:           {403, -32005, 6},
	TooMany:         {429, -32600, 6},
	UpstreamError:   {502, -32006, 7},
	Unreachable:     {503, -32007, 7},
	OutcomeUnknown:  {504, -32007, 7},
	Timeout:         {504, -32007, 7},
	Cancelled:       {499, -32800, 7},
	Unavailable:     {503, -32603, 7},
	Config:          {400, -32603, 2},
	Internal:        {500, -32603, 1},
}

// Error is an error with a class. Message and Data go to the caller, so they
// hold no secret; Err is the cause for the log and the audit only.
type Error struct {
	Class   Class
	Message string         // lower case, English, says what to do
	Reason  string         // machine-readable, such as TOOL_CHANGED or mcp_scan_required
	Data    map[string]any // shown as JSON-RPC data and in REST details
	Err     error          // cause, never shown to callers
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Codes gives the numbers of the error's class; an unknown class is Internal.
func (e *Error) Codes() Codes {
	if c, ok := table[e.Class]; ok {
		return c
	}
	return table[Internal]
}

// New makes an error of a class with a message for the caller.
func New(c Class, format string, args ...any) *Error {
	return &Error{Class: c, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a class around a cause that is not shown to the caller.
func Wrap(c Class, err error, format string, args ...any) *Error {
	return &Error{Class: c, Message: fmt.Sprintf(format, args...), Err: err}
}

// Why sets the machine-readable reason and returns e.
func (e *Error) Why(reason string) *Error {
	e.Reason = reason
	return e
}

// With adds one item of data for the caller and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Data == nil {
		e.Data = make(map[string]any, 4)
	}
	e.Data[key] = value
	return e
}

// From returns err as an *Error; what has no class becomes Internal with a
// message that tells the caller nothing. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Wrap(Internal, err, "internal error")
}

// Is reports whether err has the class.
func Is(err error, c Class) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == c
}
