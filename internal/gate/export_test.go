package gate

import (
	"context"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
)

// Hurry shortens the rhythms of waiting and sweeping for tests.
func (g *Gate) Hurry(progress, poll, sweep time.Duration) {
	g.progressEvery, g.pollEvery, g.sweepEvery = progress, poll, sweep
}

// Decision makes a decision about a tool, without a call around it.
func (g *Gate) Decision(snap *catalog.Snapshot, c *auth.Caller, t *catalog.Tool) func() {
	o := occasion{now: g.Now}
	return func() { verdictOf(snap, c, t, o) }
}

// Tracking is what it costs a call that stops can cancel it.
func (g *Gate) Tracking(c *auth.Caller, server string) func(context.Context) error {
	snap := g.Catalog.Snapshot()
	a := attempt{g: g, call: &Call{Caller: c}, caller: c, snap: snap, server: snap.Servers[server]}
	return func(ctx context.Context) error {
		if err := a.enter(ctx); err != nil {
			return err
		}
		a.returned()
		return nil
	}
}

// Running is how many calls servers work on.
func (g *Gate) Running() (n int) {
	for i := range g.running {
		s := &g.running[i]
		s.Lock()
		n += len(s.calls)
		s.Unlock()
	}
	return n
}
