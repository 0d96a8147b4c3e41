// Package auth owns who is calling: workspaces, people, agents and their keys.
// Keys are stored hashed, shown once and looked up in an immutable snapshot,
// so that authenticating touches neither a lock nor the database.
package auth

import (
	"context"
	"database/sql"
	"time"

	"doorward.dev/doorward/internal/db"
)

// Role of a person; each includes the ones before it.
type Role uint8

// The roles.
const (
	NoRole Role = iota
	Viewer
	Editor
	Admin
	Owner
)

// ParseRole reads a role's word.
func ParseRole(word string) (Role, bool) { panic("pending") }

func (r Role) String() string { panic("pending") }

// Agent is an agent profile as stored.
type Agent struct {
	ID, WorkspaceID, Name, Description string
	State                              string // ACTIVE, PAUSED, …
	Allowlist                          []Pattern
	Capability                         map[string]string // action class or "server/tool" -> rule word
	StoppedAt                          int64
	StopReason                         string
	CreatedAt                          int64
}

// Pattern is one parsed allowlist entry: "*", "server/*", "server/tool" or a bare tool name.
type Pattern struct{ Text, Server, Tool string }

// ParsePattern parses an allowlist entry; the error says what is wrong and what is possible.
func ParsePattern(s string) (Pattern, error) { panic("pending") }

// Match reports whether the entry grants the tool.
func (p Pattern) Match(server, tool string) bool { panic("pending") }

// Caller is who makes a request.
type Caller struct {
	WorkspaceID string
	KeyID       string
	AgentID     string // set when an agent calls, even if the agent does not exist any more
	Agent       *Agent // nil: the key names no existing agent
	PersonID    string
	PersonName  string
	Role        Role
	TaskID      string
}

// Granted reports whether the caller may know the tool. A person of the
// workspace may know all its tools; an agent what its allowlist grants.
func (c *Caller) Granted(server, tool string) bool { panic("pending") }

// Auth answers who is calling. Safe for concurrent use.
type Auth struct{}

// New loads the snapshot. now is the clock.
func New(ctx context.Context, d *db.DB, now func() time.Time) (*Auth, error) { panic("pending") }

// Reload loads the snapshot anew; call it when the database changed.
func (a *Auth) Reload(ctx context.Context) error { panic("pending") }

// Authenticate finds the caller of a bearer key. Errors are fault.Unauthenticated with the reasons
// MISSING_API_KEY, INVALID_API_KEY (also revoked: the answer does not tell) and EXPIRED_API_KEY.
func (a *Auth) Authenticate(key string) (*Caller, error) { panic("pending") }

// AgentByID gives an agent of the snapshot, nil when there is none.
func (a *Auth) AgentByID(id string) *Agent { panic("pending") }

// AnonymousAgent makes the caller of a listener without keys.
func (a *Auth) AnonymousAgent(name string) (*Caller, error) { panic("pending") }

// KeyInfo is a key as lists show it.
type KeyInfo struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Prefix    string `json:"prefix"`
	AgentID   string `json:"agent_id,omitempty"`
	PersonID  string `json:"person_id,omitempty"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt int64  `json:"expires_at,omitempty"`
	RevokedAt int64  `json:"revoked_at,omitempty"`
}

// Bootstrap creates, in an empty database, the default workspace, an owner and one ACTIVE agent named "default" with
// allowlist ["*"], and a key for each: the given ones, or new ones. created is false when there was a workspace already.
func (a *Auth) Bootstrap(ctx context.Context, adminKey, agentKey string) (created bool, admin, agent string, err error) {
	panic("pending")
}

// Admin operations; ws is the workspace, what is not in it is fault.NotFound.

// CreateKey makes a key for an agent ("agent_…") or a person ("dw_…") and returns it, the only time it is shown.
func (a *Auth) CreateKey(ctx context.Context, ws, agentID, personID, name string, expiresAt int64) (key string, info KeyInfo, err error) {
	panic("pending")
}
func (a *Auth) Keys(ctx context.Context, ws string) ([]KeyInfo, error) { panic("pending") }
func (a *Auth) RevokeKey(ctx context.Context, ws, id string) error     { panic("pending") }
func (a *Auth) CreateAgent(ctx context.Context, ws string, in Agent) (*Agent, error) {
	panic("pending")
}
func (a *Auth) UpdateAgent(ctx context.Context, ws string, in Agent) (*Agent, error) {
	panic("pending")
}

// SetAgentState moves an agent along the allowed transitions (spec/palveron 4.2.4).
func (a *Auth) SetAgentState(ctx context.Context, ws, id, state string) (*Agent, error) {
	panic("pending")
}

// ReleaseAgent lifts an emergency stop.
func (a *Auth) ReleaseAgent(ctx context.Context, ws, id string) (*Agent, error) { panic("pending") }
func (a *Auth) Agents(ws string) []*Agent                                       { panic("pending") }
func (a *Auth) People(ctx context.Context, ws string) ([]Person, error)         { panic("pending") }
func (a *Auth) CreatePerson(ctx context.Context, ws, name string, role Role) (Person, error) {
	panic("pending")
}

// Person of a workspace.
type Person struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Role      string `json:"role"`
	CreatedAt int64  `json:"created_at"`
}

// StopAgentTx marks an agent as stopped within tx; false when it was stopped already.
func StopAgentTx(ctx context.Context, tx *sql.Tx, ws, agentID, reason string, now int64) (bool, error) {
	panic("pending")
}
