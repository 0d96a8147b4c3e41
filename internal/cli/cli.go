// Package cli is the command line. All commands but serve, demo and the
// database ones talk REST to a running Doorward.
package cli

// Main runs a command and returns the exit code.
func Main(args []string) int { panic("pending") }
