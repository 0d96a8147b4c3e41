//go:build unix && !linux

package sandbox

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// waitExit returns at once where a process cannot be waited for without reaping it: Wait then does both.
func waitExit(pid int) {
	kq, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(kq)
	ev := []unix.Kevent_t{{Ident: uint64(pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT}}
	for {
		if _, err := unix.Kevent(kq, ev, ev, nil); err != unix.EINTR {
			return
		}
	}
}

// othersIn cannot tell the living from the dead here: the group is killed at once.
func othersIn(int) bool { return false }
