// Package gate is the only way to run a tool. Call takes one decoded call
// through every stage in the order of docs/architecture.md; Visible answers a
// list with the same decision. It knows no door and no transport.
package gate

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/notify"
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
	// CanWait: the caller has a way to hear that its call is alive, so a held call may wait for a decision.
	CanWait bool
	// Tell, when set, tells the caller's person once where a call that waits is decided. It returns false when that
	// person does not want to wait; nothing that it returns decides. It must return when ctx ends.
	Tell func(ctx context.Context, about *fault.Error) (stay bool)
	// State is the Result.State of a held call that the caller comes back with. Params hold it no more.
	State   string
	TraceID string // set by Call when empty
	// ReplayOf is the trace that this call repeats, for the record; the door checked that it exists.
	ReplayOf string
}

// Result of a call that was dispatched and answered with a result.
type Result struct {
	Raw     json.RawMessage // the result object, byte for byte as the server sent it
	TraceID string
	// State of a held call is a signed request state for clients of 2026-07-28, which come back with it.
	State string
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
	Limits               Limits // zero numbers are the defaults
	StateKey             []byte // signs request states; empty: held calls have none
	// DecideRole is the least role of who decides about held calls (default admin). What nobody decided for EscalateAfter (0: never)
	// is escalated to EscalateRole (default owner).
	DecideRole, EscalateRole auth.Role
	EscalateAfter            time.Duration
	// Notify takes the messages about approvals; nil: nobody is told.
	Notify *notify.Queue
	// ConfirmationSecrets sign the tokens of the two-step confirmation: the first signs, all are accepted. One that is shorter
	// than 32 bytes is as none; without one, calls that need confirmation fail closed (SC-86).
	ConfirmationSecrets []string
}

// Gate is the keeper. Safe for concurrent use.
type Gate struct {
	Deps
	visible visibleCache
	waiting waiters
	running running
	watch   observers
	revised revised

	confirming confirmations
	closing    chan struct{} // closed by Drain
	drain      sync.Once

	simulating chan struct{} // holds one: two would leave no processor for calls

	// How often a caller that waits hears of it, the database is asked for decisions of other
	// processes, and overdue approvals are swept. Tests shorten them.
	progressEvery, pollEvery, sweepEvery time.Duration
}

// New makes a gate. Run must run for overdue approvals to be swept; no call depends on it.
func New(d Deps) (*Gate, error) {
	if d.DB == nil || d.Auth == nil || d.Catalog == nil || d.Upstream == nil || d.Audit == nil {
		return nil, fault.New(fault.Internal, "gate: a dependency is missing")
	}
	if d.Redactor == nil {
		d.Redactor = &secret.Redactor{}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.ApprovalTTL <= 0 {
		d.ApprovalTTL = 30 * time.Minute
	}
	if d.HoldFor <= 0 {
		d.HoldFor = 50 * time.Second
	}
	if err := d.roles(); err != nil {
		return nil, err
	}
	d.Limits = d.Limits.orDefault()
	g := &Gate{
		Deps: d, closing: make(chan struct{}), confirming: newConfirmations(d.ConfirmationSecrets),
		simulating:    make(chan struct{}, 1),
		progressEvery: 5 * time.Second, pollEvery: time.Second, sweepEvery: 5 * time.Second,
	}
	d.Catalog.OnChange(g.cancelStopped) // before the connections of what was stopped are closed
	return g, nil
}

// Call takes c through all stages. An error is a *fault.Error (a refusal or a failure of Doorward or the
// upstream) or an *mcp.RPCError (the upstream answered with a JSON-RPC error, passed on as it is).
// Every attempt leaves its outcome in the record before Call returns.
func (g *Gate) Call(ctx context.Context, c *Call) (Result, error) {
	if err := g.DB.Current(); err != nil {
		return Result{}, err // nothing is decided on what may be old, and no record can be kept of it
	}
	a := g.begin(c)
	defer a.leave()
	if err := a.pass(ctx); err != nil {
		a.releaseKey(ctx)
		return a.refused(ctx, err)
	}
	if a.answered() {
		return a.own(ctx)
	}
	raw, err := a.dispatch()
	a.keepResult(ctx, raw, err)
	return a.outcome(ctx, raw, err)
}

// pass takes the attempt through every stage before dispatch. The first error ends it.
func (a *attempt) pass(ctx context.Context) error {
	if err := a.resolve(); err != nil { // caller, stop, grant: which tool, and may the caller know it
		return err
	}
	a.takeControl()
	if err := a.decide(); err != nil { // stop, grant, server, admission, rules
		return err
	}
	if err := a.checkArguments(); err != nil { // the schema of the admitted definition
		return err
	}
	if err := a.confirm(ctx); err != nil || a.answered() { // two steps, and once only, where the tool asks for it
		return err
	}
	if err := a.approval(ctx); err != nil { // a person, where the decision asks for one
		return err
	}
	if err := a.runKey(ctx); err != nil {
		return err
	}
	if err := a.intent(ctx); err != nil { // slots of limits; durable before a tool with side effects runs
		return err
	}
	return a.enter(ctx) // from here on a stop cancels it
}
