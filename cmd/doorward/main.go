// Command doorward is the one door between AI agents and tools.
package main

import (
	"os"

	"doorward.dev/doorward/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
