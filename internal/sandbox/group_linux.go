package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitExit returns when the process has ended, and leaves it to be reaped.
func waitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// othersIn reports whether the group of pid has a living process besides pid. Only the files of processes
// tell that: a signal also reaches the dead.
func othersIn(pid int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// pid (name) state ppid pgrp …; the name may hold anything.
		i := bytes.LastIndexByte(b, ')')
		if i < 0 {
			continue
		}
		f := bytes.Fields(b[i+1:])
		if len(f) < 3 || string(f[0]) == "Z" || string(f[0]) == "X" || string(f[2]) != strconv.Itoa(pid) {
			continue
		}
		if !bytes.HasPrefix(b, []byte(strconv.Itoa(pid)+" ")) {
			return true
		}
	}
	return false
}
