package audit_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
)

// wants is a row that needs slots.
func wants(slots ...audit.Slot) *audit.Event {
	e := event()
	e.Reserve = slots
	return e
}

func slot(w audit.Window, limit int64) audit.Slot {
	return audit.Slot{Window: w, Subject: "subject:ops", Limit: limit}
}

// gets writes a row that gets its slots, exhausted one that does not: used is what its error says.
func (r *record) gets(e *audit.Event) {
	r.t.Helper()
	if r.write(e); e.Seq == 0 {
		r.t.Fatal("the row is not in the record")
	}
}

func (r *record) exhausted(e *audit.Event, w audit.Window, used int64) {
	r.t.Helper()
	err := r.Write(r.t.Context(), e, audit.Process)
	var x *audit.Exhausted
	if !errors.As(err, &x) || x.Slot.Window != w || x.Used != used || e.Seq != 0 {
		r.t.Fatalf("got %v (seq %d), want %s to be used up at %d", err, e.Seq, w, used)
	}
}

func (r *record) used(now time.Time, w audit.Window, want int64) {
	r.t.Helper()
	got, err := audit.Used(r.t.Context(), r.db, now, []audit.Slot{slot(w, 0)})
	if err != nil || got[0] != want {
		r.t.Fatalf("%s: %v of slots are in use, %v; want %d", w, got, err, want)
	}
}

// A row gets all its slots or none, the first that is not free is named, and rows without slots go on.
func TestSlotsAllOrNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		now := time.Now()
		r.gets(wants(slot(audit.Task, 3), slot(audit.Day, 1), slot(audit.Hour, 5)))
		r.exhausted(wants(slot(audit.Task, 3), slot(audit.Day, 1), slot(audit.Hour, 5)), audit.Day, 1)
		r.used(now, audit.Task, 1)
		r.used(now, audit.Hour, 1)
		r.gets(wants(slot(audit.Task, 3)))
		r.gets(wants(slot(audit.Task, 3), slot(audit.Hour, 5)))
		r.exhausted(wants(slot(audit.Task, 3), slot(audit.Day, 1)), audit.Task, 3)
		r.gets(event())
		r.exhausted(wants(slot(audit.Hour, 0)), audit.Hour, 2)
		r.whole(4)
		if v := r.verify(); v.Counter != "" {
			t.Errorf("counter %s differs", v.Counter)
		}
	})
}

// A day is a calendar day of UTC, an hour the 60 minutes before the row; a task ends never by itself.
func TestWindows(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		var clock atomic.Int64
		at := func(text string) {
			v, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				t.Fatal(err)
			}
			clock.Store(v.UnixMicro())
		}
		at("2026-11-29T22:30:00.4Z")
		r := newRecord(t, url, audit.Options{Now: func() time.Time { return time.UnixMicro(clock.Load()) }})
		for _, step := range []struct {
			at   string
			w    audit.Window
			used int64 // -1: it gets its slot, of three
		}{
			{"2026-11-29T22:30:00.4Z", audit.Day, -1},
			{"2026-11-29T22:30:00.4Z", audit.Hour, -1},
			{"2026-11-29T22:50:00Z", audit.Hour, -1},
			{"2026-11-29T22:50:00Z", audit.Hour, -1},
			{"2026-11-29T22:50:00Z", audit.Task, -1},
			{"2026-11-29T22:50:01Z", audit.Hour, 3},
			{"2026-11-29T23:30:00.399999Z", audit.Hour, 3}, // never early
			{"2026-11-29T23:30:01Z", audit.Hour, -1},       // the first one is an hour old
			{"2026-11-29T23:49:59.999999Z", audit.Hour, 3},
			{"2026-11-29T23:50:00Z", audit.Hour, -1}, // and those of a whole second to the moment
			{"2026-11-29T23:50:00Z", audit.Hour, -1},
			{"2026-11-29T23:50:00Z", audit.Hour, 3},
			{"2026-11-29T23:59:59.999999Z", audit.Day, -1},
			{"2026-11-29T23:59:59.999999Z", audit.Day, -1},
			{"2026-11-29T23:59:59.999999Z", audit.Day, 3},
			{"2026-11-30T00:00:00Z", audit.Day, -1},
			{"2026-11-30T00:00:00Z", audit.Day, -1},
			{"2026-11-29T23:59:59Z", audit.Day, 3}, // a replica whose clock is behind
			{"2026-11-30T00:00:01Z", audit.Day, -1},
			{"2026-11-30T00:00:01Z", audit.Day, 3},
			{"2026-11-30T22:00:00Z", audit.Task, -1},
			{"2026-11-30T22:00:00Z", audit.Task, -1},
			{"2026-11-30T22:00:00Z", audit.Task, 3},
		} {
			at(step.at)
			if step.used < 0 {
				r.gets(wants(slot(step.w, 3)))
			} else {
				r.exhausted(wants(slot(step.w, 3)), step.w, step.used)
			}
			if v := r.verify(); v.Counter != "" || !v.Whole {
				t.Fatalf("%s: %+v", step.at, v)
			}
		}
	})
}

