// Command run measures the built binary against a bare upstream and prints the table of docs/performance.md. Key check,
// admission, rules and the durable record are on, as they always are.
//
//	go run ./test/bench/run [-d 3s] [-reps 3] [-json FILE] [-only NAME] [-profile FILE]
//
// Each repetition visits every row; a row runs once directly and once through the gateway, in alternating order, and the
// ratios of a repetition are taken from its own pair. The table shows medians.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"strings"
	"time"
)

// options of a run.
type options struct {
	d    time.Duration
	reps int
	json string
	only string
	// profile is the file for a CPU profile of the gateway; the figures of such a run are a few percent worse.
	profile string
}

func main() {
	log.SetFlags(log.Ltime)
	var o options
	flag.DurationVar(&o.d, "d", 3*time.Second, "length of one measurement")
	flag.IntVar(&o.reps, "reps", 3, "repetitions; the table shows medians")
	flag.StringVar(&o.json, "json", "", "also write all samples to this file")
	flag.StringVar(&o.only, "only", "", "only rows whose name contains this")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of the gateway to this file; use it with -only")
	flag.Parse()
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

func run(o options) error {
	e, err := newEnvironment(o.profile)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.start(); err != nil {
		return err
	}
	report := Report{At: time.Now().UTC(), Go: runtime.Version(), CPUs: runtime.NumCPU(), Seconds: o.d.Seconds(), Reps: o.reps}
	report.IdleMB, err = e.idleMemory()
	if err != nil {
		return err
	}
	rows := e.rows()
	for rep := range o.reps {
		for i := range rows {
			if !strings.Contains(rows[i].name, o.only) {
				continue
			}
			if err := e.pair(&rows[i], rep, o.d); err != nil {
				return err
			}
			log.Printf("%d/%d %s", rep+1, o.reps, rows[i].last())
		}
	}
	report.LoadedMB = e.memory()
	if o.only == "" || strings.Contains("sessions", o.only) {
		if report.Sessions, err = e.sessions(); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if len(r.samples) > 0 {
			report.Rows = append(report.Rows, r.result())
		}
	}
	fmt.Print(report.markdown())
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(b, '\n'), 0o644)
}
