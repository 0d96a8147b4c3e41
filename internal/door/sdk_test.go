package door_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// reference is a server on the official SDK: the oracle of what a server sends.
type reference struct {
	server *sdk.Server
	url    string
	http   *httptest.Server
}

// newReference starts one of the older era (sessions) or of 2026-07-28.
func newReference(t testing.TB, legacy bool) *reference {
	t.Helper()
	nothing := func(context.Context, *sdk.SubscribeRequest) error { return nil }
	s := sdk.NewServer(&sdk.Implementation{Name: "reference", Version: "9"}, &sdk.ServerOptions{
		Instructions:       "Be kind.",
		SubscribeHandler:   nothing,
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "!"}}}, nil
		},
	})
	readOnly := &sdk.ToolAnnotations{ReadOnlyHint: true}
	sdk.AddTool(s, &sdk.Tool{Name: "chatty", Annotations: readOnly}, chatty)
	sdk.AddTool(s, &sdk.Tool{Name: "ask", Annotations: readOnly}, ask)
	sdk.AddTool(s, &sdk.Tool{Name: "fails", Annotations: readOnly}, func(context.Context, *sdk.CallToolRequest, any) (*sdk.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("it broke")
	})
	s.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "who"}}}, func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "hello " + r.Params.Arguments["who"]}}}}, nil
	})
	read := func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Text: "text of " + r.Params.URI}}}, nil
	}
	s.AddResource(&sdk.Resource{Name: "one", URI: "test://one"}, read)
	s.AddResourceTemplate(&sdk.ResourceTemplate{Name: "tpl", URITemplate: "test://item/{id}/data"}, read)
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: !legacy}))
	t.Cleanup(func() {
		for session := range s.Sessions() { // it ends before those who would end them
			session.Close()
		}
		h.CloseClientConnections()
		h.Close()
	})
	return &reference{s, h.URL, h}
}

// chatty reports progress and logs before it answers.
func chatty(ctx context.Context, r *sdk.CallToolRequest, _ any) (*sdk.CallToolResult, any, error) {
	if token := r.Params.GetProgressToken(); token != nil {
		for i := range 3 {
			r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(i), Total: 3})
		}
	}
	r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "warning", Data: "loud"}) //nolint:staticcheck // still spoken
	r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "debug", Data: "quiet"})  //nolint:staticcheck // still spoken
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil, nil
}

// ask asks the client while the call runs.
func ask(ctx context.Context, r *sdk.CallToolRequest, _ any) (*sdk.CallToolResult, any, error) {
	res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
	if err != nil {
		return nil, nil, err
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(res.Action, " ", res.Content["name"])}}}, nil, nil
}

// heard collects what a client is told.
type heard struct {
	mu   sync.Mutex
	list []string
}

func (h *heard) add(s string) {
	h.mu.Lock()
	h.list = append(h.list, s)
	h.mu.Unlock()
}

func (h *heard) has(s string) bool { return h.count(s) > 0 }

func (h *heard) count(s string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, have := range h.list {
		if have == s {
			n++
		}
	}
	return n
}

// client connects the official client through the door.
func (w *world) client(path, version string, h *heard) *sdk.ClientSession {
	w.t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, &sdk.ClientOptions{
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			h.add(fmt.Sprintf("progress %v %v", r.Params.ProgressToken, r.Params.Progress))
		},
		LoggingMessageHandler:      func(_ context.Context, r *sdk.LoggingMessageRequest) { h.add(fmt.Sprint("log ", r.Params.Data)) },
		ToolListChangedHandler:     func(context.Context, *sdk.ToolListChangedRequest) { h.add("tools") },
		PromptListChangedHandler:   func(context.Context, *sdk.PromptListChangedRequest) { h.add("prompts") },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { h.add("resources") },
		ResourceUpdatedHandler:     func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { h.add("updated " + r.Params.URI) },
	})
	s, err := c.Connect(w.ctx, &sdk.StreamableClientTransport{
		Endpoint: w.url + path, HTTPClient: &http.Client{Transport: keyed{w.agentKey}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	ok(w.t, err)
	w.t.Cleanup(func() { s.Close() })
	return s
}

type keyed struct{ key string }

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return http.DefaultTransport.RoundTrip(r)
}

func text(t testing.TB, r *sdk.CallToolResult) string {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("content %v", r.Content)
	}
	return r.Content[0].(*sdk.TextContent).Text
}

