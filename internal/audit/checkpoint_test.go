package audit_test

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/webhook"
)

func box(t testing.TB) *secret.Box {
	t.Helper()
	b, err := secret.OpenBox(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (r *record) checkpoint() audit.Checkpoint {
	r.t.Helper()
	c, err := r.Checkpoint(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *record) many(n int) {
	r.t.Helper()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range n / 16 {
				r.write(event())
			}
		})
	}
	all.Wait()
	for range n % 16 {
		r.write(event())
	}
}

func (r *record) keys() []string {
	r.t.Helper()
	keys, err := audit.Keys(r.t.Context(), r.db)
	if err != nil || len(keys) != 1 {
		r.t.Fatal(keys, err)
	}
	return keys
}

func TestCheckpointsAndProofs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		b := box(t)
		r := newRecord(t, url, audit.Options{Box: b})
		r.many(300)
		first := r.checkpoint()
		r.many(277)
		second := r.checkpoint()
		if first.Size != 300 || second.Size != 577 {
			t.Fatalf("checkpoints of %d and %d rows", first.Size, second.Size)
		}
		if again := r.checkpoint(); again.Note != second.Note {
			t.Error("a checkpoint without new rows is another one")
		}
		r.whole(577)
		if v := r.verify(); v.Signed != 577 || v.Checkpoints < 2 {
			t.Errorf("%+v", v)
		}
		for _, seq := range []int64{1, 255, 256, 257, 300, 512, 513, 577} {
			e, err := audit.Row(t.Context(), r.db, event().WorkspaceID, seq)
			if err != nil {
				t.Fatal(err)
			}
			p, err := audit.Prove(t.Context(), r.db, e)
			if err != nil {
				t.Fatal(seq, err)
			}
			text, _ := json.Marshal(p) // as it is handed on
			var got audit.Proof
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if err := got.Check(r.keys()); err != nil {
				t.Error(seq, err)
			}
			got.Event.Reason = "another"
			if got.Check(r.keys()) == nil {
				t.Error("a changed row is proved")
			}
			got = p
			got.Hashes = append(got.Hashes[:0:0], p.Hashes...)
			got.Hashes[0][0] ^= 1
			if got.Check(r.keys()) == nil {
				t.Error("a changed proof is good")
			}
		}
		// A new process goes on where this one ended.
		r.end()
		again := startRecord(t, r.db, audit.Options{Box: b})
		again.many(20)
		if c := again.checkpoint(); c.Size != 597 {
			t.Errorf("%+v", c)
		}
		again.whole(597)
		if _, err := audit.Row(t.Context(), r.db, "another", 5); !fault.Is(err, fault.NotFound) {
			t.Error(err)
		}
	})
}

// An orderly end leaves no row unsigned.
func TestEndSigns(t *testing.T) {
	r := newRecord(t, "", audit.Options{Box: box(t)})
	r.many(5)
	r.end()
	if v := r.verify(); !v.Whole || v.Signed != 5 {
		t.Errorf("%+v", v)
	}
}

// Somebody who rewrites rows, chain and head is found by the checkpoints.
func TestVerifyChecksCheckpoints(t *testing.T) {
	for _, c := range []struct {
		name    string
		queries []string
		bad     int64
		why     string
	}{
		{"cut with a new head", []string{`DELETE FROM audit_events WHERE seq > 4`, `UPDATE setting SET value = (SELECT '4 ' || hash FROM audit_events WHERE seq = 4) WHERE name = 'audit_head'`}, 5, "checkpoint covers 7"},
		{"another checkpoint's note", []string{`UPDATE audit_checkpoint SET note = (SELECT note FROM audit_checkpoint WHERE size = 7) WHERE size = 3`}, 1, "not signed"},
		{"a note changed", []string{`UPDATE audit_checkpoint SET note = replace(note, 'time 1', 'time 2') WHERE size = 7`}, 4, "not signed"},
		{"all keys gone", []string{`DELETE FROM setting WHERE name = 'audit_keys'`}, 1, "not signed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRecord(t, "", audit.Options{Box: box(t), CheckpointEvery: time.Hour})
			r.many(3)
			r.checkpoint()
			r.many(4)
			r.checkpoint()
			r.whole(7)
			r.end()
			r.exec(`DELETE FROM audit_checkpoint WHERE size NOT IN (3, 7)`) // the one at the start may have met any row
			for _, q := range c.queries {
				r.exec(q)
			}
			if v := r.verify(); v.Whole || v.BadSeq != c.bad || !strings.Contains(v.Why, c.why) {
				t.Errorf("verdict %+v, want row %d: …%s…", v, c.bad, c.why)
			}
		})
	}
}

