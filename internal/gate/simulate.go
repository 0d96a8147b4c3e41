package gate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// SimulateRequest asks what proposed rules would have made of recorded calls.
type SimulateRequest struct {
	catalog.Proposal
	From  int64 `json:"-"` // unix microseconds, From included, To not
	To    int64 `json:"-"`
	Limit int   `json:"-"` // of the lists, at most SimulateMaxLimit; the totals are always complete
}

const basis = "time, caller, task and arguments are those of the record; servers, admission, stops, allowlists, capability models and roles are those of now; " +
	"arguments are not checked against schemas, and limits and approvals are left out"

const (
	simulateLimit = 200
	// SimulateMaxLimit is the greatest limit of a SimulateRequest.
	SimulateMaxLimit = 1000
	// simulateTime bounds a simulation: conditions may cost a tenth of a second a call.
	simulateTime = time.Minute
)

// Simulate runs proposed rules over the recorded calls of the caller's workspace, decides each as Call would, and lists those
// whose decision would be another one than under the rules of now. It changes nothing. One runs at a time.
func (g *Gate) Simulate(ctx context.Context, by *auth.Caller, in SimulateRequest) (*Simulation, error) {
	ctx, cancel := context.WithTimeout(ctx, simulateTime)
	defer cancel()
	select {
	case g.simulating <- struct{}{}:
		defer func() { <-g.simulating }()
	case <-ctx.Done():
		return nil, simulateOver(ctx, ctx.Err())
	}
	today, proposed, err := g.Catalog.Propose(ctx, by.WorkspaceID, in.Proposal)
	if err != nil {
		return nil, err
	}
	s := &simulation{g: g, ctx: ctx, ws: by.WorkspaceID, today: today, proposed: proposed, limit: in.Limit, pairs: map[pairKey]*pair{}, tasks: map[string]auth.Task{}}
	s.out = &Simulation{From: in.From, To: in.To, Basis: basis, Changes: []SimulatedCall{}, Pairs: []SimulatedPair{}, Unjudged: map[string]int{}}
	if s.limit <= 0 {
		s.limit = simulateLimit
	}
	if s.people, err = g.people(ctx, by.WorkspaceID); err != nil {
		return nil, err
	}
	f := audit.Filter{WorkspaceID: by.WorkspaceID, Kind: audit.Call, Method: "tools/call", From: in.From, To: in.To}
	args := (today.Asks()|proposed.Asks())&policy.Args != 0 || g.bindsScripts(by.WorkspaceID)
	if err := audit.Walk(ctx, g.DB, f, args, s.row); err != nil {
		return nil, simulateOver(ctx, err)
	}
	return s.end(), nil
}

func simulateOver(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, err, "the simulation took longer than %s; give a shorter span", simulateTime)
	}
	return err
}

// people are the people of a workspace who may act, by id.
func (g *Gate) people(ctx context.Context, ws string) (map[string]auth.Person, error) {
	list, err := g.Auth.People(ctx, ws)
	out := make(map[string]auth.Person, len(list))
	for _, p := range list {
		if p.DisabledAt == 0 {
			out[p.ID] = p
		}
	}
	return out, err
}

// bindsScripts: some agent may run some scripts only, which depends on arguments.
func (g *Gate) bindsScripts(ws string) bool {
	return slices.ContainsFunc(g.Auth.Agents(ws), func(a *auth.Agent) bool { return a.ScriptAllowlist != nil })
}

// simulation is one run.
type simulation struct {
	g               *Gate
	ctx             context.Context
	ws              string
	today, proposed *catalog.Snapshot
	limit           int
	pairs           map[pairKey]*pair
	people          map[string]auth.Person
	tasks           map[string]auth.Task
	out             *Simulation
}

// pairKey is what a decision without conditions depends on.
type pairKey struct {
	agent, person, tool, over string
	task                      bool
}

// pair is a caller and a tool. Unless it is conditional its verdicts hold for every call.
type pair struct {
	SimulatedPair
	unjudged        string
	caller          auth.Caller
	now, then       *catalog.Tool // in today and proposed
	conditional     bool
	asks            policy.Aspect // what its conditions read
	unknown         policy.Aspect // what is known of no call
	today, proposed policy.Verdict
}

// row judges one recorded call.
func (s *simulation) row(e *audit.Event) error {
	s.out.Totals.Calls++
	p := s.pair(e)
	p.Calls++
	if p.unjudged != "" {
		s.unjudged(p.unjudged)
		return nil
	}
	today, proposed := p.today, p.proposed
	if p.conditional {
		o, missing, err := s.occasion(p, e)
		if err != nil {
			return err
		}
		var sure, sureToo bool
		today, sure = p.decide(s.today, p.now, o)
		proposed, sureToo = p.decide(s.proposed, p.then, o)
		if !sure || !sureToo {
			s.unjudged(missing)
			return nil
		}
	}
	if e.Decision != today.Action.String() && decisive[policy.Stage(e.Stage)] {
		s.out.Totals.Drifted++
	}
	if today.Action != proposed.Action {
		s.changed(e, p, today, proposed)
	}
	return nil
}

// decisive are the stages that a Simulation decides; what a later one refused was decided otherwise before.
var decisive = map[policy.Stage]bool{
	policy.StageCaller: true, policy.StageStop: true, policy.StageGrant: true, policy.StageServer: true, policy.StageAdmission: true, policy.StageRules: true,
}

func (s *simulation) unjudged(why string) {
	s.out.Totals.Unjudged++
	s.out.Unjudged[why]++
}

