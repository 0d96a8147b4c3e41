// Package catalog owns what is governed: servers, their tools, admission and
// rules. It keeps them in the database and as one immutable snapshot in
// memory. It starts no connection and decides no call.
//
// It is a package of its own, beside upstream and policy, because upstream must not know
// what an admission is and policy must not know a database.
package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
	"doorward.dev/doorward/internal/secret"
)

// Server is a registered server. Env, Headers and secret parts of Args and URL are opened
// only by Config.
type Server struct {
	ID          string `json:"id"`
	WorkspaceID string `json:"-"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Transport   string `json:"transport"` // stdio, http, sse, ws, builtin
	State       string `json:"status"`    // PENDING_APPROVAL, ACTIVE, PAUSED, BLOCKED
	StateReason string `json:"status_reason,omitempty"`
	Origin      string `json:"origin"`
	OriginPath  string `json:"origin_path,omitempty"`
	ScanID      string `json:"scan_id,omitempty"`
	ScanAt      int64  `json:"scan_at,omitempty"`
	ScanError   string `json:"scan_error,omitempty"`
	CreatedAt   int64  `json:"created_at"`
	UpdatedAt   int64  `json:"updated_at"`
}

// Tool is a tool in the snapshot. It is immutable.
type Tool struct {
	ID         string
	ServerID   string
	ServerName string
	Name       string          // the tool's own name
	Public     string          // name on the aggregate door: <server>__<tool>
	Definition json.RawMessage // as last seen, byte for byte
	// Fingerprint of Definition; AdmittedFingerprint is empty when never admitted.
	Fingerprint, AdmittedFingerprint string
	Class                            policy.Class
	Present                          bool
	Admission                        policy.Admission
	ServerRules                      []policy.Rule
	Schema                           *ArgsSchema // compiled from the admitted definition
}

// ArgsSchema checks arguments; see Check.
type ArgsSchema struct{}

// Check checks the required arguments, then the JSON Schema. The error is fault.InvalidParams
// and names every field; a schema that cannot be compiled checks the required ones only.
func (s *ArgsSchema) Check(args json.RawMessage) error { panic("pending") }

// Snapshot is everything a call is decided by, as of one revision. Immutable, shared by all calls.
type Snapshot struct {
	Revision int64
	Servers  map[string]*ServerView // by id
	// AgentRules are the rules that name an agent: agent id -> tool id ("" = all tools) -> rules.
	AgentRules map[string]map[string][]policy.Rule
}

// ServerView is a server with its tools, in the order the server lists them.
type ServerView struct {
	Server
	Tools  []*Tool // present ones
	byName map[string]*Tool
}

// Tool finds a tool by its own name, nil when the server has none.
func (s *ServerView) Tool(name string) *Tool { panic("pending") }

// ServerByName finds a server of a workspace by name or id.
func (s *Snapshot) ServerByName(workspaceID, nameOrID string) *ServerView { panic("pending") }

// Lookup finds tools by any name a door accepts: "server/tool", "server__tool", "mcp__server__tool" or the
// tool's own name. More than one: ambiguous; the caller filters by what it may see.
func (s *Snapshot) Lookup(workspaceID, name string) []*Tool { panic("pending") }

// Facts gathers what the decision about a tool depends on, but for the caller's own part
// (AgentID, AgentMissing, AgentStopped, AgentState, Granted, Capability), which gate fills in.
func (s *Snapshot) Facts(t *Tool, agentID string, f *policy.Facts) { panic("pending") }

// Deps of a Catalog.
type Deps struct {
	DB       *db.DB
	Box      *secret.Box
	Redactor *secret.Redactor
	Now      func() time.Time
}

// Catalog is the governed catalogue. Safe for concurrent use.
type Catalog struct{}

// New loads the snapshot.
func New(ctx context.Context, d Deps) (*Catalog, error) { panic("pending") }

// Reload loads the snapshot anew; call it when the database changed.
func (c *Catalog) Reload(ctx context.Context) error { panic("pending") }

// Snapshot is the current snapshot; it never blocks.
func (c *Catalog) Snapshot() *Snapshot { panic("pending") }

// OnChange registers fn to be called after each new snapshot, one call at a time.
func (c *Catalog) OnChange(fn func(*Snapshot)) { panic("pending") }

// Spec is how a server is reached, secrets in the clear. It is never logged or shown.
type Spec struct {
	Name          string            `json:"name"`
	Description   string            `json:"description,omitempty"`
	ConnectorType string            `json:"connector_type,omitempty"`
	Transport     string            `json:"transport"`
	Command       string            `json:"command,omitempty"`
	Args          []string          `json:"args,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Cwd           string            `json:"cwd,omitempty"`
	URL           string            `json:"server_url,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Origin        string            `json:"-"`
	OriginPath    string            `json:"-"`
}

// Config opens the spec of a server, for upstream only.
func (c *Catalog) Config(ctx context.Context, serverID string) (Spec, error) { panic("pending") }

// Scan is what applying a listing found.
type Scan struct {
	ID      string `json:"scan_id"`
	Status  string `json:"status"` // ok, failed
	Found   int    `json:"tools_found"`
	New     int    `json:"new"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// ApplyListing remembers the current state of every tool of a server (PV-7). It admits nothing and sets no
// rule. A listing that is not complete never removes or un-admits a tool (case 3).
func (c *Catalog) ApplyListing(ctx context.Context, serverID string, l mcp.Listing) (Scan, error) {
	panic("pending")
}

// Choice is a person's decision about one tool in the approval of a server.
type Choice struct {
	ToolID string `json:"tool_id"`
	Action string `json:"action"`
}

// ToolInfo is a tool as REST shows it (spec/palveron 4.3).
type ToolInfo struct {
	ID                  string          `json:"id"`
	Name                string          `json:"name"`
	Title               string          `json:"title,omitempty"`
	Description         string          `json:"description"`
	InputSchema         json.RawMessage `json:"input_schema,omitempty"`
	Definition          json.RawMessage `json:"definition,omitempty"`
	AdmittedDefinition  json.RawMessage `json:"admitted_definition,omitempty"` // when changed
	Action              string          `json:"action"`
	Risk                string          `json:"risk"`
	Category            string          `json:"category"`
	Present             bool            `json:"present"`
	Admission           string          `json:"admission"`
	Suggestion          *Suggestion     `json:"suggestion"` // only while the tool waits for a decision
	PolicyAction        *string         `json:"policy_action"`
	IsAutoGenerated     bool            `json:"is_auto_generated"`
	IsPoisoningSuspect  bool            `json:"is_poisoning_suspect"`
	Fingerprint         string          `json:"fingerprint"`
	AdmittedFingerprint string          `json:"admitted_fingerprint"`
	AdmittedAt          int64           `json:"admitted_at"`
	AdmittedBy          string          `json:"admitted_by"`
}

// Suggestion is the rule proposed for a waiting tool (PV-9 to PV-12).
type Suggestion struct {
	Action string `json:"action"`
	Source string `json:"source"` // action, template
}

// Policy is a stored rule as REST shows it.
type Policy struct {
	ID              string `json:"id"`
	ToolID          string `json:"mcp_tool_id,omitempty"`
	AgentID         string `json:"agent_id,omitempty"`
	Action          string `json:"action"`
	Reason          string `json:"reason,omitempty"`
	IsAutoGenerated bool   `json:"is_auto_generated"`
	CreatedBy       string `json:"created_by"`
	CreatedAt       int64  `json:"created_at"`
}

// Admin operations. ws is the workspace; what is not in it is fault.NotFound. by names the person for
// the record. Reasons (mcp_scan_required, …) are those of spec/palveron 4.3.

func (c *Catalog) Register(ctx context.Context, ws string, s Spec, by string) (Server, error) {
	panic("pending")
}

// Update replaces how a server is reached; secret.Masked values keep what is stored.
func (c *Catalog) Update(ctx context.Context, ws, id string, s Spec, by string) (Server, error) {
	panic("pending")
}
func (c *Catalog) Remove(ctx context.Context, ws, id string) error              { panic("pending") }
func (c *Catalog) List(ctx context.Context, ws string) ([]Server, error)        { panic("pending") }
func (c *Catalog) Get(ctx context.Context, ws, nameOrID string) (Server, error) { panic("pending") }

// Masked is the spec with every secret value replaced by secret.Masked, for showing.
func (c *Catalog) Masked(ctx context.Context, ws, id string) (Spec, error) { panic("pending") }
func (c *Catalog) Tools(ctx context.Context, ws, serverID string) ([]ToolInfo, error) {
	panic("pending")
}

// Approve makes a server ACTIVE and admits the chosen tools as of its last successful scan (PV-3…PV-5).
func (c *Catalog) Approve(ctx context.Context, ws, id, scanID string, tools []Choice, by string) (Server, error) {
	panic("pending")
}
func (c *Catalog) Pause(ctx context.Context, ws, id, by string) (Server, error)  { panic("pending") }
func (c *Catalog) Resume(ctx context.Context, ws, id, by string) (Server, error) { panic("pending") }
func (c *Catalog) Admit(ctx context.Context, ws, serverID, toolID, action, fingerprint, by string) (ToolInfo, error) {
	panic("pending")
}
func (c *Catalog) AdmitSuggestions(ctx context.Context, ws, serverID string, toolIDs []string, by string) (int, error) {
	panic("pending")
}
func (c *Catalog) Verdict(ctx context.Context, ws, serverID, toolID, action, reason string, confirmLoosening bool, by string) (ToolInfo, error) {
	panic("pending")
}
func (c *Catalog) Policies(ctx context.Context, ws string) ([]Policy, error) { panic("pending") }
func (c *Catalog) CreatePolicy(ctx context.Context, ws string, p Policy, by string) (Policy, error) {
	panic("pending")
}
func (c *Catalog) DeletePolicy(ctx context.Context, ws, id string) error { panic("pending") }

// BlockTx blocks an ACTIVE server within tx (PV-31); false when it was not ACTIVE and stays as it is.
func BlockTx(ctx context.Context, tx *sql.Tx, ws, serverID, reason string, now int64) (bool, error) {
	panic("pending")
}
