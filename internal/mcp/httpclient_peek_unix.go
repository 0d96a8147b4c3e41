//go:build unix

package mcp

import (
	"net"
	"syscall"
)

// peekSocket looks without waiting how many bytes (0 or 1) wait in a connection, and whether it is open.
func peekSocket(c net.Conn) (n int, open bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	var one [1]byte
	var rerr error
	if err := rc.Read(func(fd uintptr) bool {
		n, _, rerr = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	}); err != nil {
		return 0, false
	}
	if rerr == syscall.EAGAIN || rerr == syscall.EINTR {
		return 0, true
	}
	return n, rerr == nil && n > 0
}
