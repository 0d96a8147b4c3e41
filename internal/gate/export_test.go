package gate

import (
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
