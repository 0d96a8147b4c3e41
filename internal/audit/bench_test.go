package audit_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
)

func event() *audit.Event {
	return &audit.Event{
		Kind: audit.Call, TraceID: db.NewID(), WorkspaceID: "0199a1b2-0000-7000-8000-000000000001", AgentID: "0199a1b2-0000-7000-8000-000000000002",
		KeyID: "0199a1b2-0000-7000-8000-000000000003", Door: "mcp", Method: "tools/call", ServerID: "0199a1b2-0000-7000-8000-000000000004",
		Server: "files", ToolID: "0199a1b2-0000-7000-8000-000000000005", Tool: "read_file", Fingerprint: "v1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		Decision: "ALLOW", Stage: "rules", RuleID: "0199a1b2-0000-7000-8000-000000000006", Status: audit.OK, LatencyUS: 123,
		Arguments: []byte(`{"path":"/tmp/a.txt"}`), Result: []byte(`{"content":[{"type":"text","text":"hello there, this is the file"}]}`),
	}
}

// BenchmarkWrite is the record in closed loops: each caller asks an upstream
// over loopback (so that it is away for a while, as a real call is), then writes its row.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		callers int
		d       audit.Durability
		call    bool
	}{{1, audit.Process, false}, {16, audit.Process, false}, {1, audit.Process, true}, {16, audit.Process, true}, {64, audit.Process, true}, {1, audit.Power, true}, {16, audit.Power, true}} {
		name := fmt.Sprintf("callers=%d/power=%v/upstream=%v", c.callers, c.d == audit.Power, c.call)
		b.Run(name, func(b *testing.B) { benchmarkWrite(b, c.callers, c.d, c.call) })
	}
}

func benchmarkWrite(b *testing.B, callers int, d audit.Durability, call bool) {
	base, err := db.Open(b.Context(), "", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer base.Close()
	l, err := audit.New(b.Context(), audit.Options{DB: base})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	echo := echoServer(b)
	var left, wrote, inWrite atomic.Int64
	done := make(chan error)
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	for range callers {
		go func() {
			conn, err := net.Dial("tcp", echo)
			if err != nil {
				done <- err
				return
			}
			defer conn.Close()
			buf := make([]byte, 64)
			for left.Add(-1) >= 0 {
				if call {
					conn.Write(buf) //nolint:errcheck
					if _, err := conn.Read(buf); err != nil {
						done <- err
						return
					}
				}
				start := time.Now()
				if err := l.Write(ctx, event(), d); err != nil {
					done <- err
					return
				}
				inWrite.Add(int64(time.Since(start)))
				wrote.Add(1)
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-cpu)/1e3/float64(b.N), "cpu-µs/row")
	b.ReportMetric(float64(inWrite.Load())/1e3/float64(wrote.Load()), "µs/Write")
	b.ReportMetric(float64(wrote.Load())/float64(l.Batches()), "rows/batch")
	b.StopTimer()
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u) //nolint:errcheck
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func echoServer(b *testing.B) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					conn.Write(buf[:n]) //nolint:errcheck
				}
			}()
		}
	}()
	return ln.Addr().String()
}
