// Package audit owns the record: the chained rows of audit_events, their one
// writer with group commit, signed checkpoints, proofs, verification, queries, export and retention. It decides nothing.
//
// Every row holds the hash of the row before it, and the head of the chain
// (number and hash of the last row) is kept beside the table in the same
// transaction. So a row that was changed, removed, added or moved is found by
// Verify, also at the end of the table. Behind the writer a keeper grows a Merkle tree over the hashes and
// signs checkpoints of it with a key that is sealed. Whoever can rewrite the whole database and has the sealing key
// can forge the whole record: checkpoints kept elsewhere (see Anchor) show that.
package audit

import (
	"log/slog"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/secret"
)

// Event is one row of audit_events; the fields are named after the columns.
// The writer fills Seq, ID, PrevHash and Hash.
type Event struct {
	Seq         int64  `json:"seq"`
	ID          string `json:"id"`
	At          int64  `json:"at"` // unix microseconds
	Kind        Kind   `json:"kind"`
	TraceID     string `json:"trace_id"`
	WorkspaceID string `json:"workspace_id"`
	AgentID     string `json:"agent_id,omitempty"`
	PersonID    string `json:"person_id,omitempty"`
	TaskID      string `json:"task_id,omitempty"`
	KeyID       string `json:"key_id,omitempty"`
	Door        string `json:"door,omitempty"`
	Method      string `json:"method,omitempty"`
	ServerID    string `json:"server_id,omitempty"`
	Server      string `json:"server_name,omitempty"`
	ToolID      string `json:"tool_id,omitempty"`
	Tool        string `json:"tool_name,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Decision    string `json:"decision,omitempty"`
	Stage       string `json:"stage,omitempty"`
	RuleID      string `json:"rule_id,omitempty"`
	Reason      string `json:"reason,omitempty"`
	ApprovalID  string `json:"approval_id,omitempty"`
	Status      Status `json:"status"`
	ErrorClass  string `json:"error_class,omitempty"`
	LatencyUS   int64  `json:"latency_us"`
	// Arguments and Result are the bytes as they passed; the writer stores
	// their digest, size and redacted body. It must be done before Write returns:
	// the caller may reuse the memory then.
	Arguments    []byte `json:"-"`
	Result       []byte `json:"-"`
	ArgsDigest   string `json:"args_digest,omitempty"`
	ArgsSize     int64  `json:"args_size"`
	ArgsBody     string `json:"args_body,omitempty"`
	ResultDigest string `json:"result_digest,omitempty"`
	ResultSize   int64  `json:"result_size"`
	ResultBody   string `json:"result_body,omitempty"`
	// Reserve is what the row needs of limits: the first slot that is not free refuses it (*Exhausted). Slots names the counters
	// of which it used one, parted by spaces; the writer fills it.
	Reserve  []Slot `json:"-"`
	Slots    string `json:"slots,omitempty"`
	PrevHash string `json:"prev_hash"`
	Hash     string `json:"hash"`
}

// Kind is what a row is about.
type Kind string

// The kinds of rows.
const (
	Intent Kind = "intent" // a call with side effects is about to be dispatched
	Call   Kind = "call"   // the outcome of an attempt, also of a refused one
	Admin  Kind = "admin"  // a person changed something
	Stop   Kind = "stop"   // an emergency stop, for attestation (PV-34)
)

// Status is how an attempt ended.
type Status string

// The statuses.
const (
	Started       Status = "started" // of an intent
	OK            Status = "ok"
	ToolError     Status = "tool_error"     // the tool ran and said isError
	UpstreamError Status = "upstream_error" // the server failed or cannot be reached
	DeniedStatus  Status = "denied"
	HeldStatus    Status = "held"
	CancelledStat Status = "cancelled"
	TimeoutStatus Status = "timeout"
	UnknownStatus Status = "unknown" // it may have run
	// ConfirmationRequired: the first of two steps; nothing ran.
	ConfirmationRequired Status = "confirmation_required"
	Invalid              Status = "invalid" // refused before any decision: bad arguments, unknown tool
)

// Durability says what a row survives before Write returns.
type Durability int

// The durabilities. Setting audit.power_safe raises all to Power.
const (
	Process Durability = iota // kill -9
	Power                     // power loss
)

// Options of a Log.
type Options struct {
	DB        *db.DB
	Redactor  *secret.Redactor
	MaxBody   int           // bytes of a body kept whole, default 32 KiB; a larger one keeps an excerpt of 1 KiB
	PowerSafe bool          // every row survives power loss
	Linger    time.Duration // how long the writer waits for company under load, default 2 ms; alone it commits at once
	Now       func() time.Time

	// Box seals the key of checkpoints. Without one there are none.
	Box             *secret.Box
	CheckpointEvery time.Duration // default 30 s; many rows or a stop make one earlier
	Anchors         []Anchor      // where checkpoints are kept too
	OTLP            *OTLP         // where rows are exported to; nil: nowhere
	Keep            time.Duration // older rows are removed by themselves; 0: never, else at least KeepAtLeast
	Log             *slog.Logger  // of what fails in the background; nil: nowhere

	anchorRetry time.Duration // tests shorten it
}