// pair finds the caller and the tool of a call as they are now.
func (s *simulation) pair(e *audit.Event) *pair {
	k := pairKey{agent: e.AgentID, tool: e.ToolID, person: e.PersonID, over: overThen(e), task: e.TaskID != ""}
	if p := s.pairs[k]; p != nil {
		return p
	}
	p := &pair{SimulatedPair: SimulatedPair{AgentID: e.AgentID, Server: e.Server, Tool: e.Tool}}
	s.pairs[k] = p
	p.now, p.then = s.today.ToolByID(e.ToolID), s.proposed.ToolByID(e.ToolID)
	p.unjudged = s.bind(p, e)
	switch {
	case p.unjudged != "":
	case e.ToolID == "":
		p.unjudged = unjudgedNoTool
	case p.now == nil:
		p.unjudged = unjudgedTool
	}
	if p.unjudged != "" {
		return p
	}
	now, then := factsOf(s.today, &p.caller, p.now), factsOf(s.proposed, &p.caller, p.then)
	p.asks = now.Asks() | then.Asks()
	p.conditional = now.Conditional() || then.Conditional()
	if scriptBound(&p.caller, p.now) {
		p.conditional, p.asks = true, p.asks|policy.Args
	}
	if !p.conditional {
		p.today, p.proposed = policy.Decide(&now), policy.Decide(&then)
	}
	return p
}

// overThen says why the task of a recorded call was over when it was made, "" when it was running: what became of it since is nothing to a rule.
func overThen(e *audit.Event) string {
	if e.TaskID == "" || e.Stage != string(policy.StageCaller) {
		return ""
	}
	switch e.Reason {
	case auth.ReasonTaskEnded, auth.ReasonTaskExpired, auth.ReasonTaskPerson:
		return e.Reason
	}
	return ""
}

// bind makes the caller of a pair.
func (s *simulation) bind(p *pair, e *audit.Event) (unjudged string) {
	p.caller = auth.Caller{WorkspaceID: s.ws, AgentID: e.AgentID, TaskOver: overThen(e)}
	person, known := s.people[e.PersonID]
	role, _ := auth.ParseRole(person.Role)
	p.Agent = cmp.Or(person.Name, e.PersonID)
	if e.TaskID != "" {
		p.caller.TaskID, p.caller.ActorPersonID, p.caller.ActorName, p.caller.ActorRole = e.TaskID, e.PersonID, person.Name, role
	} else if e.AgentID == "" {
		p.caller.PersonID, p.caller.PersonName, p.caller.Role = e.PersonID, person.Name, role
	}
	if e.AgentID != "" {
		if p.caller.Agent = s.g.Auth.AgentByID(e.AgentID); p.caller.Agent == nil {
			p.Agent = e.AgentID
			return unjudgedAgent
		}
		p.Agent = p.caller.Agent.Name
	}
	switch {
	case known || e.PersonID == "" && e.AgentID != "":
		return ""
	case e.AgentID == "":
		return unjudgedPerson
	}
	p.unknown = policy.Role // that of the person on whose behalf the agent's task acted
	return ""
}

// occasion is the call as it was recorded; missing says why a part of it that is asked for is not known.
func (s *simulation) occasion(p *pair, e *audit.Event) (o occasion, missing string, err error) {
	at := time.UnixMicro(e.At)
	o.now, o.args, o.unknown = func() time.Time { return at }, noArguments, p.unknown
	if p.unknown != 0 {
		missing = unjudgedPerson
	}
	p.caller.TaskID = e.TaskID
	if p.asks&(policy.Task|policy.Project) != 0 && e.TaskID != "" {
		task, err := s.task(e.TaskID)
		if fault.Is(err, fault.NotFound) {
			o.unknown, missing, err = o.unknown|policy.Task|policy.Project, unjudgedTask, nil
		}
		if err != nil {
			return o, "", err
		}
		p.caller.ProjectID, p.caller.TaskLabels = task.ProjectID, task.Labels
	}
	if p.asks&policy.Args == 0 || e.ArgsSize == 0 {
		return o, missing, nil
	}
	if o.args = json.RawMessage(e.ArgsBody); !e.WholeArgs() {
		o.unknown, missing = o.unknown|policy.Args, unjudgedPartial
	}
	return o, missing, nil
}

// task of a recorded call; an error of the class NotFound when it is not known any more.
func (s *simulation) task(id string) (auth.Task, error) {
	if t, ok := s.tasks[id]; ok {
		return t, nil
	}
	t, err := s.g.Auth.Task(s.ctx, s.ws, id)
	if err == nil {
		s.tasks[id] = t
	}
	return t, err
}

// decide is the decision about the call, and whether it is sure: where something is not known it is asked both as the mildest
// and as the strictest answer would have it.
func (p *pair) decide(snap *catalog.Snapshot, t *catalog.Tool, o occasion) (v policy.Verdict, sure bool) {
	o.lenient = o.unknown != 0
	v, sure = verdictOf(snap, &p.caller, t, o), true
	if o.lenient {
		o.lenient = false
		sure = verdictOf(snap, &p.caller, t, o).Action == v.Action
	}
	if v.Action == policy.Deny || !scriptBound(&p.caller, t) {
		return v, sure
	}
	if o.unknown&policy.Args != 0 {
		return v, false
	}
	if _, ok := scriptGranted(&p.caller, t, o.args); !ok {
		v = policy.Verdict{Action: policy.Deny, Stage: policy.StageGrant, Reason: reasonScript, Class: fault.Denied}
	}
	return v, sure
}
