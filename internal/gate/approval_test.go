package gate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

// hold makes a call that must be held and gives its approval id.
func (w *world) hold(c *auth.Caller, args string) string {
	w.t.Helper()
	r, f := w.call(c, "write_note", args)
	w.refused(r, f, fault.Held, "APPROVAL_REQUIRED", "rules", w.row(r.TraceID).Reason)
	id, _ := f.Data["approval_id"].(string)
	if row := w.row(r.TraceID); id == "" || row.ApprovalID != id || row.Status != audit.HeldStatus || row.Decision != "REQUIRE_APPROVAL" {
		w.t.Fatalf("row %+v, data %v", row, f.Data)
	}
	return id
}

func (w *world) decide(id string, approve bool) {
	w.t.Helper()
	must[gate.Approval](w.t)(w.gate.Decide(w.ctx, w.owner, id, approve, "so be it"))
}

func (w *world) status(id string) string {
	w.t.Helper()
	return must[gate.Approval](w.t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id)).Status
}

func TestHeldApprovedRunsOnce(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x","n":1,"m":2}`
	r, f := w.call(w.agent, "write_note", args)
	row := w.refused(r, f, fault.Held, "APPROVAL_REQUIRED", "rules", "APPROVAL_REQUIRED")
	id, _ := f.Data["approval_id"].(string)
	until := w.now().Add(30 * time.Minute).UTC().Format(time.RFC3339)
	if f.Codes().RPC != -32004 || f.Data["expires_at"] != until || f.Data["rule"] != row.RuleID || row.RuleID == "" ||
		f.Data["approval_url"] != "https://door.example/api/v1/mcp/approvals/"+id {
		t.Errorf("data %v", f.Data)
	}
	want := "this call needs the approval of a person; approval " + id + " waits until " + until + "; repeat the same call after it is approved"
	if f.Message != want {
		t.Errorf("message %q", f.Message)
	}
	if again := w.hold(w.agent, args); again != id {
		t.Errorf("the same call has two approvals: %s %s", id, again)
	}
	w.decide(id, true)
	r, f = w.call(w.agent, "write_note", args)
	if f != nil {
		t.Fatal(f)
	}
	if row := w.row(r.TraceID); row.Status != audit.OK || row.ApprovalID != id || row.Decision != "REQUIRE_APPROVAL" {
		t.Errorf("row %+v", row)
	}
	ap := must[gate.Approval](t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id))
	if ap.Status != "CONSUMED" || ap.ConsumedAt != w.clock.Load() || ap.DecidedBy != w.owner.PersonID || ap.DecideReason != "so be it" || string(ap.Arguments) != args {
		t.Errorf("approval %+v", ap)
	}
	if second := w.hold(w.agent, args); second == id {
		t.Error("an approval was used twice")
	}
	if n := w.fake.count("write_note"); n != 1 {
		t.Errorf("ran %d times", n)
	}
}

