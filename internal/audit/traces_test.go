package audit_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
)

// Searches by time find every row, also where the clock was set back and where no checkpoint is yet.
func TestSearchByTime(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{Box: box(t), CheckpointEvery: time.Hour})
		at := []int64{100, 200, 300, 150, 400, 500, 120, 600}
		for i, when := range at {
			e := event()
			e.At = when
			r.write(e)
			if i%2 == 1 && i < 6 {
				r.checkpoint()
			}
		}
		for _, c := range []struct{ from, to int64 }{{0, 0}, {150, 0}, {0, 150}, {120, 200}, {500, 0}, {601, 0}, {0, 1}, {1, 1000}, {550, 601}} {
			var want, got int
			for _, when := range at {
				if when >= c.from && (c.to == 0 || when < c.to) {
					want++
				}
			}
			f := audit.Filter{From: c.from, To: c.to}
			if err := audit.Export(t.Context(), r.db, f, func(*audit.Event) error { got++; return nil }); err != nil || got != want {
				t.Errorf("%+v: exported %d, want %d (%v)", c, got, want, err)
			}
			if list, err := audit.List(t.Context(), r.db, f); err != nil || len(list) != want {
				t.Errorf("%+v: listed %d, want %d (%v)", c, len(list), want, err)
			}
			traces, err := audit.Traces(t.Context(), r.db, audit.TraceFilter{WorkspaceID: event().WorkspaceID, From: c.from, To: c.to})
			if err != nil || len(traces) != want {
				t.Errorf("%+v: %d traces, want %d (%v)", c, len(traces), want, err)
			}
		}
	})
}

func TestTraces(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{Box: box(t)})
		for _, c := range []struct {
			change         func(*audit.Event)
			kind, decision string // no kind: not in the list
		}{
			{func(e *audit.Event) {}, "MCP_TOOL_CALL", "PASSED"},
			{func(e *audit.Event) { e.Kind, e.Status = audit.Intent, audit.Started }, "", ""},
			{func(e *audit.Event) { e.Status = audit.DeniedStatus }, "MCP_TOOL_CALL", "BLOCKED"},
			{func(e *audit.Event) { e.Status, e.ErrorClass = audit.DeniedStatus, "limit" }, "MCP_TOOL_CALL", "RATE_LIMITED"},
			{func(e *audit.Event) { e.Status = audit.HeldStatus }, "MCP_TOOL_CALL", "PENDING_APPROVAL"},
			{func(e *audit.Event) { e.Status = audit.TimeoutStatus }, "MCP_TOOL_CALL", "ERROR"},
			{func(e *audit.Event) { e.Decision = "LOG_ONLY" }, "MCP_TOOL_CALL", "FLAGGED"},
			{func(e *audit.Event) { e.Method = "resources/read" }, "VERIFY", "PASSED"},
			{func(e *audit.Event) { e.Kind = audit.Stop }, "LIFECYCLE", "PASSED"},
			{func(e *audit.Event) { e.Kind, e.Method = audit.Admin, "emergency_stop" }, "", ""},
		} {
			e := event()
			c.change(e)
			r.write(e)
			f := audit.TraceFilter{WorkspaceID: e.WorkspaceID, ID: e.TraceID, Type: c.kind, Decision: c.decision}
			list, err := audit.Traces(t.Context(), r.db, f)
			if err != nil || len(list) != map[bool]int{true: 0, false: 1}[c.kind == ""] {
				t.Fatalf("%+v: %+v %v", f, list, err)
			}
			if len(list) == 1 && (list[0].Type != c.kind || list[0].Decision != c.decision || list[0].Hash != "sha256:"+e.Hash || list[0].Attestation != audit.LocalOnly) {
				t.Errorf("%+v", list[0])
			}
		}
	})
}

// A spreadsheet runs nothing that a tool wrote.
func TestCSV(t *testing.T) {
	e := event()
	e.Reason, e.ResultBody = "=1+1", "a,\"b\"\n@c"
	var out bytes.Buffer
	x, ok := audit.NewExporter(&out, "csv")
	if !ok {
		t.Fatal("no csv")
	}
	for _, err := range []error{x.Begin(), x.Row(e), x.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	text, _ := json.Marshal(rows[1])
	if !strings.Contains(string(text), `"'=1+1"`) || !strings.Contains(string(text), `a,\"b\"\n@c`) {
		t.Errorf("%s", text)
	}
	if _, ok := audit.NewExporter(&out, "xml"); ok {
		t.Error("xml")
	}
}