// Of many callers at once exactly as many get a slot as there are, also over three replicas; rows beside them are all written.
func TestSlotsUnderLoad(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		logs := []*record{newRecord(t, url, audit.Options{})}
		for url != "" && len(logs) < 3 {
			d, err := db.Open(t.Context(), url, "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
			logs = append(logs, startRecord(t, d, audit.Options{}))
		}
		var got, refused, plain atomic.Int64
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				e, l := wants(slot(audit.Task, 50), slot(audit.Hour, 1000), slot(audit.Day, 1000)), logs[i%len(logs)]
				if i%3 == 0 {
					e.Reserve = nil
				}
				err := l.Write(t.Context(), e, audit.Durability(i%2))
				var x *audit.Exhausted
				switch {
				case err == nil && i%3 == 0:
					plain.Add(1)
				case err == nil:
					got.Add(1)
				case errors.As(err, &x) && x.Slot.Window == audit.Task && x.Used == 50:
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got.Load() != 50 || refused.Load() != 150 || plain.Load() != 100 {
			t.Errorf("%d got a slot, %d did not, %d wanted none", got.Load(), refused.Load(), plain.Load())
		}
		for _, w := range []audit.Window{audit.Task, audit.Hour, audit.Day} {
			logs[0].used(time.Now(), w, 50)
		}
		logs[0].whole(150)
		if v := logs[0].verify(); v.Counter != "" {
			t.Errorf("counter %s differs", v.Counter)
		}
	})
}

// Counters come from the rows: a restart keeps them, verify names one that differs, the next start makes it anew.
func TestCountersAreMadeFromRows(t *testing.T) {
	for _, harm := range []string{
		`UPDATE limit_counter SET n = 1 WHERE slot = 'hour:subject:ops'`, `DELETE FROM limit_counter`, `UPDATE limit_counter SET n = n - 1 WHERE slot LIKE 'task%'`,
		`INSERT INTO limit_counter SELECT 'day:subject:more', at, 7, seen FROM limit_counter WHERE slot LIKE 'day%'`,
	} {
		eachDatabase(t, func(t *testing.T, url string) {
			r := newRecord(t, url, audit.Options{})
			for range 3 {
				r.gets(wants(slot(audit.Task, 3), slot(audit.Day, 9), slot(audit.Hour, 9)))
			}
			r.end()
			r = startRecord(t, r.db, audit.Options{})
			r.exhausted(wants(slot(audit.Task, 3)), audit.Task, 3)
			r.exec(harm)
			if v := r.verify(); v.Counter == "" || !v.Whole {
				t.Errorf("%s: %+v", harm, v)
			}
			r.end()
			r = startRecord(t, r.db, audit.Options{})
			if v := r.verify(); v.Counter != "" {
				t.Errorf("counter %s was not made anew", v.Counter)
			}
			r.exhausted(wants(slot(audit.Task, 3)), audit.Task, 3)
			r.exhausted(wants(slot(audit.Hour, 3)), audit.Hour, 3)
			r.exhausted(wants(slot(audit.Day, 3)), audit.Day, 3)
		})
	}
}

// Rows that were written before there were slots keep their hash: what a row used is in its hash only when it used something.
func TestSlotsAreInTheHash(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	r.gets(wants(slot(audit.Task, 3)))
	r.gets(event())
	r.end()
	for _, harm := range []string{`UPDATE audit_events SET slots = '' WHERE seq = 1`, `UPDATE audit_events SET slots = 'task:x:ops' WHERE seq = 2`} {
		r.exec(`CREATE TEMP TABLE keep AS SELECT seq, slots FROM audit_events`)
		r.exec(harm)
		if v := r.verify(); v.Whole {
			t.Errorf("%s: %+v", harm, v)
		}
		r.exec(`UPDATE audit_events SET slots = (SELECT slots FROM keep WHERE keep.seq = audit_events.seq)`)
		r.exec(`DROP TABLE keep`)
	}
	r.whole(2)
}

