package gate_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/upstream"
)

// tier makes write_note, which may be called without asking, a tool of a tier.
func (w *world) tier(tier string) {
	w.t.Helper()
	w.setTool("write_note", catalog.ToolSettings{Tier: &tier})
}

// longTask starts a task that lives for a day.
func (w *world) longTask(agentID string) *auth.Caller {
	w.t.Helper()
	token, _, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", AgentID: agentID}, auth.MaxTaskTTL)
	ok(w.t, err)
	return must[*auth.Caller](w.t)(w.auth.Authenticate(token))
}

func (w *world) later(d time.Duration) { w.clock.Add(d.Microseconds()) }

// run calls n times and each call runs; limited calls once and is refused with a message.
func (w *world) runs(c *auth.Caller, tool string, n int) {
	w.t.Helper()
	for i := range n {
		if _, f := w.call(c, tool, fmt.Sprintf(`{"text":"x","n":%d}`, i)); f != nil {
			w.t.Fatalf("call %d of %d: %s %s", i+1, n, f.Reason, f.Message)
		}
	}
}

func (w *world) limited(c *auth.Caller, tool, message string) {
	w.t.Helper()
	before := w.fake.count(tool)
	r, f := w.call(c, tool, `{"text":"x"}`)
	row := w.refused(r, f, fault.Limit, "RATE_LIMITED", "limits", "RATE_LIMITED")
	if f.Message != message {
		w.t.Errorf("message %q, want %q", f.Message, message)
	}
	if codes := f.Codes(); codes.HTTP != 403 || codes.RPC != -32005 || f.Data["http_status"] != 403 {
		w.t.Errorf("codes %+v, data %v", codes, f.Data)
	}
	if row.Status != audit.DeniedStatus || row.ErrorClass != "limit" || row.Slots != "" || len(w.rows(r.TraceID)) != 1 {
		w.t.Errorf("row %+v", row)
	}
	if w.fake.count(tool) != before {
		w.t.Error("it ran")
	}
}

// The numbers and the texts of SC-77, SC-80 and SC-81.
func TestLimitsOfTiers(t *testing.T) {
	const (
		task      = "Rate limit exceeded for tool 'write_note'"
		workspace = "Workspace daily limit reached for this MCP tool tier (%d/%d)"
		profile   = "Profile hourly limit reached for this MCP tool tier (%d/%d)"
	)
	for _, c := range []struct {
		tier                     string
		task, profile, workspace int // 0: has none
	}{
		{"baseline", 50, 0, 0}, {"read", 50, 0, 0},
		{"ops", 10, 30, 100}, {"script_run", 10, 30, 100}, {"deploy", 5, 10, 20},
		{"scaffold_proposal", 10, 10, 10}, {"scaffold_task", 3, 3, 3},
	} {
		t.Run(c.tier, func(t *testing.T) {
			w := newWorld(t)
			w.rule("write_note", "ALLOW")
			w.tier(c.tier)
			if c.tier == "scaffold_task" { // a task's bucket is larger than what the agent has in an hour
				first := w.longTask(w.agent.AgentID)
				w.runs(first, "write_note", 3)
				w.limited(first, "write_note", fmt.Sprintf(workspace, 3, 3))
				w.later(12 * time.Hour)
				w.runs(first, "write_note", 3)
				w.limited(first, "write_note", fmt.Sprintf(workspace, 3, 3))
				return
			}
			inHour, inDay := 0, 0
			for inDay < 300 {
				caller := w.longTask(w.agent.AgentID)
				n := c.task
				if c.profile > 0 {
					n = min(n, c.profile-inHour, c.workspace-inDay)
				}
				w.runs(caller, "write_note", n)
				inHour, inDay = inHour+n, inDay+n
				switch {
				case n == c.task:
					w.limited(caller, "write_note", task)
				case inDay == c.workspace:
					w.limited(caller, "write_note", fmt.Sprintf(workspace, inDay, c.workspace))
					return
				default:
					w.limited(caller, "write_note", fmt.Sprintf(profile, inHour, c.profile))
					w.later(time.Hour)
					inHour = 0
				}
				if c.profile == 0 && inDay >= 100 {
					return // a second task has a budget of its own
				}
				if c.profile > 0 && n == c.task && inDay == c.workspace {
					caller := w.longTask(w.agent.AgentID)
					w.limited(caller, "write_note", fmt.Sprintf(workspace, inDay, c.workspace))
					return
				}
			}
			t.Fatal("no end of it")
		})
	}
}

