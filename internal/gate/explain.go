package gate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

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

// The outcomes of a step.
const (
	stepPass       = "pass"
	stepTighten    = "tighten"
	stepRefuse     = "refuse"
	stepNotReached = "not reached"
)

// stageOrder is the path of a call.
var stageOrder = []policy.Stage{
	policy.StageCaller, policy.StageStop, policy.StageGrant, policy.StageServer, policy.StageAdmission, policy.StageRules,
	policy.StageArguments, policy.StageConfirm, policy.StageApproval, policy.StageLimits, policy.StageRecord, policy.StageDispatch,
}

// Explain says which stage decides a call of tool ("server/tool") by caller, and why. It is for people who
// may see everything: it names what the caller itself would not learn. args may be nil: then they are not checked.
func (g *Gate) Explain(ctx context.Context, caller *auth.Caller, tool string, args json.RawMessage) (Explanation, error) {
	a := &attempt{g: g, call: &Call{Caller: caller, Name: tool, Arguments: args}}
	a.refresh()
	t, err := a.explained()
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Tool: t.ServerName + "/" + t.Name, Agent: callerName(a.caller)}
	a.found(t)
	a.takeControl()
	o := a.occasion()
	if len(args) == 0 {
		o.unknown = policy.Args
	}
	a.verdict = verdictOf(a.snap, a.caller, t, o)
	e.settle(a.verdict)
	for _, stage := range stageOrder[:6] {
		e.step(stage, a.passed(stage))
	}
	if a.verdict.Action != policy.Deny {
		e.arguments(a, args)
		e.confirm(a)
		if err := e.approval(ctx, a, args); err != nil {
			return Explanation{}, err
		}
	}
	if e.Verdict.Action != policy.Deny {
		if err := e.limits(ctx, a); err != nil {
			return Explanation{}, err
		}
	}
	e.rest(t)
	return e, nil
}

// explained finds the one tool that is asked about, hidden or not.
func (a *attempt) explained() (*catalog.Tool, error) {
	named := a.named()
	switch len(named) {
	case 0:
		return nil, fault.New(fault.NotFound, "no server of this workspace has a tool named %s", cut(a.call.Name, nameLimit)).Why(reasonUnknownTool)
	case 1:
		return named[0], nil
	}
	names := make([]string, len(named))
	for i, t := range named {
		names[i] = t.ServerName + "/" + t.Name
	}
	slices.Sort(names)
	return nil, fault.New(fault.InvalidParams, "ambiguous: several servers have a tool named %s; ask about server/tool", cut(a.call.Name, nameLimit)).
		Why(reasonAmbiguousTool).With("candidates", names)
}

func callerName(c *auth.Caller) string {
	switch {
	case c.Agent != nil:
		return c.Agent.Name
	case c.AgentID != "":
		return c.AgentID
	case c.TaskID != "":
		return "a task of " + c.ActorName
	}
	return c.PersonName
}

func (e *Explanation) settle(v policy.Verdict) {
	e.Verdict, e.Action, e.Stage, e.Rule, e.Reason = v, v.Action.String(), string(v.Stage), v.RuleID, v.Reason
	e.Message = explained(v)
}

// refuse lets a later stage refuse what the decision let through.
func (e *Explanation) refuse(stage policy.Stage, class fault.Class, reason, message string) {
	e.settle(policy.Verdict{Action: policy.Deny, Stage: stage, Reason: reason, Class: class, Message: message})
	e.add(stage, stepRefuse, message)
}

func (e *Explanation) add(stage policy.Stage, outcome, detail string) {
	e.Steps = append(e.Steps, Step{Stage: string(stage), Outcome: outcome, Detail: detail})
}

// step adds one stage of the decision: what comes before the stage that decided has passed, what comes after a refusal is not reached.
func (e *Explanation) step(stage policy.Stage, detail string) {
	at := slices.Index(stageOrder, stage) - slices.Index(stageOrder, e.Verdict.Stage)
	switch {
	case at < 0:
		e.add(stage, stepPass, detail)
	case at > 0:
		e.add(stage, stepNotReached, "")
	case e.Verdict.Action == policy.Deny:
		e.add(stage, stepRefuse, e.Message)
	case e.Verdict.Action == policy.Allow:
		e.add(stage, stepPass, e.Message)
	default:
		e.add(stage, stepTighten, e.Message)
	}
}

// passed says why a stage lets the call through.
func (a *attempt) passed(stage policy.Stage) string {
	switch stage {
	case policy.StageCaller:
		return "the caller is " + callerName(a.caller)
	case policy.StageStop:
		return "no emergency stop; the caller is active"
	case policy.StageGrant:
		if a.caller.ReadOnly() {
			return "a task without an agent may use the baseline and what only reads"
		}
		if a.caller.AgentID == "" {
			return "a person of the workspace may know all its tools"
		}
		if a.tool.Tier == policy.TierBaseline {
			return "the tool is of the baseline, which every agent has"
		}
		return "the allowlist grants the tool of tier " + a.tool.Tier.String()
	case policy.StageServer:
		return "the server is " + a.server.State
	case policy.StageAdmission:
		return "the tool is admitted and unchanged since"
	}
	return ""
}