// A whole database that was made anew passes by itself and is found with what was kept elsewhere.
func TestVerifyWithWhatWasKept(t *testing.T) {
	r := newRecord(t, "", audit.Options{Box: box(t)})
	r.many(9)
	kept, keys := r.checkpoint(), r.keys()
	good, err := audit.Verify(t.Context(), r.db, audit.Known{Keys: keys, Checkpoints: []string{kept.Note}})
	if err != nil || !good.Whole {
		t.Fatalf("%+v %v", good, err)
	}
	forged := newRecord(t, "", audit.Options{Box: box(t)})
	forged.many(12)
	forged.checkpoint()
	forged.whole(12)
	if v, err := audit.Verify(t.Context(), forged.db, audit.Known{Keys: keys}); err != nil || v.Whole {
		t.Errorf("%+v %v", v, err)
	}
	// The same key, but other rows: whoever has it can sign anew, but not make the kept checkpoint fit.
	both := append(forged.keys(), keys...)
	if v, err := audit.Verify(t.Context(), forged.db, audit.Known{Keys: both, Checkpoints: []string{kept.Note}}); err != nil || v.Whole || !strings.Contains(v.Why, "kept elsewhere") {
		t.Errorf("%+v %v", v, err)
	}
	if _, err := audit.Verify(t.Context(), r.db, audit.Known{Checkpoints: []string{"no note"}}); !fault.Is(err, fault.InvalidParams) {
		t.Error(err)
	}
}

// A keeper signs nothing on top of rows that are not those it signed.
func TestKeeperRefusesAChangedRecord(t *testing.T) {
	b := box(t)
	r := newRecord(t, "", audit.Options{Box: b})
	r.many(4)
	r.checkpoint()
	r.end()
	r.exec(`UPDATE audit_events SET hash = prev_hash WHERE seq = 4`)
	again := startRecord(t, r.db, audit.Options{Box: b})
	again.write(event())
	if _, err := again.Checkpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "not those that were signed") {
		t.Errorf("%v", err)
	}
}

// Old rows go, the rest stays provable, and the gap is the signed one only.
func TestPrune(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		var mu sync.Mutex
		now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
		b := box(t)
		r := newRecord(t, url, audit.Options{Box: b, Now: clock})
		r.many(600)
		mu.Lock()
		now = now.Add(10 * 24 * time.Hour)
		mu.Unlock()
		r.many(100)
		p, err := r.Prune(t.Context(), now.Add(-9*24*time.Hour))
		if err != nil || p.Removed != 512 || p.FirstSeq != 513 {
			t.Fatalf("%+v %v", p, err)
		}
		if v := r.verify(); !v.Whole || v.Rows != 188 || v.FirstSeq != 513 || v.Signed != 700 {
			t.Errorf("%+v", v)
		}
		e, err := audit.Row(t.Context(), r.db, event().WorkspaceID, 600)
		if err != nil {
			t.Fatal(err)
		}
		if proof, err := audit.Prove(t.Context(), r.db, e); err != nil || proof.Check(r.keys()) != nil {
			t.Error(err)
		}
		if p, err := r.Prune(t.Context(), now.Add(-9*24*time.Hour)); err != nil || p.Removed != 0 {
			t.Errorf("again: %+v %v", p, err)
		}
		if _, err := r.Prune(t.Context(), now); !fault.Is(err, fault.InvalidParams) {
			t.Error(err)
		}
		r.end()
		again := startRecord(t, r.db, audit.Options{Box: b, Now: clock})
		again.many(100)
		again.checkpoint()
		again.end()
		if v := r.verify(); !v.Whole || v.Rows != 288 {
			t.Errorf("%+v", v)
		}
		for _, tamper := range []string{`DELETE FROM audit_events WHERE seq = 513`, `DELETE FROM setting WHERE name = 'audit_start'`} {
			r.exec(tamper)
			if v := r.verify(); v.Whole {
				t.Errorf("%s is not found", tamper)
			}
		}
	})
}

// With a retention old rows go by themselves, once, whoever of two replicas does it, and it stands in the record.
func TestRetention(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		var now atomic.Int64
		now.Store(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		o := audit.Options{Box: box(t), Now: func() time.Time { return time.UnixMicro(now.Load()) }, CheckpointEvery: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Keep: 9 * 24 * time.Hour}
		r := newRecord(t, url, o)
		r.exec(`INSERT INTO workspace (id, slug, name, created_at) VALUES ('first', 'first', 'first', 1), ('second', 'second', 'second', 2)`)
		if url != "" {
			defer startRecord(t, r.db, o).end() // another replica
		}
		r.many(600)
		now.Add((8 * 24 * time.Hour).Microseconds())
		r.many(100)
		r.checkpoint()
		if v := r.verify(); v.Rows != 700 {
			t.Fatalf("too early: %+v", v)
		}
		now.Add((2 * 24 * time.Hour).Microseconds())
		var rows []audit.Event
		for end := time.Now().Add(20 * time.Second); len(rows) < 2; {
			if time.Now().After(end) {
				t.Fatal("nothing was removed")
			}
			rows, _ = audit.List(t.Context(), r.db, audit.Filter{Method: "audit.prune"})
		}
		r.many(10) // while the keepers go on
		rows, err := audit.List(t.Context(), r.db, audit.Filter{Method: "audit.prune"})
		if err != nil || len(rows) != 2 || rows[0].Status != audit.OK || rows[1].Status != audit.Started || rows[0].WorkspaceID != "first" || rows[0].PersonID != "" ||
			!strings.HasSuffix(rows[0].Reason, "; 512 removed, the record begins at 513") {
			t.Errorf("%v %+v", err, rows)
		}
		if v := r.verify(); !v.Whole || v.FirstSeq != 513 || v.Rows != 200 {
			t.Errorf("%+v", v)
		}
	})
}

