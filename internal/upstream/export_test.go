package upstream

import "time"

// Hasten makes the times between attempts short.
func (p *Pool) Hasten() {
	p.pace = pace{
		backoff: 10 * time.Millisecond, backoffMax: 100 * time.Millisecond, stable: 50 * time.Millisecond, probe: 2 * time.Second,
		debounce: 20 * time.Millisecond, ping: 20 * time.Millisecond, sessionIdle: time.Minute,
	}
}

// SetSessionIdle sets when unused sessions end.
func (p *Pool) SetSessionIdle(d time.Duration) { p.pace.sessionIdle = d }