// TestOfficialClients runs the official client of either era against the official server of the same era, through either kind of door.
func TestOfficialClients(t *testing.T) {
	for _, version := range []string{mcp.V20251125, mcp.V20250618, mcp.V20260728} {
		legacy := version != mcp.V20260728
		for _, path := range []string{"/mcp/ref", "/mcp"} {
			t.Run(version+path, func(t *testing.T) {
				w := newWorld(t)
				ref := newReference(t, legacy)
				w.add("ref", upstream.Config{Transport: "http", URL: ref.url})
				w.addFake("other", &fake{defs: []json.RawMessage{def("read")}})
				var h heard
				exercise(t, w, ref, w.client(path, version, &h), &h, path == "/mcp", legacy)
			})
		}
	}
}

func exercise(t *testing.T, w *world, ref *reference, s *sdk.ClientSession, h *heard, aggregate, legacy bool) {
	ctx := t.Context()
	prefix := ""
	if aggregate {
		prefix = "ref__"
	} else if s.InitializeResult().Instructions != "Be kind." || s.InitializeResult().ServerInfo.Name != "reference" {
		t.Errorf("initialize: %+v", s.InitializeResult())
	}
	tools := must(s.ListTools(ctx, nil))(t)
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	if !slices.Contains(names, prefix+"chatty") || slices.Contains(names, "other__read") != aggregate {
		t.Errorf("tools %v", names)
	}

	if legacy {
		ok(t, s.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: "info"})) //nolint:staticcheck // still spoken
	}
	params := &sdk.CallToolParams{Name: prefix + "chatty"}
	params.SetProgressToken("tok")
	if got := text(t, must(s.CallTool(ctx, params))(t)); got != "done" {
		t.Errorf("chatty: %s", got)
	}
	w.eventually("progress", func() bool { return h.has("progress tok 0") && h.has("progress tok 1") && h.has("progress tok 2") })
	if legacy {
		w.eventually("the log message", func() bool { return h.has("log loud") })
	}
	if h.has("log quiet") || !legacy && h.has("log loud") {
		t.Errorf("log messages that were not asked for: %v", h.list)
	}
	if legacy {
		if got := text(t, must(s.CallTool(ctx, &sdk.CallToolParams{Name: prefix + "ask"}))(t)); got != "accept Ada" {
			t.Errorf("ask: %s", got)
		}
	}
	if r := must(s.CallTool(ctx, &sdk.CallToolParams{Name: prefix + "fails"}))(t); !r.IsError {
		t.Errorf("fails: %+v", r)
	}
	if _, err := s.CallTool(ctx, &sdk.CallToolParams{Name: prefix + "nothing"}); err == nil || !strings.Contains(err.Error(), "Unknown tool") {
		t.Errorf("unknown tool: %v", err)
	}

	prompts := must(s.ListPrompts(ctx, nil))(t)
	if len(prompts.Prompts) != 1 || prompts.Prompts[0].Name != prefix+"greet" {
		t.Errorf("prompts %+v", prompts)
	}
	prompt := must(s.GetPrompt(ctx, &sdk.GetPromptParams{Name: prefix + "greet", Arguments: map[string]string{"who": "you"}}))(t)
	if prompt.Messages[0].Content.(*sdk.TextContent).Text != "hello you" {
		t.Errorf("prompt %+v", prompt)
	}
	done := must(s.Complete(ctx, &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/prompt", Name: prefix + "greet"}, Argument: sdk.CompleteParamsArgument{Name: "who", Value: "y"}}))(t)
	if done.Completion.Values[0] != "y!" {
		t.Errorf("completion %+v", done)
	}
	if r := must(s.ListResources(ctx, nil))(t); len(r.Resources) != 1 || r.Resources[0].URI != "test://one" {
		t.Errorf("resources %+v", r)
	}
	if r := must(s.ListResourceTemplates(ctx, nil))(t); len(r.ResourceTemplates) != 1 {
		t.Errorf("templates %+v", r)
	}
	for _, uri := range []string{"test://one", "test://item/7/data"} {
		if r := must(s.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri}))(t); r.Contents[0].Text != "text of "+uri {
			t.Errorf("read %+v", r)
		}
	}
	if _, err := s.ReadResource(ctx, &sdk.ReadResourceParams{URI: "test://none"}); err == nil {
		t.Error("a resource that does not exist was read")
	}

	ok(t, s.Subscribe(ctx, &sdk.SubscribeParams{URI: "test://one"}))
	w.eventually("resources/updated", func() bool {
		ref.server.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: "test://one"})
		return h.has("updated test://one")
	})
	ref.server.AddPrompt(&sdk.Prompt{Name: "more"}, nil)
	w.eventually("prompts/list_changed", func() bool { return h.has("prompts") })
	ref.server.RemoveTools("fails")
	w.eventually("tools/list_changed", func() bool { return h.has("tools") })
}

