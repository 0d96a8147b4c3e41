package gate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// spoilers make one stage each end the call, in the order of the stages. Nothing that one does undoes another.
var spoilers = []struct {
	name, stage, reason string // as recorded; reason "" is any
	spoil               func(w *world)
}{
	{"the agent is stopped", "stop", "AGENT_EMERGENCY_STOP", func(w *world) {
		must[gate.StopResult](w.t)(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID}))
	}},
	{"the workspace is shut down", "stop", "PROJECT_EMERGENCY_SHUTDOWN", func(w *world) {
		must[gate.ShutdownResult](w.t)(w.gate.EmergencyShutdown(w.ctx, w.owner, gate.ShutdownRequest{}))
	}},
	{"the allowlist does not grant", "grant", "NOT_GRANTED", func(w *world) {
		agent := *w.auth.AgentByID(w.agent.AgentID)
		agent.Allowlist = []auth.Pattern{must[auth.Pattern](w.t)(auth.ParsePattern("other/*"))}
		must[*auth.Agent](w.t)(w.auth.UpdateAgent(w.ctx, w.owner.WorkspaceID, agent))
	}},
	{"a tier that is not known", "grant", "TIER_UNKNOWN", func(w *world) {
		w.exec(`UPDATE tool SET tier = 'orbit' WHERE name = 'write_note'`)
		w.exec(`UPDATE revision SET n = n + 1`)
	}},
	{"the server is paused", "server", "SERVER_PAUSED", func(w *world) {
		must[catalog.Server](w.t)(w.catalog.Pause(w.ctx, w.owner.WorkspaceID, w.server.ID, "test"))
	}},
	{"the tool changed", "admission", "TOOL_CHANGED", func(w *world) {
		w.list(w.server, json.RawMessage(readDef), json.RawMessage(strings.Replace(writeDef, "Writes", "Sells", 1)))
	}},
	{"a rule denies", "rules", "RULE_DENY", func(w *world) { w.rule("write_note", "DENY") }},
	{"the arguments do not fit", "arguments", "", func(w *world) { w.text = `7` }},
	{"the first step of two", "confirm", "confirmation_required", func(w *world) {
		yes := true
		w.setTool("write_note", catalog.ToolSettings{Confirm: &yes})
	}},
	{"a person has to approve", "rules", "APPROVAL_REQUIRED", func(w *world) {
		must[catalog.Policy](w.t)(w.catalog.CreatePolicy(w.ctx, w.owner.WorkspaceID,
			catalog.Policy{AgentID: w.agent.AgentID, Action: "REQUIRE_APPROVAL"}, "test"))
	}},
}

// TestEveryPairOfStages: of two stages that end a call the earlier one does, and the record names it.
func TestEveryPairOfStages(t *testing.T) {
	for i, first := range spoilers {
		for _, second := range spoilers[i:] {
			t.Run(first.name+" and "+second.name, func(t *testing.T) {
				w := newWorld(t)
				w.rule("write_note", "ALLOW")
				second.spoil(w) // the order in time must not matter
				first.spoil(w)
				w.reload()
				r, _ := w.call(w.agent, "write_note", `{"text":`+w.text+`}`)
				row := w.row(r.TraceID)
				if row.Stage != first.stage || first.reason != "" && row.Reason != first.reason {
					t.Errorf("%s decided with %s (%s), want %s %s", row.Stage, row.Reason, row.Status, first.stage, first.reason)
				}
				if w.fake.count("write_note") != 0 {
					t.Error("the tool ran")
				}
			})
		}
	}
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	if _, f := w.call(w.agent, "write_note", `{"text":`+w.text+`}`); f != nil {
		t.Fatalf("what no stage spoils must run: %v", f)
	}
}

// TestAddingALimitNeverLoosens: whatever happened before, one more limit lets no call through that would not pass without it, and
// holds none that would be refused. (A call that a limit refuses uses no slot of others, so later calls may well pass.)
func TestAddingALimitNeverLoosens(t *testing.T) {
	permitted := func(_ gate.Result, f *fault.Error) int {
		switch {
		case f == nil:
			return 2
		case f.Class == fault.Held:
			return 1
		}
		return 0
	}
	histories := 0
	rapid.Check(t, func(rt *rapid.T) {
		if histories++; histories > 12 {
			return // each needs two databases, and the next run draws others
		}
		draw := func(name string) catalog.Limit {
			l := catalog.Limit{Per: rapid.SampledFrom([]string{"day", "hour", "task"}).Draw(rt, name+" per"), N: rapid.Int64Range(1, 4).Draw(rt, name)}
			if rapid.Bool().Draw(rt, name+" of the tool") {
				l.ToolID = "notes/write_note"
			}
			return l
		}
		rule := rapid.SampledFrom([]string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY"}).Draw(rt, "rule")
		had, more := draw("had"), draw("added")
		calls := rapid.SliceOfN(rapid.SampledFrom([]string{"read_note", "write_note"}), 1, 6).Draw(rt, "calls")
		asTask := rapid.Bool().Draw(rt, "task")
		// last plays the calls under the first limit and gives how the last one ended, with more limits by then.
		last := func(more ...catalog.Limit) (got int) {
			w := newWorld(t)
			w.rule("write_note", rule)
			limit := func(l catalog.Limit) {
				if l.ToolID != "" {
					l.ToolID = w.tools[l.ToolID]
				}
				must[catalog.Limit](t)(w.catalog.CreateLimit(w.ctx, w.owner.WorkspaceID, l, "owner"))
				w.reload()
			}
			limit(had)
			caller := w.agent
			if asTask {
				caller, _ = w.newTask(w.agent.AgentID)
			}
			for i, name := range calls {
				if i == len(calls)-1 {
					for _, l := range more {
						limit(l)
					}
				}
				got = permitted(w.call(caller, name, `{"text":"x"}`))
			}
			return got
		}
		if before, after := last(), last(more); after > before {
			rt.Fatalf("%v with rule %s: %d became %d with %+v beside %+v", calls, rule, before, after, more, had)
		}
	})
}
