package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report is everything a run has found.
type Report struct {
	At       time.Time   `json:"at"`
	Go       string      `json:"go"`
	CPUs     int         `json:"cpus"`
	Seconds  float64     `json:"seconds"`
	Reps     int         `json:"reps"`
	Rows     []RowResult `json:"rows"`
	IdleMB   float64     `json:"idle_mb"`
	LoadedMB float64     `json:"loaded_mb"`
	Sessions *Sessions   `json:"sessions,omitempty"`
}

// RowResult is a row's samples and the medians of its figures.
type RowResult struct {
	Name    string   `json:"name"`
	Figures []Median `json:"figures"`
	Samples []Sample `json:"samples"`
}

// Median of a figure over the repetitions.
type Median struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit,omitempty"`
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Must  float64 `json:"must,omitempty"`
	Aim   float64 `json:"aim,omitempty"`
	More  bool    `json:"larger_is_better,omitempty"`
}

func (r *row) result() RowResult {
	out := RowResult{Name: r.name, Samples: r.samples}
	for _, f := range r.shows {
		var v []float64
		for _, s := range r.samples {
			v = append(v, f.of(s))
		}
		slices.Sort(v)
		out.Figures = append(out.Figures, Median{f.Name, f.unit, v[len(v)/2], v[0], v[len(v)-1], f.must, f.aim, f.more})
	}
	return out
}

// verdict says how a value stands to its limits.
func (m Median) verdict() string {
	better := func(a, b float64) bool { return a == b || (a > b) == m.More }
	switch {
	case m.Must == 0:
		return ""
	case better(m.Value, m.Aim):
		return "aim"
	case better(m.Value, m.Must):
		return "must"
	default:
		return "**missed**"
	}
}

func number(v float64) string {
	switch {
	case v == 0:
		return ""
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// foreign is the median of what other processes used meanwhile: the more, the less the figures mean.
func (r *Report) foreign() float64 {
	var v []float64
	for _, row := range r.Rows {
		for _, s := range row.Samples {
			v = append(v, s.Foreign)
		}
	}
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

// markdown is the table for docs/performance.md.
func (r *Report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %d cores, %d repetitions of %.0f s; other processes used %.0f %% of one core (median)\n\n",
		r.At.Format("2006-01-02"), r.Go, r.CPUs, r.Reps, r.Seconds, r.foreign())
	b.WriteString("| work | figure | measured | range | must | aim | |\n|---|---|--:|---|--:|--:|---|\n")
	errors := 0
	line := func(work string, m Median) {
		limit := func(v float64) string {
			if v == 0 {
				return ""
			}
			return map[bool]string{true: "≥ ", false: "≤ "}[m.More] + number(v)
		}
		span := ""
		if m.Low != m.High {
			span = number(m.Low) + " to " + number(m.High)
		}
		fmt.Fprintf(&b, "| %s | %s | %s %s | %s | %s | %s | %s |\n", work, m.Name, number(m.Value), m.Unit, span, limit(m.Must), limit(m.Aim), m.verdict())
	}
	for _, row := range r.Rows {
		for _, m := range row.Figures {
			line(row.Name, m)
		}
		for _, s := range row.Samples {
			errors += s.Through.Errors
		}
	}
	single := func(work, figure string, v float64, unit string, must, aim float64) {
		line(work, Median{Name: figure, Unit: unit, Value: v, Low: v, High: v, Must: must, Aim: aim})
	}
	single("memory", "idle", r.IdleMB, "MiB", 40, 25)
	single("memory", "after load", r.LoadedMB, "MiB", 80, 50)
	if r.Sessions != nil {
		single("1,000 sessions", "each, idle", r.Sessions.IdleKB, "KiB", 10, 6)
		single("1,000 sessions", "each, with stream", r.Sessions.StreamKB, "KiB", 45, 36)
		errors += r.Sessions.Errors
	}
	fmt.Fprintf(&b, "| all | errors | %d | | 0 | 0 | %s |\n", errors, map[bool]string{true: "aim", false: "**missed**"}[errors == 0])
	return b.String()
}
