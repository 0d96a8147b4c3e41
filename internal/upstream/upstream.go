// Package upstream owns the connections to MCP servers: start, handshake in
// either era, health, backoff, listing, and carrying one request to a server
// and everything that belongs to it back. It knows no admission, rule or caller.
package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"doorward.dev/doorward/internal/mcp"
)

// Config is how one server is reached. Transport is stdio, http or builtin.
type Config struct {
	ID, Name, Transport string
	Command             string
	Args                []string
	Env                 map[string]string
	Cwd                 string
	URL                 string
	Headers             map[string]string
	Builtin             Builtin       // for builtin
	Timeout             time.Duration // of one call, default 10 min hard; reset by nothing
	Revision            string        // changes when the config does: the connection is then made anew
}

// Builtin is a server inside the binary: it answers requests like a modern
// upstream, in raw JSON. Implemented by op.Server.
type Builtin interface {
	Tools() []json.RawMessage
	CallTool(ctx context.Context, name string, args json.RawMessage) (result json.RawMessage, err error)
}

// Client is the party a request is made for.
type Client struct {
	Era          mcp.Era
	Version      string          // protocol revision of the client's side
	Session      string          // id of the client's session, "" without one: legacy upstream sessions are kept per id
	Capabilities json.RawMessage // what the client declared
	// Notify receives notifications that belong to the request (progress, message), progress tokens
	// already the client's own. nil: dropped.
	Notify func(method string, params json.RawMessage)
	// Ask passes a request of the server (elicitation/create, sampling/createMessage, roots/list) to the client
	// and returns the result or error object. nil: declined.
	Ask func(ctx context.Context, method string, params json.RawMessage) (result, rpcErr json.RawMessage, err error)
}

// Request is one request to a server.
type Request struct {
	ServerID string
	Method   string
	Params   json.RawMessage // as the client sent them, but for names, which are the server's own
	// ToolSchema is the input schema of the tool, for Mcp-Param headers (2026-07-28).
	ToolSchema json.RawMessage
	// Safe: the request may be sent again when its fate is unknown (reads).
	Safe   bool
	Client *Client // nil: Doorward itself
}

// Health of a connection.
type Health string

// The health states.
const (
	Connecting Health = "connecting"
	Up         Health = "up"
	Degraded   Health = "degraded" // up, but the last listing failed or was partial
	Down       Health = "down"     // waiting for the next attempt
	Disabled   Health = "disabled" // paused, blocked or removed
)

// Status of a connection, for lists and pages. It holds no secret.
type Status struct {
	ServerID        string          `json:"server_id"`
	Health          Health          `json:"health"`
	Era             string          `json:"era,omitempty"`
	ProtocolVersion string          `json:"protocol_version,omitempty"`
	ServerInfo      json.RawMessage `json:"server_info,omitempty"`
	Capabilities    json.RawMessage `json:"capabilities,omitempty"`
	Instructions    string          `json:"instructions,omitempty"`
	LastError       string          `json:"last_error,omitempty"`
	Since           time.Time       `json:"since"`
	NextAttempt     time.Time       `json:"next_attempt,omitzero"`
	PID             int             `json:"pid,omitempty"`
	Stderr          string          `json:"stderr,omitempty"` // tail
}

// Deps of a Pool.
type Deps struct {
	Log *slog.Logger
	// OnListing is called with every new listing (first connect, list_changed, reconnect, Scan).
	OnListing func(ctx context.Context, serverID string, l mcp.Listing)
	// OnChanged is called when a server announces list_changed or resources/updated on a shared stream:
	// method is the notification's, so that the doors can tell their clients.
	OnChanged func(serverID, method string, params json.RawMessage)
	// OnStatus is called when a health changes.
	OnStatus       func(Status)
	Redact         func([]byte) []byte
	ConnectTimeout time.Duration // default 20 s
	MaxMessage     int           // bytes of one message, default 16 MiB
	Parallel       int           // connects at once, default 8
	KillGrace      time.Duration // SIGTERM to SIGKILL of a child, default 3 s
	Version        string        // of Doorward, as servers see it
}
