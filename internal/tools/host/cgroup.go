package host

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// limits are those of the control group (version 2) that the process is in; zero is no limit.
type limits struct {
	memory     uint64  // bytes that may be used
	memoryUsed uint64  // bytes in use, without page cache that can be given back
	cores      float64 // CPU time per wall time
	cpuStat    string  // file that counts the CPU time of the group that is limited
}

// readLimits walks from the process's group up to the root and keeps the tightest limit of each kind: a limit
// of a parent binds too. Files that are missing (no cgroup v2, not Linux) limit nothing.
func readLimits(sys fs.FS) limits {
	var l limits
	for dir := ownGroup(sys); ; dir = path.Dir(dir) {
		base := path.Join("sys/fs/cgroup", dir)
		if limit, ok := number(sys, base+"/memory.max"); ok && (l.memory == 0 || limit < l.memory) {
			used, _ := number(sys, base+"/memory.current")
			l.memory, l.memoryUsed = limit, used-min(used, inactiveFile(sys, base+"/memory.stat"))
		}
		if cores, ok := cpuMax(sys, base+"/cpu.max"); ok && (l.cores == 0 || cores < l.cores) {
			l.cores, l.cpuStat = cores, base+"/cpu.stat"
		}
		if dir == "/" {
			return l
		}
	}
}

// ownGroup is the path of the process's group below the mount, "/" when it cannot be told.
func ownGroup(sys fs.FS) string {
	text, err := fs.ReadFile(sys, "proc/self/cgroup")
	if err != nil {
		return "/"
	}
	for line := range strings.Lines(string(text)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path.Clean("/" + group) // a group outside of our namespace shows as /../x
		}
	}
	return "/"
}

// number reads a file with one number; "max" is none.
func number(sys fs.FS, name string) (uint64, bool) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// cpuMax reads "quota period", both in microseconds.
func cpuMax(sys fs.FS, name string) (cores float64, ok bool) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0, false
	}
	quota, period, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	q, err1 := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0, false
	}
	return q / p, true
}

func inactiveFile(sys fs.FS, name string) uint64 { return field(sys, name, "inactive_file") }

// cpuUsed is the CPU time a group has used.
func cpuUsed(sys fs.FS, name string) (time.Duration, bool) {
	us := field(sys, name, "usage_usec")
	return time.Duration(us) * time.Microsecond, us > 0
}

// field reads one "key value" line of a file.
func field(sys fs.FS, name, key string) uint64 {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseUint(v, 10, 64)
			return n
		}
	}
	return 0
}
