package audit_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/audit"
)

// Whoever changes, removes, adds or moves a row is found, at the first row that does not fit.
func TestVerifyFindsTampering(t *testing.T) {
	const rows = 6
	copyRow := func(from, to int) string {
		return fmt.Sprintf(`INSERT INTO audit_events SELECT %d, id, at, kind, trace_id, workspace_id, agent_id, person_id, task_id, key_id, door, method,
			server_id, server_name, tool_id, tool_name, fingerprint, decision, stage, rule_id, reason, approval_id, status, error_class,
			latency_us, args_digest, args_size, args_body, result_digest, result_size, result_body, prev_hash, hash, slots FROM audit_events WHERE seq = %d`, to, from)
	}
	for _, c := range []struct {
		name    string
		queries []string
		bad     int64
		why     string
	}{
		{"a row deleted", []string{`DELETE FROM audit_events WHERE seq = 3`}, 3, "missing"},
		{"the first row deleted", []string{`DELETE FROM audit_events WHERE seq = 1`}, 1, "missing"},
		{"the last row deleted", []string{`DELETE FROM audit_events WHERE seq = 6`}, 6, "missing"},
		{"the tail deleted", []string{`DELETE FROM audit_events WHERE seq > 2`}, 3, "up to 6"},
		{"all rows deleted", []string{`DELETE FROM audit_events`}, 1, "missing"},
		{"a row deleted and the rest closed up", []string{`DELETE FROM audit_events WHERE seq = 3`, `UPDATE audit_events SET seq = 3 WHERE seq = 4`,
			`UPDATE audit_events SET seq = 4 WHERE seq = 5`, `UPDATE audit_events SET seq = 5 WHERE seq = 6`}, 3, "previous hash"},
		{"two rows swapped", []string{`UPDATE audit_events SET seq = 100 WHERE seq = 2`, `UPDATE audit_events SET seq = 2 WHERE seq = 3`, `UPDATE audit_events SET seq = 3 WHERE seq = 100`}, 2, "previous hash"},
		{"a row added at the end", []string{copyRow(6, 7)}, 7, "previous hash"},
		{"a row added before the first", []string{copyRow(1, 0)}, 0, "below"},
		{"a row added far away", []string{copyRow(6, 9)}, 7, "missing"},
		{"the head put back", []string{`UPDATE setting SET value = (SELECT '5 ' || hash FROM audit_events WHERE seq = 5) WHERE name = 'audit_head'`}, 6, "not written"},
		{"the head changed", []string{`UPDATE setting SET value = '6 ' || (SELECT hash FROM audit_events WHERE seq = 5) WHERE name = 'audit_head'`}, 6, "head"},
		{"the head removed", []string{`DELETE FROM setting WHERE name = 'audit_head'`}, 6, "head"},
		{"the head damaged", []string{`UPDATE setting SET value = 'x' WHERE name = 'audit_head'`}, 6, "head"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRecord(t, "", audit.Options{})
			for range rows {
				r.write(event())
			}
			r.whole(rows)
			r.end()
			for _, q := range c.queries {
				r.exec(q)
			}
			v := r.verify()
			if v.Whole || v.BadSeq != c.bad || !strings.Contains(v.Why, c.why) {
				t.Errorf("verdict %+v, want row %d: …%s…", v, c.bad, c.why)
			}
		})
	}
}

// Each column of its own, and also when it becomes NULL-like or another type.
func TestVerifyFindsEveryChangedColumn(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	for range 5 {
		r.write(event())
	}
	r.end()
	columns := columnsOf(t)
	if len(columns) != 34 {
		t.Fatalf("%d columns", len(columns))
	}
	for _, column := range columns {
		if column == "seq" {
			continue // see the other test
		}
		for _, change := range []string{`%s || 'x'`, `''`, `7`, `x'00ff'`} {
			change = strings.ReplaceAll(change, "%s", column)
			r.exec(`CREATE TEMP TABLE keep AS SELECT ` + column + ` AS v FROM audit_events WHERE seq = 3`)
			r.exec(`UPDATE audit_events SET ` + column + ` = ` + change + ` WHERE seq = 3`)
			var changed bool
			if err := r.db.Write.QueryRowContext(t.Context(), `SELECT `+column+` IS NOT (SELECT v FROM keep) FROM audit_events WHERE seq = 3`).Scan(&changed); err != nil {
				t.Fatal(err)
			}
			if v := r.verify(); changed && (v.Whole || v.BadSeq != 3 || v.Rows != 2) {
				t.Errorf("%s = %s: verdict %+v", column, change, v)
			}
			r.exec(`UPDATE audit_events SET ` + column + ` = (SELECT v FROM keep) WHERE seq = 3`)
			r.exec(`DROP TABLE keep`)
		}
	}
	r.whole(5)
}

func columnsOf(t *testing.T) []string {
	t.Helper()
	var names []string
	typ := reflect.TypeFor[audit.Event]()
	for i := range typ.NumField() {
		if name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// A restart after somebody cut the tail must not heal the record.
func TestACutTailStaysVisible(t *testing.T) {
	for name, query := range map[string]string{
		"tail": `DELETE FROM audit_events WHERE seq > 2`,
		"all":  `DELETE FROM audit_events`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t, "", audit.Options{})
			for range 4 {
				r.write(event())
			}
			r.end()
			r.exec(query)
			again := startRecord(t, r.db, audit.Options{})
			if e := again.write(event()); e.Seq != 5 {
				t.Errorf("seq %d", e.Seq)
			}
			if v := again.verify(); v.Whole || !strings.Contains(v.Why, "missing") {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

func TestEmptyRecordIsWhole(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	r.whole(0)
}

// Moving text between neighbouring columns keeps the bytes and must not keep the hash.
func TestHashIsUnambiguous(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	e := event()
	e.Server, e.ToolID, e.Tool = "ab", "c", "d"
	r.write(e)
	r.exec(`UPDATE audit_events SET server_name = 'a', tool_id = 'bc'`)
	if v := r.verify(); v.Whole || v.BadSeq != 1 {
		t.Errorf("verdict %+v", v)
	}
}
