package door_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

const (
	urlCaps  = `{"elicitation":{"form":{},"url":{}}}`
	formCaps = `{"elicitation":{}}`
)

// asking sends a call of 2026-07-28 by a client with capabilities.
func (c *wire) asking(caps, params string) answer {
	c.t.Helper()
	meta := mcp.Set([]byte(modernMetaText), mcp.MetaClientCapabilities, []byte(caps))
	p := mcp.Set([]byte(params), "_meta", meta)
	name, _ := mcp.String(mcp.Get(p, "name"))
	return c.with("Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", "tools/call", "Mcp-Name", name).
		post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + string(p) + `}`)
}

// question is what a held call answers a client that can tell its person.
type question struct {
	id, state string
	params    json.RawMessage
}

func (a answer) question(t testing.TB) question {
	t.Helper()
	r := mcp.Get([]byte(a.body), "result")
	if kind, _ := mcp.String(mcp.Get(r, "resultType")); a.status != 200 || kind != "input_required" {
		t.Fatalf("no question: %d %s", a.status, a.body)
	}
	if m, _ := mcp.String(mcp.GetPath(r, "inputRequests", "doorward_approval", "method")); m != "elicitation/create" {
		t.Fatalf("question %s", r)
	}
	var q question
	q.state, _ = mcp.String(mcp.Get(r, "requestState"))
	q.id, _ = mcp.String(mcp.GetPath(r, "_meta", "doorward.dev/approval", "approval_id"))
	q.params = mcp.GetPath(r, "inputRequests", "doorward_approval", "params")
	return q
}

// back is the call that comes back with a state and the client's answer.
func back(params, state, action string) string {
	p := mcp.Set([]byte(params), "requestState", mcp.Quote(state))
	return string(mcp.Set(p, "inputResponses", []byte(`{"doorward_approval":{"action":"`+action+`","content":{}}}`)))
}

// rpcCode checks an error answer and gives its data.
func (a answer) rpcCode(t testing.TB, code, reason string) json.RawMessage {
	t.Helper()
	e := mcp.Get([]byte(a.body), "error")
	got, _ := mcp.String(mcp.GetPath(e, "data", "reason"))
	if string(mcp.Get(e, "code")) != code || got != reason {
		t.Fatalf("want %s %s, got %d %s", code, reason, a.status, a.body)
	}
	return mcp.Get(e, "data")
}

// held is a world with one tool whose calls need a person.
func held(t *testing.T) (*world, *fake) {
	w, f := newWorld(t), &fake{defs: []json.RawMessage{def("write")}}
	w.gate.HoldFor = time.Millisecond
	s := w.addFake("notes", f)
	w.rule(s.ID, "write", "REQUIRE_APPROVAL")
	return w, f
}

func (w *world) decide(id string, yes bool) {
	w.t.Helper()
	must(w.gate.Decide(w.ctx, w.owner, id, yes, "because"))(w.t)
}

const writeCall = `{"name":"write","arguments":{"n":1}}`

// Case 9 by request state: the client is told where a person decides, and no answer of its own decides.
func TestInputRequired(t *testing.T) {
	w, f := held(t)
	c := w.wire("/mcp/notes")
	q := c.asking(urlCaps, writeCall).question(t)
	if url, _ := mcp.String(mcp.Get(q.params, "url")); url != "https://door.example/api/v1/mcp/approvals/"+q.id || string(mcp.Get(q.params, "mode")) != `"url"` {
		t.Errorf("params %s", q.params)
	}
	for range 2 {
		if again := c.asking(urlCaps, back(writeCall, q.state, "accept")).question(t); again.id != q.id || f.count() != 0 {
			t.Fatalf("approval %s, ran %d times", again.id, f.count())
		}
	}
	w.decide(q.id, true)
	reordered := `{"arguments":{ "n":1.0 },"name":"write"}`
	if a := c.asking(urlCaps, back(reordered, q.state, "accept")); a.status != 200 || !strings.Contains(a.body, `"text":"write"`) || f.count() != 1 {
		t.Fatalf("%d %s, ran %d times", a.status, a.body, f.count())
	}
	c.asking(urlCaps, back(writeCall, q.state, "accept")).rpcCode(t, "-32003", "APPROVAL_USED")
	if f.count() != 1 {
		t.Errorf("ran %d times", f.count())
	}
	if next := c.asking(urlCaps, writeCall).question(t); next.id == q.id {
		t.Error("a used approval is asked about again")
	}
}

func TestInputRequiredDenied(t *testing.T) {
	w, f := held(t)
	c := w.wire("/mcp/notes")
	q := c.asking(urlCaps, writeCall).question(t)
	w.decide(q.id, false)
	c.asking(urlCaps, back(writeCall, q.state, "accept")).rpcCode(t, "-32003", "APPROVAL_DENIED")
	if f.count() != 0 {
		t.Errorf("ran %d times", f.count())
	}
}

