package mcp_test

import (
	"net/http"
	"testing"

	"doorward.dev/doorward/internal/mcp"
)

func TestEraOf(t *testing.T) {
	for v, want := range map[string]mcp.Era{
		mcp.V20241105: mcp.Legacy, mcp.V20250326: mcp.Legacy, mcp.V20250618: mcp.Legacy, mcp.V20251125: mcp.Legacy,
		mcp.V20260728: mcp.Modern, "2027-01-01": mcp.Modern, "2026-07-27": mcp.Legacy,
		"": mcp.Legacy, "zzz": mcp.Legacy, "9999-99-9x": mcp.Legacy, "DRAFT-2026-v1": mcp.Legacy,
	} {
		if got := mcp.EraOf(v); got != want {
			t.Errorf("EraOf(%q) = %v", v, got)
		}
	}
	if vs := mcp.Supported(); len(vs) != 5 || vs[0] != mcp.V20260728 || vs[4] != mcp.V20241105 {
		t.Errorf("Supported() = %v", vs)
	}
	mcp.Supported()[0] = "changed"
	if !mcp.Known(mcp.V20260728) || mcp.Known("2027-01-01") {
		t.Error("Known")
	}
}

func TestNegotiateLegacy(t *testing.T) {
	for in, want := range map[string]string{
		mcp.V20241105: mcp.V20241105, mcp.V20250326: mcp.V20250326, mcp.V20250618: mcp.V20250618, mcp.V20251125: mcp.V20251125,
		mcp.V20260728: mcp.V20251125, "2024-10-07": mcp.V20251125, "": mcp.V20251125, "latest": mcp.V20251125,
	} {
		if got := mcp.NegotiateLegacy(in); got != want {
			t.Errorf("NegotiateLegacy(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDetectEra(t *testing.T) {
	const modernMeta = `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`
	for _, tt := range []struct {
		name, method, params, version, session string
		want                                   mcp.Era
	}{
		{"modern both", "tools/list", modernMeta, "2026-07-28", "", mcp.Modern},
		{"modern meta alone", "tools/list", modernMeta, "", "", mcp.Modern},
		{"modern meta, legacy header", "tools/list", modernMeta, "2025-11-25", "", mcp.Modern},
		{"modern header alone", "tools/list", `{}`, "2026-07-28", "", mcp.Modern},
		{"modern with a session id", "tools/list", modernMeta, "2026-07-28", "s", mcp.Modern},
		{"a later revision", "tools/list", `{}`, "2027-03-01", "", mcp.Modern},
		{"initialize", "initialize", `{"protocolVersion":"2025-11-25"}`, "", "", mcp.Legacy},
		{"initialize asks for the modern revision", "initialize", `{"protocolVersion":"2026-07-28"}`, "", "", mcp.Legacy},
		{"initialize, modern header", "initialize", `{"protocolVersion":"2025-11-25"}`, "2026-07-28", "", mcp.Legacy},
		{"initialize, modern meta", "initialize", modernMeta, "2026-07-28", "", mcp.Modern},
		{"legacy header", "tools/list", `{}`, "2025-06-18", "s", mcp.Legacy},
		{"nothing said", "tools/list", ``, "", "", mcp.Legacy},
		{"meta of another type", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":20260728}}`, "", "", mcp.Legacy},
		{"a response", "", ``, "2025-11-25", "s", mcp.Legacy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			if tt.version != "" {
				h.Set("MCP-Protocol-Version", tt.version)
			}
			if tt.session != "" {
				h.Set("Mcp-Session-Id", tt.session)
			}
			if got := mcp.DetectEra(h, &mcp.Message{Method: tt.method, Params: []byte(tt.params)}); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFeatures(t *testing.T) {
	type f = mcp.Features
	r24 := f{}
	r25a := f{Batching: true, ToolAnnotations: true, Audio: true, StreamableHTTP: true}
	r25b := f{ToolAnnotations: true, Audio: true, StreamableHTTP: true, StructuredContent: true, ResourceLink: true, Elicitation: true, HeaderRequired: true}
	r25c := r25b
	r25c.URLElicitation, r25c.Icons, r25c.LegacyTasks = true, true, true
	r26 := r25c
	r26.LegacyTasks, r26.AnyStructured, r26.ResultType = false, true, true
	for v, want := range map[string]f{
		mcp.V20241105: r24, mcp.V20250326: r25a, mcp.V20250618: r25b, mcp.V20251125: r25c, mcp.V20260728: r26,
		"": r25c, "2030-01-01": r26,
	} {
		if got := mcp.FeaturesOf(v); got != want {
			t.Errorf("%q: %+v\nwant %+v", v, got, want)
		}
	}
}
