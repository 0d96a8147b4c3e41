package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

type policySimulateCmd struct {
	Action    string   `help:"Try a rule: ALLOW, LOG_ONLY, REQUIRE_APPROVAL or DENY." placeholder:"ACTION"`
	Tool      string   `help:"SERVER/TOOL." placeholder:"SERVER/TOOL"`
	Agent     string   `help:"Name or id of the agent; such a rule can only tighten." placeholder:"NAME"`
	Condition string   `aliases:"if" help:"Condition in CEL." placeholder:"CEL"`
	Replace   bool     `help:"Let the rule take the place of all server-wide rules of the tool, as doorward server rule does."`
	Remove    []string `help:"Try without this rule." placeholder:"RULE"`
	Days      int      `help:"Calls of the last days, default 7." placeholder:"N"`
	From      string   `help:"Not before this time (RFC 3339), instead of --days." placeholder:"TIME"`
	To        string   `help:"Before this time (RFC 3339), default now." placeholder:"TIME"`
	Limit     int      `help:"How many to list, at most 1000." default:"200"`
}

func (c *policySimulateCmd) Run(e *env) error {
	in := map[string]any{"remove": listed(c.Remove), "limit": c.Limit, "from": c.From, "to": c.To, "days": c.Days}
	if c.Action == "" && (c.Tool != "" || c.Agent != "" || c.Condition != "" || c.Replace) {
		return fault.New(fault.InvalidParams, "--action says what the rule does: ALLOW, LOG_ONLY, REQUIRE_APPROVAL or DENY")
	}
	if c.Replace && (c.Agent != "" || c.Condition != "") {
		return fault.New(fault.InvalidParams, "--replace is for a rule without --agent and --condition")
	}
	if c.Action != "" {
		tool, agent, err := e.target(c.Tool, c.Agent)
		if err != nil {
			return err
		}
		rule, kind := map[string]string{"action": strings.ToUpper(c.Action), "mcp_tool_id": tool}, "replace"
		if !c.Replace {
			kind, rule["agent_id"], rule["condition"] = "add", agent, c.Condition
		}
		in[kind] = []map[string]string{rule}
	}
	return ask(e, "POST", policiesPath+"/simulate", in, e.showSimulation)
}

func (e *env) showSimulation(s gate.Simulation) {
	if len(s.Changes) > 0 {
		rows := [][]string{{"TIME", "WHO", "TOOL", "RECORDED", "TODAY", "PROPOSED", "CHANGE", "DECIDES", "TRACE"}}
		for _, c := range s.Changes {
			rows = append(rows, []string{moment(c.At), c.Agent, c.Server + "/" + c.Tool, c.Recorded.Decision, c.Today.Decision, c.Proposed.Decision, c.Change, decider(c.Proposed), c.TraceID})
		}
		e.table(rows)
		fmt.Fprintln(e.stdout)
		rows = [][]string{{"WHO", "TOOL", "CALLS", "STRICTER", "LOOSER"}}
		for _, p := range s.Pairs {
			rows = append(rows, []string{p.Agent, p.Server + "/" + p.Tool, fmt.Sprint(p.Calls), fmt.Sprint(p.Stricter), fmt.Sprint(p.Looser)})
		}
		e.table(rows)
		fmt.Fprintln(e.stdout)
	}
	if s.Cut {
		e.print("sim_cut")
	}
	t := s.Totals
	e.print("simulated", t.Calls, t.Changed, t.Stricter, t.Looser)
	if t.Unjudged > 0 {
		var why []string
		for _, name := range slices.Sorted(maps.Keys(s.Unjudged)) {
			why = append(why, fmt.Sprintf("%s %d", name, s.Unjudged[name]))
		}
		e.print("sim_unjudged", t.Unjudged, strings.Join(why, ", "))
	}
	if t.Drifted > 0 {
		e.print("sim_drifted", t.Drifted)
	}
	e.print("sim_basis")
}

// decider names the rule that decides, else the reason that stands for one.
func decider(d gate.Decided) string {
	if d.Rule != "" {
		return d.Rule
	}
	return d.Reason
}
