package audit_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_CRASH_DIR"); dir != "" {
		crashingWriter(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// record is a running log on its own database.
type record struct {
	*audit.Log
	t     testing.TB
	db    *db.DB
	stop  context.CancelFunc
	ended chan error
}

func newRecord(t testing.TB, url string, o audit.Options) *record {
	t.Helper()
	d, err := db.Open(t.Context(), url, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return startRecord(t, d, o)
}

func startRecord(t testing.TB, d *db.DB, o audit.Options) *record {
	t.Helper()
	o.DB = d
	l, err := audit.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &record{Log: l, t: t, db: d, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- l.Run(ctx); close(r.ended) }()
	t.Cleanup(r.end)
	return r
}

// end stops the writer and waits for it.
func (r *record) end() {
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Error(err)
	}
}

func (r *record) write(e *audit.Event) *audit.Event {
	r.t.Helper()
	if err := r.Write(r.t.Context(), e, audit.Process); err != nil {
		r.t.Fatal(err)
	}
	return e
}

func (r *record) verify() audit.Verdict {
	r.t.Helper()
	v, err := audit.Verify(r.t.Context(), r.db, audit.Known{})
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *record) whole(rows int64) {
	r.t.Helper()
	if v := r.verify(); !v.Whole || v.Rows != rows {
		r.t.Errorf("verdict %+v, want %d whole rows", v, rows)
	}
}

// exec is somebody at the database.
func (r *record) exec(query string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Write.ExecContext(r.t.Context(), query, args...); err != nil {
		r.t.Fatal(err)
	}
}

func eachDatabase(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, "") })
	t.Run("postgres", func(t *testing.T) { test(t, testkit.PostgresURL(t)) })
}

// Every field that goes in comes out, and the writer fills the rest.
func TestRowKeepsEveryField(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		var e audit.Event
		v := reflect.ValueOf(&e).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.String:
				f.SetString(fmt.Sprintf("value-%d-ü", i))
			case reflect.Int64:
				f.SetInt(int64(1000 + i))
			case reflect.Slice:
				if f.Type() == reflect.TypeFor[[]byte]() {
					f.SetBytes([]byte(fmt.Sprintf(`{"n":%d}`, i)))
				}
			}
		}
		e.Reserve = []audit.Slot{{Window: audit.Task, Subject: "t:read", Limit: 1}, {Window: audit.Day, Subject: "w:ops", Limit: 1}}
		r.write(&e)
		got, err := audit.Get(t.Context(), r.db, e.WorkspaceID, e.TraceID)
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		want := e
		want.Arguments, want.Result, want.Reserve, want.Slots = nil, nil, nil, "task:t:read day:w:ops"
		if !reflect.DeepEqual(got[0], want) {
			t.Errorf("got  %+v\nwant %+v", got[0], want)
		}
		sum := sha256.Sum256(e.Arguments)
		if e.Seq != 1 || len(e.ID) != 36 || e.ArgsDigest != hex.EncodeToString(sum[:]) || e.ArgsSize != int64(len(e.Arguments)) || e.ArgsBody != string(e.Arguments) {
			t.Errorf("the writer filled %+v", e)
		}
		r.whole(1)
	})
}

func TestTimeIsTheClockUnlessGiven(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	r := newRecord(t, "", audit.Options{Now: func() time.Time { return now }})
	if e := r.write(event()); e.At != now.UnixMicro() {
		t.Errorf("at %d", e.At)
	}
	given := event()
	given.At = 42
	if r.write(given); given.At != 42 {
		t.Errorf("at %d", given.At)
	}
}