// Baseline and read share one bucket of a task; a task of no agent has it too.
func TestBaselineAndReadShareABucket(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Task = 4
	w.rule("write_note", "ALLOW")
	w.tier("baseline")
	caller := w.longTask("")
	w.runs(caller, "read_note", 2)
	w.runs(caller, "write_note", 2)
	w.limited(caller, "read_note", "Rate limit exceeded for tool 'read_note'")
	w.limited(caller, "write_note", "Rate limit exceeded for tool 'write_note'")
	w.runs(w.agent, "read_note", 60) // no task calls: no limit
}

// The task is asked first, and its slot is not lost when the workspace has none (SC-78). What is held, denied or wrong uses none.
func TestRefusedCallsUseNoSlot(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Workspace.Deploy = 2
	w.tier("deploy")
	caller := w.longTask(w.agent.AgentID)
	for range 10 {
		if _, f := w.call(caller, "write_note", `{"text":"held"}`); f == nil || f.Class != fault.Held {
			t.Fatal(f)
		}
	}
	w.rule("write_note", "DENY")
	for range 10 {
		if _, f := w.call(caller, "write_note", `{"text":"x"}`); f == nil || f.Class != fault.Denied {
			t.Fatal(f)
		}
	}
	w.rule("write_note", "ALLOW")
	for range 10 {
		if _, f := w.call(caller, "write_note", `{}`); f == nil || f.Class != fault.InvalidParams {
			t.Fatal(f)
		}
	}
	w.runs(caller, "write_note", 2)
	for range 10 {
		w.limited(caller, "write_note", "Workspace daily limit reached for this MCP tool tier (2/2)")
	}
	w.later(12 * time.Hour) // 0:00 UTC
	w.gate.Limits.Workspace.Deploy = 20
	w.runs(caller, "write_note", 3)
	w.limited(caller, "write_note", "Rate limit exceeded for tool 'write_note'")
}

// An approval is not lost to a limit: it is given back and the call runs, once, when there is a slot again.
func TestLimitGivesTheApprovalBack(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Profile.Ops = 1
	caller := w.longTask(w.agent.AgentID)
	boss := w.newPerson("boss", auth.Admin)
	approved := func(text string) string {
		args := `{"text":` + text + `}`
		_, f := w.call(caller, "write_note", args)
		if f == nil || f.Class != fault.Held {
			t.Fatal(f)
		}
		id, _ := f.Data["approval_id"].(string)
		must[gate.Approval](t)(w.gate.Decide(w.ctx, boss, id, true, ""))
		return id
	}
	approved(`"a"`)
	if _, f := w.call(caller, "write_note", `{"text":"a"}`); f != nil {
		t.Fatal(f)
	}
	w.later(40 * time.Minute)
	id := approved(`"b"`)
	_, f := w.call(caller, "write_note", `{"text":"b"}`)
	if f == nil || f.Class != fault.Limit || f.Data["approval_id"] != id {
		t.Fatal(f)
	}
	if ap := must[gate.Approval](t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id)); ap.Status != "APPROVED" || ap.ConsumedAt != 0 {
		t.Fatalf("approval %+v", ap)
	}
	w.later(20 * time.Minute)
	if _, f = w.call(caller, "write_note", `{"text":"b"}`); f != nil {
		t.Fatal(f)
	}
	if _, f = w.call(caller, "write_note", `{"text":"b"}`); f == nil || f.Class != fault.Held {
		t.Fatal(f)
	}
	if n := w.fake.count("write_note"); n != 2 {
		t.Errorf("it ran %d times", n)
	}
}