// Case 8, by retry: an approval is only as good as everything else at the moment of the call.
func TestApprovalIsRecheckedAtDispatch(t *testing.T) {
	const args = `{"text":"x","n":1,"m":2}`
	for _, c := range []struct {
		name                    string
		meanwhile               func(w *world)
		retry                   string
		class                   fault.Class
		reason, stage, recorded string
	}{
		{name: "DENY meanwhile", meanwhile: func(w *world) { w.rule("write_note", "DENY") },
			class: fault.Denied, reason: "RULE_DENY", stage: "rules"},
		{name: "fingerprint changed", meanwhile: func(w *world) {
			w.list(w.server, json.RawMessage(readDef), json.RawMessage(strings.Replace(writeDef, "Writes", "Rewrites", 1)))
		}, class: fault.NotAdmitted, reason: "TOOL_CHANGED", stage: "admission"},
		{name: "changed and admitted again", meanwhile: func(w *world) {
			w.list(w.server, json.RawMessage(readDef), json.RawMessage(strings.Replace(writeDef, "Writes", "Rewrites", 1)))
			for _, info := range must[[]catalog.ToolInfo](w.t)(w.catalog.Tools(w.ctx, w.owner.WorkspaceID, w.server.ID)) {
				if info.Name == "write_note" {
					must[catalog.ToolInfo](w.t)(w.catalog.Admit(w.ctx, w.owner.WorkspaceID, w.server.ID, info.ID, "REQUIRE_APPROVAL", info.Fingerprint, "owner"))
				}
			}
			w.reload()
		}, class: fault.Held, reason: "APPROVAL_REQUIRED", stage: "rules"},
		{name: "agent stopped", meanwhile: func(w *world) {
			must[gate.StopResult](w.t)(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID}))
		}, class: fault.Blocked, reason: "AGENT_EMERGENCY_STOP", stage: "stop"},
		{name: "server stopped", meanwhile: func(w *world) {
			must[gate.StopResult](w.t)(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "server", TargetID: w.server.ID}))
		}, class: fault.Blocked, reason: "SERVER_BLOCKED", stage: "server"},
		{name: "server paused", meanwhile: func(w *world) {
			must[catalog.Server](w.t)(w.catalog.Pause(w.ctx, w.owner.WorkspaceID, w.server.ID, "owner"))
			w.reload()
		}, class: fault.Blocked, reason: "SERVER_PAUSED", stage: "server"},
		{name: "other arguments", retry: `{"text":"x","n":1,"m":3}`, class: fault.Held, reason: "APPROVAL_REQUIRED", stage: "rules"},
		{name: "one more argument", retry: `{"text":"x","n":1,"m":2,"o":null}`, class: fault.Held, reason: "APPROVAL_REQUIRED", stage: "rules"},
		{name: "overdue", meanwhile: func(w *world) { w.clock.Add((30 * time.Minute).Microseconds()) }, class: fault.Held, reason: "APPROVAL_REQUIRED", stage: "rules"},
		{name: "withdrawn", meanwhile: func(w *world) {
			if n := must[int](w.t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, w.server.ID, "", "paused")); n != 1 {
				w.t.Errorf("withdrew %d", n)
			}
		}, class: fault.Held, reason: "APPROVAL_REQUIRED", stage: "rules"},
		{name: "keys in another order", retry: ` { "m":2.0, "n" : 1, "text":"\u0078" } `},
		{name: "unchanged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.hold(w.agent, args)
			w.decide(id, true)
			if c.meanwhile != nil {
				c.meanwhile(w)
			}
			retry := c.retry
			if retry == "" {
				retry = args
			}
			r, f := w.call(w.agent, "write_note", retry)
			if c.class == "" {
				if f != nil || w.fake.count("write_note") != 1 || w.status(id) != "CONSUMED" {
					t.Fatalf("%v, ran %d times", f, w.fake.count("write_note"))
				}
				return
			}
			w.refused(r, f, c.class, c.reason, c.stage, c.reason)
			if f.Data["approval_id"] == id {
				t.Error("the old approval is offered again")
			}
			if n := w.fake.count("write_note"); n != 0 {
				t.Errorf("ran %d times", n)
			}
		})
	}
}

func TestApprovalIsOfOneRequester(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x"}`
	other := w.newAgent("other", "*")
	id := w.hold(w.agent, args)
	w.decide(id, true)
	if got := w.hold(other, args); got == id {
		t.Error("another agent was given the approval")
	}
	if got := w.hold(w.owner, args); got == id {
		t.Error("a person was given the approval")
	}
	if w.status(id) != "APPROVED" {
		t.Errorf("status %s", w.status(id))
	}
}

// The approval that a caller names in _meta is a hint for its explanation and opens nothing.
func TestApprovalHintExplains(t *testing.T) {
	w := newWorld(t)
	id := w.hold(w.agent, `{"text":"x"}`)
	w.decide(id, true)
	other := w.newAgent("other", "*")
	for _, c := range []struct {
		caller     *auth.Caller
		args, want string
	}{
		{w.agent, `{"text":"y"}`, "it is for other arguments"},
		{other, `{"text":"x"}`, "there is no such approval"},
	} {
		call := newCall(c.caller, "write_note", c.args)
		call.Params = mcp.Set(call.Params, "_meta", []byte(`{"approval_id":"`+id+`"}`))
		_, f := w.do(w.ctx, call)
		if f == nil || f.Class != fault.Held || !strings.HasSuffix(f.Message, c.want) {
			t.Errorf("%v", f)
		}
	}
}