// TestRequestStateOfAnother: a state is worth nothing but to the caller and the call it was given to.
func TestRequestStateOfAnother(t *testing.T) {
	w, f := held(t)
	c := w.wire("/mcp/notes")
	other := c.with("Authorization", "Bearer "+w.key("other", "*"))
	q := c.asking(urlCaps, writeCall).question(t)
	w.decide(q.id, true)
	refuse := func(c *wire, params, state, reason string) {
		t.Helper()
		if a := c.asking(urlCaps, back(params, state, "accept")); a.status != 400 {
			t.Errorf("%d %s", a.status, a.body)
		} else {
			a.rpcCode(t, "-32602", reason)
		}
	}
	for i := len(gate.StatePrefix); i < len(q.state); i++ { // every character, the last too: a state has one spelling
		changed := []byte(q.state)
		if changed[i]++; changed[i] == 'z'+1 || changed[i] == '9'+1 || changed[i] == 'Z'+1 || changed[i] == '`' || changed[i] == '.' {
			changed[i] = 'a'
		}
		refuse(c, writeCall, string(changed), "REQUEST_STATE_INVALID")
	}
	refuse(c, writeCall, q.state[:len(q.state)-3], "REQUEST_STATE_INVALID")
	refuse(c, writeCall, gate.StatePrefix, "REQUEST_STATE_INVALID")
	refuse(c, writeCall, gate.StatePrefix+strings.Repeat("A", 1<<20), "REQUEST_STATE_INVALID")
	refuse(c, `{"name":"write","arguments":{"n":2}}`, q.state, "REQUEST_STATE_INVALID")
	refuse(other, writeCall, q.state, "REQUEST_STATE_INVALID")
	w.later.Store(int64(31 * time.Minute))
	refuse(c, writeCall, q.state, "REQUEST_STATE_EXPIRED")
	if f.count() != 0 {
		t.Errorf("ran %d times", f.count())
	}
}

// TestHeldByWhatTheClientCan: each client learns of a held call in the way that it declared.
func TestHeldByWhatTheClientCan(t *testing.T) {
	w, f := held(t)
	c := w.wire("/mcp/notes")
	data := c.asking(`{}`, writeCall).rpcCode(t, "-32004", "APPROVAL_REQUIRED")
	for _, key := range []string{"approval_id", "expires_at", "approval_url", "trace_id"} {
		if s, _ := mcp.String(mcp.Get(data, key)); s == "" {
			t.Errorf("%s is missing: %s", key, data)
		}
	}
	q := c.asking(formCaps, writeCall).question(t)
	if text, _ := mcp.String(mcp.Get(q.params, "message")); mcp.Get(q.params, "url") != nil || !strings.Contains(text, "https://door.example/") ||
		string(mcp.Get(q.params, "mode")) != `"form"` || string(mcp.Get(q.params, "requestedSchema")) != `{"type":"object","properties":{}}` {
		t.Errorf("form %s", q.params)
	}
	for _, action := range []string{"decline", "cancel"} { // not asked again, and not denied either
		c.asking(formCaps, back(writeCall, q.state, action)).rpcCode(t, "-32004", "APPROVAL_REQUIRED")
	}
	if ap := must(w.gate.Approval(w.ctx, w.owner.WorkspaceID, q.id))(t); ap.Status != "PENDING" || f.count() != 0 {
		t.Errorf("status %s, ran %d times", ap.Status, f.count())
	}
	// A server's own question goes on with the server's own state; ours must not take its place.
	c.asking(urlCaps, `{"name":"write","arguments":{"n":1},"requestState":"theirs","inputResponses":{}}`).rpcCode(t, "-32004", "APPROVAL_REQUIRED")
}

// TestOfficialClientComesBack: the official client tells its person and comes back by itself; the person decides at Doorward. The
// server behind asks a question of its own, which passes untouched and is another call that needs a person.
func TestOfficialClientComesBack(t *testing.T) {
	w := newWorld(t)
	ref := newReference(t, false)
	var states []string
	ref.server.AddTool(&sdk.Tool{Name: "nest", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		states = append(states, fmt.Sprint(r.Params.RequestState, len(r.Params.InputResponses)))
		if r.Params.RequestState == "" {
			return &sdk.CallToolResult{RequestState: "theirs", InputRequests: sdk.InputRequestMap{"who": &sdk.ElicitParams{Message: "who?"}}}, nil
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "nested"}}}, nil
	})
	s := w.add("ref", upstream.Config{Transport: "http", URL: ref.url})
	w.rule(s.ID, "nest", "REQUIRE_APPROVAL")
	asked := 0
	c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}}},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			if asked++; r.Params.URL != "" {
				w.decide(r.Params.URL[strings.LastIndex(r.Params.URL, "/")+1:], true)
				if asked > 1 {
					t.Error("a person was asked twice for one call")
				}
			} else { // the server's own question; what it answers needs a person, who has said yes meanwhile
				a := w.wire("/mcp/ref").asking(urlCaps, `{"name":"nest","arguments":{}}`)
				w.decide(a.question(t).id, true)
			}
			return &sdk.ElicitResult{Action: "accept"}, nil
		},
	})
	session, err := c.Connect(w.ctx, &sdk.StreamableClientTransport{
		Endpoint: w.url + "/mcp/ref", HTTPClient: &http.Client{Transport: keyed{w.agentKey}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: mcp.V20260728})
	ok(t, err)
	defer session.Close()
	res, err := session.CallTool(w.ctx, &sdk.CallToolParams{Name: "nest", Arguments: map[string]any{}})
	ok(t, err)
	if got := text(t, res); got != "nested" || asked != 2 || fmt.Sprint(states) != "[0 theirs1]" {
		t.Errorf("%s, asked %d times, the server saw %q", got, asked, states)
	}
}
