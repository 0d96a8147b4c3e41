package door

import (
	"time"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

const (
	simulateDays    = 7    // where no span is given
	simulateMaxDays = 3660 // ten years
)

// simulate answers what proposed rules would have made of recorded calls. It changes nothing, but reads much: who asked stands in the record.
func (d *Door) simulate(c *restCall) (any, error) {
	start := d.d.Now()
	out, err := d.simulated(c)
	if nerr := d.note(c, start, err); err == nil && nerr != nil {
		return nil, nerr
	}
	return out, err
}

// simulateInput is the body: a proposal and a span.
type simulateInput struct {
	catalog.Proposal
	Days  int    `json:"days"`
	From  string `json:"from"`
	To    string `json:"to"`
	Limit int    `json:"limit"`
}

func (d *Door) simulated(c *restCall) (any, error) {
	var in simulateInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	req := gate.SimulateRequest{Proposal: in.Proposal, Limit: in.Limit}
	from, err := moment(in.From)
	if err != nil {
		return nil, err
	}
	if req.To, err = moment(in.To); err != nil {
		return nil, err
	}
	switch {
	case in.Days < 0 || in.Days > simulateMaxDays:
		return nil, fault.New(fault.InvalidParams, "days must be 1 to %d", simulateMaxDays)
	case in.Days != 0 && from != 0:
		return nil, fault.New(fault.InvalidParams, "give days or from, not both")
	case in.Limit < 0 || in.Limit > gate.SimulateMaxLimit:
		return nil, fault.New(fault.InvalidParams, "limit must be 1 to %d", gate.SimulateMaxLimit)
	case in.Days == 0:
		in.Days = simulateDays
	}
	if req.To == 0 {
		req.To = d.d.Now().UnixMicro()
	}
	if req.From = from; from == 0 {
		req.From = time.UnixMicro(req.To).AddDate(0, 0, -in.Days).UnixMicro()
	}
	if req.From >= req.To {
		return nil, fault.New(fault.InvalidParams, "from must be before to")
	}
	return d.d.Gate.Simulate(c.Context(), c.caller, req)
}
