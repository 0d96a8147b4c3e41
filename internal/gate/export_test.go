package gate

import "time"

// Hurry shortens the rhythms of waiting and sweeping for tests.
func (g *Gate) Hurry(progress, poll, sweep time.Duration) {
	g.progressEvery, g.pollEvery, g.sweepEvery = progress, poll, sweep
}
