package gate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/notify"
)

// ear is a channel that keeps what it is told.
type ear struct {
	mu   sync.Mutex
	told []notify.Event
}

func (e *ear) listen(w *world) {
	q := must[*notify.Queue](w.t)(notify.New(notify.Options{DB: w.db, Now: w.now, Channels: []notify.Channel{{Name: "ear", Arguments: true,
		Send: func(_ context.Context, body []byte) error {
			var ev notify.Event
			err := json.Unmarshal(body, &ev)
			e.mu.Lock()
			e.told = append(e.told, ev)
			e.mu.Unlock()
			return err
		}}}}))
	w.gate.Notify = q
	w.run(q.Run)
}

// heard gives what was told, as "kind status", once there are n.
func (e *ear) heard(w *world, n int) (list []string) {
	w.t.Helper()
	w.eventually(fmt.Sprint(n, " events"), func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		list = nil
		for _, ev := range e.told {
			var ap gate.Approval
			ok(w.t, json.Unmarshal(ev.Approval, &ap))
			list = append(list, strings.TrimPrefix(ev.Kind, "approval.")+" "+ap.Status)
		}
		return len(list) >= n
	})
	return list
}

// What happens to an approval is told, each thing once.
func TestEventsOfApprovals(t *testing.T) {
	w := newWorld(t)
	var e ear
	e.listen(w)
	w.redactor.Set("test", []string{"hunter2"})
	id := w.hold(w.agent, `{"text":"hunter2"}`)
	w.hold(w.agent, `{"text":"hunter2"}`) // the same call
	if list := e.heard(w, 1); len(list) != 1 || list[0] != "created PENDING" {
		t.Fatal(list)
	}
	first := e.told[0]
	if first.URL != "https://door.example/api/v1/mcp/approvals/"+id || first.Role != "admin" || string(first.Arguments) != `{"text":"[redacted]"}` ||
		!strings.Contains(string(first.Approval), `"agent_name":"default"`) || strings.Contains(string(first.Approval), "arguments") {
		t.Errorf("%+v %s %s", first, first.Arguments, first.Approval)
	}
	w.decide(id, true)
	if list := e.heard(w, 2); list[1] != "decided APPROVED" || !strings.Contains(string(e.told[1].Approval), `"decided_by_name":"owner"`) {
		t.Errorf("%v %s", list, e.told[1].Approval)
	}
	if _, err := w.gate.Decide(w.ctx, w.owner, id, true, ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("decided twice: %v", err)
	}
	w.hold(w.agent, `{"text":"b"}`)
	must[int](t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, w.server.ID, "", "paused")) // the approved one too
	w.hold(w.agent, `{"text":"c"}`)
	w.clock.Add(time.Hour.Microseconds())
	w.hold(w.agent, `{"text":"c"}`) // finds the overdue one and asks anew
	want := "[created PENDING decided APPROVED created PENDING expired EXPIRED expired EXPIRED created PENDING expired EXPIRED created PENDING]"
	if list := e.heard(w, 8); fmt.Sprint(list) != want {
		t.Errorf("%v", list)
	}
}

// What nobody decided for a time is escalated once, by one of several processes, and can still be decided.
func TestEscalation(t *testing.T) {
	w := newWorld(t)
	w.gate.EscalateAfter, w.gate.EscalateRole = 10*time.Minute, auth.Owner
	var e ear
	e.listen(w)
	other := w.second()
	other.gate.EscalateAfter, other.gate.Notify = w.gate.EscalateAfter, w.gate.Notify
	id := w.hold(w.agent, `{"text":"a"}`)
	done := w.hold(w.agent, `{"text":"decided before"}`)
	w.decide(done, true)
	w.clock.Add((9 * time.Minute).Microseconds())
	w.hold(w.agent, `{"text":"younger"}`)
	if n := must[int](t)(w.gate.Escalate(w.ctx)); n != 0 {
		t.Errorf("escalated %d too early", n)
	}
	w.clock.Add(time.Minute.Microseconds())
	other.clock.Store(w.clock.Load())
	var n [8]int
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { n[i], _ = []*world{w, other}[i%2].gate.Escalate(w.ctx) })
	}
	wg.Wait()
	total := 0
	for _, k := range n {
		total += k
	}
	ap := must[gate.Approval](t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id))
	if total != 1 || ap.EscalatedAt != w.clock.Load() || ap.Status != "PENDING" {
		t.Errorf("escalated %d times, %+v", total, ap)
	}
	e.heard(w, 5)
	var escalated int
	for _, ev := range e.told {
		if ev.Kind == notify.Escalated {
			escalated++
			if ev.Role != "owner" || ev.ApprovalID != "" && ev.ApprovalID != id {
				t.Errorf("%+v", ev)
			}
		}
	}
	if escalated != 1 {
		t.Errorf("told %d times", escalated)
	}
	w.decide(id, true)
	if _, f := w.call(w.agent, "write_note", `{"text":"a"}`); f != nil || w.fake.count("write_note") != 1 {
		t.Errorf("%v, ran %d times", f, w.fake.count("write_note"))
	}
}

// Who decides is a setting; nobody below it does.
func TestDecideRole(t *testing.T) {
	w := newWorld(t)
	editor, admin := w.newPerson("Ed", auth.Editor), w.newPerson("Ada", auth.Admin)
	id := w.hold(w.agent, `{"text":"a"}`)
	deny := func(by *auth.Caller) {
		t.Helper()
		if _, err := w.gate.Decide(w.ctx, by, id, true, ""); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%v", err)
		}
	}
	deny(editor)
	deny(w.agent)
	w.gate.DecideRole = auth.Owner
	deny(admin)
	w.gate.DecideRole = auth.Editor
	deny(w.agent)
	must[gate.Approval](t)(w.gate.Decide(w.ctx, editor, id, true, ""))
	for _, d := range []gate.Deps{{DecideRole: auth.Viewer}, {DecideRole: auth.Owner, EscalateRole: auth.Admin}} {
		d.DB, d.Auth, d.Catalog, d.Upstream, d.Audit = w.gate.DB, w.gate.Auth, w.gate.Catalog, w.gate.Upstream, w.gate.Audit
		if _, err := gate.New(d); !fault.Is(err, fault.Config) {
			t.Errorf("%v", err)
		}
	}
}
