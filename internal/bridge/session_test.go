package bridge_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	c.t = c.t.Add(d)
	c.mu.Unlock()
}

var alice = bridge.Owner{WorkspaceID: "w", KeyID: "k", AgentID: "a", ServerID: "s"}

func newSessions(t testing.TB, key string, c *clock) *bridge.Sessions {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return bridge.NewSessions(ctx, []byte(key), c.now)
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)} }

func TestSessionOutlivesTheProcess(t *testing.T) {
	c := newClock()
	caps := json.RawMessage(`{ "elicitation": {"form": {}}, "x": 1 }`)
	n := newSessions(t, "key", c).New(alice, mcp.V20250618, caps)
	again, err := newSessions(t, "key", c).Find(n.ID, alice) // another process, same key
	if err != nil {
		t.Fatal(err)
	}
	if again.Version != mcp.V20250618 || string(again.Capabilities) != `{"elicitation":{"form":{}},"x":1}` {
		t.Errorf("got %s %s", again.Version, again.Capabilities)
	}
}

func TestSessionIsNotFound(t *testing.T) {
	c := newClock()
	s := newSessions(t, "key", c)
	n := s.New(alice, mcp.V20251125, nil)
	flipped := []byte(n.ID)
	flipped[len(flipped)/2] ^= 1
	bob := alice
	bob.KeyID = "other"
	elsewhere := alice
	elsewhere.ServerID = ""
	for name, tc := range map[string]struct {
		id string
		o  bridge.Owner
	}{
		"empty":           {"", alice},
		"not ours":        {"1868a90c-0000-4000-8000-000000000000", alice},
		"one bit flipped": {string(flipped), alice},
		"with padding":    {n.ID + "=", alice},
		"cut":             {n.ID[:len(n.ID)-4], alice},
		"another key":     {n.ID, bob},
		"another door":    {n.ID, elsewhere},
		"huge":            {strings.Repeat("A", 1<<20), alice},
	} {
		for _, table := range []*bridge.Sessions{s, newSessions(t, "key", c)} { // warm and cold
			if _, err := table.Find(tc.id, tc.o); !fault.Is(err, fault.SessionNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := newSessions(t, "another secret", c).Find(n.ID, alice); !fault.Is(err, fault.SessionNotFound) {
		t.Errorf("signed with another secret: %v", err)
	}
}

// An id has one spelling: an ended session must not come back under another.
func TestEndedSessionHasNoOtherSpelling(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSessions(t, "key", newClock())
		caps := `{"roots":{"n":"` + strings.Repeat("x", rapid.IntRange(0, 3).Draw(rt, "n")) + `"}}`
		n := s.New(alice, mcp.V20251125, json.RawMessage(caps))
		s.End(n)
		last := n.ID[len(n.ID)-1]
		for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") {
			id := n.ID[:len(n.ID)-1] + string(c)
			if _, err := s.Find(id, alice); err == nil {
				rt.Fatalf("id ended in %q is accepted ended in %q", last, c)
			}
		}
	})
}

func TestSessionGetsTooOld(t *testing.T) {
	c := newClock()
	s := newSessions(t, "key", c)
	n := s.New(alice, mcp.V20251125, nil)
	c.add(bridge.MaxAge - time.Minute)
	s.Sweep()
	if _, err := s.Find(n.ID, alice); err != nil {
		t.Fatalf("evicted for idleness, but not ended: %v", err)
	}
	c.add(bridge.IdleAfter + 2*time.Minute)
	s.Sweep()
	if _, err := s.Find(n.ID, alice); !fault.Is(err, fault.SessionNotFound) {
		t.Errorf("older than MaxAge: %v", err)
	}
}

func TestSweepKeepsWhatIsInUse(t *testing.T) {
	c := newClock()
	s := newSessions(t, "key", c)
	busy, streaming, idle := s.New(alice, mcp.V20251125, nil), s.New(alice, mcp.V20251125, nil), s.New(alice, mcp.V20251125, nil)
	_, call := busy.Begin(json.RawMessage("1"))
	st := bridge.NewStream()
	streaming.Attach(st)
	c.add(bridge.IdleAfter + time.Minute)
	if out := s.Sweep(); len(out) != 1 || out[0] != idle {
		t.Fatalf("swept %d sessions", len(out))
	}
	busy.Done(call)
	streaming.Detach(st)
	if out := s.Sweep(); len(out) != 2 || s.Count() != 0 {
		t.Errorf("swept %d, %d left", len(out), s.Count())
	}
}

func TestCancelByRawID(t *testing.T) {
	s := newSessions(t, "key", newClock())
	n, other := s.New(alice, mcp.V20251125, nil), s.New(alice, mcp.V20251125, nil)
	one, c1 := n.Begin(json.RawMessage(`1`))
	two, c2 := n.Begin(json.RawMessage(`1`)) // some clients give every call the same id
	text, c3 := n.Begin(json.RawMessage(`"1"`))
	foreign, c4 := other.Begin(json.RawMessage(`1`))
	if got := n.Cancel(json.RawMessage(`1`)); got != 2 {
		t.Errorf("cancelled %d calls", got)
	}
	if one.Err() == nil || two.Err() == nil || text.Err() != nil || foreign.Err() != nil {
		t.Error("the wrong calls were cancelled")
	}
	n.Done(c1)
	n.Done(c2)
	n.Done(c3)
	other.Done(c4)
	last, c5 := n.Begin(json.RawMessage(`2`))
	s.End(n)
	if last.Err() == nil {
		t.Error("the end of a session must cancel its calls")
	}
	n.Done(c5)
}

