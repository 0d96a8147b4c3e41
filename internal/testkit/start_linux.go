package testkit

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startBound starts cmd so that it ends with the test process, however that ends. The signal is sent when
// the starting thread ends, so that thread must stay.
func startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err := make(chan error)
	go func() {
		runtime.LockOSThread()
		err <- cmd.Start()
		select {} // for the rest of the test process
	}()
	return <-err
}
