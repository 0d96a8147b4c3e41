package gate

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/catalog"
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
	what      string         // for people: the tier ops in the workspace today
	exhausted string         // followed by (used/limit), unless it is a task's budget: SC-81
	set       *catalog.Limit // what an operator set; nil: a budget of a tier
}

// needs are the slots of the call, in the order in which they are reserved (SC-78): of the task, of the day, of the hour.
func (a *attempt) needs() []need {
	list := a.budgets()
	set := a.snap.Limits(a.caller.WorkspaceID, a.tool, a.caller.AgentID)
	if len(set) == 0 {
		return list
	}
	for _, l := range set {
		if l.Per != string(audit.Task) || a.caller.TaskID != "" {
			list = append(list, setNeed(l, a.caller.TaskID))
		}
	}
	slices.SortStableFunc(list, func(x, y need) int { return rank[x.Window] - rank[y.Window] })
	return list
}

var rank = map[audit.Window]int{audit.Task: 0, audit.Day: 1, audit.Hour: 2}

// budgets are the slots of the tier. Tools of other servers have no budget of workspace and agent unless a task calls: a gateway
// in front of busy servers would stand still.
func (a *attempt) budgets() []need {
	task := a.caller.TaskID
	if task == "" && a.server.Transport != "builtin" {
		return nil
	}
	var list []need
	if task != "" {
		list = append(list, a.g.Limits.ofTask(task, a.tool.Tier, a.tool.Name))
	}
	if day, ok := a.g.Limits.ofDay(a.caller.WorkspaceID, a.tool.Tier); ok {
		list = append(list, day)
		if a.caller.AgentID != "" {
			list = append(list, a.g.Limits.ofHour(a.caller.AgentID, a.tool.Tier))
		}
	}
	return list
}

func (l *Limits) ofTask(task string, t policy.Tier, tool string) need {
	bucket, n := l.task(t)
	return need{Slot: slot(audit.Task, task+":"+bucket, int64(n)), what: "the bucket " + bucket + " of the task",
		exhausted: "Rate limit exceeded for tool '" + tool + "'"}
}

func (l *Limits) ofDay(workspace string, t policy.Tier) (need, bool) {
	tier, n := l.Workspace.of(t)
	return need{Slot: slot(audit.Day, workspace+":"+tier, int64(n)), what: "the tier " + tier + " in the workspace today",
		exhausted: "Workspace daily limit reached for this MCP tool tier"}, tier != ""
}

func (l *Limits) ofHour(agent string, t policy.Tier) need {
	tier, n := l.Profile.of(t)
	return need{Slot: slot(audit.Hour, agent+":"+tier, int64(n)), what: "the tier " + tier + " by the agent in the last hour",
		exhausted: "Profile hourly limit reached for this MCP tool tier"}
}

// setNeed is the slot of a limit that an operator set. A word that a later version stored lets nothing through.
func setNeed(l *catalog.Limit, task string) need {
	subject, often, n := "limit:"+l.ID, "", l.N
	w := audit.Window(l.Per)
	switch w {
	case audit.Task:
		subject, often = subject+":"+task, "task"
	case audit.Day:
		often = "daily"
	case audit.Hour:
		often = "hourly"
	default:
		w, often, n = audit.Day, "unknown", 0
	}
	whose := "Workspace"
	switch {
	case l.AgentID != "":
		whose = "Agent"
	case l.ToolID != "":
		whose = "Tool"
	}
	text := whose + " " + often + " limit reached"
	if l.ToolID != "" {
		text += " for this MCP tool"
	}
	return need{Slot: slot(w, subject, n), what: "the limit " + l.ID, exhausted: text, set: l}
}

func slot(w audit.Window, subject string, n int64) audit.Slot {
	return audit.Slot{Window: w, Subject: subject, Limit: n}
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
	if n.Window == audit.Task && n.set == nil {
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
	message, set := x.Error(), ""
	for _, n := range list {
		if n.Slot == x.Slot {
			message = n.message(x.Used)
			if n.set != nil {
				set = n.set.ID
			}
		}
	}
	a.decided(policy.Deny, policy.StageLimits, set, reasonLimited)
	f := a.refusal(fault.Limit, reasonLimited, "%s", message).
		With("http_status", 403).With("origin", string(policy.StageLimits)).
		With("per", string(x.Slot.Window)).With("used", x.Used).With("limit", x.Slot.Limit)
	if set != "" {
		f.With("limit_id", set)
	}
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

// Usage is how much of a limit is used.
type Usage struct {
	What    string `json:"what"`
	Per     string `json:"per"`
	Used    int64  `json:"used"`
	Limit   int64  `json:"limit"`
	LimitID string `json:"limit_id,omitempty"` // of a limit that an operator set
}

// counted are the tiers by their budgets.
var counted = []policy.Tier{policy.TierOps, policy.TierDeploy, policy.TierScaffoldProposal, policy.TierScaffoldTask}

// Usage tells how much is used now: of the workspace's budgets and limits, of an agent's and of a task's where they are named.
func (g *Gate) Usage(ctx context.Context, workspaceID, agentID, taskID string) ([]Usage, error) {
	var list []need
	if taskID != "" {
		for _, t := range []policy.Tier{policy.TierRead, policy.TierOps, policy.TierScaffoldProposal, policy.TierDeploy} {
			list = append(list, g.Limits.ofTask(taskID, t, ""))
		}
	}
	for _, t := range counted {
		day, _ := g.Limits.ofDay(workspaceID, t)
		list = append(list, day)
	}
	if agentID != "" {
		for _, t := range counted {
			list = append(list, g.Limits.ofHour(agentID, t))
		}
	}
	set, err := g.Catalog.Limits(ctx, workspaceID)
	if err != nil {
		return nil, err
	}
	for i := range set {
		if set[i].Per != string(audit.Task) || taskID != "" {
			list = append(list, setNeed(&set[i], taskID))
		}
	}
	used, err := audit.Used(ctx, g.DB, g.Now(), slots(list))
	if err != nil {
		return nil, err
	}
	out := make([]Usage, len(list))
	for i, n := range list {
		out[i] = Usage{What: n.what, Per: string(n.Window), Used: used[i], Limit: n.Limit}
		if n.set != nil {
			out[i].LimitID = n.set.ID
		}
	}
	return out, nil
}
