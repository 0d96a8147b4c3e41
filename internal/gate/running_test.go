package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/upstream"
)

// ended is how a call in the background ended.
type ended struct {
	result gate.Result
	err    error
}

// start makes a call and returns when the fake works on it.
func (w *world) start(ctx context.Context, c *auth.Caller, name, args string) <-chan ended {
	w.t.Helper()
	before, done := w.gate.Running(), make(chan ended, 1)
	go func() {
		r, err := w.gate.Call(ctx, newCall(c, name, args))
		done <- ended{r, err}
	}()
	w.eventually("the call runs", func() bool { return w.gate.Running() > before && w.fake.count(name) > 0 })
	return done
}

// untilEnd lets tools of the fake run until their call is cancelled.
func (w *world) untilEnd() {
	w.fake.behave(func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
}

func (w *world) stop(scope, id string) {
	w.t.Helper()
	must[gate.StopResult](w.t)(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: scope, TargetID: id}))
}

// follow keeps a replica as new as its process would.
func (w *world) follow() {
	w.run(func(ctx context.Context) error {
		return w.db.Watch(ctx, func(ctx context.Context) error {
			err := errors.Join(w.auth.Reload(ctx), w.catalog.Reload(ctx))
			w.gate.CancelStopped()
			return err
		})
	})
}

// A stop ends what its target has running, whichever process is told, and says what is known of it.
func TestStopCancelsRunningCalls(t *testing.T) {
	for _, c := range []struct {
		scope, tool, reason, outcome string
		status                       audit.Status
	}{
		{"agent", "read_note", "AGENT_EMERGENCY_STOP", "cancelled", audit.CancelledStat},
		{"agent", "write_note", "AGENT_EMERGENCY_STOP", "unknown", audit.UnknownStatus},
		{"server", "read_note", "SERVER_BLOCKED", "cancelled", audit.CancelledStat},
		{"server", "write_note", "SERVER_BLOCKED", "unknown", audit.UnknownStatus},
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%s/elsewhere=%v", c.scope, c.tool, elsewhere), func(t *testing.T) {
				w := newWorld(t)
				w.rule("write_note", "ALLOW")
				w.untilEnd()
				w.follow()
				done := w.start(w.ctx, w.agent, c.tool, `{"text":"x"}`)
				id, by := w.agent.AgentID, w
				if c.scope == "server" {
					id = w.server.ID
				}
				if elsewhere {
					by = w.second()
				}
				by.stop(c.scope, id)
				e := <-done
				f := asFault(t, e.err)
				if f == nil || f.Codes().RPC != -32001 || f.Reason != c.reason || f.Data["reason"] != c.reason || f.Data["outcome"] != c.outcome || f.Data["trace_id"] != e.result.TraceID {
					t.Fatalf("%v %v", f, f.Data)
				}
				row := w.row(e.result.TraceID)
				if row.Status != c.status || row.Reason != c.reason || row.Stage != "dispatch" || row.Decision != "ALLOW" || row.ErrorClass != "blocked" {
					t.Errorf("row %+v", row)
				}
				if n := w.gate.Running(); n != 0 {
					t.Errorf("%d calls are still kept", n)
				}
			})
		}
	}
}

// What is not its target, a pause and a rule let running calls end.
func TestOnlyStopsCancel(t *testing.T) {
	w := newWorld(t)
	other := w.newAgent("other", "*")
	w.untilEnd()
	w.follow()
	ctx, cancel := context.WithCancel(w.ctx)
	theirs, ours := w.start(ctx, other, "read_note", `{}`), w.start(w.ctx, w.agent, "read_note", `{}`)
	w.stop("agent", w.agent.AgentID)
	if e := <-ours; !fault.Is(e.err, fault.Blocked) {
		t.Errorf("the stopped agent: %v", e.err)
	}
	w.rule("read_note", "DENY")
	must[*auth.Agent](t)(w.auth.SetAgentState(w.ctx, w.owner.WorkspaceID, other.AgentID, "PAUSED"))
	must[catalog.Server](t)(w.catalog.Pause(w.ctx, w.owner.WorkspaceID, w.server.ID, "owner"))
	w.reload()
	if w.gate.Running() != 1 {
		t.Fatalf("%d calls run", w.gate.Running())
	}
	cancel()
	if e := <-theirs; !fault.Is(e.err, fault.Cancelled) {
		t.Errorf("another agent: %v", e.err)
	}
}

