package notify_test

import (
	"context"
	"crypto/hmac"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/notify"
	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clock is a clock that tests move.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.us.Store(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time      { return time.UnixMicro(c.us.Load()) }
func (c *clock) add(d time.Duration) { c.us.Add(d.Microseconds()) }

// onBoth runs a test on either database.
func onBoth(t *testing.T, fn func(t *testing.T, d *db.DB)) {
	for _, name := range []string{"sqlite", "postgres"} {
		t.Run(name, func(t *testing.T) {
			url := ""
			if name == "postgres" {
				url = testkit.PostgresURL(t)
			}
			d, err := db.Open(t.Context(), url, t.TempDir())
			ok(t, err)
			t.Cleanup(func() { d.Close() })
			fn(t, d)
		})
	}
}

// run makes a queue and runs it until the test, or stop, ends it.
func run(t *testing.T, d *db.DB, c *clock, channels ...notify.Channel) (q *notify.Queue, stop func()) {
	t.Helper()
	q, err := notify.New(notify.Options{DB: d, Channels: channels, Now: c.now, Redact: func(b []byte) []byte {
		return []byte(strings.ReplaceAll(string(b), "hunter2", "[redacted]"))
	}})
	ok(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return q, stop
}

func add(t testing.TB, d *db.DB, q *notify.Queue, e notify.Event) {
	t.Helper()
	if e.Approval == nil {
		e.Approval = json.RawMessage(`{"id":"` + e.ApprovalID + `"}`)
	}
	ok(t, d.Tx(t.Context(), func(tx *sql.Tx) error { return q.Add(t.Context(), tx, e) }))
	q.Wake()
}

// until waits for the one message of an approval to have a state.
func until(t *testing.T, d *db.DB, approval string, so func(m notify.Message) bool) notify.Message {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		list, err := notify.Messages(t.Context(), d, approval)
		ok(t, err)
		if len(list) == 1 && so(list[0]) {
			return list[0]
		}
		if time.Now().After(end) {
			t.Fatalf("never; now %+v", list)
		}
	}
}

// receiver is a webhook that refuses until it is told to take what comes.
type receiver struct {
	*httptest.Server
	secret []byte
	takes  atomic.Bool

	mu   sync.Mutex
	seen map[string]int // event id -> posts with a good signature
	last []byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{secret: []byte(strings.Repeat("k", 32)), seen: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return r
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	sent := req.Header.Get(webhook.SignatureHeader)
	at, _, _ := strings.Cut(strings.TrimPrefix(sent, "t="), ",")
	unix, _ := strconv.ParseInt(at, 10, 64)
	var e struct{ ID string }
	if json.Unmarshal(body, &e) != nil || !hmac.Equal([]byte(sent), []byte(webhook.Signature(r.secret, time.Unix(unix, 0), body))) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	r.seen[e.ID]++
	r.last = body
	r.mu.Unlock()
	if !r.takes.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (r *receiver) channel(name string) notify.Channel {
	hook := webhook.Hook{URL: r.URL, Secret: r.secret}
	return notify.Channel{Name: name, Send: func(ctx context.Context, body []byte) error {
		_, _, err := hook.Post(ctx, body)
		return err
	}}
}

// What is refused is tried again, later each time, under the same event id, and given up at last.
func TestWebhookIsRetried(t *testing.T) {
	onBoth(t, func(t *testing.T, d *db.DB) {
		r, c := newReceiver(t), newClock()
		q, _ := run(t, d, c, r.channel("webhook"))
		add(t, d, q, notify.Event{Kind: notify.Created, ApprovalID: "a"})
		m := until(t, d, "a", func(m notify.Message) bool { return m.Attempts == 1 && m.Error != "" })
		if m.Status != "PENDING" || m.Error != "the webhook answered with HTTP status 503" || m.NextAt != c.now().Add(5*time.Second).UnixMicro() {
			t.Errorf("%+v", m)
		}
		c.add(5 * time.Second)
		q.Wake()
		m = until(t, d, "a", func(m notify.Message) bool {
			return m.Attempts == 2 && m.NextAt == c.now().Add(10*time.Second).UnixMicro()
		})
		r.takes.Store(true)
		c.add(10 * time.Second)
		q.Wake()
		m = until(t, d, "a", func(m notify.Message) bool { return m.Status == "SENT" })
		if m.Attempts != 3 || m.Error != "" || len(r.seen) != 1 {
			t.Errorf("%+v, %d events", m, len(r.seen))
		}
		r.takes.Store(false)
		add(t, d, q, notify.Event{Kind: notify.Created, ApprovalID: "b"})
		for n := 1; n < 12; n++ {
			next := c.now().Add(min(5*time.Second<<(n-1), time.Hour)).UnixMicro() // while an attempt runs it is another time
			until(t, d, "b", func(m notify.Message) bool { return m.Attempts == n && m.NextAt == next })
			c.add(2 * time.Hour)
			q.Wake()
		}
		if m := until(t, d, "b", func(m notify.Message) bool { return m.Status == "FAILED" }); m.Attempts != 12 {
			t.Errorf("%+v", m)
		}
	})
}

// Of several processes, one sends each message; a message whose process died on the way is sent by another one.
func TestReplicasSendEachMessageOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, d *db.DB) {
		r, c := newReceiver(t), newClock()
		r.takes.Store(true)
		const n = 60
		quiet, err := notify.New(notify.Options{DB: d, Channels: []notify.Channel{r.channel("webhook")}, Now: c.now})
		ok(t, err)
		for i := range n {
			add(t, d, quiet, notify.Event{Kind: notify.Decided, ApprovalID: fmt.Sprint(i)})
		}
		_, err = d.Write.ExecContext(t.Context(), `UPDATE notification SET attempts = 1, next_at = $1 WHERE approval_id = '0'`, c.now().Add(90*time.Second).UnixMicro())
		ok(t, err) // as a process leaves it that died while it sent
		var queues []*notify.Queue
		for range 3 {
			q, _ := run(t, d, c, r.channel("webhook"))
			queues = append(queues, q)
		}
		for i := 1; i < n; i++ {
			until(t, d, fmt.Sprint(i), func(m notify.Message) bool { return m.Status == "SENT" && m.Attempts == 1 })
		}
		if len(r.seen) != n-1 {
			t.Errorf("%d events", len(r.seen))
		}
		c.add(91 * time.Second)
		queues[0].Wake()
		until(t, d, "0", func(m notify.Message) bool { return m.Status == "SENT" && m.Attempts == 2 })
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, times := range r.seen {
			if times != 1 {
				t.Errorf("event %s came %d times", id, times)
			}
		}
		if len(r.seen) != n {
			t.Errorf("%d events", len(r.seen))
		}
	})
}

// A message exists exactly when what it tells does, and each channel gets what is for it.
func TestMessagesOfATransaction(t *testing.T) {
	d, err := db.Open(t.Context(), "", t.TempDir())
	ok(t, err)
	defer d.Close()
	c := newClock()
	got := make(chan string, 10)
	channel := func(name string, args bool, kinds ...string) notify.Channel {
		return notify.Channel{Name: name, Kinds: kinds, Arguments: args, Send: func(_ context.Context, body []byte) error {
			var e notify.Event
			if err := json.Unmarshal(body, &e); err != nil {
				return err
			}
			got <- name + " " + e.Kind + " " + string(e.Arguments)
			return nil
		}}
	}
	q, _ := run(t, d, c, channel("all", true), channel("late", false, notify.Escalated))
	undone := errors.New("undone")
	err = d.Tx(t.Context(), func(tx *sql.Tx) error {
		ok(t, q.Add(t.Context(), tx, notify.Event{Kind: notify.Created, ApprovalID: "gone", Approval: json.RawMessage(`{}`)}))
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	e := notify.Event{Kind: notify.Created, ApprovalID: "a", Arguments: json.RawMessage(`{"n":1}`)}
	add(t, d, q, e)
	if s := <-got; s != `all approval.created {"n":1}` {
		t.Error(s)
	}
	e.Kind = notify.Escalated
	add(t, d, q, e)
	both := map[string]bool{<-got: true, <-got: true}
	if !both[`all approval.escalated {"n":1}`] || !both[`late approval.escalated `] {
		t.Errorf("%v", both)
	}
	if list, err := notify.Messages(t.Context(), d, "gone"); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
	var none *notify.Queue
	none.Wake()
	if none.Wants(notify.Created) {
		t.Error("nobody wants to know")
	}
}