func TestBodies(t *testing.T) {
	red := new(secret.Redactor)
	red.Set("x", []string{"hunter2hunter2"})
	const limit = 4096
	r := newRecord(t, "", audit.Options{Redactor: red, MaxBody: limit})
	for _, c := range []struct {
		name, body string
		check      func(stored string) bool
	}{
		{"whole", `{"a":1}`, func(s string) bool { return s == `{"a":1}` }},
		{"none", "", func(s string) bool { return s == "" }},
		{"just whole", strings.Repeat("x", limit), func(s string) bool { return len(s) == limit }},
		{"redacted", `{"k":"hunter2hunter2"}`, func(s string) bool { return s == `{"k":"[redacted]"}` }},
		{"too large", strings.Repeat("x", limit+1), func(s string) bool { return s == strings.Repeat("x", 1024)+audit.Truncated }},
		{"cut between characters", "x" + strings.Repeat("ü", limit), func(s string) bool {
			return utf8.ValidString(s) && s == "x"+strings.Repeat("ü", 511)+audit.Truncated
		}},
		{"binary", "\xff\x00\xfe" + "ok", func(s string) bool {
			return utf8.ValidString(s) && !strings.Contains(s, "\x00") && strings.HasSuffix(s, "ok")
		}},
	} {
		e := event()
		e.Result = []byte(c.body)
		r.write(e)
		if !c.check(e.ResultBody) {
			t.Errorf("%s: stored %.60q… of %d bytes", c.name, e.ResultBody, len(e.ResultBody))
		}
		if e.ResultSize != int64(len(c.body)) || (c.body == "") != (e.ResultDigest == "") {
			t.Errorf("%s: size %d, digest %q", c.name, e.ResultSize, e.ResultDigest)
		}
	}
	e := event()
	e.Reason, e.Tool = "upstream said hunter2hunter2", strings.Repeat("t", 10_000)
	if r.write(e); strings.Contains(e.Reason, "hunter2") || len(e.Tool) > 3000 {
		t.Errorf("stored reason %q, tool of %d bytes", e.Reason, len(e.Tool))
	}
	r.whole(8)
}

// No half of a secret stands at the end of an excerpt, wherever the secret lies.
func TestExcerptShowsNoPartOfASecret(t *testing.T) {
	const marker = "SeCrEt-MaRkEr-0123456789"
	red := new(secret.Redactor)
	red.Set("x", []string{marker})
	r := newRecord(t, "", audit.Options{Redactor: red, MaxBody: 1500})
	for at := 1024 - 2*len(marker); at < 1024+2*len(marker); at++ {
		for _, before := range []string{strings.Repeat(".", at), strings.Repeat(marker, 20) + strings.Repeat(".", at)} {
			e := event()
			e.Result = []byte(before + marker + strings.Repeat(",", 3000))
			if r.write(e); strings.Contains(e.ResultBody, marker[:4]) {
				t.Fatalf("at %d: …%q", at, e.ResultBody[len(e.ResultBody)-60:])
			}
		}
	}
}

func TestManyWritersShareTransactions(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		const writers, each = 16, 60
		var all sync.WaitGroup
		var mu sync.Mutex
		seen := make(map[int64]bool)
		for range writers {
			all.Go(func() {
				for range each {
					e := event()
					if err := r.Write(t.Context(), e, audit.Process); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[e.Seq] {
						t.Errorf("seq %d twice", e.Seq)
					}
					seen[e.Seq] = true
					mu.Unlock()
				}
			})
		}
		all.Wait()
		r.whole(writers * each)
		if n := r.Batches(); n >= writers*each {
			t.Errorf("%d transactions for %d rows: nothing was shared", n, writers*each)
		}
	})
}