// TestUndeclaredCapability: a client that cannot be asked is not asked, and the call says so.
func TestUndeclaredCapability(t *testing.T) {
	w := newWorld(t)
	w.add("ref", upstream.Config{Transport: "http", URL: newReference(t, true).url})
	c := w.wire("/mcp/ref").open(mcp.V20251125, `{}`)
	a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`)
	if strings.Contains(a.body, "elicitation/create") || !strings.Contains(a.body, "elicitation") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestQuestionByHand looks at the bytes of a question on the stream of the call that caused it.
func TestQuestionByHand(t *testing.T) {
	w := newWorld(t)
	w.add("ref", upstream.Config{Transport: "http", URL: newReference(t, true).url})
	c := w.wire("/mcp/ref").open(mcp.V20251125, `{"elicitation":{}}`)
	thief := w.wire("/mcp/ref").open(mcp.V20251125, `{"elicitation":{}}`)
	events, _ := c.stream(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`)
	q := next(t, events)
	m, err := mcp.Parse([]byte(q), mcp.Limits{})
	if err != nil || m.Method != "elicitation/create" || m.ID[0] != '"' {
		t.Fatalf("question %s", q)
	}
	reply := `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"action":"accept","content":{"name":"Eve"}}}`
	if a := thief.post(reply); a.status != 202 {
		t.Errorf("an answer that answers nothing: %d", a.status)
	}
	if a := c.post(strings.Replace(reply, "Eve", "Ada", 1)); a.status != 202 || a.body != "" {
		t.Errorf("answer: %d %s", a.status, a.body)
	}
	if got := next(t, events); !strings.Contains(got, "accept Ada") {
		t.Errorf("result %s", got)
	}
	if _, open := <-events; open {
		t.Error("the stream goes on after the result")
	}
}

