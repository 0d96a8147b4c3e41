// Command profiled is doorward with a CPU profile of its whole life, written to the file that BENCH_PROFILE names: for test/bench/run
// -profile. The shipped binary has no such door.
package main

import (
	"log"
	"os"
	"runtime/pprof"

	"doorward.dev/doorward/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	f, err := os.Create(os.Getenv("BENCH_PROFILE"))
	if err != nil {
		log.Print(err)
		return 1
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		log.Print(err)
		return 1
	}
	defer pprof.StopCPUProfile()
	return cli.Main(os.Args[1:])
}
