package db

import "time"

// SetClock replaces the clock before Watch runs.
func (d *DB) SetClock(now func() time.Time) { d.now, d.began = now, now() }

// StaleAfter is for tests that move the clock.
const StaleAfter = staleAfter