func TestDeniedByPerson(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x"}`
	id := w.hold(w.agent, args)
	w.decide(id, false)
	r, f := w.call(w.agent, "write_note", args)
	row := w.refused(r, f, fault.Denied, "APPROVAL_DENIED", "approval", "APPROVAL_DENIED")
	if row.ApprovalID != id || row.Decision != "DENY" || row.Status != audit.DeniedStatus || !strings.Contains(f.Message, "so be it") || f.Codes().RPC != -32003 {
		t.Errorf("%v %+v", f, row)
	}
	w.clock.Add((30 * time.Minute).Microseconds())
	if next := w.hold(w.agent, args); next == id {
		t.Error("a denied approval is open again")
	}
}

// Case 9: who decides.
func TestDeciders(t *testing.T) {
	w := newWorld(t)
	admin, editor, viewer := w.newPerson("ada", auth.Admin), w.newPerson("eve", auth.Editor), w.newPerson("vic", auth.Viewer)
	id := w.hold(w.agent, `{"text":"x"}`)
	own := w.hold(admin, `{"text":"own"}`)
	stranger := *w.owner
	stranger.WorkspaceID = "another"
	for _, c := range []struct {
		name, id string
		by       *auth.Caller
		class    fault.Class
		reason   string
	}{
		{"the agent itself", id, w.agent, fault.Forbidden, "AGENT_CANNOT_DECIDE"},
		{"another agent", id, w.newAgent("other", "*"), fault.Forbidden, "AGENT_CANNOT_DECIDE"},
		{"editor", id, editor, fault.Forbidden, "INSUFFICIENT_PERMISSIONS"},
		{"viewer", id, viewer, fault.Forbidden, "INSUFFICIENT_PERMISSIONS"},
		{"own call", own, admin, fault.Forbidden, "APPROVER_IS_REQUESTER"},
		{"another workspace", id, &stranger, fault.NotFound, "mcp_approval_not_found"},
		{"no such", "nope", admin, fault.NotFound, "mcp_approval_not_found"},
	} {
		for _, approve := range []bool{true, false} {
			_, err := w.gate.Decide(w.ctx, c.by, c.id, approve, "")
			if f := asFault(t, err); f == nil || f.Class != c.class || f.Reason != c.reason {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	if w.status(id) != "PENDING" || w.status(own) != "PENDING" {
		t.Errorf("%s %s", w.status(id), w.status(own))
	}
	ap := must[gate.Approval](t)(w.gate.Decide(w.ctx, admin, id, true, "fine"))
	if ap.Status != "APPROVED" || ap.DecidedBy != admin.PersonID {
		t.Errorf("%+v", ap)
	}
	_, err := w.gate.Decide(w.ctx, w.owner, id, false, "")
	if f := asFault(t, err); f == nil || f.Class != fault.Conflict || f.Reason != "mcp_approval_decided" {
		t.Errorf("twice: %v", err)
	}
	w.decide(own, true) // the second person
	late := w.hold(w.agent, `{"text":"late"}`)
	w.clock.Add((30 * time.Minute).Microseconds())
	_, err = w.gate.Decide(w.ctx, admin, late, true, "")
	if f := asFault(t, err); f == nil || f.Class != fault.Conflict || f.Reason != "mcp_approval_expired" {
		t.Errorf("overdue: %v", err)
	}
	rows := must[[]audit.Event](t)(audit.List(w.ctx, w.db, audit.Filter{Kind: audit.Admin, Method: "approval.approve", Limit: 200}))
	done, refused := 0, 0
	for _, row := range rows {
		switch {
		case row.Status == audit.OK && row.ApprovalID == id && row.PersonID == admin.PersonID && row.Tool == "write_note":
			done++
		case row.Status == audit.DeniedStatus && row.Reason == "AGENT_CANNOT_DECIDE" && row.AgentID != "":
			refused++
		}
	}
	if done != 1 || refused != 2 {
		t.Errorf("%d decisions and %d refused agents in the record of %d rows", done, refused, len(rows))
	}
}

// Of many decisions at once, here and on another replica, one counts and stays.
func TestDecidersRace(t *testing.T) {
	w := newWorld(t)
	b := w.second()
	for range 5 {
		id := w.hold(w.agent, `{"text":"x"}`)
		var wg sync.WaitGroup
		won := make(chan string, 8)
		for i := range cap(won) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				g := []*gate.Gate{w.gate, b.gate}[i%2]
				ap, err := g.Decide(w.ctx, w.owner, id, i%4 < 2, "")
				if err == nil {
					won <- ap.Status
				} else if f := fault.From(err); f.Class != fault.Conflict || f.Reason != "mcp_approval_decided" {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d decisions counted", len(won))
		}
		if status := <-won; w.status(id) != status {
			t.Errorf("the winner said %s, the approval is %s", status, w.status(id))
		}
		w.clock.Add((31 * time.Minute).Microseconds())
		b.clock.Store(w.clock.Load())
	}
}

// A decision that cannot be recorded does not take effect.
func TestDecisionNeedsRecord(t *testing.T) {
	w := newWorld(t)
	id := w.hold(w.agent, `{"text":"x"}`)
	w.endAudit()
	_, err := w.gate.Decide(w.ctx, w.owner, id, true, "")
	if f := asFault(t, err); f == nil || f.Reason != "AUDIT_UNAVAILABLE" || w.status(id) != "PENDING" {
		t.Errorf("%v %s", err, w.status(id))
	}
}

// Case 10: nothing about an approval lives in one process.
func TestApprovalSurvivesRestartAndReplicas(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x"}`
	id := w.hold(w.agent, args)
	b := w.second() // the process that comes after, or stands beside
	if got := b.hold(w.agent, args); got != id {
		t.Fatalf("the other process made a second approval: %s", got)
	}
	b.decide(id, true)
	_, err := w.gate.Decide(w.ctx, w.owner, id, false, "")
	if !fault.Is(err, fault.Conflict) || w.status(id) != "APPROVED" {
		t.Errorf("a decision was overwritten: %v %s", err, w.status(id))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	ran := 0
	for _, x := range []*world{w, b, w, b} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := x.gate.Call(w.ctx, newCall(w.agent, "write_note", args))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				ran++
			} else if !fault.Is(err, fault.Held) {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if n := w.fake.count("write_note"); n != 1 || ran != 1 {
		t.Errorf("ran %d times, answered %d", n, ran)
	}
}

// An approved call is decided on what the database holds, even where this process has not heard of the change yet.
func TestApprovedCallSeesOtherProcesses(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x"}`
	id := w.hold(w.agent, args)
	w.decide(id, true)
	b := w.second()
	b.rule("write_note", "DENY") // w is not reloaded
	r, f := w.call(w.agent, "write_note", args)
	w.refused(r, f, fault.Denied, "RULE_DENY", "rules", "RULE_DENY")
	if w.fake.count("write_note") != 0 || w.status(id) != "APPROVED" {
		t.Errorf("ran %d times; %s", w.fake.count("write_note"), w.status(id))
	}
}

func TestHundredRetriesRunOnce(t *testing.T) {
	w := newWorld(t)
	const args = `{"text":"x"}`
	w.decide(w.hold(w.agent, args), true)
	var wg sync.WaitGroup
	open := make(chan string, 100)
	for range 100 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := w.gate.Call(w.ctx, newCall(w.agent, "write_note", args))
			if err != nil {
				f := fault.From(err)
				if f.Class != fault.Held {
					t.Error(err)
				}
				open <- fmt.Sprint(f.Data["approval_id"])
			}
		}()
	}
	wg.Wait()
	close(open)
	ids := map[string]int{}
	for id := range open {
		ids[id]++
	}
	if n := w.fake.count("write_note"); n != 1 || len(ids) != 1 {
		t.Errorf("ran %d times; new approvals %v", n, ids)
	}
}

func TestApprovalsList(t *testing.T) {
	w := newWorld(t)
	ids := map[string]string{}
	for _, s := range []string{"EXPIRED", "PENDING", "APPROVED", "DENIED", "CONSUMED"} {
		ids[s] = w.hold(w.agent, `{"text":"`+s+`"}`)
		if s == "EXPIRED" {
			w.clock.Add((30 * time.Minute).Microseconds())
		}
		w.clock.Add(1)
	}
	w.decide(ids["APPROVED"], true)
	w.decide(ids["DENIED"], false)
	w.decide(ids["CONSUMED"], true)
	if _, f := w.call(w.agent, "write_note", `{"text":"CONSUMED"}`); f != nil {
		t.Fatal(f)
	}
	check := func() {
		t.Helper()
		for s, id := range ids {
			list := must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, w.owner.WorkspaceID, gate.ApprovalFilter{Status: s}))
			if len(list) != 1 || list[0].ID != id || list[0].Status != s {
				t.Errorf("%s: %+v", s, list)
			}
		}
	}
	check()
	all := must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, w.owner.WorkspaceID, gate.ApprovalFilter{Limit: 3}))
	if len(all) != 3 || all[0].ID != ids["CONSUMED"] || all[2].ID != ids["APPROVED"] {
		t.Errorf("newest first: %+v", all)
	}
	if list := must[[]gate.Approval](t)(w.gate.Approvals(w.ctx, "another", gate.ApprovalFilter{})); len(list) != 0 {
		t.Errorf("another workspace sees %d", len(list))
	}
	if _, err := w.gate.Approvals(w.ctx, w.owner.WorkspaceID, gate.ApprovalFilter{Status: "OPEN"}); !fault.Is(err, fault.InvalidParams) {
		t.Errorf("unknown status: %v", err)
	}
	heard := make(chan gate.Approval, 8)
	w.gate.OnApproval(func(ap gate.Approval) { heard <- ap })
	w.run(w.gate.Run) // the sweeper makes it true in the database
	if ap := <-heard; ap.ID != ids["EXPIRED"] || ap.Status != "EXPIRED" {
		t.Errorf("swept %+v", ap)
	}
	check()
}