// A reservation reads by the primary key: what it costs does not depend on how many rows, counters and tasks there are.
func TestReservationReadsByPrimaryKey(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	for _, query := range []string{audit.UsedSlotSQL, audit.StoreSlotSQL, audit.DropSlotSQL} {
		found, err := r.db.Read.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+query, "s", 1, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for found.Next() {
			var id, parent, unused int
			var detail string
			if err := found.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		found.Close()
		for _, step := range plan {
			if !strings.HasPrefix(step, "SEARCH limit_counter USING INDEX sqlite_autoindex_limit_counter_1 (slot=? AND at") {
				t.Errorf("%s: %s", query, plan)
			}
		}
	}
}

// BenchmarkReserve is one row with three slots beside many rows and counters. DOORWARD_BENCH_ROWS=10000000 takes minutes and 4 GB to fill.
func BenchmarkReserve(b *testing.B) {
	counts := []int{0, 100_000}
	if n, err := strconv.Atoi(os.Getenv("DOORWARD_BENCH_ROWS")); err == nil {
		counts = append(counts, n)
	}
	for _, rows := range counts {
		r := newRecord(b, "", audit.Options{})
		r.end()
		r.fill(b, rows)
		for _, slots := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/slots=%v", rows, slots), func(b *testing.B) {
				r := startRecord(b, r.db, audit.Options{})
				b.ResetTimer()
				for range b.N {
					e := event()
					if slots {
						e.Reserve = []audit.Slot{
							{Window: audit.Task, Subject: "bench:ops", Limit: 1 << 40}, {Window: audit.Day, Subject: "w:ops", Limit: 1 << 40},
							{Window: audit.Hour, Subject: "a:ops", Limit: 1 << 40},
						}
					}
					r.write(e)
				}
				b.StopTimer()
				r.end()
			})
			var kept int64
			if err := r.db.Read.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM limit_counter WHERE slot LIKE 'task:0%'`).Scan(&kept); err != nil || kept != int64(rows/10) {
				b.Fatalf("%d counters beside the measured ones, %v", kept, err)
			}
		}
	}
}

// BenchmarkReserveFullHour is a slot of an hour that has been used in each of its seconds.
func BenchmarkReserveFullHour(b *testing.B) {
	r := newRecord(b, "", audit.Options{})
	if _, err := r.db.Write.ExecContext(b.Context(), `INSERT INTO limit_counter (slot, at, n, seen)
		WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 3599)
		SELECT 'hour:a:ops', ($1 - n) * 1000000, 1, 0 FROM c`, time.Now().Unix()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		e := event()
		e.Reserve = []audit.Slot{{Window: audit.Hour, Subject: "a:ops", Limit: 1 << 40}}
		r.write(e)
	}
}

// fill puts rows into the record, every tenth of which used a slot of a task of its own. They are no chain.
func (r *record) fill(b *testing.B, rows int) {
	if rows == 0 {
		return
	}
	for _, query := range []string{
		`INSERT INTO audit_events (seq, id, at, kind, trace_id, workspace_id, status, prev_hash, hash, slots)
			WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < $1)
			SELECT n, printf('%036d', n), $2, 'call', printf('trc_%032x', n), 'w', 'ok', printf('%064x', n), printf('%064x', n),
			CASE WHEN n % 10 = 0 THEN printf('task:%036d:ops', n) ELSE '' END FROM c`,
		`INSERT INTO limit_counter (slot, at, n, seen)
			WITH RECURSIVE c(n) AS (SELECT 10 UNION ALL SELECT n + 10 FROM c WHERE n < $1)
			SELECT printf('task:%036d:ops', n), 0, 1, $2 FROM c`,
		`PRAGMA wal_checkpoint(TRUNCATE)`,
	} {
		if _, err := r.db.Write.ExecContext(b.Context(), query, rows, time.Now().UnixMicro()); err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	startRecord(b, r.db, audit.Options{}).end()
	b.Logf("%d rows: a start compared the counters in %s", rows, time.Since(start))
}
