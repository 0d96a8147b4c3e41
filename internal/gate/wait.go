package gate

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// wait keeps a caller on the line until its call is decided, HoldFor is over or it goes away. Whatever
// wakes it, all is decided anew on the newest rules before an approval is used.
func (a *attempt) wait(ctx context.Context, open *Approval) error {
	end, news, poll := time.NewTimer(a.patience()), time.NewTicker(a.g.progressEvery), time.NewTicker(a.g.pollEvery)
	defer end.Stop()
	defer news.Stop()
	defer poll.Stop()
	turnedDown, told := a.tell(ctx, open)
	defer told()
	steps := 1
	a.progress(open, steps)
	woken, leave := a.g.waiting.join(open.ID)
	defer func() { leave() }()
	for {
		next, err := a.look(ctx, open) // after joining: a decision between the two would be missed otherwise
		if err != nil || next == nil {
			return err
		}
		if next.ID != open.ID {
			leave()
			open = next
			woken, leave = a.g.waiting.join(open.ID)
			continue
		}
		select {
		case <-ctx.Done():
			return a.cancelled(ctx.Err())
		case <-end.C:
			return a.held(ctx, open)
		case <-a.g.closing:
			return a.held(ctx, open)
		case <-turnedDown:
			return a.held(ctx, open)
		case <-news.C:
			steps++
			a.progress(open, steps)
		case <-woken:
		case <-poll.C:
		}
	}
}

// tell has the caller's person told, beside the wait, where the call is decided. turnedDown is closed when that
// person does not want to wait; end must be called.
func (a *attempt) tell(ctx context.Context, ap *Approval) (turnedDown <-chan struct{}, end func()) {
	if a.call.Tell == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	down, done, about := make(chan struct{}), make(chan struct{}), a.heldFault(ctx, ap)
	go func() {
		defer close(done)
		if !a.call.Tell(ctx, about) {
			close(down)
		}
	}()
	return down, func() {
		cancel()
		<-done
	}
}

// retryHold is how long a caller is kept that came back without a progress token: long enough that a client
// which comes back by itself does not ask in a tight loop, too short for anybody's time limit.
const retryHold = 5 * time.Second

// patience is how long the caller can be kept on the line.
func (a *attempt) patience() time.Duration {
	if a.call.CanWait {
		return a.g.HoldFor
	}
	return min(a.g.HoldFor, retryHold)
}

// look finds out where a waiting call stands: nil and nil when it may run now, else the approval to wait for.
func (a *attempt) look(ctx context.Context, open *Approval) (*Approval, error) {
	a.event.ApprovalID = open.ID
	now, err := a.g.Approval(ctx, a.caller.WorkspaceID, open.ID)
	if err == nil && now.Status != pending {
		err = a.g.reload(ctx) // what ended it, a stop perhaps, is the reason to give
	}
	if err != nil {
		return nil, a.storeFault(ctx, err)
	}
	if err := a.again(); err != nil {
		return nil, err
	}
	asks := a.verdict.Action == policy.RequireApproval && a.tool.Fingerprint == open.Fingerprint
	switch {
	case asks && now.Status == pending:
		return open, nil
	case asks && now.Status == expired:
		return nil, a.expiredMeanwhile(open)
	}
	a.event.ApprovalID = ""
	return a.settle(ctx)
}

// progress tells a waiting caller that its call is alive. The steps are tiny because progress must
// never fall, and the tool's own begins after them.
func (a *attempt) progress(ap *Approval, n int) {
	c := a.call.Client
	token := mcp.GetPath(a.call.Params, "_meta", "progressToken")
	if c == nil || c.Notify == nil || token == nil {
		return
	}
	p := append([]byte(`{"progressToken":`), token...)
	p = append(p, `,"progress":`...)
	p = strconv.AppendFloat(p, float64(n)/1e4, 'f', -1, 64)
	p = append(p, `,"message":`...)
	p = append(p, mcp.Quote("waiting for approval "+ap.ID)...)
	c.Notify("notifications/progress", json.RawMessage(append(p, '}')))
}

// waiters are the calls of this process that wait for an approval. Decisions of other processes are found by polling.
type waiters struct {
	mu sync.Mutex
	by map[string]map[chan struct{}]struct{}
}

// join waits for news about an approval; leave must be called.
func (w *waiters) join(id string) (woken <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = make(map[string]map[chan struct{}]struct{})
	}
	if w.by[id] == nil {
		w.by[id] = make(map[chan struct{}]struct{})
	}
	w.by[id][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.by[id], ch); len(w.by[id]) == 0 {
			delete(w.by, id)
		}
	}
}

// wake tells the waiters of an approval to look.
func (w *waiters) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.by[id] {
		select {
		case ch <- struct{}{}:
		default: // it has not looked yet since the last news
		}
	}
}

// observers hear of every approval that is made or decided.
type observers struct {
	mu  sync.RWMutex
	fns []func(Approval)
}

func (o *observers) tell(ap Approval) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, fn := range o.fns {
		fn(ap)
	}
}

// OnApproval registers fn to be called whenever this process holds a call, decides an approval or ends one. fn must
// not block and must not call OnApproval.
func (g *Gate) OnApproval(fn func(Approval)) {
	g.watch.mu.Lock()
	defer g.watch.mu.Unlock()
	g.watch.fns = append(g.watch.fns, fn)
}

// announce tells waiting calls and observers about approvals that changed.
func (g *Gate) announce(aps []Approval) {
	for _, ap := range aps {
		g.waiting.wake(ap.ID)
		g.watch.tell(ap)
	}
	if len(aps) > 0 {
		g.Notify.Wake()
	}
}
