//go:build unix

package sandbox

import (
	"syscall"
	"time"
)

const (
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
)

// signalGroup signals every process of the group of pid.
func signalGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

// reapGroup waits until nothing of the group of pid lives. Orphans are ours to reap where Doorward is
// process 1 of a container; elsewhere init does it.
func reapGroup(pid int, within time.Duration) {
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		for {
			if n, err := syscall.Wait4(-pid, nil, syscall.WNOHANG, nil); n <= 0 || err != nil {
				break
			}
		}
		if syscall.Kill(-pid, 0) == syscall.ESRCH || !othersIn(pid) || time.Now().After(end) {
			return
		}
	}
}
