package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// row is one kind of work.
type row struct {
	name    string
	args    []string // of the load generator
	direct  string   // URL, empty: there is no direct way (stdio)
	through string
	shows   []figure
	samples []Sample
}

// figure is a number of the table with its limits; 0 is none.
type figure struct {
	Name string
	of   func(Sample) float64
	unit string
	must float64
	aim  float64
	more bool // larger is better
}

// Sample is one repetition of a row.
type Sample struct {
	Direct  *Load   `json:"direct,omitempty"`
	Through *Load   `json:"through"`
	Foreign float64 `json:"foreign_pct"` // CPU of other processes meanwhile, in % of one core
}

// Load is what the load generator reports, as far as the table needs it.
type Load struct {
	OK        int     `json:"ok"`
	Errors    int     `json:"errors"`
	First     string  `json:"first_error,omitempty"`
	PerSecond float64 `json:"rps"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Procs     map[string]struct {
		CPU float64 `json:"cpu_us"`
	} `json:"procs,omitempty"`
}

func ratio(s Sample) float64 { return s.Through.PerSecond / s.Direct.PerSecond }
func added(s Sample) float64 { return s.Through.P50 - s.Direct.P50 }
func late(s Sample) float64  { return s.Through.P99 - s.Direct.P99 }
func cpu(s Sample) float64   { return s.Through.Procs["gw"].CPU }
func rate(s Sample) float64  { return s.Through.PerSecond }

// rows are the lines of the table. The limits are those that the project has set itself for this machine size (2 cores).
func (e *environment) rows() []row {
	bench, big, pipe := e.url+"/mcp/bench", e.url+"/mcp/big", e.url+"/mcp/pipe"
	call := func(c, size int, more ...string) []string {
		return append([]string{"call", "-tool", "echo", "-c", strconv.Itoa(c), "-size", strconv.Itoa(size)}, more...)
	}
	modern := []string{"-proto", "2026-07-28"}
	return []row{
		{name: "echo 32 B, C=1", args: call(1, 32), direct: e.up, through: bench, shows: []figure{
			{"added p50", added, "µs", 260, 180, false}, {"added p99", late, "µs", 0, 0, false}}},
		{name: "echo 32 B, C=16", args: call(16, 32), direct: e.up, through: bench, shows: []figure{
			{"× direct", ratio, "", 0.20, 0.28, true}, {"gateway CPU per call", cpu, "µs", 130, 90, false}, {"calls per second", rate, "", 0, 0, true}}},
		{name: "echo 64 KiB, C=16", args: call(16, 64<<10), direct: e.up, through: bench, shows: []figure{
			{"× direct", ratio, "", 0.60, 0.75, true}, {"gateway CPU per call", cpu, "µs", 0, 0, false}}},
		{name: "tools/list of 500, C=4", args: []string{"list", "-c", "4"}, direct: e.big, through: big, shows: []figure{
			{"gateway CPU per request", cpu, "µs", 1000, 300, false}, {"× direct", ratio, "", 0, 0, true}}},
		{name: "stdio echo 32 B, C=16", args: call(16, 32), through: pipe, shows: []figure{
			{"calls per second", rate, "", 5000, 5500, true}, {"gateway CPU per call", cpu, "µs", 0, 0, false}}},
		{name: "write 32 B, C=1 (intent power-safe)", args: append(call(1, 32), "-tool", "create_note"), direct: e.up, through: bench, shows: []figure{
			{"added p50", added, "µs", 0, 0, false}}},
		{name: "write 32 B, C=16 (intent power-safe)", args: append(call(16, 32), "-tool", "create_note"), direct: e.up, through: bench, shows: []figure{
			{"calls per second", rate, "", 0, 0, true}, {"gateway CPU per call", cpu, "µs", 0, 0, false}}},
		{name: "echo 32 B, C=1, 2026-07-28 client", args: call(1, 32, modern...), through: bench, shows: []figure{
			{"p50", func(s Sample) float64 { return s.Through.P50 }, "µs", 0, 0, false}}},
		{name: "echo 32 B, C=16, 2026-07-28 client", args: call(16, 32, modern...), through: bench, shows: []figure{
			{"calls per second", rate, "", 0, 0, true}, {"gateway CPU per call", cpu, "µs", 0, 0, false}}},
	}
}

// pair measures a row once directly and once through the gateway; who comes first alternates.
func (e *environment) pair(r *row, rep int, d time.Duration) error {
	var s Sample
	measure := func(url string) (*Load, error) {
		args := append(slices.Clone(r.args), "-url", url, "-d", d.String(), "-warm", "700ms", "-pids", fmt.Sprintf("gw=%d", e.gateway.Process.Pid))
		out, err := e.loadgen(args...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		var l Load
		return &l, json.Unmarshal(out, &l)
	}
	steps := []func() error{
		func() (err error) { s.Through, err = measure(r.through); return },
		func() (err error) {
			if r.direct != "" {
				s.Direct, err = measure(r.direct)
			}
			return
		},
	}
	if rep%2 == 0 {
		slices.Reverse(steps)
	}
	start := time.Now()
	all0, ours0 := e.cpuTimes()
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	all1, ours1 := e.cpuTimes()
	s.Foreign = max(0, 100*((all1-all0)-(ours1-ours0)).Seconds()/time.Since(start).Seconds())
	r.samples = append(r.samples, s)
	return nil
}

// last describes the newest sample, for the log.
func (r *row) last() string {
	s := r.samples[len(r.samples)-1]
	text := r.name
	for _, f := range r.shows {
		text += fmt.Sprintf("; %s %.4g %s", f.Name, f.of(s), f.unit)
	}
	if s.Through.Errors > 0 {
		text += fmt.Sprintf("; %d ERRORS: %s", s.Through.Errors, s.Through.First)
	}
	return text
}

// Sessions is what held sessions cost, in KiB each.
type Sessions struct {
	IdleKB   float64 `json:"idle_kb"`
	StreamKB float64 `json:"stream_kb"`
	Errors   int     `json:"errors"`
	First    string  `json:"first_error,omitempty"`
}

// sessions holds a thousand sessions, without and with a stream each, each time in a gateway that was just started: after other
// work the heap has room that would hide them.
func (e *environment) sessions() (*Sessions, error) {
	const n = 1000
	out := &Sessions{}
	for _, stream := range []bool{false, true} {
		if err := e.restart(); err != nil {
			return nil, err
		}
		if _, err := e.idleMemory(); err != nil {
			return nil, err
		}
		args := []string{"sessions", "-s", strconv.Itoa(n), "-c", "16", "-hold", "3s", "-url", e.url + "/mcp/bench", "-pids", fmt.Sprintf("gw=%d", e.gateway.Process.Pid)}
		if stream {
			args = append(args, "-stream")
		}
		raw, err := e.loadgen(args...)
		if err != nil {
			return nil, err
		}
		var r struct {
			OpenErrors   int                   `json:"open_errors"`
			StreamErrors int                   `json:"stream_errors"`
			CallErrors   int                   `json:"call_errors"`
			CloseErrors  int                   `json:"close_errors"`
			First        string                `json:"first_error"`
			RSS          map[string][3]float64 `json:"rss_mb"`
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, err
		}
		kb := (r.RSS["gw"][1] - r.RSS["gw"][0]) * 1024 / n
		if stream {
			out.StreamKB = kb
		} else {
			out.IdleKB = kb
		}
		out.Errors += r.OpenErrors + r.StreamErrors + r.CallErrors + r.CloseErrors
		if r.First != "" {
			out.First = r.First
		}
	}
	return out, nil
}
