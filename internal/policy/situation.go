package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Aspect is a part of a Situation, for saying which are not known.
type Aspect uint8

// The aspects that may be unknown: a list is made before any call, and the record keeps excerpts.
const (
	Args Aspect = 1 << iota
	Clock
	Task
	Project
	Role
	Agent
	ToolName
	Annotations
)

// OfNoCall are the aspects that only a call has.
const OfNoCall = Args | Clock | Task | Project

// Situation is what conditions may ask about one call. It is for one decision
// at a time: it keeps what it has decoded.
type Situation struct {
	Role               string // word of the caller's role; none: an agent with a key of its own
	Kind               string // person, agent, task
	AgentID, AgentName string
	Task, Project      string   // ids
	Labels             []string // of the task
	Server, Tool       string
	Class              Class
	Tier               Tier
	Definition         json.RawMessage // of the tool, as admitted
	Args               json.RawMessage
	Now                time.Time

	Unknown Aspect
	// Lenient: a rule whose condition asks for something unknown counts as if it were the mildest way,
	// instead of the strictest. Lists are lenient: what only some calls are refused for stays listed.
	Lenient bool
	// Missed says whether a condition could not be answered because of something unknown.
	Missed bool

	missing     bool // in this evaluation
	spent       uint64
	args, notes ref.Val // decoded once
}

var (
	errUnknown = errors.New("it asks for what is not known here")
	errCost    = errors.New("the conditions of the call cost too much together")
	errNoCall  = errors.New("nothing is known about the call")
)

// asked are the aspects that a variable belongs to.
var asked = map[string]Aspect{
	varRole: Role, varAgentID: Agent, varAgentName: Agent, varTask: Task, varLabels: Task, varProject: Project, varServer: ToolName, varTool: ToolName,
	varClock: Clock, varAnnotations: Annotations, varTier: Annotations, varArgs: Args,
}

// Asks are the aspects that the condition reads.
func (c *Condition) Asks() (a Aspect) {
	for name := range c.vars {
		a |= asked[name]
	}
	return a
}

// holds says whether a rule with this condition and action applies to the call. When that cannot be found out the
// rule applies if it denies or asks for approval, and does not if it allows; why says what went wrong.
func (c *Condition) holds(s *Situation, action Action) (applies bool, why error) {
	if s == nil {
		return action >= RequireApproval, errNoCall
	}
	is, err := c.eval(s)
	switch {
	case err == nil:
		return is, nil
	case errors.Is(err, errUnknown):
		s.Missed = true
		if s.Lenient {
			return action < RequireApproval, err
		}
	}
	return action >= RequireApproval, err
}

func (c *Condition) eval(s *Situation) (bool, error) {
	if c.program == nil {
		return false, c.broken
	}
	if s.spent >= totalCostLimit {
		return false, errCost
	}
	s.missing = false
	out, details, err := c.program.Eval(s)
	if cost := details.ActualCost(); cost != nil {
		s.spent += *cost
	}
	if err != nil {
		if s.missing {
			return false, errUnknown
		}
		return false, err
	}
	is, ok := out.(types.Bool)
	if !ok {
		return false, errors.New("it is neither true nor false")
	}
	return bool(is), nil
}

// Parent is part of the interface of CEL's variables.
func (s *Situation) Parent() cel.Activation { return nil }

// ResolveName gives a variable to CEL.
func (s *Situation) ResolveName(name string) (any, bool) {
	switch name {
	case varRole:
		return s.known(Role, types.String(s.Role))
	case varKind:
		return types.String(s.Kind), true
	case varAgentID:
		return s.known(Agent, types.String(s.AgentID))
	case varAgentName:
		return s.known(Agent, types.String(s.AgentName))
	case varTask:
		return s.known(Task, types.String(s.Task))
	case varProject:
		return s.known(Project, types.String(s.Project))
	case varLabels:
		return s.known(Task, types.NewStringList(types.DefaultTypeAdapter, s.Labels))
	case varServer:
		return s.known(ToolName, types.String(s.Server))
	case varTool:
		return s.known(ToolName, types.String(s.Tool))
	case varClass:
		return types.String(s.Class), true
	case varTier:
		return s.known(Annotations, types.String(s.Tier.String()))
	case varClock:
		return s.known(Clock, types.Timestamp{Time: s.Now})
	case varAnnotations:
		if s.notes == nil {
			s.notes = annotations(s.Definition)
		}
		return s.known(Annotations, s.notes)
	case varArgs:
		if s.Unknown&Args == 0 && s.args == nil {
			s.args = decode(s.Args)
		}
		return s.known(Args, s.args)
	}
	return nil, false
}

func (s *Situation) known(a Aspect, v ref.Val) (any, bool) {
	if s.Unknown&a != 0 {
		s.missing = true
		return nil, false
	}
	return v, true
}

func annotations(definition json.RawMessage) ref.Val {
	var d struct {
		Annotations json.RawMessage `json:"annotations"`
	}
	if err := json.Unmarshal(definition, &d); err != nil || len(d.Annotations) == 0 || d.Annotations[0] != '{' {
		return decode(json.RawMessage("{}"))
	}
	return decode(d.Annotations)
}

// decode makes a CEL value of JSON; what is no JSON is an error of CEL.
func decode(raw json.RawMessage) ref.Val {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return types.NewErr("not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return types.NewErr("not JSON")
	}
	v, err := numbers(v)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// numbers turns JSON numbers into CEL's: whole ones stay exact as long as 64 bits hold them.
func numbers(v any) (_ any, err error) {
	switch x := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(string(x), 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(string(x), 10, 64); err == nil {
			return n, nil
		}
		f, err := x.Float64()
		if err != nil {
			return nil, errors.New("a number is too large")
		}
		return f, nil
	case []any:
		for i := range x {
			if x[i], err = numbers(x[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range x {
			if x[k], err = numbers(x[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
