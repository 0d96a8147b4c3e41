package gate

import (
	"cmp"
	"slices"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/policy"
)

// Simulation is the answer.
type Simulation struct {
	From     int64            `json:"from"`
	To       int64            `json:"to"`
	Basis    string           `json:"basis"` // what is taken from the record and what is as of now
	Totals   SimulationTotals `json:"totals"`
	Changes  []SimulatedCall  `json:"changes"` // newest first
	Pairs    []SimulatedPair  `json:"pairs"`   // with changes, the most of them first
	Unjudged map[string]int   `json:"unjudged"`
	Cut      bool             `json:"truncated"` // the lists are shorter than the totals
}

// SimulationTotals count calls.
type SimulationTotals struct {
	Calls    int `json:"calls"`
	Changed  int `json:"changed"`
	Stricter int `json:"stricter"`
	Looser   int `json:"looser"`
	Unjudged int `json:"unjudged"`
	// Drifted are those that today's rules decide otherwise than the record says, whatever is proposed.
	Drifted int `json:"recorded_differs"`
}

// SimulatedCall is a recorded call whose decision would change.
type SimulatedCall struct {
	Seq      int64        `json:"seq"`
	TraceID  string       `json:"trace_id"`
	At       int64        `json:"at"`
	AgentID  string       `json:"agent_id,omitempty"`
	Agent    string       `json:"agent"` // name of the agent, else of the person
	PersonID string       `json:"person_id,omitempty"`
	TaskID   string       `json:"task_id,omitempty"`
	Server   string       `json:"server_name"`
	Tool     string       `json:"tool_name"`
	Change   string       `json:"change"` // stricter, looser
	Recorded Decided      `json:"recorded"`
	Today    Decided      `json:"today"`
	Proposed Decided      `json:"proposed"`
	Status   audit.Status `json:"status"` // how the call ended
}

// Decided is a decision in a Simulation.
type Decided struct {
	Decision string `json:"decision"`
	Stage    string `json:"stage"`
	Rule     string `json:"rule,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// SimulatedPair counts the changed calls of one caller and one tool.
type SimulatedPair struct {
	AgentID  string `json:"agent_id,omitempty"`
	Agent    string `json:"agent"`
	Server   string `json:"server_name"`
	Tool     string `json:"tool_name"`
	Calls    int    `json:"calls"` // also those without a change
	Stricter int    `json:"stricter"`
	Looser   int    `json:"looser"`
}

// Why a call cannot be judged.
const (
	unjudgedNoTool  = "no_tool"              // the call named no tool
	unjudgedTool    = "tool_gone"            // the tool was removed with its server
	unjudgedAgent   = "agent_gone"           // the agent does not exist any more
	unjudgedPerson  = "person_gone"          // the person does not exist or is disabled
	unjudgedTask    = "task_gone"            // the project of the task is not known any more
	unjudgedPartial = "arguments_incomplete" // kept in part or with secrets blanked, and a condition or script list asks about them
)

// changed counts a call whose decision would change, and keeps it while there is room.
func (s *simulation) changed(e *audit.Event, p *pair, today, proposed policy.Verdict) {
	change := "stricter"
	s.out.Totals.Changed++
	if proposed.Action > today.Action {
		s.out.Totals.Stricter++
		p.Stricter++
	} else {
		change = "looser"
		s.out.Totals.Looser++
		p.Looser++
	}
	if len(s.out.Changes) == s.limit {
		s.out.Cut = true
		return
	}
	s.out.Changes = append(s.out.Changes, SimulatedCall{
		Seq: e.Seq, TraceID: e.TraceID, At: e.At, AgentID: e.AgentID, Agent: p.Agent, PersonID: e.PersonID, TaskID: e.TaskID,
		Server: e.Server, Tool: e.Tool, Change: change, Status: e.Status,
		Recorded: Decided{Decision: e.Decision, Stage: e.Stage, Rule: e.RuleID, Reason: e.Reason}, Today: decidedBy(today), Proposed: decidedBy(proposed),
	})
}

func decidedBy(v policy.Verdict) Decided {
	return Decided{Decision: v.Action.String(), Stage: string(v.Stage), Rule: v.RuleID, Reason: v.Reason}
}

// end adds up the pairs.
func (s *simulation) end() *Simulation {
	for _, p := range s.pairs {
		if p.Stricter+p.Looser > 0 {
			s.out.Pairs = append(s.out.Pairs, p.SimulatedPair)
		}
	}
	slices.SortFunc(s.out.Pairs, func(a, b SimulatedPair) int {
		return cmp.Or(cmp.Compare(b.Stricter+b.Looser, a.Stricter+a.Looser), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Server, b.Server),
			cmp.Compare(a.Tool, b.Tool), cmp.Compare(a.AgentID, b.AgentID))
	})
	if len(s.out.Pairs) > s.limit {
		s.out.Pairs, s.out.Cut = s.out.Pairs[:s.limit], true
	}
	return s.out
}
