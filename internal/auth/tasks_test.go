package auth_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

func (w *world) task(in auth.Task, ttl time.Duration) (string, auth.Task) {
	w.t.Helper()
	token, t, err := w.CreateTask(w.t.Context(), w.caller(w.admin), in, ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	return token, t
}

func TestTaskToken(t *testing.T) {
	w := newWorld(t)
	owner, agent := w.caller(w.admin), w.caller(w.agent)
	token, task := w.task(auth.Task{Title: "Tidy up", AgentID: agent.AgentID, ProjectID: "p1"}, 0)
	if !strings.HasPrefix(token, "task_") || len(token) != len("task_")+43 {
		t.Errorf("token %q", token)
	}
	if want := w.now.Add(time.Hour).UnixMicro(); task.ExpiresAt != want || task.Status != "running" || task.PersonID != owner.PersonID {
		t.Errorf("task %+v", task)
	}
	c := w.caller(token)
	if c.TaskID != task.ID || c.KeyID != task.ID || c.AgentID != agent.AgentID || c.Agent == nil || c.WorkspaceID != w.ws || c.ProjectID != "p1" ||
		c.ActorPersonID != owner.PersonID || c.ActorRole != auth.Owner || c.Behalf() != owner.PersonID {
		t.Errorf("caller %+v", c)
	}
	if c.PersonID != "" || c.Role != auth.NoRole || c.ReadOnly() {
		t.Errorf("a task has the rights of a person: %+v", c)
	}
	if !c.Granted("any", "tool", policy.TierOps) {
		t.Error("the agent's allowlist does not count")
	}
	var stored int
	if err := w.db.Read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM task WHERE hash LIKE '%'||$1||'%'`, token[5:]).Scan(&stored); err != nil || stored != 0 {
		t.Errorf("the token is stored in the clear: %d %v", stored, err)
	}
	if n := testing.AllocsPerRun(100, func() { w.Authenticate(token) }); n != 0 { //nolint:errcheck
		t.Errorf("%v allocations", n)
	}
	list, err := w.Tasks(t.Context(), w.ws, "")
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], task) {
		t.Errorf("tasks %+v, %v", list, err)
	}
	if list, err := w.Tasks(t.Context(), "other", ""); err != nil || len(list) != 0 {
		t.Errorf("another workspace sees %+v, %v", list, err)
	}
}

func TestTaskWithoutAgentOnlyReads(t *testing.T) {
	w := newWorld(t)
	token, _ := w.task(auth.Task{Title: "Look"}, time.Minute)
	if c := w.caller(token); !c.ReadOnly() || c.AgentID != "" || c.PersonID != "" || c.Role != auth.NoRole || !c.Granted("any", "tool", policy.TierRead) || c.Granted("any", "tool", policy.TierOps) {
		t.Errorf("caller %+v", c)
	}
}

// What is over says why, also while a caller of it is still held by a door.
func TestTaskIsOver(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(w *world, id string)
		reason string
	}{
		{"finished", func(w *world, id string) {
			for range 2 { // twice is once
				if _, err := w.FinishTask(w.t.Context(), w.ws, id); err != nil {
					w.t.Fatal(err)
				}
			}
		}, "TASK_ENDED"},
		{"expired", func(w *world, _ string) { w.now = w.now.Add(time.Minute) }, "TASK_EXPIRED"},
		{"expired and reloaded", func(w *world, _ string) { w.now = w.now.Add(23 * time.Hour); w.exec(`UPDATE revision SET n = n`) }, "TASK_EXPIRED"},
		{"long gone", func(w *world, _ string) { w.now = w.now.Add(25 * time.Hour); w.exec(`UPDATE revision SET n = n`) }, "INVALID_API_KEY"},
		{"person gone", func(w *world, _ string) { w.exec(`DELETE FROM person`) }, "TASK_PERSON_GONE"},
		{"person disabled", func(w *world, _ string) { w.exec(`UPDATE person SET disabled_at = 1`) }, "TASK_PERSON_GONE"},
		{"person of another workspace", func(w *world, _ string) {
			w.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ('w2', 'two', 'Two', 1)`)
			w.exec(`UPDATE person SET workspace_id = 'w2'`)
		}, "TASK_PERSON_GONE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			token, task := w.task(auth.Task{Title: "Look"}, time.Minute)
			w.caller(token)
			if why := w.TaskOver(task.ID); why != "" {
				t.Fatalf("a running task is over: %s", why)
			}
			c.end(w, task.ID)
			_, err := w.Authenticate(token)
			wantReason(t, err, c.reason)
			if why := w.TaskOver(task.ID); why == "" || why != c.reason && c.reason != "INVALID_API_KEY" {
				t.Errorf("over by %q", why)
			}
		})
	}
}

func TestTaskOfADeletedAgentDeniesAndNamesIt(t *testing.T) {
	w := newWorld(t)
	id := w.caller(w.agent).AgentID
	token, _ := w.task(auth.Task{Title: "x", AgentID: id}, 0)
	w.exec(`DELETE FROM agent`)
	if c := w.caller(token); c.AgentID != id || c.Agent != nil || c.Granted("s", "t", policy.TierOps) || c.ReadOnly() {
		t.Errorf("got %+v", c)
	}
}

func TestTaskRefusals(t *testing.T) {
	w := newWorld(t)
	owner, agent := w.caller(w.admin), w.caller(w.agent)
	token, task := w.task(auth.Task{Title: "x", AgentID: agent.AgentID}, 0)
	good := auth.Task{Title: "x"}
	for _, c := range []struct {
		name  string
		by    *auth.Caller
		in    auth.Task
		ttl   time.Duration
		class fault.Class
	}{
		{"an agent", agent, good, 0, fault.Forbidden},
		{"a task", w.caller(token), good, 0, fault.Forbidden},
		{"no title", owner, auth.Task{}, 0, fault.InvalidParams},
		{"control characters", owner, auth.Task{Title: "a\x1b[2J"}, 0, fault.InvalidParams},
		{"a long title", owner, auth.Task{Title: strings.Repeat("x", 501)}, 0, fault.InvalidParams},
		{"a long project", owner, auth.Task{Title: "x", ProjectID: strings.Repeat("x", 201)}, 0, fault.InvalidParams},
		{"too long", owner, good, 24*time.Hour + 1, fault.InvalidParams},
		{"too short", owner, good, time.Millisecond, fault.InvalidParams},
		{"backwards", owner, good, -time.Hour, fault.InvalidParams},
		{"no such agent", owner, auth.Task{Title: "x", AgentID: "nobody"}, 0, fault.NotFound},
	} {
		if token, _, err := w.CreateTask(t.Context(), c.by, c.in, c.ttl); !fault.Is(err, c.class) || token != "" {
			t.Errorf("%s: %q, %v", c.name, token, err)
		}
	}
	for _, ws := range []string{"other", ""} {
		if _, err := w.FinishTask(t.Context(), ws, task.ID); !fault.Is(err, fault.NotFound) {
			t.Errorf("finished from workspace %q: %v", ws, err)
		}
		if _, err := w.Task(t.Context(), ws, task.ID); !fault.Is(err, fault.NotFound) {
			t.Errorf("shown from workspace %q: %v", ws, err)
		}
	}
	w.caller(token)
}
