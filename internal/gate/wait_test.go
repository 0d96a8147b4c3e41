package gate_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// waiter is a caller on the line.
type waiter struct {
	w      *world
	call   *gate.Call
	cancel context.CancelFunc
	news   chan json.RawMessage
	done   chan error
	result gate.Result
}

// waitFor makes a call that can wait and returns when it does.
func (w *world) waitFor(args string) (*waiter, string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	x := &waiter{w: w, call: newCall(w.agent, "write_note", args), cancel: cancel, news: make(chan json.RawMessage, 1000), done: make(chan error, 1)}
	w.t.Cleanup(cancel)
	x.call.CanWait = true
	x.call.Params = mcp.Set(x.call.Params, "_meta", []byte(`{"progressToken":9007199254740993}`))
	x.call.Client = &upstream.Client{Era: mcp.Modern, Notify: func(method string, params json.RawMessage) {
		if method == "notifications/progress" {
			select {
			case x.news <- params:
			default:
			}
		}
	}}
	go func() {
		var err error
		x.result, err = w.gate.Call(ctx, x.call)
		x.done <- err
	}()
	const mark = "waiting for approval "
	message, _ := mcp.String(mcp.Get(x.next(), "message"))
	if !strings.HasPrefix(message, mark) {
		w.t.Fatalf("progress says %q", message)
	}
	return x, strings.TrimPrefix(message, mark)
}

func (x *waiter) next() json.RawMessage {
	x.w.t.Helper()
	select {
	case p := <-x.news:
		return p
	case err := <-x.done:
		x.w.t.Fatalf("the call did not wait: %v", err)
	case <-time.After(20 * time.Second):
		x.w.t.Fatal("no progress")
	}
	return nil
}

func (x *waiter) end() *fault.Error {
	x.w.t.Helper()
	select {
	case err := <-x.done:
		return asFault(x.w.t, err)
	case <-time.After(20 * time.Second):
		x.w.t.Fatal("the call waits for ever")
	}
	return nil
}

func TestWaitingCallRunsWhenApproved(t *testing.T) {
	w := newWorld(t)
	x, id := w.waitFor(`{"text":"x"}`)
	last := -1.0
	for range 3 {
		p := x.next()
		var got struct {
			ProgressToken json.RawMessage
			Progress      float64
		}
		ok(t, json.Unmarshal(p, &got))
		if string(got.ProgressToken) != "9007199254740993" || got.Progress <= last {
			t.Errorf("progress %s after %v", p, last)
		}
		last = got.Progress
	}
	w.decide(id, true)
	if f := x.end(); f != nil {
		t.Fatal(f)
	}
	row := w.row(x.result.TraceID)
	if row.Status != audit.OK || row.ApprovalID != id || w.fake.count("write_note") != 1 || w.status(id) != "CONSUMED" {
		t.Errorf("row %+v", row)
	}
}

func TestWaitingCallIsWokenByOtherProcess(t *testing.T) {
	w := newWorld(t)
	x, id := w.waitFor(`{"text":"x"}`)
	w.second().decide(id, true)
	if f := x.end(); f != nil || w.fake.count("write_note") != 1 {
		t.Fatalf("%v, ran %d times", f, w.fake.count("write_note"))
	}
}

// Case 8 on the line: what happens meanwhile decides, with its own reason, and nothing runs.
func TestWaitingCallMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name          string
		meanwhile     func(w *world, id string)
		class         fault.Class
		reason, stage string
	}{
		{"denied by a person", func(w *world, id string) { w.decide(id, false) }, fault.Denied, "APPROVAL_DENIED", "approval"},
		{"rule DENY", func(w *world, _ string) { w.rule("write_note", "DENY") }, fault.Denied, "RULE_DENY", "rules"},
		{"agent stopped", func(w *world, _ string) {
			must[gate.StopResult](w.t)(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID}))
		}, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop"},
		{"agent stopped by another process", func(w *world, _ string) {
			b := w.second()
			must[gate.StopResult](w.t)(b.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: w.agent.AgentID}))
		}, fault.Blocked, "AGENT_EMERGENCY_STOP", "stop"},
		{"fingerprint changed", func(w *world, _ string) {
			w.list(w.server, json.RawMessage(readDef), json.RawMessage(strings.Replace(writeDef, "Writes", "Rewrites", 1)))
		}, fault.NotAdmitted, "TOOL_CHANGED", "admission"},
		{"server removed", func(w *world, _ string) {
			ok(w.t, w.catalog.Remove(w.ctx, w.owner.WorkspaceID, w.server.ID))
			w.reload()
		}, fault.UnknownTool, "UNKNOWN_TOOL", "grant"},
		{"server paused, then approved", func(w *world, id string) {
			must[catalog.Server](w.t)(w.catalog.Pause(w.ctx, w.owner.WorkspaceID, w.server.ID, "owner"))
			w.reload()
			w.decide(id, true)
		}, fault.Blocked, "SERVER_PAUSED", "server"},
		{"withdrawn", func(w *world, _ string) {
			must[int](w.t)(w.gate.Withdraw(w.ctx, w.owner.WorkspaceID, w.server.ID, "", "x"))
		}, fault.Denied, "APPROVAL_EXPIRED", "approval"},
		{"overdue", func(w *world, _ string) { w.clock.Add((30 * time.Minute).Microseconds()) }, fault.Denied, "APPROVAL_EXPIRED", "approval"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			x, id := w.waitFor(`{"text":"x"}`)
			c.meanwhile(w, id)
			row := w.refused(x.result, nilRun(t, x), c.class, c.reason, c.stage, c.reason)
			if row.ApprovalID != id || w.fake.count("write_note") != 0 {
				t.Errorf("row %+v, ran %d times", row, w.fake.count("write_note"))
			}
		})
	}
}

