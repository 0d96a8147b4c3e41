package gate

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

const reasonLimited = "RATE_LIMITED"

// Limits are how many calls may run (SC-77, SC-80); a zero number is the default.
type Limits struct {
	Task      int    // of the tiers baseline and read together, for each task
	Workspace Budget // a day
	Profile   Budget // of one agent, in an hour
}

// Budget is a number for each of the tiers that change something.
type Budget struct {
	Ops       int // with script_run
	Deploy    int
	Proposals int // scaffold_proposal
	Spawns    int // scaffold_task
}

// DefaultLimits are the numbers where nobody set others.
var DefaultLimits = Limits{
	Task:      50,
	Workspace: Budget{Ops: 100, Deploy: 20, Proposals: 10, Spawns: 3},
	Profile:   Budget{Ops: 30, Deploy: 10, Proposals: 10, Spawns: 3},
}

// The numbers of a task that nobody can set.
const (
	taskOps      = 10
	taskScaffold = 10
	taskDeploy   = 5
)

func (l Limits) orDefault() Limits {
	or := func(n *int, d int) {
		if *n <= 0 {
			*n = d
		}
	}
	or(&l.Task, DefaultLimits.Task)
	l.Workspace.orDefault(DefaultLimits.Workspace)
	l.Profile.orDefault(DefaultLimits.Profile)
	return l
}

func (b *Budget) orDefault(d Budget) {
	for _, f := range [...]struct {
		n *int
		d int
	}{{&b.Ops, d.Ops}, {&b.Deploy, d.Deploy}, {&b.Proposals, d.Proposals}, {&b.Spawns, d.Spawns}} {
		if *f.n <= 0 {
			*f.n = f.d
		}
	}
}

// of is the name and the number of the budget of a tier, empty when the tier has none.
func (b *Budget) of(t policy.Tier) (string, int) {
	switch t {
	case policy.TierOps, policy.TierScriptRun:
		return "ops", b.Ops
	case policy.TierDeploy:
		return "deploy", b.Deploy
	case policy.TierScaffoldProposal:
		return "proposals", b.Proposals
	case policy.TierScaffoldTask:
		return "spawns", b.Spawns
	}
	return "", 0
}

// task is the name and the number of a task's bucket for a tier.
func (l *Limits) task(t policy.Tier) (string, int) {
	switch t {
	case policy.TierOps, policy.TierScriptRun:
		return "ops", taskOps
	case policy.TierDeploy:
		return "deploy", taskDeploy
	case policy.TierScaffoldProposal, policy.TierScaffoldTask:
		return "scaffold", taskScaffold
	}
	return "read", l.Task
}

// need is a slot that a call needs, and what its caller is told when there is none.
type need struct {
	audit.Slot
	what      string // for people: the tier ops of the workspace in a day
	exhausted string // followed by (used/limit), unless a task's: SC-81
}

// needs are the slots of the call, in the order in which they are reserved (SC-78): of the task, of the day, of the hour. Tools
// of other servers have no budget of workspace and agent unless a task calls: a gateway in front of busy servers would stand still.
func (a *attempt) needs() []need {
	task := a.caller.TaskID
	if task == "" && a.server.Transport != "builtin" {
		return nil
	}
	var list []need
	if task != "" {
		bucket, n := a.g.Limits.task(a.tool.Tier)
		list = append(list, need{slot(audit.Task, task+":"+bucket, n), "the bucket " + bucket + " of the task", "Rate limit exceeded for tool '" + a.tool.Name + "'"})
	}
	if tier, n := a.g.Limits.Workspace.of(a.tool.Tier); tier != "" {
		list = append(list, need{slot(audit.Day, a.caller.WorkspaceID+":"+tier, n), "the tier " + tier + " in the workspace today", "Workspace daily limit reached for this MCP tool tier"})
		if a.caller.AgentID != "" {
			_, n = a.g.Limits.Profile.of(a.tool.Tier)
			list = append(list, need{slot(audit.Hour, a.caller.AgentID+":"+tier, n), "the tier " + tier + " by the agent in the last hour", "Profile hourly limit reached for this MCP tool tier"})
		}
	}
	return list
}

func slot(w audit.Window, subject string, n int) audit.Slot {
	return audit.Slot{Window: w, Subject: subject, Limit: int64(n)}
}

func slots(list []need) []audit.Slot {
	if len(list) == 0 {
		return nil
	}
	out := make([]audit.Slot, len(list))
	for i, n := range list {
		out[i] = n.Slot
	}
	return out
}

func (n need) message(used int64) string {
	if n.Window == audit.Task {
		return n.exhausted
	}
	return n.exhausted + " (" + strconv.FormatInt(used, 10) + "/" + strconv.FormatInt(n.Limit, 10) + ")"
}

// limited refuses a call whose row did not get its slots. An approval that was used up for it is given back first. A process that
// dies between the two loses the approval, which is safe: a person has to approve once more. The other order, a slot before the
// approval, would let calls that are held use up slots.
func (a *attempt) limited(ctx context.Context, x *audit.Exhausted, list []need) error {
	if err := a.giveBack(ctx); err != nil {
		return a.storeFault(ctx, err)
	}
	message := x.Error()
	for _, n := range list {
		if n.Slot == x.Slot {
			message = n.message(x.Used)
		}
	}
	a.decided(policy.Deny, policy.StageLimits, "", reasonLimited)
	f := a.refusal(fault.Limit, reasonLimited, "%s", message).
		With("http_status", 403).With("origin", string(policy.StageLimits)).
		With("per", string(x.Slot.Window)).With("used", x.Used).With("limit", x.Slot.Limit)
	if a.event.ApprovalID != "" {
		f.With("approval_id", a.event.ApprovalID)
	}
	return f
}

// giveBack undoes the use of the approval by this call, unless something was changed since it was used: then a stop or a new rule
// would have withdrawn it.
func (a *attempt) giveBack(ctx context.Context) error {
	if a.event.ApprovalID == "" {
		return nil
	}
	var back []Approval
	err := a.g.DB.Tx(ctx, func(tx *sql.Tx) error {
		ap, err := scanApproval(tx.QueryRowContext(ctx, `UPDATE approval SET status = 'APPROVED', consumed_at = 0, consumed_by = ''
			WHERE id = $1 AND status = 'CONSUMED' AND consumed_by = $2 AND (SELECT n FROM revision WHERE id = 1) <= $3
			RETURNING `+approvalColumns, a.event.ApprovalID, a.call.TraceID, a.asOf))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		back = append(back, *ap)
		return nil
	})
	a.g.announce(back)
	return err
}
