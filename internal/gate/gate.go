// Package gate is the only way to run a tool. Call takes one decoded call
// through every stage in the order of docs/architecture.md; Visible answers a
// list with the same decision. It knows no door and no transport.
package gate

import (
	"context"
	"encoding/json"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/upstream"
)

// Call is one attempt to use a tool (or, with Method other than tools/call, another
// request to a server) as a door decoded it.
type Call struct {
	Caller *auth.Caller
	Door   string
	Method string // tools/call, prompts/get, resources/read, completion/complete, …
	// Server limits the look-up to one server (id or name); empty: the aggregate door.
	Server string
	// Name is the tool's name as the caller wrote it.
	Name string
	// Params is the whole params object of the request, spliced on untouched but for the name.
	Params    json.RawMessage
	Arguments json.RawMessage
	// Client is the caller's side of the wire: its era, capabilities, and how to reach it while the call runs.
	Client *upstream.Client
	// CanWait: the caller sent a progress token, so a held call may wait for a decision.
	CanWait bool
	TraceID string // set by Call when empty
}

// Result of a call that was dispatched and answered with a result.
type Result struct {
	Raw     json.RawMessage // the result object, byte for byte as the server sent it
	TraceID string
}

// Deps of a Gate.
type Deps struct {
	DB       *db.DB
	Auth     *auth.Auth
	Catalog  *catalog.Catalog
	Upstream *upstream.Pool
	Audit    *audit.Log
	Redactor *secret.Redactor
	Now      func() time.Time
	// ApprovalTTL is how long a held call waits for a person (default 30 minutes), HoldFor how long a
	// waiting caller is kept on the line (default 50 s), PublicURL the address shown with an approval.
	ApprovalTTL, HoldFor time.Duration
	PublicURL            string
}

// Gate is the keeper. Safe for concurrent use.
type Gate struct{}

// New makes a gate.
func New(d Deps) (*Gate, error) { panic("pending") }

// Call takes c through all stages. An error is a *fault.Error (a refusal or a failure of Doorward or the
// upstream) or an *mcp.RPCError (the upstream answered with a JSON-RPC error, passed on as it is).
// Every attempt leaves its outcome in the record before Call returns.
func (g *Gate) Call(ctx context.Context, c *Call) (Result, error) { panic("pending") }

// Forward is Call for the requests that are not tools: prompts, resources, completion. server names the
// target; stop, grant (any tool of the server), server state and record apply.
func (g *Gate) Forward(ctx context.Context, c *Call) (Result, error) { panic("pending") }

// Visible lists the tools that caller may call now, of one server or ("") of all: exactly those whose
// decision is not a refusal. The result is cached per snapshot and shared: do not change it.
func (g *Gate) Visible(caller *auth.Caller, server string) []*catalog.Tool { panic("pending") }

// Explanation says what would happen to a call, stage by stage, without calling.
type Explanation struct {
	Tool    string         `json:"tool"`
	Agent   string         `json:"agent"`
	Verdict policy.Verdict `json:"-"`
	Action  string         `json:"decision"`
	Stage   string         `json:"stage"`
	Rule    string         `json:"rule,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Message string         `json:"message"`
	Steps   []Step         `json:"steps"`
}

// Step is one stage of an Explanation.
type Step struct {
	Stage   string `json:"stage"`
	Outcome string `json:"outcome"` // pass, tighten, refuse, not reached
	Detail  string `json:"detail"`
}

// Explain says which stage decides a call of tool ("server/tool") by caller, and why.
func (g *Gate) Explain(ctx context.Context, caller *auth.Caller, tool string, args json.RawMessage) (Explanation, error) {
	panic("pending")
}

// Approval is a held call as REST shows it.
type Approval struct {
	ID           string          `json:"id"`
	Status       string          `json:"status"` // PENDING, APPROVED, DENIED, EXPIRED, CONSUMED
	AgentID      string          `json:"agent_id,omitempty"`
	PersonID     string          `json:"person_id,omitempty"`
	ServerID     string          `json:"server_id"`
	Server       string          `json:"server_name"`
	ToolID       string          `json:"tool_id"`
	Tool         string          `json:"tool_name"`
	Fingerprint  string          `json:"fingerprint"`
	ArgsDigest   string          `json:"args_digest"`
	Arguments    json.RawMessage `json:"arguments"` // redacted
	PolicyID     string          `json:"policy_id,omitempty"`
	Reason       string          `json:"reason"`
	TraceID      string          `json:"trace_id"`
	CreatedAt    int64           `json:"created_at"`
	ExpiresAt    int64           `json:"expires_at"`
	DecidedAt    int64           `json:"decided_at,omitempty"`
	DecidedBy    string          `json:"decided_by,omitempty"`
	DecideReason string          `json:"decide_reason,omitempty"`
	ConsumedAt   int64           `json:"consumed_at,omitempty"`
}

// Approvals lists approvals of a workspace, newest first; status "" is all. Overdue ones are shown EXPIRED.
func (g *Gate) Approvals(ctx context.Context, ws, status string, limit int) ([]Approval, error) {
	panic("pending")
}

// Decide approves or denies a held call. The decider is the authenticated person, never an agent, and
// not the requester (case 9). Deciding twice is fault.Conflict.
func (g *Gate) Decide(ctx context.Context, by *auth.Caller, id string, approve bool, reason string) (Approval, error) {
	panic("pending")
}

// StopRequest is a targeted emergency stop (PV-30 to PV-35).
type StopRequest struct {
	Scope    string `json:"scope"` // server, agent
	TargetID string `json:"target_id"`
	Reason   string `json:"reason,omitempty"`
}

// StopResult says what a stop did.
type StopResult struct {
	Scope            string `json:"scope"`
	TargetID         string `json:"target_id"`
	Changed          bool   `json:"changed"`
	ExpiredApprovals int    `json:"expired_approvals"`
}

// EmergencyStop stops a target at once: the change, the end of its open approvals and the record of kind
// stop belong together.
func (g *Gate) EmergencyStop(ctx context.Context, by *auth.Caller, r StopRequest) (StopResult, error) {
	panic("pending")
}

// Withdraw expires open and approved, unused approvals of a server or tool (pause, un-admission, rule change to DENY).
func (g *Gate) Withdraw(ctx context.Context, ws, serverID, toolID, why string) (int, error) {
	panic("pending")
}
