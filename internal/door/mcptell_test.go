package door_test

import (
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/mcp"
)

// asked makes a call of an older client that is held, and gives the stream, the question's id and params.
func (c *wire) asked(t *testing.T) (events <-chan string, id string, params []byte) {
	t.Helper()
	events, _ = c.stream(t.Context(), "POST", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":`+writeCall+`}`)
	q := []byte(next(t, events))
	if m, _ := mcp.String(mcp.Get(q, "method")); m != "elicitation/create" {
		t.Fatalf("question %s", q)
	}
	return events, string(mcp.Get(q, "id")), mcp.Get(q, "params")
}

func (c *wire) reply(id, action string) {
	c.t.Helper()
	if a := c.post(`{"jsonrpc":"2.0","id":` + id + `,"result":{"action":"` + action + `","content":{}}}`); a.status != 202 {
		c.t.Fatalf("answer: %d %s", a.status, a.body)
	}
}

// approvalOf reads the id out of the address that a person is sent to.
func approvalOf(params []byte) string {
	text, _ := mcp.String(mcp.Get(params, "message"))
	_, rest, _ := strings.Cut(text, "/api/v1/mcp/approvals/")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

// TestElicitationOfOlderClients: the person is told once while the call waits; an answer decides nothing, and the call runs
// when a person at Doorward approves.
func TestElicitationOfOlderClients(t *testing.T) {
	for _, tt := range []struct{ version, caps, mode string }{
		{mcp.V20250618, formCaps, ""},
		{mcp.V20250618, urlCaps, ""},
		{mcp.V20251125, formCaps, `"form"`},
		{mcp.V20251125, urlCaps, `"url"`},
	} {
		t.Run(tt.version+tt.caps, func(t *testing.T) {
			w, f := held(t)
			w.gate.HoldFor = time.Minute
			c := w.wire("/mcp/notes").open(tt.version, tt.caps)
			events, id, params := c.asked(t)
			ap := approvalOf(params)
			if ap == "" || string(mcp.Get(params, "mode")) != tt.mode {
				t.Fatalf("params %s", params)
			}
			c.reply(id, "accept")
			if n := f.count(); n != 0 || must(w.gate.Approval(w.ctx, w.owner.WorkspaceID, ap))(t).Status != "PENDING" {
				t.Fatalf("an answer decided; ran %d times", n)
			}
			w.decide(ap, true)
			if tt.mode == `"url"` {
				if url, _ := mcp.String(mcp.Get(params, "url")); url != "https://door.example/api/v1/mcp/approvals/"+ap || mcp.Get(params, "requestedSchema") != nil {
					t.Errorf("params %s", params)
				}
				want := `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"` + ap + `"}}`
				if got := next(t, events); got != want || string(mcp.Get(params, "elicitationId")) != `"`+ap+`"` {
					t.Errorf("got %s", got)
				}
			} else if string(mcp.Get(params, "requestedSchema")) != `{"type":"object","properties":{}}` {
				t.Errorf("params %s", params)
			}
			if got := next(t, events); !strings.Contains(got, `"text":"write"`) || f.count() != 1 {
				t.Errorf("result %s, ran %d times", got, f.count())
			}
		})
	}
}

// TestElicitationTurnedDown: whose person does not want to wait is answered at once, and the approval stays open.
func TestElicitationTurnedDown(t *testing.T) {
	for _, action := range []string{"decline", "cancel"} {
		w, f := held(t)
		w.gate.HoldFor = time.Minute
		c := w.wire("/mcp/notes").open(mcp.V20251125, formCaps)
		events, id, params := c.asked(t)
		c.reply(id, action)
		got := answer{body: next(t, events)}
		got.rpcCode(t, "-32004", "APPROVAL_REQUIRED")
		if ap := must(w.gate.Approval(w.ctx, w.owner.WorkspaceID, approvalOf(params)))(t); ap.Status != "PENDING" || f.count() != 0 {
			t.Errorf("status %s, ran %d times", ap.Status, f.count())
		}
	}
}

// TestElicitationUnanswered: the question is taken back when the call stops waiting, whoever decided or nobody; a client that
// cannot be asked is answered at once.
func TestElicitationUnanswered(t *testing.T) {
	w, f := held(t)
	w.gate.HoldFor = 30 * time.Millisecond
	c := w.wire("/mcp/notes").open(mcp.V20251125, urlCaps)
	events, id, _ := c.asked(t)
	if got := next(t, events); got != `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}` {
		t.Errorf("got %s", got)
	}
	answer{body: next(t, events)}.rpcCode(t, "-32004", "APPROVAL_REQUIRED")
	w.gate.HoldFor = time.Minute
	for _, c := range []*wire{
		w.wire("/mcp/notes").open(mcp.V20251125, `{}`),
		w.wire("/mcp/notes").open(mcp.V20250326, formCaps),
		w.wire("/mcp/notes").with("Accept", "application/json").open(mcp.V20251125, formCaps),
	} {
		c.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":`+writeCall+`}`).rpcCode(t, "-32004", "APPROVAL_REQUIRED")
	}
	if f.count() != 0 {
		t.Errorf("ran %d times", f.count())
	}
}
