package gate_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

const confirmSecret = "a confirmation secret of 40 bytes at least"

// confirming is a world where write_note needs confirmation and a rule allows it.
func confirming(t *testing.T, secrets ...string) *world {
	w := newWorld(t)
	if len(secrets) > 0 {
		w.secrets = secrets
		w.replica = w.second().replica
	}
	w.rule("write_note", "ALLOW")
	yes := true
	w.setTool("write_note", catalog.ToolSettings{Confirm: &yes})
	return w
}

// ask takes the first step and gives the token.
func (w *world) ask(c *auth.Caller, args string) string {
	w.t.Helper()
	r, f := w.call(c, "write_note", args)
	if f != nil {
		w.t.Fatalf("first step: %v", f)
	}
	if row := w.row(r.TraceID); row.Status != "confirmation_required" || row.Stage != "confirm" {
		w.t.Errorf("the first step is recorded as %s at %s", row.Status, row.Stage)
	}
	var out struct {
		Required bool      `json:"confirmation_required"`
		Summary  any       `json:"changes_summary"`
		Token    string    `json:"confirmation_token"`
		Expires  time.Time `json:"expires_at"`
	}
	ok(w.t, json.Unmarshal(mcp.Get(r.Raw, "structuredContent"), &out))
	if !out.Required || out.Token == "" || out.Summary == nil || out.Expires.Sub(w.now()) > 5*time.Minute || out.Expires.Sub(w.now()) < 4*time.Minute {
		w.t.Errorf("first step gave %s", r.Raw)
	}
	return out.Token
}

func withControl(args, token, key string) string {
	out := json.RawMessage(args)
	if token != "" {
		out = mcp.Set(out, "confirmation_token", mcp.Quote(token))
	}
	if key != "" {
		out = mcp.Set(out, "idempotency_key", mcp.Quote(key))
	}
	return string(out)
}

// The whole way: the first step runs nothing, the second runs with the arguments alone, its repetition gives the stored result.
func TestConfirmation(t *testing.T) {
	w := confirming(t)
	args := `{"text":"x","n":1}`
	token := w.ask(w.agent, args)
	if w.fake.count("write_note") != 0 {
		t.Fatal("the first step ran the tool")
	}
	r, f := w.call(w.agent, "write_note", withControl(`{"n":1,"text":"x"}`, token, "k1")) // another order is the same call
	if f != nil || w.fake.count("write_note") != 1 {
		t.Fatalf("second step: %v, %d runs", f, w.fake.count("write_note"))
	}
	if got := w.fake.args[len(w.fake.args)-1]; got != `{"n":1,"text":"x"}` {
		t.Errorf("the tool got %s", got)
	}
	for _, row := range w.rows(r.TraceID) {
		if strings.Contains(string(row.Arguments), token) {
			t.Error("the record holds the token")
		}
	}
	again, f := w.call(w.agent, "write_note", withControl(args, token, "k1"))
	if f != nil || w.fake.count("write_note") != 1 {
		t.Fatalf("repetition: %v, %d runs", f, w.fake.count("write_note"))
	}
	if string(mcp.GetPath(again.Raw, "_meta", "idempotent_replay")) != "true" || string(mcp.Get(again.Raw, "content")) != string(mcp.Get(r.Raw, "content")) {
		t.Errorf("repetition gave %s, first %s", again.Raw, r.Raw)
	}
	if row := w.row(again.TraceID); row.Stage != "idempotency" || !strings.Contains(row.Reason, r.TraceID) {
		t.Errorf("repetition is recorded as %+v", row)
	}
}

// What clients that keep to the tool's schema cannot put into the arguments they put into _meta; it does not go on.
func TestConfirmationInMeta(t *testing.T) {
	w := confirming(t)
	token := w.ask(w.agent, `{"text":"x"}`)
	c := newCall(w.agent, "write_note", `{"text":"x"}`)
	c.Params = mcp.Set(c.Params, "_meta", []byte(withControl(`{}`, token, "k")))
	if _, f := w.do(w.ctx, c); f != nil || w.fake.count("write_note") != 1 {
		t.Fatalf("%v", f)
	}
}

