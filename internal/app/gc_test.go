package app

import (
	"runtime"
	"testing"
)

var sink []byte

// With a floor the collector runs a few times for a lot of garbage, not dozens of times.
func TestHeapFloor(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	collections := func() uint32 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 400 << 20 / (64 << 10) { // 400 MiB in pieces
			sink = make([]byte, 64<<10)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	without := collections()
	stop := paceGC(128 << 20)
	with := collections()
	stop()
	if with*2 > without { // most often a tenth; the floor is found again after a collection, so chance has a part
		t.Errorf("%d collections with a floor, %d without", with, without)
	}
	t.Setenv("GOGC", "100")
	stop = paceGC(128 << 20)
	defer stop()
	// More than with the floor; how many more depends on what else the process holds.
	if respected := collections(); respected <= with {
		t.Errorf("GOGC of the environment does not win: %d collections, %d with the floor", respected, with)
	}
}