// Without a task only built-in servers have budgets: a foreign one would stop a gateway after a hundred calls a day.
func TestForeignToolsAreLimitedInTasksOnly(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Profile.Ops = 2
	w.rule("write_note", "ALLOW")
	w.runs(w.agent, "write_note", 2)
	w.limited(w.agent, "write_note", "Profile hourly limit reached for this MCP tool tier (2/2)")
	w.runs(w.owner, "write_note", 5) // a person is no profile
	w.exec(`UPDATE server SET transport = 'http' WHERE id = '` + w.server.ID + `'`)
	w.exec(`UPDATE revision SET n = n + 1`)
	w.reload()
	w.runs(w.agent, "write_note", 40)
	caller := w.longTask(w.agent.AgentID)
	w.limited(caller, "write_note", "Profile hourly limit reached for this MCP tool tier (2/2)")
}

// A restart counts on from the record.
func TestLimitsSurviveARestart(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Task = 3
	caller := w.longTask(w.agent.AgentID)
	w.runs(caller, "read_note", 2)
	w.endAudit()
	w.exec(`DELETE FROM limit_counter`) // as in a copy that was restored without it
	w.startAudit()
	o := w.second()
	o.gate.Limits.Task = 3
	o.runs(caller, "read_note", 1)
	o.limited(caller, "read_note", "Rate limit exceeded for tool 'read_note'")
}

// Of 200 calls at once, on three replicas over one PostgreSQL, exactly as many run as the limit says; on SQLite, too.
func TestLimitsUnderLoad(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { limitsUnderLoad(t, "", 1) })
	t.Run("postgres", func(t *testing.T) { limitsUnderLoad(t, testkit.PostgresURL(t), 3) })
}

func limitsUnderLoad(t *testing.T, url string, replicas int) {
	w := newWorldOn(t, url)
	w.rule("write_note", "ALLOW")
	caller := w.longTask(w.agent.AgentID)
	all := []*world{w}
	for len(all) < replicas {
		all = append(all, w.third(url))
	}
	for _, c := range []struct {
		tool, message string
		limit         int64
	}{{"read_note", "Rate limit exceeded for tool 'read_note'", 50}, {"write_note", "Rate limit exceeded for tool 'write_note'", 10}} {
		var ran, refused atomic.Int64
		var calls sync.WaitGroup
		for i := range 200 {
			calls.Go(func() {
				_, f := all[i%len(all)].call(caller, c.tool, fmt.Sprintf(`{"text":"x","n":%d}`, i))
				switch {
				case f == nil:
					ran.Add(1)
				case f.Class == fault.Limit && f.Message == c.message:
					refused.Add(1)
				default:
					t.Error(f)
				}
			})
		}
		calls.Wait()
		if n := int64(w.fake.count(c.tool)); n != c.limit || ran.Load() != c.limit || refused.Load() != 200-c.limit {
			t.Errorf("%s: %d reached the server, %d callers were answered, %d refused; want %d", c.tool, n, ran.Load(), refused.Load(), c.limit)
		}
	}
	if v, err := audit.Verify(t.Context(), w.db, audit.Known{}); err != nil || !v.Whole || v.Counter != "" {
		t.Errorf("record: %+v, %v", v, err)
	}
}

// third is another process: with its own connections and its own writer of the record. It shares the fake server.
func (w *world) third(url string) *world {
	o := &world{t: w.t, ctx: w.ctx, redactor: w.redactor, fake: w.fake, server: w.server, tools: w.tools, agent: w.agent, owner: w.owner}
	o.clock.Store(w.clock.Load())
	o.db = must[*db.DB](w.t)(db.Open(w.ctx, url, ""))
	w.t.Cleanup(func() { o.db.Close() })
	o.startAudit()
	o.replica = o.newReplica(must[*secret.Box](w.t)(secret.OpenBox(filepath.Join(w.t.TempDir(), "key"))))
	o.connect(upstream.Config{ID: w.server.ID, Name: w.server.Name, Transport: "builtin", Builtin: w.fake})
	return o
}

