package audit_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/secret"
)

// A walk goes through the rows that the filter selects, newest first, and reads arguments only when they are wanted.
func TestWalk(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		red := new(secret.Redactor)
		red.Set("x", []string{"hunter2hunter2"})
		r := newRecord(t, url, audit.Options{Redactor: red, MaxBody: 4096})
		for i, args := range []string{`{"a":1}`, "", `{"k":"hunter2hunter2"}`, `"` + strings.Repeat("x", 5000) + `"`, `"` + strings.Repeat("y", 3000) + `"`, `{"a":1}`} {
			e := event()
			e.At, e.Arguments, e.TaskID, e.PersonID, e.Reason = int64(100+i), []byte(args), "task", "person", "why"
			if i == 5 {
				e.Kind = audit.Intent
			}
			r.write(e)
		}
		f := audit.Filter{WorkspaceID: event().WorkspaceID, Kind: audit.Call, Method: "tools/call", From: 100, To: 105}
		for _, args := range []bool{true, false} {
			var seqs []int64
			var whole []bool
			err := audit.Walk(t.Context(), r.db, f, args, func(e *audit.Event) error {
				want := event()
				if e.AgentID != want.AgentID || e.Tool != want.Tool || e.ToolID != want.ToolID || e.Server != want.Server || e.Decision != want.Decision || e.Stage != want.Stage ||
					e.RuleID != want.RuleID || e.Reason != "why" || e.Status != want.Status || e.TaskID != "task" || e.PersonID != "person" || e.At != e.Seq+99 || e.TraceID == "" {
					t.Errorf("row %+v", e)
				}
				if !args && e.ArgsBody+e.ArgsDigest != "" {
					t.Errorf("arguments %q", e.ArgsBody)
				}
				seqs, whole = append(seqs, e.Seq), append(whole, e.WholeArgs())
				return nil
			})
			if err != nil || !slices.Equal(seqs, []int64{5, 4, 3, 2, 1}) {
				t.Errorf("rows %v %v", seqs, err)
			}
			if args && !slices.Equal(whole, []bool{true, false, false, true, true}) {
				t.Errorf("whole %v", whole)
			}
		}
		stop := errors.New("enough")
		if err := audit.Walk(t.Context(), r.db, f, false, func(*audit.Event) error { return stop }); !errors.Is(err, stop) {
			t.Error(err)
		}
	})
}