func TestLargeArgumentsAreShownInPart(t *testing.T) {
	w := newWorld(t)
	id := w.hold(w.agent, `{"text":"`+strings.Repeat("ä", 300<<10)+`"}`)
	ap := must[gate.Approval](t)(w.gate.Approval(w.ctx, w.owner.WorkspaceID, id))
	var shown struct {
		Truncated bool
		Size      int
		SHA256    string
	}
	if err := json.Unmarshal(ap.Arguments, &shown); err != nil || !shown.Truncated || shown.Size != 600<<10+11 || len(ap.Arguments) > 10<<10 {
		t.Errorf("%v %+v, %d bytes", err, shown, len(ap.Arguments))
	}
}

func TestEmergencyStopRequests(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		by     *auth.Caller
		r      gate.StopRequest
		status int
		reason string
	}{
		{w.owner, gate.StopRequest{Scope: "all"}, 400, "mcp_scope_all_removed"},
		{w.owner, gate.StopRequest{Scope: "", TargetID: "x"}, 400, "mcp_scope_invalid"},
		{w.owner, gate.StopRequest{Scope: "tool", TargetID: "x"}, 400, "mcp_scope_invalid"},
		{w.owner, gate.StopRequest{Scope: "agent"}, 400, "mcp_target_required"},
		{w.owner, gate.StopRequest{Scope: "server"}, 400, "mcp_target_required"},
		{w.owner, gate.StopRequest{Scope: "agent", TargetID: w.server.ID}, 404, "mcp_target_not_found"},
		{w.owner, gate.StopRequest{Scope: "server", TargetID: "nope"}, 404, "mcp_target_not_found"},
		{w.newPerson("eve", auth.Editor), gate.StopRequest{Scope: "server", TargetID: w.server.ID}, 403, "INSUFFICIENT_PERMISSIONS"},
		{w.agent, gate.StopRequest{Scope: "server", TargetID: w.server.ID}, 403, "INSUFFICIENT_PERMISSIONS"},
	} {
		_, err := w.gate.EmergencyStop(w.ctx, c.by, c.r)
		if f := asFault(t, err); f == nil || f.Codes().HTTP != c.status || f.Reason != c.reason {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
	if _, f := w.call(w.agent, "read_note", `{}`); f != nil {
		t.Errorf("something was stopped: %v", f)
	}
}

// PV-30 to PV-35.
func TestEmergencyStop(t *testing.T) {
	w := newWorld(t)
	other := w.newAgent("other", "*")
	open, used := w.hold(w.agent, `{"text":"a"}`), w.hold(w.agent, `{"text":"b"}`)
	theirs := w.hold(other, `{"text":"a"}`)
	w.decide(used, true)
	stop := gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID, Reason: "runs wild"}
	for i, want := range []gate.StopResult{
		{Scope: "agent", TargetID: w.agent.AgentID, Changed: true, ExpiredApprovals: 2},
		{Scope: "agent", TargetID: w.agent.AgentID},
	} {
		if got := must[gate.StopResult](t)(w.gate.EmergencyStop(w.ctx, w.owner, stop)); got != want {
			t.Errorf("stop %d: %+v", i, got)
		}
	}
	r, f := w.call(w.agent, "read_note", `{}`) // at once, with the caller that the door already had
	w.refused(r, f, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop", "AGENT_EMERGENCY_STOP")
	if w.status(open) != "EXPIRED" || w.status(used) != "EXPIRED" || w.status(theirs) != "PENDING" {
		t.Errorf("%s %s %s", w.status(open), w.status(used), w.status(theirs))
	}
	if _, f := w.call(other, "read_note", `{}`); f != nil {
		t.Errorf("another agent: %v", f)
	}
	stop = gate.StopRequest{Scope: "server", TargetID: w.server.ID}
	if got := must[gate.StopResult](t)(w.gate.EmergencyStop(w.ctx, w.owner, stop)); !got.Changed || got.ExpiredApprovals != 1 {
		t.Errorf("server: %+v", got)
	}
	r, f = w.call(other, "read_note", `{}`)
	w.refused(r, f, fault.Blocked, "SERVER_BLOCKED", "server", "SERVER_BLOCKED")
	r, f = w.call(w.agent, "read_note", `{}`) // PV-35: the agent's stop is named first
	w.refused(r, f, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop", "AGENT_EMERGENCY_STOP")
	// PV-31: what is not ACTIVE stays as it is.
	if got := must[gate.StopResult](t)(w.gate.EmergencyStop(w.ctx, w.owner, stop)); got.Changed {
		t.Errorf("server again: %+v", got)
	}
	for kind, method := range map[audit.Kind]string{audit.Stop: "emergency_stop", audit.Admin: "emergency_stop"} {
		rows := must[[]audit.Event](t)(audit.List(w.ctx, w.db, audit.Filter{Kind: kind, Method: method}))
		if len(rows) != 4 || rows[3].PersonID != w.owner.PersonID || rows[3].AgentID != w.agent.AgentID || rows[3].Reason != "runs wild" || rows[0].ServerID != w.server.ID {
			t.Errorf("%s: %d rows %+v", kind, len(rows), rows)
		}
	}
}

// A stop comes before its record.
func TestEmergencyStopWithoutRecord(t *testing.T) {
	w := newWorld(t)
	w.endAudit()
	_, err := w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID})
	if f := asFault(t, err); f == nil || f.Reason != "AUDIT_UNAVAILABLE" {
		t.Errorf("%v", err)
	}
	if list := w.gate.Visible(w.agent, ""); len(list) != 0 {
		t.Errorf("the agent is not stopped: it sees %d tools", len(list))
	}
}