// anchorFunc is an anchor of the test.
type anchorFunc func(audit.Checkpoint) (string, error)

func (anchorFunc) Name() string { return "test" }
func (f anchorFunc) Anchor(_ context.Context, c audit.Checkpoint) (string, error) {
	return f(c)
}

// attested waits until the only stop has the status.
func attested(t *testing.T, d *db.DB, status string) audit.Attestation {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, err := audit.Attestations(t.Context(), d, event().WorkspaceID, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 && list[0].Status == status {
			return list[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, want %s", list, status)
		}
	}
}

func stop() *audit.Event {
	e := event()
	e.Kind = audit.Stop
	return e
}

func TestStopsAreAttested(t *testing.T) {
	eachDatabase(t, func(t *testing.T, url string) {
		b := box(t)
		r := newRecord(t, url, audit.Options{Box: b, CheckpointEvery: time.Hour})
		e := r.write(stop()) // a stop does not wait for the hour
		if a := attested(t, r.db, audit.LocalOnly); a.Seq != e.Seq || a.Hash != "sha256:"+e.Hash || a.TraceID != e.TraceID {
			t.Errorf("%+v", a)
		}
	})
}

func TestAnchorsAreTriedAgain(t *testing.T) {
	b := box(t)
	tries := 0
	r := newRecord(t, "", audit.WithRetry(audit.Options{Box: b, CheckpointEvery: time.Hour, Anchors: []audit.Anchor{anchorFunc(func(c audit.Checkpoint) (string, error) {
		if tries++; tries < 3 {
			return "", errors.New("not now")
		}
		return "place", nil
	})}}, time.Millisecond))
	r.write(stop())
	a := attested(t, r.db, audit.Anchored)
	if len(a.Anchors) != 1 || a.Anchors[0].Reference != "place" || a.Anchors[0].Attempts != 3 {
		t.Errorf("%+v", a)
	}
}

func TestAnchorGivenUpAndTakenAway(t *testing.T) {
	b := box(t)
	never := anchorFunc(func(audit.Checkpoint) (string, error) { return "", errors.New("never") })
	r := newRecord(t, "", audit.WithRetry(audit.Options{Box: b, CheckpointEvery: time.Hour, Anchors: []audit.Anchor{never}}, time.Hour))
	r.write(stop())
	if a := attested(t, r.db, audit.Pending); len(a.Anchors) != 1 {
		t.Errorf("%+v", a)
	}
	r.end()
	startRecord(t, r.db, audit.Options{Box: b})
	attested(t, r.db, audit.Skipped)

	r = newRecord(t, "", audit.WithRetry(audit.Options{Box: b, CheckpointEvery: time.Hour, Anchors: []audit.Anchor{never}}, time.Microsecond))
	r.write(stop())
	if a := attested(t, r.db, audit.Failed); !strings.Contains(a.Anchors[0].Error, "never") && a.Anchors[0].Error == "" {
		t.Errorf("%+v", a)
	}
}

func TestFileAndWebhookAnchors(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "anchor.jsonl"), []byte("a key of the test")
	var mu sync.Mutex
	var got []byte
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Doorward-Signature"), "t="), ",")
		at, _ := strconv.ParseInt(sent, 10, 64)
		want := webhook.Signature(key, time.Unix(at, 0), body)
		if !hmac.Equal([]byte(want), []byte(r.Header.Get("Doorward-Signature"))) || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		got = body
		mu.Unlock()
		io.WriteString(w, `{"reference":"block 7"}`)
	}))
	defer web.Close()
	defer http.DefaultClient.CloseIdleConnections()
	r := newRecord(t, "", audit.Options{Box: box(t), CheckpointEvery: time.Hour, Anchors: []audit.Anchor{
		audit.FileAnchor{Path: path}, audit.WebhookAnchor{Hook: webhook.Hook{URL: web.URL, Secret: key, Client: web.Client()}}}})
	r.write(stop())
	var a audit.Attestation
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		a = attested(t, r.db, audit.Anchored)
		if a.Anchors[0].Status == audit.Anchored && a.Anchors[1].Status == audit.Anchored {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", a)
		}
	}
	if a.Anchors[0].Reference != path+"#0" || a.Anchors[1].Reference != "block 7" {
		t.Errorf("%+v", a.Anchors)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, text := range [][]byte{file, got} {
		var c audit.Checkpoint
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if _, err := audit.OpenCheckpoint(c.Note, r.keys()); err != nil {
			t.Error(err)
		}
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	wrong := audit.WebhookAnchor{Hook: webhook.Hook{URL: web.URL, Secret: []byte("another"), Client: web.Client()}}
	if _, err := wrong.Anchor(t.Context(), r.checkpoint()); err == nil {
		t.Error("a refused checkpoint is anchored")
	}
}
