package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
)

// count gives one number of the database.
func (r *record) count(query string) (n int64) {
	r.t.Helper()
	if err := r.db.Read.QueryRowContext(r.t.Context(), query).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A large body is stored once, reads as it was written, and cannot be changed or removed unseen; a small one stands in its row.
func TestBodiesAreStoredOnceByContent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		large, small := `{"text":"`+strings.Repeat("large ", 2000)+`"}`, `{"text":"small"}`
		for i := range 20 {
			r.write(&audit.Event{Kind: audit.Call, TraceID: fmt.Sprint("t", i), WorkspaceID: "w", Arguments: []byte(large), Result: []byte(small)})
		}
		fake := "@sha256:" + strings.Repeat("0", 64) // what a caller made up is no reference
		r.write(&audit.Event{Kind: audit.Call, TraceID: "fake", WorkspaceID: "w", Arguments: []byte(fake), Result: []byte(large)})
		r.whole(21)
		if n := r.count(`SELECT count(*) FROM audit_body`); n != 2 {
			t.Errorf("%d bodies", n)
		}
		if n := r.count(`SELECT max(length(args_body) + length(result_body)) FROM audit_events`); n > 200 {
			t.Errorf("a row holds %d characters of bodies", n)
		}
		list, err := audit.List(t.Context(), r.db, audit.Filter{WorkspaceID: "w"})
		if err != nil || list[0].ArgsBody != fake || list[0].ResultBody != large || list[1].ArgsBody != large || list[1].ResultBody != small {
			t.Errorf("read %v %+v", err, list[0])
		}
		r.exec(`UPDATE audit_body SET body = 'x' WHERE body LIKE '%large%'`)
		if v := r.verify(); v.Whole || v.BadSeq != 1 {
			t.Errorf("a changed body: %+v", v)
		}
		r.exec(`DELETE FROM audit_body`)
		if v := r.verify(); v.Whole || v.BadSeq != 1 {
			t.Errorf("a body that is gone: %+v", v)
		}
	})
}

// Bodies go with the last row that has them, and not before.
func TestBodiesGoWithTheirRows(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRecord(t, "", audit.Options{Box: box(t), Now: func() time.Time { return now }})
	write := func(n, at int) {
		body := fmt.Sprint(n, strings.Repeat(" large", 1000))
		r.write(&audit.Event{Kind: audit.Call, TraceID: "t", WorkspaceID: "w", Arguments: []byte(body), At: now.Add(time.Duration(at) * time.Hour).UnixMicro()})
	}
	for i := range 300 {
		write(i%2, 0)
	}
	write(1, 100)
	now = now.Add(100 * time.Hour)
	// As if 65,536 rows had come since: the one body is of old rows only, the other one was said to be of the last row as well.
	r.exec(`UPDATE audit_body SET seq = CASE WHEN body LIKE '0 %' THEN 1 - 65536 ELSE 301 END`)
	if p, err := r.Prune(t.Context(), now.Add(-50*time.Hour)); err != nil || p.Removed != 256 {
		t.Fatal(p, err)
	}
	if n := r.count(`SELECT count(*) FROM audit_body`); n != 1 {
		t.Errorf("%d bodies are left", n)
	}
	list, err := audit.List(t.Context(), r.db, audit.Filter{WorkspaceID: "w", Limit: 1})
	if err != nil || !strings.HasPrefix(list[0].ArgsBody, "1 large") {
		t.Errorf("%v %+v", err, list)
	}
}