// SC-83 to SC-86 and every way to get them wrong; nothing of it runs the tool.
func TestConfirmationRefuses(t *testing.T) {
	args := `{"text":"x"}`
	for _, c := range []struct {
		name, reason string
		class        fault.Class
		do           func(w *world, token string) (gate.Result, *fault.Error)
	}{
		{"no key", "idempotency_key_required", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			return w.call(w.agent, "write_note", withControl(args, token, ""))
		}},
		{"other arguments", "confirmation_token_mismatch", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			return w.call(w.agent, "write_note", withControl(`{"text":"y"}`, token, "k"))
		}},
		{"another caller", "confirmation_token_mismatch", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			return w.call(w.newAgent("other", "*"), "write_note", withControl(args, token, "k"))
		}},
		{"another task", "confirmation_token_mismatch", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			task, _ := w.newTask(w.agent.AgentID)
			return w.call(task, "write_note", withControl(args, token, "k"))
		}},
		{"too late", "confirmation_token_expired", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			w.clock.Add((5 * time.Minute).Microseconds())
			return w.call(w.agent, "write_note", withControl(args, token, "k"))
		}},
		{"forged", "confirmation_token_invalid", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			body, sum, _ := strings.Cut(token, ".")
			raw, _ := base64.RawURLEncoding.DecodeString(body)
			later := strings.Replace(string(raw), `"exp":1`, `"exp":2`, 1)
			return w.call(w.agent, "write_note", withControl(args, base64.RawURLEncoding.EncodeToString([]byte(later))+"."+sum, "k"))
		}},
		{"no token at all", "confirmation_token_invalid", fault.InvalidParams, func(w *world, _ string) (gate.Result, *fault.Error) {
			return w.call(w.agent, "write_note", withControl(args, "yes", "k"))
		}},
		{"not a text", "confirmation_invalid", fault.InvalidParams, func(w *world, _ string) (gate.Result, *fault.Error) {
			return w.call(w.agent, "write_note", `{"text":"x","confirmation_token":true}`)
		}},
		{"a key too long", "idempotency_key_invalid", fault.InvalidParams, func(w *world, token string) (gate.Result, *fault.Error) {
			return w.call(w.agent, "write_note", withControl(args, token, strings.Repeat("k", 256)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := confirming(t)
			token := w.ask(w.agent, args)
			r, f := c.do(w, token)
			w.refused(r, f, c.class, c.reason, "confirm", c.reason)
			if w.fake.count("write_note") != 0 {
				t.Error("the tool ran")
			}
		})
	}
}

// SC-86: without a secret of 32 bytes both steps fail closed.
func TestNoConfirmationSecret(t *testing.T) {
	for _, secret := range []string{"", "of thirty-one bytes, no more ..."[:31]} {
		w := confirming(t, secret)
		r, f := w.call(w.agent, "write_note", `{"text":"x"}`)
		w.refused(r, f, fault.Unavailable, "confirmation_unavailable", "confirm", "confirmation_unavailable")
		r, f = w.call(w.agent, "write_note", withControl(`{"text":"x"}`, "t", "k"))
		w.refused(r, f, fault.Unavailable, "confirmation_unavailable", "confirm", "confirmation_unavailable")
	}
}

// A new secret signs; tokens of the one before are accepted until it is taken away.
func TestConfirmationSecretRotates(t *testing.T) {
	w := confirming(t)
	old := w.ask(w.agent, `{"text":"x"}`)
	next := "another confirmation secret, long enough"
	w.secrets = []string{next, confirmSecret}
	w.replica = w.second().replica
	fresh := w.ask(w.agent, `{"text":"x"}`)
	if _, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, old, "k1")); f != nil {
		t.Errorf("a token of the secret before: %v", f)
	}
	w.secrets = []string{next}
	w.replica = w.second().replica
	if _, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, fresh, "k2")); f != nil {
		t.Errorf("a token of the new secret: %v", f)
	}
	if _, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, old, "k3")); f == nil || f.Reason != "confirmation_token_invalid" {
		t.Errorf("a token of a secret that is gone: %v", f)
	}
}

// One key is one run, whoever comes first and however many come at once.
func TestIdempotencyKeys(t *testing.T) {
	w := confirming(t)
	token, other := w.ask(w.agent, `{"text":"x"}`), w.ask(w.agent, `{"text":"y"}`)
	started, finish := make(chan struct{}), make(chan struct{})
	w.fake.behave(func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		close(started)
		<-finish
		return json.RawMessage(`{"content":[],"structuredContent":{"id":7}}`), nil
	})
	var first sync.WaitGroup
	first.Go(func() {
		if _, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k")); f != nil {
			t.Errorf("first: %v", f)
		}
	})
	<-started
	r, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k"))
	w.refused(r, f, fault.Conflict, "idempotency_in_progress", "idempotency", "idempotency_in_progress")
	close(finish)
	first.Wait()
	r, f = w.call(w.agent, "write_note", withControl(`{"text":"y"}`, other, "k"))
	w.refused(r, f, fault.Conflict, "idempotency_key_conflict", "idempotency", "idempotency_key_conflict")
	w.clock.Add(time.Hour.Microseconds()) // the token is over, the result is not
	again, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k"))
	if f != nil || string(mcp.GetPath(again.Raw, "structuredContent", "idempotent_replay")) != "true" || string(mcp.GetPath(again.Raw, "structuredContent", "id")) != "7" {
		t.Errorf("%v %s", f, again.Raw)
	}
	if n := w.fake.count("write_note"); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// The key of a call that did not run can be used again; the error of a server is stored like a result.