// TestListenByHand looks at the bytes of subscriptions/listen.
func TestListenByHand(t *testing.T) {
	w := newWorld(t)
	ref := newReference(t, false)
	s := w.add("ref", upstream.Config{Transport: "http", URL: ref.url})
	listen := func(id, filter string) <-chan string {
		p, _ := modernParams(`{"notifications":` + filter + `}`)
		ch, _ := w.wire("/mcp").with("Mcp-Protocol-Version", mcp.V20260728, "Mcp-Method", "subscriptions/listen").
			stream(t.Context(), "POST", `{"jsonrpc":"2.0","id":`+id+`,"method":"subscriptions/listen","params":`+p+`}`)
		return ch
	}
	tools, prompts := listen(`"a"`, `{"toolsListChanged":true,"resourceSubscriptions":["test://one","test://none"]}`), listen(`2`, `{"promptsListChanged":true}`)
	if got, want := next(t, tools), `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://one"]},"_meta":{"io.modelcontextprotocol/subscriptionId":"a"}}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := next(t, prompts), `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"promptsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	w.rule(s.ID, "chatty", "DENY")
	if got, want := next(t, tools), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"a"}}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	ref.server.AddPrompt(&sdk.Prompt{Name: "more"}, nil)
	if got, want := next(t, prompts), `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	select {
	case m := <-tools:
		t.Errorf("not asked for: %s", m)
	default:
	}
	a := w.wire("/mcp").modern("1", "subscriptions/listen", `{}`)
	if a.status != 400 || !strings.Contains(a.body, "-32602") {
		t.Errorf("without a filter: %d %s", a.status, a.body)
	}
}

// TestRevokedKeyHearsNothing: what a stream may tell ends with the key it was opened with.
func TestRevokedKeyHearsNothing(t *testing.T) {
	w := newWorld(t)
	s := w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	key := w.key("leaver", "*")
	c := w.wire("/mcp")
	c.header.Set("Authorization", "Bearer "+key)
	c = c.open(mcp.V20251125, `{}`)
	events, _ := c.stream(t.Context(), "GET", "")
	for _, k := range must(w.auth.Keys(w.ctx, w.owner.WorkspaceID))(t) {
		if strings.HasPrefix(key, k.Prefix) && k.Name == "leaver" {
			ok(t, w.auth.RevokeKey(w.ctx, w.owner.WorkspaceID, k.ID))
		}
	}
	ok(t, w.auth.Reload(w.ctx))
	w.rule(s.ID, "read", "DENY")
	if m, open := <-events; open {
		t.Errorf("told %s", m)
	}
}

// TestStandingStreamObeys: a stop and a rule against an agent hold for what servers tell it by themselves, too.
func TestStandingStreamObeys(t *testing.T) {
	w := newWorld(t)
	s := w.add("ref", upstream.Config{Transport: "http", URL: newReference(t, true).url})
	agent := must(w.auth.AnonymousAgent("default"))(t)
	c := w.wire("/mcp").open(mcp.V20251125, `{}`)
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://one"}}`); !strings.Contains(a.body, `"result"`) {
		t.Fatalf("subscribe: %d %s", a.status, a.body)
	}
	events, _ := c.stream(t.Context(), "GET", "")
	tell := func(n int) {
		w.door.Changed(s.ID, "notifications/resources/updated", json.RawMessage(fmt.Sprintf(`{"uri":"test://one","n":%d}`, n)))
	}
	heard := func() string {
		for {
			if m := next(t, events); strings.Contains(m, "resources/updated") {
				return m
			}
		}
	}
	reload := func() { ok(t, errors.Join(w.auth.Reload(w.ctx), w.catalog.Reload(w.ctx))) }
	w.eventually("the stream is registered", func() bool { tell(1); return len(events) > 0 })
	must(w.gate.EmergencyStop(w.ctx, w.owner, gate.StopRequest{Scope: "agent", TargetID: agent.AgentID, Reason: "t"}))(t)
	reload()
	tell(2)
	must(w.auth.ReleaseAgent(w.ctx, agent.WorkspaceID, agent.AgentID))(t)
	must(w.auth.SetAgentState(w.ctx, agent.WorkspaceID, agent.AgentID, "ACTIVE"))
	reload()
	tell(3)
	for m := heard(); !strings.Contains(m, `"n":3`); m = heard() {
		if strings.Contains(m, `"n":2`) {
			t.Fatalf("a stopped agent was told %s", m)
		}
	}
	p := must(w.catalog.CreatePolicy(w.ctx, agent.WorkspaceID, catalog.Policy{AgentID: agent.AgentID, Action: "DENY"}, "owner"))(t)
	reload()
	tell(4)
	if a := c.post(`{"jsonrpc":"2.0","id":2,"method":"prompts/list"}`); strings.Contains(a.body, "greet") {
		t.Errorf("an agent that is denied everything sees prompts: %s", a.body)
	}
	ok(t, w.catalog.DeletePolicy(w.ctx, agent.WorkspaceID, p.ID))
	reload()
	tell(5)
	if m := heard(); !strings.Contains(m, `"n":5`) {
		t.Errorf("an agent that is denied everything was told %s", m)
	}
}

// TestDeadServer: its last good tools stay listed, the list says that it is not well, and the others answer.
func TestDeadServer(t *testing.T) {
	w := newWorld(t)
	ref := newReference(t, true)
	w.add("ref", upstream.Config{Transport: "http", URL: ref.url})
	w.addFake("notes", &fake{defs: []json.RawMessage{def("read")}})
	c := w.wire("/mcp").open(mcp.V20251125, `{}`)
	notes := w.wire("/mcp/notes").open(mcp.V20251125, `{}`)
	healthy := names(t, c.post(listRequest))
	ref.http.CloseClientConnections()
	ref.http.Close()
	w.eventually("the list says so", func() bool {
		c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ref__chatty"}}`)
		return strings.Contains(c.post(listRequest).body, `"_meta":{"doorward/degraded":["ref"]}`)
	})
	if got := names(t, c.post(listRequest)); got != healthy {
		t.Errorf("listed %s, before %s", got, healthy)
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ref__chatty"}}`); !strings.Contains(a.body, `-32007`) {
		t.Errorf("call of a dead server: %s", a.body)
	}
	if a := notes.post(listRequest); strings.Contains(a.body, "degraded") {
		t.Errorf("another server's door: %s", a.body)
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"notes__read"}}`); !strings.Contains(a.body, `"result"`) {
		t.Errorf("call of a good server: %s", a.body)
	}
}