// Explain says which limits the call meets and how much of them is used.
func TestExplainShowsLimits(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Profile.Ops = 1
	w.rule("write_note", "ALLOW")
	for _, want := range []string{"pass 0 of 100 calls of the tier ops in the workspace today are used; 0 of 1 calls of the tier ops by the agent in the last hour are used",
		"refuse Profile hourly limit reached for this MCP tool tier (1/1)"} {
		e := must[gate.Explanation](t)(w.gate.Explain(w.ctx, w.agent, "notes/write_note", json.RawMessage(`{"text":"x"}`)))
		for _, s := range e.Steps {
			if s.Stage == "limits" && s.Outcome+" "+s.Detail != want {
				t.Errorf("got %s %s, want %s", s.Outcome, s.Detail, want)
			}
		}
		if e.Action == "DENY" {
			break
		}
		w.runs(w.agent, "write_note", 1)
	}
}

// Both steps of a confirmed call are calls; the stored answer of a known key uses no slot, and a key that met a limit is free again.
func TestLimitsOfConfirmedCalls(t *testing.T) {
	w := confirming(t)
	w.gate.Limits.Task = 5
	w.tier("baseline")
	caller := w.longTask(w.agent.AgentID)
	args := `{"text":"x"}`
	token := w.ask(caller, args)
	second := func(key string) *fault.Error {
		_, f := w.call(caller, "write_note", withControl(args, token, key))
		return f
	}
	for range 3 {
		if f := second("first"); f != nil {
			t.Fatal(f)
		}
	}
	for i := range 3 {
		if f := second(fmt.Sprint(i)); f != nil {
			t.Fatal(f)
		}
	}
	if f := second("late"); f == nil || f.Class != fault.Limit {
		t.Fatal(f)
	}
	w.limited(caller, "write_note", "Rate limit exceeded for tool 'write_note'") // the first step
	if f := second("first"); f != nil {
		t.Error(f)
	}
	w.gate.Limits.Task = 6
	if f := second("late"); f != nil {
		t.Error(f)
	}
	if n := w.fake.count("write_note"); n != 5 {
		t.Errorf("it ran %d times", n)
	}
}

// set sets a limit of an operator and gives its id.
func (w *world) set(l catalog.Limit) string {
	w.t.Helper()
	id := must[catalog.Limit](w.t)(w.catalog.CreateLimit(w.ctx, w.owner.WorkspaceID, l, "owner")).ID
	w.reload()
	return id
}

