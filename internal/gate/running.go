package gate

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// running are the calls that servers work on now, so that a stop can cancel them. A call goes to any shard: all are looked
// through after a change, and no two calls meet at one lock by being of one agent.
type running [32]struct {
	sync.Mutex
	calls map[*run]struct{}
	_     [48]byte // a shard has a cache line of its own
}

// run is one call on its way to a server and back.
type run struct {
	workspace, agent, server string

	ctx    context.Context
	cancel context.CancelCauseFunc
	shard  int
	gone   chan struct{} // made by who cancels it, closed when the call has left its server
}

// halt is the cause of a cancellation by a stop.
type halt struct{ verdict policy.Verdict }

func (h *halt) Error() string { return h.verdict.Message }

// enter makes the attempt one that stops cancel. A stop that came since the decision refuses it now: either the
// stop finds the call among the running ones, or the call finds the stop.
func (a *attempt) enter(ctx context.Context) error {
	r := &a.run
	r.workspace, r.agent, r.server = a.caller.WorkspaceID, a.caller.AgentID, a.server.ID
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.shard = rand.IntN(len(a.g.running)) //nolint:gosec // only spreads
	a.g.running.add(r)
	if v := stopVerdict(a.g.Auth, a.g.Catalog.Snapshot(), r); v.Action == policy.Deny {
		a.verdict = v
		return a.refusedBy(v)
	}
	return nil
}

// leave ends what enter began, if it did.
func (a *attempt) leave() {
	if a.run.cancel == nil {
		return
	}
	a.g.running.remove(&a.run)
	a.run.cancel(nil)
	a.run.cancel = nil
}

// returned notes that the server has nothing more to do with the call, and what stopped it, if anything did.
func (a *attempt) returned() {
	if a.run.ctx.Err() != nil {
		a.halt, _ = context.Cause(a.run.ctx).(*halt) //nolint:errorlint // nobody wraps a cause
	}
	a.leave()
}

func (rs *running) add(r *run) {
	s := &rs[r.shard]
	s.Lock()
	defer s.Unlock()
	if s.calls == nil {
		s.calls = make(map[*run]struct{})
	}
	s.calls[r] = struct{}{}
}

func (rs *running) remove(r *run) {
	s := &rs[r.shard]
	s.Lock()
	defer s.Unlock()
	delete(s.calls, r)
	if r.gone != nil {
		close(r.gone)
		r.gone = nil
	}
}

// cancel cancels the calls that stopped says are stopped. What it gives is closed as they leave their servers.
func (rs *running) cancel(stopped func(*run) policy.Verdict) (gone []<-chan struct{}) {
	for i := range rs {
		s := &rs[i]
		s.Lock()
		for r := range s.calls {
			v := stopped(r)
			if v.Action != policy.Deny {
				continue
			}
			if r.gone == nil {
				r.gone = make(chan struct{})
			}
			r.cancel(&halt{v})
			gone = append(gone, r.gone)
		}
		s.Unlock()
	}
	return gone
}

// leaveTime is how long a stop waits for the calls that it cancelled, so that their servers hear of it before the
// connection of a stopped server is closed. What does not leave is cancelled all the same.
const leaveTime = 250 * time.Millisecond

// cancelStopped cancels the running calls whose agent, server or workspace is stopped by now.
func (g *Gate) cancelStopped(snap *catalog.Snapshot) {
	gone := g.running.cancel(func(r *run) policy.Verdict { return stopVerdict(g.Auth, snap, r) })
	if len(gone) == 0 {
		return
	}
	end := time.NewTimer(leaveTime)
	defer end.Stop()
	for _, left := range gone {
		select {
		case <-left:
		case <-end.C:
			return
		}
	}
}

// CancelStopped cancels the running calls whose agent, server or workspace is stopped by now. Call it when accounts and catalogue were
// both loaded: the catalogue alone may have been new before the accounts were, and then tells of no change a second time.
func (g *Gate) CancelStopped() { g.cancelStopped(g.Catalog.Snapshot()) }

// stopVerdict is the decision about a running call as if all but stops allowed it: pauses and changed rules let it end.
func stopVerdict(accounts *auth.Auth, snap *catalog.Snapshot, r *run) policy.Verdict {
	f := policy.Facts{Shutdown: accounts.Shutdown(r.workspace) != nil, AgentID: r.agent, AgentState: policy.StateActive, Granted: true, ServerState: policy.StateActive, Admission: policy.Admitted, ServerRules: everyoneMay}
	if agent := accounts.AgentByID(r.agent); agent != nil {
		f.AgentStopped = agent.StoppedAt != 0
	}
	if sv := snap.Servers[r.server]; sv != nil && sv.State == policy.StateBlocked {
		f.ServerState = sv.State
	}
	return policy.Decide(&f)
}

// cutShort makes the answer of a call that a stop cancelled, and says in its row what is known of it. A result that came
// all the same is recorded and withheld: who is stopped gets nothing more.
func (a *attempt) cutShort(raw json.RawMessage, err error) error {
	v := a.halt.verdict
	a.event.Stage, a.event.Reason = string(policy.StageDispatch), v.Reason
	outcome, message := "done", "the call had ended by then, and its result is withheld"
	var rpc *mcp.RPCError
	switch {
	case raw != nil || errors.As(err, &rpc): // the row says how it ended
	case fault.Is(err, fault.Unreachable):
		a.event.Status = audit.CancelledStat
		outcome, message = "not_run", "the call was cancelled before it ran"
	case a.safe():
		a.event.Status = audit.CancelledStat
		outcome, message = "cancelled", "the call was cancelled while it ran"
	default:
		a.event.Status = audit.UnknownStatus
		outcome, message = "unknown", "the call was cancelled while it ran: whether it took effect is not known, so look before it is repeated"
	}
	a.event.ErrorClass = string(v.Class)
	f := fault.New(v.Class, "%s; %s", v.Message, message).Why(v.Reason).With("origin", string(v.Stage)).With("outcome", outcome)
	f.Err = err
	return f
}

// safe: nothing has changed, whether it ran or not.
func (a *attempt) safe() bool {
	if a.tool == nil {
		return safeMethod(a.call.Method)
	}
	return a.tool.Class == policy.Read
}
