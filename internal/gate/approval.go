package gate

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/notify"
	"doorward.dev/doorward/internal/policy"
)

// The states of an approval. PENDING → APPROVED → CONSUMED is the only way to a call.
const (
	pending  = "PENDING"
	approved = "APPROVED"
	denied   = "DENIED"
	expired  = "EXPIRED"
	consumed = "CONSUMED"
)

const (
	reasonApprovalDenied  = "APPROVAL_DENIED"
	reasonApprovalExpired = "APPROVAL_EXPIRED"
	reasonApprovalStore   = "APPROVAL_UNAVAILABLE"
)

// overdue is why the sweeper ended an approval.
const overdue = "nobody decided or used it in time"

// approval lets a call that needs a person pass once a person approved exactly this call. Only held calls come to the database.
func (a *attempt) approval(ctx context.Context) error {
	if a.call.State != "" {
		if err := a.resumed(ctx); err != nil {
			return err
		}
	}
	if a.verdict.Action != policy.RequireApproval {
		return nil
	}
	open, err := a.settle(ctx)
	if err != nil || open == nil {
		return err
	}
	if !a.call.CanWait && a.call.State == "" {
		return a.held(ctx, open)
	}
	return a.wait(ctx, open)
}

// settle uses the approval of the call: nil and nil when the call may run now, the open approval when a person has yet
// to decide. It never decides on old rules: when the database is newer than the snapshot, all is decided anew first.
func (a *attempt) settle(ctx context.Context) (*Approval, error) {
	for range 4 {
		if a.verdict.Action != policy.RequireApproval {
			return nil, nil
		}
		if err := a.digestArguments(); err != nil {
			return nil, err
		}
		ap, newer, err := a.claim(ctx)
		switch {
		case err != nil:
			return nil, a.storeFault(ctx, err)
		case newer:
			if err := a.g.reload(ctx); err != nil {
				return nil, a.storeFault(ctx, err)
			}
			if err := a.again(); err != nil {
				return nil, err
			}
		case ap.Status == consumed:
			a.event.ApprovalID = ap.ID
			return nil, nil
		case ap.Status == denied:
			return nil, a.deniedByPerson(ap)
		default:
			return ap, nil
		}
	}
	return nil, a.storeFault(ctx, errors.New("gate: the rules keep changing"))
}

// claim finds or makes the approval of the call in one transaction: an approved one is consumed (exactly one of any number of
// callers gets it), else a decided or open one is found, else a new one is made. newer: the database holds
// changes that the snapshots may not hold, nothing was done.
func (a *attempt) claim(ctx context.Context) (ap *Approval, newer bool, err error) {
	var news []Approval
	err = a.g.DB.Tx(ctx, func(tx *sql.Tx) error {
		var revision int64
		if err := tx.QueryRowContext(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&revision); err != nil {
			return err
		}
		if newer = revision > a.asOf; newer {
			return nil
		}
		now := a.g.Now()
		if ap, err = a.consume(ctx, tx, now); err != nil || ap != nil {
			return err
		}
		ap, news, err = a.request(ctx, tx, now)
		return err
	})
	if err == nil {
		a.g.announce(news)
	}
	return ap, newer, err
}

// consume uses up an approved approval of exactly this call, nil when there is none.
func (a *attempt) consume(ctx context.Context, tx *sql.Tx, now time.Time) (*Approval, error) {
	us := now.UnixMicro()
	row := tx.QueryRowContext(ctx, `UPDATE approval SET status = 'CONSUMED', consumed_at = $1, consumed_by = $2
		WHERE id = (SELECT id FROM approval
			WHERE workspace_id = $3 AND agent_id = $4 AND person_id = $5 AND tool_id = $6 AND fingerprint = $7 AND args_digest = $8
			AND status = 'APPROVED' AND expires_at > $9 ORDER BY expires_at LIMIT 1)
		AND status = 'APPROVED' AND expires_at > $10
		RETURNING `+approvalColumns,
		us, a.call.TraceID, a.caller.WorkspaceID, a.caller.AgentID, a.requester(), a.tool.ID, a.tool.Fingerprint, a.digest, us, us)
	ap, err := scanApproval(row)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return ap, err
}