// Two replicas on one PostgreSQL write one chain.
func TestReplicasShareOneChain(t *testing.T) {
	url := testkit.PostgresURL(t)
	a, b := newRecord(t, url, audit.Options{}), newRecord(t, url, audit.Options{})
	var all sync.WaitGroup
	for _, r := range []*record{a, b} {
		all.Go(func() {
			for range 50 {
				if err := r.Write(t.Context(), event(), audit.Power); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	a.whole(100)
}

func TestStopWritesWhatWasAcceptedAndRefusesTheRest(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	const writers = 8
	var all sync.WaitGroup
	var mu sync.Mutex
	var acknowledged int64
	started := make(chan struct{}, writers)
	for range writers {
		all.Go(func() {
			for n := 0; ; n++ {
				err := r.Write(context.Background(), event(), audit.Process)
				if n == 0 {
					started <- struct{}{}
				}
				if err != nil {
					if f := fault.From(err); f.Class != fault.Unavailable || f.Reason != "AUDIT_UNAVAILABLE" {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				acknowledged++
				mu.Unlock()
			}
		})
	}
	for range writers {
		<-started
	}
	r.end()
	all.Wait()
	r.whole(acknowledged)
}

func TestAGoneCallerStillHasItsRow(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Write(ctx, event(), audit.Process); err != nil {
		t.Error(err)
	}
	r.whole(1)
}

func TestWaitsForAnAdminTransaction(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	wrote := make(chan error, 1)
	err := r.db.Tx(t.Context(), func(tx *sql.Tx) error {
		go func() { wrote <- r.Write(context.Background(), event(), audit.Power) }()
		_, err := tx.ExecContext(t.Context(), `INSERT INTO setting (name, value) VALUES ('a', 'b')`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	r.whole(1)
}

// A database that cannot be written fails every caller of the batch, and the chain goes on afterwards.
func TestFailureFailsClosedAndRecovers(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		r.write(event())
		r.exec(`ALTER TABLE audit_events RENAME TO away`)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				err := r.Write(t.Context(), event(), audit.Process)
				if f := fault.From(err); f == nil || f.Class != fault.Unavailable || f.Reason != "AUDIT_UNAVAILABLE" {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		r.exec(`ALTER TABLE away RENAME TO audit_events`)
		if e := r.write(event()); e.Seq != 2 {
			t.Errorf("seq %d after the failure", e.Seq)
		}
		r.whole(2)
	})
}

func TestFullDiskRecovers(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	r.write(event())
	var pages int
	if err := r.db.Write.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	r.exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages))
	big := func() *audit.Event {
		e := event()
		e.Result = []byte(strings.Repeat("x", 30_000))
		return e
	}
	if err := r.Write(t.Context(), big(), audit.Process); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("on a full disk: %v", err)
	}
	r.exec(`PRAGMA max_page_count = 1000000`)
	r.write(big())
	r.whole(2)
}

func TestChainGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	for i := range int64(3) {
		d, err := db.Open(t.Context(), "", dir)
		if err != nil {
			t.Fatal(err)
		}
		r := startRecord(t, d, audit.Options{PowerSafe: i == 1})
		if e := r.write(event()); e.Seq != i+1 {
			t.Errorf("seq %d", e.Seq)
		}
		r.whole(i + 1)
		r.end()
		d.Close()
	}
}

func TestVerifyBesideARunningServer(t *testing.T) {
	dir := t.TempDir()
	d, err := db.Open(t.Context(), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := startRecord(t, d, audit.Options{})
	defer r.end()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := r.Write(context.Background(), event(), audit.Process); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer all.Wait()
	defer close(stop)
	other, err := db.OpenExisting(t.Context(), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for last := int64(-1); last < 1500; { // more than one page of Verify
		v, err := audit.Verify(t.Context(), other, audit.Known{})
		if err != nil || !v.Whole {
			t.Fatalf("%+v, %v", v, err)
		}
		last = v.Rows
	}
}

func TestList(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		r := newRecord(t, url, audit.Options{})
		for i := range 10 {
			e := event()
			e.TraceID, e.At, e.AgentID = fmt.Sprintf("t%d", i/2), int64(100+i), fmt.Sprintf("a%d", i%2)
			if i == 3 {
				e.Status, e.Decision, e.Kind, e.Door, e.Method, e.ServerID, e.ToolID, e.WorkspaceID = audit.DeniedStatus, "DENY", audit.Stop, "rest", "agent.stop", "srv", "tl", "w2"
			}
			r.write(e)
		}
		for _, c := range []struct {
			name string
			f    audit.Filter
			want []int64
		}{
			{"all", audit.Filter{}, []int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}},
			{"first page", audit.Filter{Limit: 3}, []int64{10, 9, 8}},
			{"next page", audit.Filter{Limit: 3, Before: 8}, []int64{7, 6, 5}},
			{"agent", audit.Filter{AgentID: "a1", Limit: 2}, []int64{10, 8}},
			{"time", audit.Filter{From: 102, To: 105}, []int64{5, 4, 3}},
			{"trace", audit.Filter{TraceID: "t4"}, []int64{10, 9}},
			{"workspace", audit.Filter{WorkspaceID: "w2"}, []int64{4}},
			{"status", audit.Filter{Status: "denied"}, []int64{4}},
			{"decision", audit.Filter{Decision: "DENY"}, []int64{4}},
			{"kind", audit.Filter{Kind: audit.Stop}, []int64{4}},
			{"door", audit.Filter{Door: "rest"}, []int64{4}},
			{"method", audit.Filter{Method: "agent.stop"}, []int64{4}},
			{"server", audit.Filter{ServerID: "srv"}, []int64{4}},
			{"tool", audit.Filter{ToolID: "tl", AgentID: "a1"}, []int64{4}},
			{"none", audit.Filter{AgentID: "' OR 1=1 --"}, nil},
		} {
			events, err := audit.List(t.Context(), r.db, c.f)
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, e := range events {
				got = append(got, e.Seq)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
		}
		if events, err := audit.Get(t.Context(), r.db, event().WorkspaceID, "t4"); err != nil || len(events) != 2 || events[0].Seq != 9 {
			t.Errorf("Get: %v, %v", events, err)
		}
		if _, err := audit.Get(t.Context(), r.db, "w2", "t4"); !fault.Is(err, fault.NotFound) {
			t.Errorf("Get from another workspace: %v", err)
		}
	})
}

func TestListIsBounded(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	var all sync.WaitGroup
	for range 210 {
		all.Go(func() {
			if err := r.Write(t.Context(), event(), audit.Process); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for limit, want := range map[int]int{0: 50, -1: 50, 7: 7, 100000: 200} {
		if events, err := audit.List(t.Context(), r.db, audit.Filter{Limit: limit}); err != nil || len(events) != want {
			t.Errorf("limit %d gave %d rows, %v", limit, len(events), err)
		}
	}
}

func TestNewFailsOnAClosedDatabase(t *testing.T) {
	d, err := db.Open(t.Context(), "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if _, err := audit.New(t.Context(), audit.Options{DB: d}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := audit.Verify(t.Context(), d, audit.Known{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// Whatever the texts are, hostile ones too, the chain verifies and what was valid comes back as it was.
func TestAnyTextIsRecorded(t *testing.T) {
	r := newRecord(t, "", audit.Options{})
	rows := int64(0)
	rapid.Check(t, func(t *rapid.T) {
		e := event()
		e.Tool, e.Method, e.Reason = rapid.String().Draw(t, "tool"), string(rapid.SliceOf(rapid.Byte()).Draw(t, "method")), rapid.String().Draw(t, "reason")
		e.Arguments, e.Result = rapid.SliceOf(rapid.Byte()).Draw(t, "args"), []byte(rapid.String().Draw(t, "result"))
		tool, result := e.Tool, string(e.Result)
		if err := r.Write(context.Background(), e, audit.Process); err != nil {
			t.Fatal(err)
		}
		rows++
		got, err := audit.Get(context.Background(), r.db, e.WorkspaceID, e.TraceID)
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		if clean := func(s string) bool { return !strings.Contains(s, "\x00") && len(s) < 2000 }; clean(tool) && got[0].Tool != tool || clean(result) && got[0].ResultBody != result {
			t.Errorf("stored %q and %q of %q and %q", got[0].Tool, got[0].ResultBody, tool, result)
		}
	})
	r.whole(rows)
}