func nilRun(t *testing.T, x *waiter) *fault.Error {
	t.Helper()
	f := x.end()
	x.result.TraceID = x.call.TraceID
	return f
}

func TestWaitingCallWithLoosenedRule(t *testing.T) {
	w := newWorld(t)
	x, id := w.waitFor(`{"text":"x"}`)
	w.rule("write_note", "ALLOW")
	if f := x.end(); f != nil {
		t.Fatal(f)
	}
	if row := w.row(x.result.TraceID); row.Decision != "ALLOW" || row.ApprovalID != "" || w.status(id) != "PENDING" {
		t.Errorf("row %+v", row)
	}
}

func TestWaitingCallGoesAway(t *testing.T) {
	w := newWorld(t)
	x, id := w.waitFor(`{"text":"x"}`)
	x.cancel()
	if f := x.end(); f == nil || f.Class != fault.Cancelled {
		t.Fatal(f)
	}
	if row := w.row(x.call.TraceID); row.Status != audit.CancelledStat || row.ApprovalID != id || w.status(id) != "PENDING" {
		t.Errorf("row %+v", row)
	}
}

// When the time on the line is over, or Doorward ends, the caller gets what it would have got at once.
func TestWaitingCallIsAnsweredHeld(t *testing.T) {
	t.Run("HoldFor", func(t *testing.T) {
		w := newWorld(t)
		w.gate.HoldFor = 30 * time.Millisecond
		x, id := w.waitFor(`{"text":"x"}`)
		f := nilRun(t, x)
		w.refused(x.result, f, fault.Held, "APPROVAL_REQUIRED", "rules", "APPROVAL_REQUIRED")
		if f.Data["approval_id"] != id {
			t.Errorf("data %v", f.Data)
		}
	})
	t.Run("Drain", func(t *testing.T) {
		w := newWorld(t)
		x, id := w.waitFor(`{"text":"x"}`)
		w.gate.Drain()
		w.gate.Drain()
		if f := x.end(); f == nil || f.Class != fault.Held || f.Data["approval_id"] != id {
			t.Error(f)
		}
		if _, f := w.call(w.agent, "read_note", `{}`); f != nil {
			t.Errorf("another call: %v", f)
		}
	})
	t.Run("Run ends", func(t *testing.T) {
		w := newWorld(t)
		end := w.run(w.gate.Run)
		x, id := w.waitFor(`{"text":"x"}`)
		end()
		if f := x.end(); f == nil || f.Class != fault.Held || f.Data["approval_id"] != id {
			t.Error(f)
		}
	})
}

// Many wait for one approval: one of them runs, the others wait for the next.
func TestManyWaitForOneApproval(t *testing.T) {
	w := newWorld(t)
	first, id := w.waitFor(`{"text":"x"}`)
	xs := []*waiter{first}
	for range 9 {
		x, same := w.waitFor(`{"text":"x"}`)
		if same != id {
			t.Fatalf("another approval: %s", same)
		}
		xs = append(xs, x)
	}
	w.decide(id, true)
	results := make(chan *fault.Error, len(xs))
	var wg sync.WaitGroup
	for _, x := range xs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results <- fault.From(<-x.done)
		}()
	}
	if f := <-results; f != nil {
		t.Error(f)
	}
	if n := w.fake.count("write_note"); n != 1 {
		t.Errorf("ran %d times", n)
	}
	for _, x := range xs {
		x.cancel()
	}
	wg.Wait()
	close(results)
	for f := range results {
		if f == nil || f.Class != fault.Cancelled {
			t.Error(f)
		}
	}
}
