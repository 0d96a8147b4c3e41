package upstream_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// sdkServer is a server made with the official SDK: the oracle for both eras.
func sdkServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "oracle", Version: "1"}, &sdk.ServerOptions{Instructions: "ask me"})
	type in struct {
		Text string `json:"text"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Description: "echoes"}, func(_ context.Context, _ *sdk.CallToolRequest, a in) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: a.Text}}}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "grow", Description: "adds a tool"}, func(_ context.Context, _ *sdk.CallToolRequest, a in) (*sdk.CallToolResult, any, error) {
		sdk.AddTool(s, &sdk.Tool{Name: a.Text}, func(context.Context, *sdk.CallToolRequest, in) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{}, nil, nil
		})
		return &sdk.CallToolResult{}, nil, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "report", Description: "reports progress"}, func(ctx context.Context, r *sdk.CallToolRequest, _ in) (*sdk.CallToolResult, any, error) {
		err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		return &sdk.CallToolResult{}, nil, err
	})
	sdk.AddTool(s, &sdk.Tool{Name: "wait", Description: "waits for its end"}, func(ctx context.Context, _ *sdk.CallToolRequest, _ in) (*sdk.CallToolResult, any, error) {
		waiting.Add(1)
		<-ctx.Done()
		cancelled.Add(1)
		return nil, nil, ctx.Err()
	})
	s.AddResource(&sdk.Resource{URI: "test://a", Name: "a"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://a", Text: "text"}}}, nil
	})
	return s
}

var waiting, cancelled atomic.Int32 // calls of the tool wait

func TestOfficialSDK(t *testing.T) {
	for name, tt := range map[string]struct {
		era       string
		stateless bool
		stdio     bool
	}{
		"http legacy": {era: "legacy"},
		"http modern": {era: "modern", stateless: true},
		"stdio":       {era: "modern", stdio: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := stdioServer("s", "sdk")
			if !tt.stdio {
				server := sdkServer()
				h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: tt.stateless, PropagateRequestCancellation: true})
				srv := httptest.NewServer(h)
				t.Cleanup(srv.Close)
				t.Cleanup(srv.CloseClientConnections)
				cfg = httpServer("s", srv.URL)
			}
			p, ev := newPool(t, nil) // ends before the server, so that it can end its sessions
			p.Apply([]upstream.Config{cfg})
			st := up(t, p, "s")
			if st.Era != tt.era || st.Health != upstream.Up || st.Instructions != "ask me" || string(mcp.Get(st.ServerInfo, "name")) != `"oracle"` {
				t.Fatalf("status %+v", st)
			}
			if n := len(ev.last("s").Tools); n != 4 {
				t.Fatalf("%d tools", n)
			}
			for _, c := range []*upstream.Client{
				{Era: mcp.Legacy, Version: mcp.V20250618, Session: "one"},
				{Era: mcp.Modern, Version: mcp.V20260728},
			} {
				sdkCalls(t, p, c)
			}
			before := ev.count("s")
			if _, err := p.Do(t.Context(), sdkCall("grow", "another", &upstream.Client{Era: mcp.Legacy, Version: mcp.V20251125})); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the new tool is listed and told", func() bool {
				return ev.count("s") > before && len(ev.last("s").Tools) == 5 && ev.heard("tools/list_changed")
			})
		})
	}
}

func sdkCall(tool, text string, c *upstream.Client) *upstream.Request {
	params := json.RawMessage(`{"name":"` + tool + `","arguments":{"text":"` + text + `"},"_meta":{"progressToken":"mine"}}`)
	if c.Era == mcp.Modern {
		params = mcp.Set(params, "_meta", json.RawMessage(`{"progressToken":"mine","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`))
	}
	return &upstream.Request{ServerID: "s", Method: "tools/call", Client: c, Params: params}
}

func sdkCalls(t *testing.T, p *upstream.Pool, c *upstream.Client) {
	t.Helper()
	r, err := p.Do(t.Context(), sdkCall("echo", "hi", c))
	if err != nil || !strings.Contains(string(r), `"text":"hi"`) {
		t.Errorf("echo: %s, %v", r, err)
	}
	if kind := string(mcp.Get(r, "resultType")); (kind == `"complete"`) != (c.Era == mcp.Modern) {
		t.Errorf("resultType %s for era %d: %s", kind, c.Era, r)
	}
	var notes []string
	c.Notify = func(m string, params json.RawMessage) {
		notes = append(notes, string(mcp.Get(params, "progressToken")))
	}
	if _, err := p.Do(t.Context(), sdkCall("report", "", c)); err != nil {
		t.Errorf("report: %v", err)
	}
	if len(notes) != 1 || notes[0] != `"mine"` {
		t.Errorf("progress for %q", notes)
	}
	c.Notify = nil
	read := &upstream.Request{ServerID: "s", Method: "resources/read", Client: c, Safe: true, Params: mcp.Set(sdkCall("", "", c).Params, "uri", []byte(`"test://a"`))}
	if r, err := p.Do(t.Context(), read); err != nil || !strings.Contains(string(r), `"text":"text"`) {
		t.Errorf("read: %s, %v", r, err)
	}
	if st, _ := p.Status("s"); st.PID == 0 { // in this process: its end can be seen
		ctx, cancel := context.WithCancel(t.Context())
		began, ended := waiting.Load(), cancelled.Load()
		result := make(chan error, 1)
		go func() {
			_, err := p.Do(ctx, sdkCall("wait", "", c))
			result <- err
		}()
		eventually(t, "the call runs", func() bool { return waiting.Load() > began })
		cancel()
		wantClass(t, <-result, fault.Cancelled)
		eventually(t, "the server is told", func() bool { return cancelled.Load() > ended })
	}
}
