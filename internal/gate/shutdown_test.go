package gate_test

import (
	"errors"
	"testing"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

const reasonShutdown = "PROJECT_EMERGENCY_SHUTDOWN"

// A shutdown stops everybody in the workspace, ends what is held and what runs, and is over when an owner says so.
func TestShutdown(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(map[bool]string{false: "here", true: "elsewhere"}[elsewhere], func(t *testing.T) {
			w := newWorld(t)
			w.follow()
			open := w.hold(w.agent, `{"text":"open"}`)
			waiter, waits := w.waitFor(`{"text":"waits"}`)
			w.untilEnd()
			running, byPerson := w.start(w.ctx, w.agent, "read_note", `{}`), w.start(w.ctx, w.owner, "read_note", `{}`)
			by := w
			if elsewhere {
				by = w.second()
			}
			res := must[gate.ShutdownResult](t)(by.gate.EmergencyShutdown(w.ctx, w.owner, gate.ShutdownRequest{Reason: "fire"}))
			if !res.Changed || res.ExpiredApprovals != 2 || w.status(open) != "EXPIRED" || w.status(waits) != "EXPIRED" {
				t.Errorf("%+v, %s, %s", res, w.status(open), w.status(waits))
			}
			for _, done := range []<-chan ended{running, byPerson} {
				e := <-done
				if f := asFault(t, e.err); f == nil || f.Codes().RPC != -32001 || f.Reason != reasonShutdown || w.row(e.result.TraceID).Status != audit.CancelledStat {
					t.Errorf("a running call: %v", f)
				}
			}
			if f := waiter.end(); f == nil || f.Reason != reasonShutdown {
				t.Errorf("a held call: %v", f)
			}
			w.shutFor(w.agent)
			w.shutFor(w.owner) // with the caller that the door already had
			r, err := w.gate.Forward(w.ctx, &gate.Call{Caller: w.agent, Server: "notes", Method: "prompts/list"})
			w.refused(r, asFault(t, err), fault.Blocked, reasonShutdown, "stop", reasonShutdown)

			ok(t, by.gate.Release(w.ctx, w.owner))
			w.eventually("calls pass again", func() bool { return w.auth.Shutdown(w.owner.WorkspaceID) == nil })
			w.fake.behave(nil)
			if _, f := w.call(w.agent, "read_note", `{}`); f != nil {
				t.Errorf("after the release: %v", f)
			}
			if len(w.gate.Visible(w.agent, "")) == 0 || w.status(open) != "EXPIRED" {
				t.Error("the release gives back what it should not, or not what it should")
			}
		})
	}
}

// shutFor checks that a caller may call nothing, sees nothing and is told why.
func (w *world) shutFor(c *auth.Caller) {
	w.t.Helper()
	r, f := w.call(c, "read_note", `{}`)
	w.refused(r, f, fault.Blocked, reasonShutdown, "stop", reasonShutdown)
	r, f = w.call(c, "no_such_tool", `{}`)
	w.refused(r, f, fault.Blocked, reasonShutdown, "stop", reasonShutdown)
	if list := w.gate.Visible(c, ""); len(list) != 0 || w.gate.Reaches(c, "notes") {
		w.t.Errorf("%d tools are visible", len(list))
	}
	if e := must[gate.Explanation](w.t)(w.gate.Explain(w.ctx, c, "notes/read_note", nil)); e.Reason != reasonShutdown || e.Stage != "stop" || e.Action != "DENY" {
		w.t.Errorf("explain: %+v", e)
	}
}

func TestShutdownOrderRightsAndRecord(t *testing.T) {
	w := newWorld(t)
	admin, editor := w.newPerson("ada", auth.Admin), w.newPerson("eve", auth.Editor)
	for _, by := range []*auth.Caller{editor, w.agent} {
		if _, err := w.gate.EmergencyShutdown(w.ctx, by, gate.ShutdownRequest{}); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", by.PersonName, err)
		}
	}
	if err := w.gate.Release(w.ctx, w.owner); !fault.Is(err, fault.Conflict) {
		t.Errorf("released what is open: %v", err)
	}
	other := w.stranger()
	for i, want := range []bool{true, false} {
		if res := must[gate.ShutdownResult](t)(w.gate.EmergencyShutdown(w.ctx, admin, gate.ShutdownRequest{Reason: "fire"})); res.Changed != want {
			t.Errorf("shutdown %d: %+v", i, res)
		}
	}
	if s := w.auth.Shutdown(w.owner.WorkspaceID); s == nil || s.Reason != "fire" || s.By != admin.PersonID || s.At != w.now().UnixMicro() {
		t.Errorf("%+v", s)
	}
	if w.auth.Shutdown(other) != nil {
		t.Error("another workspace is shut down")
	}
	// Before every other state, but a stopped agent is still named as the cause (PV-35).
	must[catalog.Server](t)(w.catalog.Pause(w.ctx, w.owner.WorkspaceID, w.server.ID, "owner"))
	paused := w.newAgent("paused", "*")
	must[*auth.Agent](t)(w.auth.SetAgentState(w.ctx, w.owner.WorkspaceID, paused.AgentID, "PAUSED"))
	w.shutFor(paused)
	w.stop("agent", w.agent.AgentID)
	r, f := w.call(w.agent, "read_note", `{}`)
	w.refused(r, f, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop", "AGENT_EMERGENCY_STOP")

	if err := w.gate.Release(w.ctx, admin); !fault.Is(err, fault.Forbidden) {
		t.Errorf("an admin released: %v", err)
	}
	w.shutFor(w.owner)
	ok(t, w.gate.Release(w.ctx, w.owner))
	r, f = w.call(w.agent, "read_note", `{}`) // its own stop stays
	w.refused(r, f, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop", "AGENT_EMERGENCY_STOP")
	for kind, want := range map[audit.Kind]int{audit.Stop: 2, audit.Admin: 4} {
		rows := must[[]audit.Event](t)(audit.List(w.ctx, w.db, audit.Filter{Kind: kind, Method: "emergency_shutdown"}))
		if len(rows) != want || rows[0].PersonID != admin.PersonID || rows[0].Reason != "fire" || rows[0].Status != audit.OK {
			t.Errorf("%s: %d rows %+v", kind, len(rows), rows)
		}
	}
	if rows := must[[]audit.Event](t)(audit.List(w.ctx, w.db, audit.Filter{Method: "shutdown.release"})); len(rows) != 5 {
		t.Errorf("%d rows of releases: %+v", len(rows), rows)
	}
}

// A shutdown takes effect also when it cannot be recorded, a release does not.
func TestShutdownWithoutRecord(t *testing.T) {
	w := newWorld(t)
	w.endAudit()
	_, err := w.gate.EmergencyShutdown(w.ctx, w.owner, gate.ShutdownRequest{})
	if f := asFault(t, err); f == nil || f.Reason != "AUDIT_UNAVAILABLE" || w.auth.Shutdown(w.owner.WorkspaceID) == nil {
		t.Errorf("%v", err)
	}
	if err := w.gate.Release(w.ctx, w.owner); !fault.Is(err, fault.Unavailable) || w.auth.Shutdown(w.owner.WorkspaceID) == nil {
		t.Errorf("%v", errors.Unwrap(err))
	}
}

// stranger makes another workspace.
func (w *world) stranger() string {
	id := db.NewID()
	w.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ($1, 'other', 'other', 1)`, id)
	return id
}
