package gate_test

import (
	"slices"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// newTask starts a task of the owner and gives its caller.
func (w *world) newTask(agentID string) (*auth.Caller, auth.Task) {
	w.t.Helper()
	token, task, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: "t", AgentID: agentID}, time.Hour)
	ok(w.t, err)
	return must[*auth.Caller](w.t)(w.auth.Authenticate(token)), task
}

// A task without an agent has the tools that read, one with an agent what the agent has; both stand in the record.
func TestTasks(t *testing.T) {
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	for _, c := range []struct {
		name, agent string
		writes      bool
	}{{"without an agent", "", false}, {"with an agent", w.agent.AgentID, true}} {
		t.Run(c.name, func(t *testing.T) {
			caller, task := w.newTask(c.agent)
			r, f := w.call(caller, "read_note", `{"id":"1"}`)
			if f != nil {
				t.Fatal(f)
			}
			row := w.rows(r.TraceID)[0]
			if row.TaskID != task.ID || row.KeyID != task.ID || row.AgentID != c.agent || row.PersonID != w.owner.PersonID {
				t.Errorf("row %+v", row)
			}
			before := w.fake.count("write_note")
			_, f = w.call(caller, "write_note", `{"text":"x"}`)
			if c.writes != (f == nil) {
				t.Errorf("write: %v", f)
			}
			if !c.writes && (f.Class != fault.UnknownTool || w.fake.count("write_note") != before) {
				t.Errorf("refused with %v", f)
			}
			var shown []string
			for range 2 { // the second answer comes from the cache
				shown = nil
				for _, tool := range w.gate.Visible(caller, "") {
					shown = append(shown, tool.Name)
				}
			}
			if slices.Contains(shown, "write_note") != c.writes || !slices.Contains(shown, "read_note") {
				t.Errorf("list shows %v", shown)
			}
			if len(w.gate.Visible(w.owner, "")) != 2 {
				t.Error("the person sees the task's list")
			}
		})
	}
}

// Nothing that a task without an agent is shown or may call is ever more than reading, whatever the rules say.
func TestTaskWithoutAgentIsNeverLoosened(t *testing.T) {
	w := newWorld(t)
	caller, _ := w.newTask("")
	for _, word := range []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY"} {
		w.rule("write_note", word)
		if _, f := w.call(caller, "notes/write_note", `{"text":"x"}`); f == nil || f.Class != fault.UnknownTool {
			t.Errorf("%s: %v", word, f)
		}
	}
	if n := w.fake.count("write_note"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

// The person for whom a task asks cannot approve what it asks for.
func TestTaskAsksInTheNameOfItsPerson(t *testing.T) {
	w := newWorld(t)
	w.rule("read_note", "REQUIRE_APPROVAL")
	caller, _ := w.newTask("")
	_, f := w.call(caller, "read_note", `{"id":"1"}`)
	if f == nil || f.Class != fault.Held {
		t.Fatal(f)
	}
	id, _ := f.Data["approval_id"].(string)
	if _, err := w.gate.Decide(w.ctx, w.owner, id, true, ""); fault.From(err) == nil || fault.From(err).Reason != "APPROVER_IS_REQUESTER" {
		t.Errorf("got %v", err)
	}
}

// A call that is held when its task ends does not run, even when a person approves it.
func TestHeldCallDoesNotOutliveItsTask(t *testing.T) {
	w := newWorld(t)
	caller, task := w.newTask(w.agent.AgentID)
	w.agent = caller
	x, id := w.waitFor(`{"text":"x"}`)
	if _, err := w.auth.FinishTask(w.ctx, w.owner.WorkspaceID, task.ID); err != nil {
		t.Fatal(err)
	}
	boss := w.newPerson("boss", auth.Admin)
	if _, err := w.gate.Decide(w.ctx, boss, id, true, ""); err != nil {
		t.Logf("approving: %v", err) // withdrawn already is as good
	}
	if f := asFault(t, <-x.done); f == nil || f.Reason != "TASK_ENDED" {
		t.Errorf("got %v", f)
	}
	if n := w.fake.count("write_note"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}
