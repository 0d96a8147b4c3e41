//go:build !linux

package testkit

import "os/exec"

// startBound starts cmd; only Linux can bind its life to ours.
func startBound(cmd *exec.Cmd) error { return cmd.Start() }
