package audit

import "time"

// WithRetry shortens the wait after a failed anchor.
func WithRetry(o Options, d time.Duration) Options {
	o.anchorRetry = d
	return o
}

// The statements of a reservation, for the test of their plans.
const (
	LoadSlotSQL  = loadSlotSQL
	StoreSlotSQL = storeSlotSQL
	DropSlotSQL  = dropSlotSQL
)
