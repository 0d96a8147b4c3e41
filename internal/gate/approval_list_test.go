package gate_test

import (
	"fmt"
	"testing"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

func TestApprovalListFilters(t *testing.T) {
	w := newWorld(t)
	w.gate.EscalateAfter = 10 * time.Minute
	other := w.newAgent("other", "*")
	var ids []string // by age, oldest first; two have one time
	for i := range 5 {
		if i != 2 {
			w.clock.Add(time.Minute.Microseconds())
		}
		c := w.agent
		if i == 1 {
			c = other
		}
		ids = append(ids, w.hold(c, fmt.Sprintf(`{"text":"%d"}`, i)))
	}
	names := func(f gate.ApprovalFilter) (out []int) {
		t.Helper()
		for _, a := range must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, w.owner.WorkspaceID, f)) {
			for i, id := range ids {
				if a.ID == id {
					out = append(out, i)
				}
			}
		}
		return out
	}
	check := func(f gate.ApprovalFilter, want string) {
		t.Helper()
		if got := fmt.Sprint(names(f)); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	check(gate.ApprovalFilter{}, "[4 3 2 1 0]")
	check(gate.ApprovalFilter{AgentID: other.AgentID}, "[1]")
	check(gate.ApprovalFilter{OlderThan: time.Minute}, "[3 2 1 0]")
	check(gate.ApprovalFilter{OlderThan: 2 * time.Minute, Status: "PENDING"}, "[2 1 0]")
	check(gate.ApprovalFilter{Escalated: true}, "[]")
	var paged []int
	f := gate.ApprovalFilter{Limit: 2}
	for range 10 {
		page := must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, w.owner.WorkspaceID, f))
		if len(page) == 0 {
			break
		}
		paged = append(paged, names(f)...)
		f.Before = page[len(page)-1].Cursor()
	}
	if fmt.Sprint(paged) != "[4 3 2 1 0]" {
		t.Errorf("page by page %v", paged)
	}
	for _, cursor := range []string{"x", "1", "x.y", "."} {
		if _, err := w.gate.Approvals(w.ctx, w.owner.WorkspaceID, gate.ApprovalFilter{Before: cursor}); !fault.Is(err, fault.InvalidParams) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
	w.clock.Add((8 * time.Minute).Microseconds())
	must[int](t)(w.gate.Escalate(w.ctx))
	check(gate.ApprovalFilter{Escalated: true}, "[2 1 0]")
	list := must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, w.owner.WorkspaceID, gate.ApprovalFilter{AgentID: other.AgentID}))
	if list[0].AgentName != "other" || list[0].EscalatedAt != w.clock.Load() {
		t.Errorf("%+v", list[0])
	}
}

// What a client polls says what was decided, what holds now, and where the decision stands in the record.
func TestApprovalStatus(t *testing.T) {
	w := newWorld(t)
	status := func(id string) gate.ApprovalStatus {
		t.Helper()
		ap := must[gate.Approval](t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id))
		return must[gate.ApprovalStatus](t)(w.gate.StatusOf(w.ctx, &ap))
	}
	id := w.hold(w.agent, `{"text":"a"}`)
	if s := status(id); s.Status != "PENDING" || s.EffectiveStatus != "PENDING" || s.AnchorStatus != "LOCAL_ONLY" || s.DecidedAt != 0 || s.DecisionTraceID != "" || s.AutoExpired {
		t.Errorf("%+v", s)
	}
	w.decide(id, true)
	s := status(id)
	if s.Status != "APPROVED" || s.EffectiveStatus != "APPROVED" || s.DecidedByName != "owner" || s.DecidedBy != w.owner.PersonID || s.DecidedAt != w.clock.Load() {
		t.Errorf("%+v", s)
	}
	if row := w.row(s.DecisionTraceID); row.Method != "approval.approve" || row.ApprovalID != id {
		t.Errorf("the decision's trace is of %+v", row)
	}
	w.clock.Add((30 * time.Minute).Microseconds())
	if s := status(id); s.Status != "APPROVED" || s.EffectiveStatus != "EXPIRED" || !s.ExpiredDerived || !s.AutoExpired {
		t.Errorf("by the clock: %+v", s)
	}
	must[int](t)(w.gate.ExpireOverdue(w.ctx))
	if s := status(id); s.Status != "APPROVED" || s.EffectiveStatus != "EXPIRED" || s.ExpiredDerived || !s.AutoExpired {
		t.Errorf("swept: %+v", s)
	}
	id = w.hold(w.agent, `{"text":"b"}`)
	must[int](t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, w.server.ID, "", "paused"))
	if s := status(id); s.Status != "PENDING" || s.EffectiveStatus != "EXPIRED" || s.ExpiredDerived || s.AutoExpired {
		t.Errorf("withdrawn: %+v", s)
	}
	id = w.hold(w.agent, `{"text":"c"}`)
	w.decide(id, false)
	if s := status(id); s.Status != "DENIED" || s.EffectiveStatus != "DENIED" {
		t.Errorf("denied: %+v", s)
	}
	id = w.hold(w.agent, `{"text":"d"}`)
	w.decide(id, true)
	if _, f := w.call(w.agent, "write_note", `{"text":"d"}`); f != nil {
		t.Fatal(f)
	}
	if s := status(id); s.Status != "APPROVED" || s.EffectiveStatus != "EXPIRED" || s.ConsumedAt == 0 || s.AutoExpired {
		t.Errorf("used: %+v", s)
	}
}
