package app

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// paceGC keeps the collector from running while the heap is below floor. Doorward's live heap is a few MiB,
// and Go's own pacing would then collect hundreds of times a second under load, which costs more than
// all stages of a call together. Above the floor Go's pacing is unchanged. The returned function ends it.
func paceGC(floor int64) (stop func()) {
	if floor <= 0 || os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	var stopped atomic.Bool
	current := 100
	// After each collection: aim at max(2 × live, floor). The percentage is set only when it moves by a
	// tenth, since setting it stops the world.
	tune := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		live := max(int64(m.HeapAlloc), 1<<20)
		want := int(min(max(100, floor*100/live-100), 3000))
		if diff := want - current; diff*10 > current || -diff*10 > current {
			current = want
			debug.SetGCPercent(want)
		}
	}
	tune()
	type sentinel struct{ _ [16]byte }
	var arm func()
	arm = func() {
		s := new(sentinel)
		runtime.AddCleanup(s, func(int) {
			if !stopped.Load() {
				tune()
				arm()
			}
		}, 0)
	}
	arm()
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(100)
	}
}
