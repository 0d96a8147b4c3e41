package host

import (
	"encoding/json"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func files(kv ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return m
}

func TestReadLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		sys  fstest.MapFS
		want limits
	}{
		{"no cgroup", files(), limits{}},
		{"cgroup v1", files("proc/self/cgroup", "3:cpu:/x\n2:memory:/x\n"), limits{}},
		{"container", files("proc/self/cgroup", "0::/\n",
			"sys/fs/cgroup/memory.max", "1000\n", "sys/fs/cgroup/memory.current", "600\n", "sys/fs/cgroup/memory.stat", "anon 300\ninactive_file 250\n",
			"sys/fs/cgroup/cpu.max", "150000 100000\n"),
			limits{memory: 1000, memoryUsed: 350, cores: 1.5, cpuStat: "sys/fs/cgroup/cpu.stat"}},
		{"no limit", files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/cpu.max", "max 100000\n"), limits{}},
		{"a parent is tighter", files("proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max", "900\n", "sys/fs/cgroup/a/b/memory.current", "100\n", "sys/fs/cgroup/a/b/cpu.max", "max 100000\n",
			"sys/fs/cgroup/a/memory.max", "500\n", "sys/fs/cgroup/a/memory.current", "450\n", "sys/fs/cgroup/a/cpu.max", "50000 100000\n"),
			limits{memory: 500, memoryUsed: 450, cores: 0.5, cpuStat: "sys/fs/cgroup/a/cpu.stat"}},
		{"outside of the namespace", files("proc/self/cgroup", "0::/../x\n", "sys/fs/cgroup/memory.max", "7"), limits{memory: 7}},
		{"nonsense", files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "-1", "sys/fs/cgroup/a/cpu.max", "0 0"), limits{}},
	} {
		if diff := cmp.Diff(c.want, readLimits(c.sys), cmp.AllowUnexported(limits{})); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestCPUUsed(t *testing.T) {
	got, ok := cpuUsed(files("cpu.stat", "usage_usec 2500000\nuser_usec 1\n"), "cpu.stat")
	if got != 2500*time.Millisecond || !ok {
		t.Errorf("%v, %v", got, ok)
	}
	if _, ok := cpuUsed(files(), "cpu.stat"); ok {
		t.Error("a missing file counted")
	}
}

func TestLimitedMemory(t *testing.T) {
	m, err := memoryUse(t.Context(), limits{memory: 1 << 20, memoryUsed: 1 << 18})
	if diff := cmp.Diff(Memory{Total: 1 << 20, Used: 1 << 18, Percent: 25}, m); err != nil || diff != "" {
		t.Error(err, diff)
	}
	m, err = memoryUse(t.Context(), limits{memory: 1 << 62, memoryUsed: 1}) // a limit above the machine's memory is none
	if err != nil || m.Total == 0 || m.Total >= 1<<62 {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestStats runs the tool on this machine and checks what must hold on any.
func TestStats(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := s.CallTool(t.Context(), "get_system_stats", json.RawMessage(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		StructuredContent Stats
		IsError           bool
	}
	if err := json.Unmarshal(raw, &r); err != nil || r.IsError {
		t.Fatalf("%s, %v", raw, err)
	}
	g := r.StructuredContent
	if g.CPUPercent < 0 || g.CPUPercent > 100 || g.CPUCores <= 0 || g.Memory.Total == 0 || g.Memory.Used == 0 || g.Memory.Used > g.Memory.Total ||
		g.Memory.Percent <= 0 || g.Memory.Percent > 100 || g.UptimeSeconds == 0 || len(g.Disk) == 0 {
		t.Errorf("implausible: %+v", g)
	}
	seen := map[string]bool{}
	for _, d := range g.Disk {
		if seen[d.Mount] || d.Mount == "" || d.Total == 0 || d.Used > d.Total || d.Percent < 0 || d.Percent > 100 {
			t.Errorf("implausible disk: %+v", d)
		}
		seen[d.Mount] = true
	}
	if bad, err := s.CallTool(t.Context(), "get_system_stats", json.RawMessage(`{"x":1}`)); err != nil || !json.Valid(bad) || !containsClass(bad, "InvalidArguments") {
		t.Errorf("%s, %v", bad, err)
	}
}

func containsClass(raw []byte, class string) bool {
	var r struct {
		StructuredContent struct {
			Class string `json:"error_class"`
		}
	}
	return json.Unmarshal(raw, &r) == nil && r.StructuredContent.Class == class
}
