// Package host is the built-in server that tells how the machine is doing:
// get_system_stats (WM-15). Inside a container it tells what the container may
// use, since the machine's own figures would mislead there.
package host

import (
	"context"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	gohost "github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"

	"doorward.dev/doorward/internal/op"
)

// sample is how long CPU use is measured for; a shorter one is noise.
const sample = 200 * time.Millisecond

// Stats is the result of get_system_stats. Sizes are in bytes, percentages from 0 to 100.
type Stats struct {
	CPUPercent    float64    `json:"cpu_percent"` // of all cores, or of the container's share
	CPUCores      float64    `json:"cpu_cores"`   // cores that may be used
	Load          [3]float64 `json:"load"`        // 1, 5 and 15 minutes, of the machine
	Memory        Memory     `json:"memory"`
	UptimeSeconds uint64     `json:"uptime_seconds"`
	Disk          []Disk     `json:"disk"`
}

// Memory in use.
type Memory struct {
	Total   uint64  `json:"total"`
	Used    uint64  `json:"used"`
	Percent float64 `json:"percent"`
}

// Disk is one mounted disk.
type Disk struct {
	Mount   string  `json:"mount"`
	Total   uint64  `json:"total"`
	Used    uint64  `json:"used"`
	Percent float64 `json:"percent"`
}

// New is the server "host".
func New() (*op.Server, error) {
	sys := os.DirFS("/")
	return op.NewServer("host", "Host", nil,
		op.Define("get_system_stats", "CPU, load, memory, uptime and disks of the machine that the gateway runs on.", op.Read,
			func(ctx context.Context, _ struct{}) (any, error) { return read(ctx, sys) }),
	)
}

// read gathers the figures; what the system does not tell is an error, never a zero.
func read(ctx context.Context, sys fs.FS) (any, error) {
	limits := readLimits(sys)
	var s Stats
	var err error
	if s.CPUPercent, s.CPUCores, err = cpuUse(ctx, sys, limits); err != nil {
		return nil, unreadable("cpu", err)
	}
	if s.Memory, err = memoryUse(ctx, limits); err != nil {
		return nil, unreadable("memory", err)
	}
	if avg, err := load.AvgWithContext(ctx); err == nil {
		s.Load = [3]float64{round(avg.Load1), round(avg.Load5), round(avg.Load15)}
	} else {
		return nil, unreadable("load", err)
	}
	if s.UptimeSeconds, err = gohost.UptimeWithContext(ctx); err != nil {
		return nil, unreadable("uptime", err)
	}
	if s.Disk, err = diskUse(ctx); err != nil {
		return nil, unreadable("disk", err)
	}
	return s, nil
}

func unreadable(what string, err error) error {
	f := op.Fail("stats_unavailable", "the %s figures of this machine cannot be read", what)
	f.Err = err
	return f
}

// cpuUse measures over one sample, of the container's share when it is limited.
func cpuUse(ctx context.Context, sys fs.FS, l limits) (percent, cores float64, err error) {
	n, err := cpu.CountsWithContext(ctx, true)
	if err != nil {
		return 0, 0, err
	}
	cores = float64(n)
	if l.cores > 0 && l.cores < cores && l.cpuStat != "" {
		before, ok := cpuUsed(sys, l.cpuStat)
		start := time.Now()
		if ok {
			select {
			case <-ctx.Done():
				return 0, 0, ctx.Err()
			case <-time.After(sample):
			}
			if after, ok := cpuUsed(sys, l.cpuStat); ok {
				share := (after - before).Seconds() / time.Since(start).Seconds() / l.cores
				return round(min(100, 100*share)), l.cores, nil
			}
		}
	}
	p, err := cpu.PercentWithContext(ctx, sample, false)
	if err != nil || len(p) == 0 {
		return 0, 0, err
	}
	return round(p[0]), cores, nil
}

// memoryUse takes the container's figures when its limit is below the machine's memory.
func memoryUse(ctx context.Context, l limits) (Memory, error) {
	v, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return Memory{}, err
	}
	m := Memory{Total: v.Total, Used: v.Total - v.Available}
	if l.memory > 0 && l.memory < m.Total {
		m = Memory{Total: l.memory, Used: min(l.memoryUsed, l.memory)}
	}
	m.Percent = percentOf(m.Used, m.Total)
	return m, nil
}

// diskUse lists each disk once, under its shortest mount point: a container mounts single files of a disk besides its root.
func diskUse(ctx context.Context) ([]Disk, error) {
	parts, err := disk.PartitionsWithContext(ctx, false)
	if err != nil {
		return nil, err
	}
	mounts := map[string]string{"": "/"} // the root counts even where it is an overlay and no disk
	for _, p := range parts {
		if m, ok := mounts[p.Device]; !ok || len(p.Mountpoint) < len(m) {
			mounts[p.Device] = p.Mountpoint
		}
		if p.Mountpoint == "/" {
			delete(mounts, "")
		}
	}
	disks := []Disk{}
	for _, mount := range mounts {
		u, err := disk.UsageWithContext(ctx, mount)
		if err != nil || u.Total == 0 {
			continue // a mount this user may not look at says nothing about the machine
		}
		disks = append(disks, Disk{Mount: mount, Total: u.Total, Used: u.Used, Percent: percentOf(u.Used, u.Total)})
	}
	slices.SortFunc(disks, func(a, b Disk) int { return strings.Compare(a.Mount, b.Mount) })
	return disks, nil
}

func percentOf(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return round(100 * float64(part) / float64(whole))
}

// round keeps two decimals.
func round(v float64) float64 { return math.Round(v*100) / 100 }