// What operators set holds for any tool, agent or workspace, for reading as well, and whoever calls.
func TestLimitsOfOperators(t *testing.T) {
	task := func(w *world) *auth.Caller { return w.longTask(w.agent.AgentID) }
	agent := func(w *world) *auth.Caller { return w.agent }
	for _, c := range []struct {
		name    string
		limit   func(w *world) catalog.Limit
		caller  func(w *world) *auth.Caller
		message string
		free    func(w *world) (*auth.Caller, string) // whom and what it does not stop; nil: it stops all
		after   time.Duration                         // when there are slots again; 0: never
	}{
		{"tool", func(w *world) catalog.Limit { return catalog.Limit{ToolID: w.tools["notes/read_note"], Per: "day"} }, agent,
			"Tool daily limit reached for this MCP tool (2/2)", func(w *world) (*auth.Caller, string) { return w.agent, "write_note" }, 12 * time.Hour},
		{"agent", func(w *world) catalog.Limit { return catalog.Limit{AgentID: w.agent.AgentID, Per: "hour"} }, agent,
			"Agent hourly limit reached (2/2)", func(w *world) (*auth.Caller, string) { return w.owner, "read_note" }, time.Hour},
		{"agent and tool", func(w *world) catalog.Limit {
			return catalog.Limit{AgentID: w.agent.AgentID, ToolID: w.tools["notes/read_note"], Per: "hour"}
		}, agent, "Agent hourly limit reached for this MCP tool (2/2)", func(w *world) (*auth.Caller, string) { return w.agent, "write_note" }, time.Hour},
		{"workspace", func(*world) catalog.Limit { return catalog.Limit{Per: "day"} }, agent,
			"Workspace daily limit reached (2/2)", nil, 12 * time.Hour},
		{"task", func(*world) catalog.Limit { return catalog.Limit{Per: "task"} }, task,
			"Workspace task limit reached (2/2)", func(w *world) (*auth.Caller, string) { return w.longTask(w.agent.AgentID), "read_note" }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.rule("write_note", "ALLOW")
			l := c.limit(w)
			l.N = 2
			id, caller := w.set(l), c.caller(w)
			w.runs(caller, "read_note", 2)
			w.limited(caller, "read_note", c.message)
			_, f := w.call(caller, "read_note", `{}`)
			if f == nil || f.Data["limit_id"] != id || w.row(f.Data["trace_id"].(string)).RuleID != id {
				t.Errorf("got %v", f)
			}
			if c.free == nil {
				w.limited(w.owner, "write_note", c.message)
			} else {
				who, tool := c.free(w)
				w.runs(who, tool, 1)
			}
			if c.after > 0 {
				w.later(c.after)
				w.runs(caller, "read_note", 2)
			}
			w.limited(caller, "read_note", c.message)
			ok(t, w.catalog.DeleteLimit(w.ctx, w.owner.WorkspaceID, id))
			w.reload()
			w.runs(caller, "read_note", 3)
		})
	}
}

// Of several limits the strictest stops a call, and no other loses a slot to it.
func TestLimitsOnlyTighten(t *testing.T) {
	w := newWorld(t)
	w.gate.Limits.Task = 4
	w.set(catalog.Limit{Per: "hour", N: 3})
	w.set(catalog.Limit{ToolID: w.tools["notes/read_note"], Per: "task", N: 1000})
	caller := w.longTask(w.agent.AgentID)
	w.runs(caller, "read_note", 3)
	for range 5 {
		w.limited(caller, "read_note", "Workspace hourly limit reached (3/3)")
	}
	w.later(time.Hour)
	w.runs(caller, "read_note", 1)
	w.limited(caller, "read_note", "Rate limit exceeded for tool 'read_note'")
	w.exec(`UPDATE call_limit SET per = 'fortnight' WHERE per = 'hour'`) // a later version's word
	w.exec(`UPDATE revision SET n = n + 1`)
	w.reload()
	w.limited(w.agent, "read_note", "Workspace unknown limit reached (0/0)")
}

func TestUsage(t *testing.T) {
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	id := w.set(catalog.Limit{AgentID: w.agent.AgentID, Per: "hour", N: 9})
	caller := w.longTask(w.agent.AgentID)
	w.runs(caller, "write_note", 2)
	w.runs(caller, "read_note", 3)
	want := map[string]string{
		"the bucket read of the task": "3/50", "the bucket ops of the task": "2/10", "the tier ops in the workspace today": "2/100",
		"the tier ops by the agent in the last hour": "2/30", "the limit " + id: "5/9", "the tier deploy in the workspace today": "0/20",
	}
	for _, u := range must[[]gate.Usage](t)(w.gate.Usage(w.ctx, w.owner.WorkspaceID, w.agent.AgentID, caller.TaskID)) {
		if got := fmt.Sprintf("%d/%d", u.Used, u.Limit); want[u.What] != "" && want[u.What] != got {
			t.Errorf("%s: %s, want %s", u.What, got, want[u.What])
		}
		delete(want, u.What)
	}
	if len(want) > 0 {
		t.Errorf("missing %v", want)
	}
}
