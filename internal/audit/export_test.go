package audit

import "time"

// WithRetry shortens the wait after a failed anchor.
func WithRetry(o Options, d time.Duration) Options {
	o.anchorRetry = d
	return o
}

// WithOTLP exports to a collector, and looks for rows as often as every.
func WithOTLP(o Options, c OTLP, every time.Duration) Options {
	c.every = every
	o.OTLP = &c
	return o
}

// The statements of a reservation, for the test of their plans.
const (
	UsedSlotSQL  = usedSlotSQL
	StoreSlotSQL = storeSlotSQL
	DropSlotSQL  = dropSlotSQL
)
