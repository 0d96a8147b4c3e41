package bridge_test

import (
	"encoding/json"
	"testing"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func TestModernMeta(t *testing.T) {
	const added = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"d"},"io.modelcontextprotocol/clientCapabilities":{}`
	for in, want := range map[string]string{
		``:                              `{"_meta":{` + added + `}}`,
		`{}`:                            `{"_meta":{` + added + `}}`,
		`{"n": 1.0}`:                    `{"n": 1.0,"_meta":{` + added + `}}`,
		`{"_meta":{"progressToken":1}}`: `{"_meta":{"progressToken":1,` + added + `}}`,
		`{"_meta":null}`:                `{"_meta":{` + added + `}}`,
		`{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"io.modelcontextprotocol/protocolVersion":"x"}}`: `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"d"}}}`,
	} {
		got := bridge.ModernMeta(json.RawMessage(in), mcp.V20260728, json.RawMessage(`{"name":"d"}`), json.RawMessage(`{}`))
		if string(got) != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

func TestLegacyParams(t *testing.T) {
	const version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	for in, want := range map[string]string{
		``:                                  ``,
		`{"a": 1.0}`:                        `{"a": 1.0}`,
		`{"a":1,"_meta":{` + version + `}}`: `{"a":1}`,
		`{"_meta":{` + version + `,"progressToken": 5,"io.modelcontextprotocol/logLevel":"info","com.example/k":{}}}`: `{"_meta":{"progressToken": 5,"com.example/k":{}}}`,
		`{"_meta":{"x":1}}`: `{"_meta":{"x":1}}`,
		`{"_meta":{}}`:      `{"_meta":{}}`,
	} {
		if got := bridge.LegacyParams(json.RawMessage(in)); string(got) != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

func TestLegacyResult(t *testing.T) {
	for _, tt := range []struct{ version, in, want string }{
		{mcp.V20251125, `{"content":[],"big":9007199254740993}`, `{"content":[],"big":9007199254740993}`},
		{mcp.V20251125, `{"resultType":"complete","content":[ ],"ttlMs":5,"cacheScope":"public"}`, `{"content":[ ]}`},
		{mcp.V20251125, `{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{},"k":1}}`, `{"content":[],"_meta":{"k":1}}`},
		{mcp.V20251125, `{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{}}}`, `{"content":[]}`},
		{mcp.V20251125, `{"structuredContent":{"a":1}}`, `{"structuredContent":{"a":1}}`},
		{mcp.V20251125, `{"content":[],"structuredContent":[1]}`, `{"content":[]}`},
		{mcp.V20250326, `{"content":[],"structuredContent":{"a":1}}`, `{"content":[]}`},
	} {
		got, err := bridge.LegacyResult(json.RawMessage(tt.in), tt.version)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{`{"resultType":"input_required","inputRequests":{}}`, `{"resultType":"task"}`} {
		if got, err := bridge.LegacyResult(json.RawMessage(in), mcp.V20251125); !fault.Is(err, fault.UpstreamError) || got != nil {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
}

func TestModernResult(t *testing.T) {
	for _, tt := range []struct{ method, in, want string }{
		{"tools/call", `{"content":[]}`, `{"content":[],"resultType":"complete"}`},
		{"tools/call", `{}`, `{"resultType":"complete"}`},
		{"tools/call", `{"resultType":"task"}`, `{"resultType":"task"}`},
		{"prompts/list", `{"prompts":[]}`, `{"prompts":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`},
		{"resources/templates/list", `{"ttlMs":7}`, `{"ttlMs":7,"resultType":"complete","cacheScope":"private"}`},
		{"resources/read", `{"contents":[]}`, `{"contents":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`},
		{"completion/complete", `{}`, `{"resultType":"complete"}`},
	} {
		if got := bridge.ModernResult(tt.method, json.RawMessage(tt.in)); string(got) != tt.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", tt.method, tt.in, got, tt.want)
		}
	}
}

func TestModernError(t *testing.T) {
	gone := mcp.ParseRPCError(json.RawMessage(`{"code":-32002,"message":"gone","data":{"uri":"x:"}}`))
	if got := bridge.ModernError("resources/read", gone); got.Code != -32602 || string(got.Raw) != `{"code":-32602,"message":"gone","data":{"uri":"x:"}}` {
		t.Errorf("%d %s", got.Code, got.Raw)
	}
	if got := bridge.ModernError("tools/call", gone); got != gone {
		t.Errorf("another method's error was changed: %s", got.Raw)
	}
}

func TestTools(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"a"}`: `{"name":"a"}`,
		`{"name":"a","outputSchema":{"type": "object"}}`: `{"name":"a","outputSchema":{"type": "object"}}`,
		`{"name":"a","outputSchema":{"type":"array"}}`:   `{"name":"a"}`,
		`{"outputSchema":{"anyOf":[]},"x": 1.0}`:         `{"x": 1.0}`,
	} {
		if got := bridge.LegacyTool(json.RawMessage(in)); string(got) != want {
			t.Errorf("legacy %s: %s", in, got)
		}
	}
	if got := bridge.ModernTool(json.RawMessage(`{"name":"a","execution":{"taskSupport":"required"}}`)); string(got) != `{"name":"a"}` {
		t.Errorf("modern: %s", got)
	}
}
