package audit_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"doorward.dev/doorward/internal/audit"
)

// collector is an OTLP receiver in the test.
type collector struct {
	*httptest.Server
	t      testing.TB
	mu     sync.Mutex
	status int // answered instead of 200
	posts  int
	header http.Header
	got    []*logs.LogRecord
}

func newCollector(t testing.TB) *collector {
	c := &collector{t: t}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts++
	if c.status != 0 {
		w.WriteHeader(c.status)
		return
	}
	var in logs.LogsData
	if err == nil {
		err = proto.Unmarshal(body, &in)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
	}
	c.header = r.Header
	for _, res := range in.ResourceLogs {
		for _, scope := range res.ScopeLogs {
			c.got = append(c.got, scope.LogRecords...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *collector) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, c.posts = status, 0
}

func (c *collector) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		c.mu.Lock()
		done := ok()
		c.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			c.t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *collector) options(t testing.TB) audit.Options {
	return audit.WithOTLP(audit.Options{Box: box(t), CheckpointEvery: time.Hour, Log: slog.New(slog.NewTextHandler(t.Output(), nil))},
		audit.OTLP{URL: c.URL + "/v1/logs", Headers: map[string]string{"Authorization": "Bearer abc"}, Version: "test"}, time.Millisecond)
}

func attribute(r *logs.LogRecord, key string) string {
	for _, a := range r.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func seqOf(r *logs.LogRecord) int64 {
	for _, a := range r.Attributes {
		if a.Key == "doorward.seq" {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

// Rows reach the collector once and in order, over an outage and a restart, whatever replica wrote them.
func TestOTLPFollowsTheRecord(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		c := newCollector(t)
		o := c.options(t)
		r := newRecord(t, url, o)
		e := event()
		e.TraceID = "trc_0123456789abcdef0123456789abcdef"
		e.Reason = "RULE_ALLOW\xff"
		r.write(e)
		r.many(599)
		c.until("600 rows came", func() bool { return len(c.got) == 600 })
		first := c.got[0]
		if len(first.TraceId) != 16 || first.TraceId[1] != 0x23 || first.EventName != "doorward.call" || first.Body.GetStringValue() != "tools/call files read_file ALLOW ok" ||
			attribute(first, "doorward.tool") != "read_file" || attribute(first, "doorward.id") != e.ID || attribute(first, "doorward.hash") != e.Hash ||
			first.SeverityText != "INFO" || first.TimeUnixNano != uint64(e.At)*1000 || c.header.Get("Authorization") != "Bearer abc" {
			t.Errorf("%v %v", first, c.header)
		}
		for _, a := range first.Attributes {
			if v := a.Value.GetStringValue(); v == string(e.Arguments) || v == string(e.Result) {
				t.Errorf("a body went out: %s", a)
			}
		}
		c.answer(http.StatusServiceUnavailable)
		r.many(20)
		c.until("it was tried", func() bool { return c.posts > 1 })
		r.end()
		c.answer(0)
		r = startRecord(t, r.db, o)
		if url != "" {
			defer startRecord(t, r.db, o).end() // another replica
		}
		r.many(600)
		c.until("the rest came", func() bool { return len(c.got) >= 1220 })
		r.end()
		for i, got := range c.got {
			if seqOf(got) != int64(i+1) {
				t.Fatalf("at %d came row %d", i+1, seqOf(got))
			}
		}
		if n, _ := r.Exported(); n == 0 && url == "" {
			t.Error("nothing was counted")
		}
	})
}

// What a collector can never take does not keep the others, and a record is written whether there is one or not.
func TestOTLPGivesUpWhatIsRefused(t *testing.T) {
	c := newCollector(t)
	c.answer(http.StatusBadRequest)
	r := newRecord(t, "", c.options(t))
	r.many(5)
	c.until("they are refused", func() bool { _, dropped := r.Exported(); return dropped == 5 })
	c.answer(0)
	r.many(3)
	c.until("the next ones came", func() bool { return len(c.got) == 3 })
	c.Close()
	r.many(50)
	if v := r.verify(); !v.Whole || v.Rows != 58 {
		t.Errorf("%+v", v)
	}
}