// A result that comes all the same is recorded, and not given to who is stopped.
func TestStopWithholdsResult(t *testing.T) {
	w := newWorld(t)
	w.fake.behave(func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
		<-ctx.Done()
		return json.RawMessage(`{"content":[{"type":"text","text":"private"}]}`), nil
	})
	done := w.start(w.ctx, w.agent, "read_note", `{}`)
	w.stop("agent", w.agent.AgentID)
	e := <-done
	f := asFault(t, e.err)
	if f == nil || f.Class != fault.Blocked || f.Data["outcome"] != "done" || e.result.Raw != nil {
		t.Fatalf("%v %s", f, e.result.Raw)
	}
	if row := w.row(e.result.TraceID); row.Status != audit.OK || row.Reason != "AGENT_EMERGENCY_STOP" || row.ResultSize == 0 {
		t.Errorf("row %+v", row)
	}
}

// No call slips between the stop and those that it finds running: every one ends.
func TestStopMissesNoCall(t *testing.T) {
	w := newWorld(t)
	w.untilEnd()
	for round := range 10 {
		agent := w.newAgent(fmt.Sprintf("a%d", round), "*")
		var callers sync.WaitGroup
		begin := make(chan struct{})
		for range 16 {
			callers.Go(func() {
				<-begin
				if _, err := w.gate.Call(w.ctx, newCall(agent, "read_note", `{}`)); !fault.Is(err, fault.Blocked) {
					t.Errorf("%v", err)
				}
			})
		}
		close(begin)
		w.stop("agent", agent.AgentID)
		callers.Wait() // for ever, if one was missed
	}
}

// The server is told, also when the stop is its own and its connection is closed right after.
func TestStopTellsTheServer(t *testing.T) {
	for _, scope := range []string{"agent", "server"} {
		t.Run(scope, func(t *testing.T) {
			w := newWorld(t)
			f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
			s := must[catalog.Server](t)(w.catalog.Register(w.ctx, w.owner.WorkspaceID, catalog.Spec{Name: "far", Transport: "http", URL: f.URL}, "owner"))
			w.list(s, json.RawMessage(testkit.ToolDef("work", "Works.")))
			w.approve(s, map[string]string{"work": "ALLOW"})
			w.connect(upstream.Config{ID: s.ID, Name: s.Name, Transport: "http", URL: f.URL})
			w.catalog.OnChange(func(snap *catalog.Snapshot) {
				if snap.Servers[s.ID].State != "ACTIVE" {
					w.pool.Apply(nil)
				}
			})
			began, end := make(chan struct{}), make(chan struct{})
			t.Cleanup(func() { close(end) })
			f.OnCall(func(string, json.RawMessage) (string, string) {
				close(began)
				<-end
				return `{}`, ""
			})
			done := make(chan error, 1)
			go func() {
				c := newCall(w.agent, "far/work", `{}`)
				c.Client = &upstream.Client{Era: mcp.Legacy, Version: mcp.V20251125}
				_, err := w.gate.Call(w.ctx, c)
				done <- err
			}()
			<-began
			w.stop(scope, map[string]string{"agent": w.agent.AgentID, "server": s.ID}[scope])
			if err := <-done; !fault.Is(err, fault.Blocked) || fault.From(err).Data["outcome"] != "unknown" {
				t.Errorf("%v", err)
			}
			w.eventually("the server is told", func() bool { return len(f.Requests("notifications/cancelled")) == 1 })
		})
	}
}

func BenchmarkTracking(b *testing.B) {
	w := newWorld(b)
	track := w.gate.Tracking(w.agent, w.server.ID)
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := track(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