func TestKeyOfACallThatDidNotRun(t *testing.T) {
	w := confirming(t)
	w.rule("write_note", "REQUIRE_APPROVAL")
	token := w.ask(w.agent, `{"text":"x"}`)
	_, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k"))
	if f == nil || f.Class != fault.Held {
		t.Fatalf("got %v", f)
	}
	// The person needs longer than a token holds; the next token finds the same approval.
	w.clock.Add((6 * time.Minute).Microseconds())
	w.decide(f.Data["approval_id"].(string), true)
	token = w.ask(w.agent, `{"text":"x"}`)
	w.fake.behave(func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		return nil, &mcp.RPCError{Code: 7, Message: "no", Raw: json.RawMessage(`{"code":7,"message":"no"}`)}
	})
	for range 2 {
		_, err := w.gate.Call(w.ctx, newCall(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k")))
		var rpc *mcp.RPCError
		if !errors.As(err, &rpc) || rpc.Code != 7 {
			t.Errorf("got %v", err)
		}
	}
	if n := w.fake.count("write_note"); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A process that died while it had the key: what had not begun is taken over, what may have run is never run again.
func TestKeysLeftBehind(t *testing.T) {
	for _, c := range []struct {
		status, reason string
		age            time.Duration
		runs           int
	}{
		{"claimed", "idempotency_in_progress", time.Minute, 0},
		{"claimed", "", 4 * time.Minute, 1},
		{"running", "idempotency_in_progress", 4 * time.Minute, 0},
		{"running", "idempotency_outcome_unknown", time.Hour, 0},
	} {
		t.Run(fmt.Sprint(c.status, c.age), func(t *testing.T) {
			w := confirming(t)
			token := w.ask(w.agent, `{"text":"x"}`)
			if _, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, token, "k")); f != nil {
				t.Fatal(f)
			}
			w.exec(`UPDATE mcp_idempotency_keys SET status = $1, result = '', trace_id = 'trc_dead'`, c.status)
			w.clock.Add(c.age.Microseconds())
			before := w.fake.count("write_note")
			_, f := w.call(w.agent, "write_note", withControl(`{"text":"x"}`, w.ask(w.agent, `{"text":"x"}`), "k"))
			if w.fake.count("write_note")-before != c.runs || (f == nil) != (c.reason == "") || f != nil && f.Reason != c.reason {
				t.Errorf("%v, %d runs", f, w.fake.count("write_note")-before)
			}
		})
	}
}

// SC-87: keys go 24 hours after their task ended, and not before.
func TestKeysAreForgotten(t *testing.T) {
	w := confirming(t)
	task, info := w.newTask(w.agent.AgentID)
	use := func(c *auth.Caller, key string) {
		if _, f := w.call(c, "write_note", withControl(`{"text":"x"}`, w.ask(c, `{"text":"x"}`), key)); f != nil {
			t.Fatal(f)
		}
	}
	use(task, "k")
	use(w.agent, "k")
	left := func() (n int) {
		ok(t, w.gate.ForgetKeys(w.ctx))
		ok(t, w.db.Read.QueryRowContext(w.ctx, `SELECT count(*) FROM mcp_idempotency_keys`).Scan(&n))
		return n
	}
	w.clock.Add((50 * time.Minute).Microseconds())
	must[auth.Task](t)(w.auth.FinishTask(w.ctx, w.owner.WorkspaceID, info.ID))
	w.clock.Add((23*time.Hour + 30*time.Minute).Microseconds())
	if n := left(); n != 1 { // the one without a task was made 24 h and 20 min ago
		t.Errorf("%d keys, want that of the task", n)
	}
	w.clock.Add(time.Hour.Microseconds())
	if n := left(); n != 0 {
		t.Errorf("%d keys", n)
	}
}