func TestWithdraw(t *testing.T) {
	w := newWorld(t)
	a := w.hold(w.agent, `{"text":"a"}`)
	if n := must[int](t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, "", w.tools["notes/read_note"], "x")); n != 0 || w.status(a) != "PENDING" {
		t.Errorf("another tool: %d %s", n, w.status(a))
	}
	if n := must[int](t)(w.gate.Withdraw(w.ctx, "another", w.server.ID, "", "x")); n != 0 {
		t.Errorf("another workspace: %d", n)
	}
	if _, err := w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, "", "", "x"); !fault.Is(err, fault.InvalidParams) {
		t.Errorf("no target: %v", err)
	}
	if n := must[int](t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, "", w.tools["notes/write_note"], "not admitted any more")); n != 1 || w.status(a) != "EXPIRED" {
		t.Errorf("%d %s", n, w.status(a))
	}
}

// An approval that was used stays used when the call cannot be recorded and so does not run.
func TestUsedApprovalIsNotGivenBack(t *testing.T) {
	w := newWorld(t)
	id := w.hold(w.agent, `{"text":"x"}`)
	w.decide(id, true)
	w.endAudit()
	_, err := w.gate.Call(context.Background(), newCall(w.agent, "write_note", `{"text":"x"}`))
	if f := asFault(t, err); f == nil || f.Reason != "AUDIT_UNAVAILABLE" || w.fake.count("write_note") != 0 || w.status(id) != "CONSUMED" {
		t.Errorf("%v, ran %d times, %s", err, w.fake.count("write_note"), w.status(id))
	}
}
