package filesystem

import (
	"os"

	"golang.org/x/sys/unix"
)

// virtual reports whether f lies on a file system that shows the kernel or processes as files, which a root such as "/"
// would contain: environments and memory of processes are not documents. What cannot be told is refused.
func virtual(f *os.File) bool {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return true
	}
	switch int64(s.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}