func (e *Explanation) arguments(a *attempt, args json.RawMessage) {
	if len(args) == 0 {
		e.add(policy.StageArguments, stepPass, "not checked: no arguments were given")
		return
	}
	if err := a.script(); err != nil {
		e.refuse(policy.StageArguments, fault.Denied, reasonScript, fault.From(err).Message)
		return
	}
	if err := a.checkArguments(); err != nil {
		e.refuse(policy.StageArguments, fault.InvalidParams, reasonArguments, fault.From(err).Message)
		return
	}
	e.add(policy.StageArguments, stepPass, "the arguments fit the admitted definition")
}

// confirm says whether the call takes two steps.
func (e *Explanation) confirm(a *attempt) {
	switch {
	case e.Verdict.Action == policy.Deny: // the arguments
	case !a.control.asked:
		e.add(policy.StageConfirm, stepPass, "no confirmation is needed")
	case len(a.g.confirming.secrets) == 0:
		e.refuse(policy.StageConfirm, fault.Unavailable, reasonConfirmUnavailable, "the call needs confirmation, and no secret is set to sign one with")
	default:
		e.add(policy.StageConfirm, stepTighten, "the first call gives a confirmation_token, and runs nothing; the second one, with the token and an idempotency_key, runs")
	}
}

// approval says whether a person has decided about exactly this call already.
func (e *Explanation) approval(ctx context.Context, a *attempt, args json.RawMessage) error {
	switch {
	case e.Verdict.Action == policy.Deny: // the arguments
		return nil
	case a.verdict.Action != policy.RequireApproval:
		e.add(policy.StageApproval, stepPass, "no approval is needed")
		return nil
	case len(args) == 0:
		e.add(policy.StageApproval, stepTighten, "each call waits for a person; approvals are bound to arguments, and none were given")
		return nil
	}
	if err := a.digestArguments(); err != nil {
		e.refuse(policy.StageArguments, fault.InvalidParams, reasonArguments, fault.From(err).Message)
		return nil
	}
	ap, err := a.existing(ctx)
	if err != nil {
		return err
	}
	switch {
	case ap == nil:
		e.add(policy.StageApproval, stepTighten, "the call would be held; there is no approval of it yet")
	case ap.Status == approved:
		e.add(policy.StageApproval, stepPass, fmt.Sprintf("approval %s is approved and unused; the next identical call uses it", ap.ID))
	case ap.Status == denied:
		e.refuse(policy.StageApproval, fault.Denied, reasonApprovalDenied, fmt.Sprintf("a person denied this call; approval %s", ap.ID))
	default:
		e.add(policy.StageApproval, stepTighten, fmt.Sprintf("the call waits for a person; approval %s is open", ap.ID))
	}
	return nil
}

// limits says which limits the call needs a slot of, and refuses where one has none left.
func (e *Explanation) limits(ctx context.Context, a *attempt) error {
	list := a.needs()
	if len(list) == 0 {
		e.add(policy.StageLimits, stepPass, "no limit applies")
		return nil
	}
	used, err := audit.Used(ctx, a.g.DB, a.g.Now(), slots(list))
	if err != nil {
		return err
	}
	said := make([]string, len(list))
	for i, n := range list {
		if used[i] >= n.Limit {
			e.refuse(policy.StageLimits, fault.Limit, reasonLimited, n.message(used[i]))
			return nil
		}
		said[i] = fmt.Sprintf("%d of %d calls of %s are used", used[i], n.Limit, n.what)
	}
	e.add(policy.StageLimits, stepPass, strings.Join(said, "; "))
	return nil
}

// existing is the approval that the call would meet, nil when there is none. An approved one comes first, as in claim.
func (a *attempt) existing(ctx context.Context) (*Approval, error) {
	ap, err := scanApproval(a.g.DB.Read.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approval
		WHERE workspace_id = $1 AND agent_id = $2 AND person_id = $3 AND tool_id = $4 AND fingerprint = $5 AND args_digest = $6
		AND status IN ('PENDING', 'DENIED', 'APPROVED') AND expires_at > $7
		ORDER BY CASE status WHEN 'APPROVED' THEN 0 ELSE 1 END, created_at DESC, id DESC LIMIT 1`,
		a.caller.WorkspaceID, a.caller.AgentID, a.requester(), a.tool.ID, a.tool.Fingerprint, a.digest, a.g.Now().UnixMicro()))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, unreadable(err)
	}
	return ap, nil
}

// rest adds the stages that only a real call reaches.
func (e *Explanation) rest(t *catalog.Tool) {
	done := len(e.Steps)
	for _, stage := range stageOrder[done:] {
		switch {
		case e.Verdict.Action == policy.Deny:
			e.add(stage, stepNotReached, "")
		case stage == policy.StageRecord && t.Class == policy.Read:
			e.add(stage, stepPass, "the outcome is recorded before the answer leaves")
		case stage == policy.StageRecord:
			e.add(stage, stepPass, "the intent is recorded before the tool runs, the outcome before the answer leaves")
		default:
			e.add(stage, stepPass, "the call goes to server "+t.ServerName)
		}
	}
}