func TestAsk(t *testing.T) {
	s := newSessions(t, "key", newClock())
	n := s.New(alice, mcp.V20251125, json.RawMessage(`{"elicitation":{}}`))
	other := s.New(alice, mcp.V20251125, json.RawMessage(`{"elicitation":{}}`))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	t.Run("answered", func(t *testing.T) {
		result, rpcErr, err := n.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"?"}`), func(msg []byte) error {
			q, err := mcp.Parse(msg, mcp.Limits{})
			if err != nil || q.Method != "elicitation/create" || string(q.Params) != `{"message":"?"}` {
				t.Errorf("question %s: %v", msg, err)
			}
			if other.Answer(&mcp.Message{ID: q.ID, Result: json.RawMessage(`{"stolen":1}`)}) {
				t.Error("another session could answer")
			}
			if !n.Answer(&mcp.Message{ID: q.ID, Result: json.RawMessage(`{"action":"accept"}`)}) {
				t.Error("the answer found no question")
			}
			if n.Answer(&mcp.Message{ID: q.ID, Result: json.RawMessage(`{}`)}) {
				t.Error("answered twice")
			}
			return nil
		})
		if string(result) != `{"action":"accept"}` || rpcErr != nil || err != nil {
			t.Errorf("%s %s %v", result, rpcErr, err)
		}
	})
	t.Run("undeclared capability", func(t *testing.T) {
		_, rpcErr, err := n.Ask(ctx, "sampling/createMessage", nil, func([]byte) error {
			t.Error("asked all the same")
			return nil
		})
		if err != nil || mcp.ParseRPCError(rpcErr).Code != -32601 {
			t.Errorf("%s %v", rpcErr, err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		var sent []string
		_, _, err := n.Ask(ctx, "elicitation/create", nil, func(msg []byte) error {
			m, _ := mcp.Parse(msg, mcp.Limits{})
			sent = append(sent, m.Method)
			cancel()
			return nil
		})
		if !fault.Is(err, fault.Cancelled) || strings.Join(sent, " ") != "elicitation/create notifications/cancelled" {
			t.Errorf("%v %v", err, sent)
		}
	})
}

func TestNewestStreamWins(t *testing.T) {
	s := newSessions(t, "key", newClock())
	n := s.New(alice, mcp.V20251125, nil)
	if n.Push([]byte("a")) {
		t.Error("pushed without a stream")
	}
	first, second := bridge.NewStream(), bridge.NewStream()
	n.Attach(first)
	n.Attach(second)
	select {
	case <-first.Done():
	default:
		t.Error("the older stream is still open")
	}
	n.Detach(first)
	if !n.Push([]byte("b")) || string(<-second.Messages()) != "b" {
		t.Error("the message must go to the newest stream")
	}
	for i := 0; n.Push([]byte("c")); i++ { // a reader that does not read
		if i > 10000 {
			t.Fatal("the queue has no end")
		}
	}
	select {
	case <-second.Done():
	default:
		t.Error("a stream that lost a message must end")
	}
}

func TestLargeCapabilitiesAreCutDown(t *testing.T) {
	s := newSessions(t, "key", newClock())
	n := s.New(alice, mcp.V20251125, json.RawMessage(`{"experimental":{"x":"`+strings.Repeat("y", 4000)+`"},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}`))
	if got := string(n.Capabilities); got != `{"roots":{"listChanged":true},"elicitation":{"form":{},"url":{}}}` {
		t.Errorf("got %s", got)
	}
	if len(n.ID) > 2000 {
		t.Errorf("id of %d bytes", len(n.ID))
	}
}

// FuzzFind: only an id that was issued is accepted, and no neighbour of it. Ids are made from what the
// fuzzer gives, so that they are the same in all of its processes.
func FuzzFind(f *testing.F) {
	c := newClock()
	f.Add("", uint16(0), byte(0))
	f.Add("AQNrDBPA", uint16(3), byte(1))
	f.Add(base64.RawURLEncoding.EncodeToString(make([]byte, 66)), uint16(9), byte(255))
	f.Fuzz(func(t *testing.T, id string, at uint16, flip byte) {
		s := newSessions(t, "key", c)
		if _, err := s.Find(id, alice); err == nil {
			t.Fatalf("%q was never issued", id)
		}
		issued := []byte(s.New(alice, mcp.V20251125, nil).ID)
		if _, err := newSessions(t, "key", c).Find(string(issued), alice); err != nil {
			t.Fatal(err)
		}
		issued[int(at)%len(issued)] ^= flip
		if _, err := newSessions(t, "key", c).Find(string(issued), alice); (err == nil) != (flip == 0) {
			t.Fatalf("byte %d changed by %#x: %v", int(at)%len(issued), flip, err)
		}
	})
}

func BenchmarkFind(b *testing.B) {
	s := newSessions(b, "key", newClock())
	n := s.New(alice, mcp.V20251125, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Find(n.ID, alice); err != nil {
			b.Fatal(err)
		}
	}
}