// request finds the open or denied approval of exactly this call, or makes a new one. news are the approvals that changed.
func (a *attempt) request(ctx context.Context, tx *sql.Tx, now time.Time) (ap *Approval, news []Approval, err error) {
	us := now.UnixMicro()
	// An overdue one would hold the place of the only open approval of a call.
	news, err = a.g.endApprovals(ctx, tx, `tool_id = $2 AND args_digest = $3 AND expires_at <= $4`, overdue, a.tool.ID, a.digest, us)
	if err != nil {
		return nil, nil, err
	}
	find := func() (*Approval, error) {
		return scanApproval(tx.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approval
			WHERE workspace_id = $1 AND agent_id = $2 AND person_id = $3 AND tool_id = $4 AND fingerprint = $5 AND args_digest = $6
			AND status IN ('PENDING', 'DENIED') AND expires_at > $7 ORDER BY created_at DESC, id DESC LIMIT 1`,
			a.caller.WorkspaceID, a.caller.AgentID, a.requester(), a.tool.ID, a.tool.Fingerprint, a.digest, us))
	}
	if ap, err = find(); !errors.Is(err, sql.ErrNoRows) {
		return ap, news, err
	}
	n, err := a.insert(ctx, tx, now)
	if err != nil {
		return nil, nil, err
	}
	ap, err = find() // also when another process was faster: the index lets one PENDING row of a call live
	if err != nil || n == 0 {
		return ap, news, err
	}
	return ap, append(news, *ap), a.g.tell(ctx, tx, notify.Created, *ap)
}

func (a *attempt) insert(ctx context.Context, tx *sql.Tx, now time.Time) (int64, error) {
	res, err := tx.ExecContext(ctx, `INSERT INTO approval (id, workspace_id, agent_id, person_id, server_id, tool_id, server_name, tool_name,
			fingerprint, args_digest, arguments, policy_id, reason, trace_id, status, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 'PENDING', $15, $16)
		ON CONFLICT (workspace_id, agent_id, person_id, tool_id, fingerprint, args_digest) WHERE status = 'PENDING' DO NOTHING`,
		db.NewID(), a.caller.WorkspaceID, a.caller.AgentID, a.requester(), a.tool.ServerID, a.tool.ID, a.tool.ServerName, a.tool.Name,
		a.tool.Fingerprint, a.digest, string(a.g.shown(a.call.arguments())), a.verdict.RuleID, explained(a.verdict), a.call.TraceID,
		now.UnixMicro(), now.Add(a.g.ApprovalTTL).UnixMicro())
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// requester is the person of the approval's binding, empty when an agent calls. A task without an agent asks in the
// name of the person that it acts for, who therefore cannot approve it.
func (a *attempt) requester() string {
	switch {
	case a.caller.AgentID != "":
		return ""
	case a.caller.TaskID != "":
		return a.caller.ActorPersonID
	}
	return a.caller.PersonID
}

// digestArguments names the arguments by meaning: reordered members are the same call, another value is another one.
func (a *attempt) digestArguments() error {
	if a.digest != "" {
		return nil
	}
	canonical, err := mcp.Canonical(a.call.arguments())
	if err != nil {
		a.decided(policy.Deny, policy.StageArguments, "", reasonArguments)
		f := a.refusal(fault.InvalidParams, reasonArguments, "the arguments cannot be brought into one form that a person could approve: %s", fault.From(err).Message)
		f.Err = err
		return f
	}
	sum := sha256.Sum256(canonical)
	a.digest = hex.EncodeToString(sum[:])
	return nil
}

// shownLimit bounds the arguments that are kept for the person who decides (bytes).
const shownLimit = 256 << 10

// shown is what the person who decides sees of arguments: all of them without known secrets, or, where
// they are too large to be read, their size and beginning.
func (g *Gate) shown(args json.RawMessage) json.RawMessage {
	red := g.Redactor.Redact(args)
	if len(red) <= shownLimit {
		if json.Valid(red) {
			return red
		}
		return mcp.Quote(string(red)) // a secret reached across the marks of the JSON text
	}
	sum := sha256.Sum256(args)
	out, err := json.Marshal(map[string]any{
		"truncated": true, "size": len(args), "sha256": hex.EncodeToString(sum[:]), "beginning": cut(string(red), 4<<10),
	})
	if err != nil {
		return json.RawMessage(`{"truncated":true}`)
	}
	return out
}

// held answers that a person must decide first.
func (a *attempt) held(ctx context.Context, ap *Approval) error {
	a.event.ApprovalID = ap.ID
	a.left = a.state(ap)
	a.decided(policy.RequireApproval, a.verdict.Stage, a.verdict.RuleID, a.verdict.Reason)
	return a.heldFault(ctx, ap)
}

// heldFault says which approval a call waits for, and where it is decided.
func (a *attempt) heldFault(ctx context.Context, ap *Approval) *fault.Error {
	until := time.UnixMicro(ap.ExpiresAt).UTC().Format(time.RFC3339)
	f := a.refusal(fault.Held, policy.ReasonApprovalRequired,
		"this call needs the approval of a person; approval %s waits until %s; repeat the same call after it is approved", ap.ID, until).
		With("approval_id", ap.ID).With("expires_at", until).With("origin", string(a.verdict.Stage))
	if a.verdict.RuleID != "" {
		f.With("rule", a.verdict.RuleID)
	}
	if url := a.g.approvalURL(ap.ID); url != "" {
		f.With("approval_url", url)
	}
	if why := a.misfit(ctx, ap); why != "" {
		f.Message += "; the approval given in _meta does not fit: " + why
	}
	return f
}

// misfit says why the approval that the caller named in _meta is not the one of this call. It is only a hint
// for the caller: a named approval is never what a call is allowed by.
func (a *attempt) misfit(ctx context.Context, ap *Approval) string {
	hint, ok := mcp.String(mcp.GetPath(a.call.Params, "_meta", "approval_id"))
	if !ok || hint == ap.ID {
		return ""
	}
	given, err := a.g.Approval(ctx, a.caller.WorkspaceID, hint)
	if err != nil || given.AgentID != a.caller.AgentID || given.PersonID != a.requester() {
		return "there is no such approval"
	}
	switch {
	case given.ToolID != a.tool.ID:
		return "it is for another tool"
	case given.Fingerprint != a.tool.Fingerprint:
		return "the tool has changed since"
	case given.ArgsDigest != a.digest:
		return "it is for other arguments"
	case given.Status == consumed:
		return "it has been used"
	case given.Status == expired:
		return "it is overdue or was withdrawn"
	}
	return "it is " + given.Status
}

func (a *attempt) deniedByPerson(ap *Approval) error {
	a.event.ApprovalID = ap.ID
	a.decided(policy.Deny, policy.StageApproval, ap.PolicyID, reasonApprovalDenied)
	until := time.UnixMicro(ap.ExpiresAt).UTC().Format(time.RFC3339)
	message := "a person denied this call"
	if ap.DecideReason != "" {
		message += ": " + ap.DecideReason
	}
	return a.refusal(fault.Denied, reasonApprovalDenied, "%s; it can be asked for again after %s", message, until).
		With("approval_id", ap.ID).With("expires_at", until).With("origin", string(policy.StageApproval))
}

// expiredMeanwhile answers a waiting caller whose approval ran out or was withdrawn.
func (a *attempt) expiredMeanwhile(ap *Approval) error {
	a.event.ApprovalID = ap.ID
	a.decided(policy.Deny, policy.StageApproval, ap.PolicyID, reasonApprovalExpired)
	return a.refusal(fault.Denied, reasonApprovalExpired,
		"nobody approved this call in time, or its approval was withdrawn; repeat the call to ask again").
		With("approval_id", ap.ID).With("origin", string(policy.StageApproval))
}

// storeFault fails closed when approvals cannot be read or written.
func (a *attempt) storeFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return a.cancelled(err)
	}
	a.decided(policy.Deny, policy.StageApproval, "", reasonApprovalStore)
	f := a.refusal(fault.Unavailable, reasonApprovalStore, "approvals cannot be read or written now; try again later")
	f.Err = err
	return f
}

// revised keeps which revision of the database both snapshots, of accounts and of the catalogue, are known to hold.
type revised struct {
	mu sync.Mutex
	n  atomic.Int64
}

// reload takes in what was changed, here or by other processes, and has not been taken in yet.
func (g *Gate) reload(ctx context.Context) error {
	g.revised.mu.Lock()
	defer g.revised.mu.Unlock()
	var n int64
	if err := g.DB.Read.QueryRowContext(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&n); err != nil {
		return err
	}
	if n <= g.revised.n.Load() {
		return nil
	}
	if err := g.Auth.Reload(ctx); err != nil {
		return err
	}
	if err := g.Catalog.Reload(ctx); err != nil {
		return err
	}
	g.revised.n.Store(n)
	g.CancelStopped()
	return nil
}
