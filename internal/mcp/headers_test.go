package mcp_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

const goodMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func header(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return h
}

func TestCheckModern(t *testing.T) {
	v := []string{"MCP-Protocol-Version", "2026-07-28"}
	with := func(kv ...string) http.Header { return header(append(v[:2:2], kv...)...) }
	for _, tt := range []struct {
		name, method, params string
		h                    http.Header
		want                 fault.Class
	}{
		{"list", "tools/list", `{` + goodMeta + `}`, with("Mcp-Method", "tools/list"), ""},
		{"lower case header name", "tools/list", `{` + goodMeta + `}`, with("mcp-method", "tools/list"), ""},
		{"upper case header name", "tools/list", `{` + goodMeta + `}`, with("MCP-METHOD", "tools/list"), ""},
		{"call", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "x"), ""},
		{"white space around", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", " tools/call\t", "Mcp-Name", "  x  "), ""},
		{"escaped name in the body", "tools/call", `{"name":"\u0078",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "x"), ""},
		{"encoded name", "tools/call", `{"name":"ü",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "=?base64?w7w=?="), ""},
		{"prompt", "prompts/get", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "prompts/get", "Mcp-Name", "x"), ""},
		{"resource", "resources/read", `{"uri":"a://b?c=d",` + goodMeta + `}`, with("Mcp-Method", "resources/read", "Mcp-Name", "a://b?c=d"), ""},
		{"task", "tasks/get", `{"taskId":"t",` + goodMeta + `}`, with("Mcp-Method", "tasks/get", "Mcp-Name", "t"), ""},
		{"subscribe needs no name", "resources/subscribe", `{"uri":"a",` + goodMeta + `}`, with("Mcp-Method", "resources/subscribe"), ""},

		{"no version header", "tools/list", `{` + goodMeta + `}`, header("Mcp-Method", "tools/list"), fault.HeaderMismatch},
		{"two version headers", "tools/list", `{` + goodMeta + `}`, with("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"), fault.HeaderMismatch},
		{"another version header", "tools/list", `{` + goodMeta + `}`, header("MCP-Protocol-Version", "2025-11-25", "Mcp-Method", "tools/list"), fault.HeaderMismatch},
		{"no meta version", "tools/list", `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}`, with("Mcp-Method", "tools/list"), fault.InvalidParams},
		{"no params", "tools/list", ``, with("Mcp-Method", "tools/list"), fault.InvalidParams},
		{"meta version of another type", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":1,"io.modelcontextprotocol/clientCapabilities":{}}}`, with("Mcp-Method", "tools/list"), fault.InvalidParams},
		{"no capabilities", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`, with("Mcp-Method", "tools/list"), fault.InvalidParams},
		{"capabilities of another type", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":[]}}`, with("Mcp-Method", "tools/list"), fault.InvalidParams},
		{"unknown version", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2027-01-01"}}`, header("MCP-Protocol-Version", "2027-01-01", "Mcp-Method", "tools/list"), fault.BadVersion},
		{"no method header", "tools/list", `{` + goodMeta + `}`, with(), fault.HeaderMismatch},
		{"another method", "tools/list", `{` + goodMeta + `}`, with("Mcp-Method", "prompts/list"), fault.HeaderMismatch},
		{"method in upper case", "tools/list", `{` + goodMeta + `}`, with("Mcp-Method", "TOOLS/LIST"), fault.HeaderMismatch},
		{"two methods", "tools/list", `{` + goodMeta + `}`, with("Mcp-Method", "tools/list", "Mcp-Method", "x"), fault.HeaderMismatch},
		{"no name header", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "tools/call"), fault.HeaderMismatch},
		{"another name", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "y"), fault.HeaderMismatch},
		{"two names", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "x", "Mcp-Name", "y"), fault.HeaderMismatch},
		{"broken base64 name", "tools/call", `{"name":"x",` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "=?base64?!?="), fault.HeaderMismatch},
		{"another uri", "resources/read", `{"uri":"a://b",` + goodMeta + `}`, with("Mcp-Method", "resources/read", "Mcp-Name", "a://c"), fault.HeaderMismatch},
		{"another task", "tasks/get", `{"taskId":"t",` + goodMeta + `}`, with("Mcp-Method", "tasks/get", "Mcp-Name", "u"), fault.HeaderMismatch},
		{"no name in the body", "tools/call", `{` + goodMeta + `}`, with("Mcp-Method", "tools/call", "Mcp-Name", "x"), fault.InvalidParams},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := mcp.Message{ID: json.RawMessage("1"), Method: tt.method, Params: json.RawMessage(tt.params)}
			err := mcp.CheckModern(tt.h, &m)
			if tt.want == "" && err != nil || tt.want != "" && !fault.Is(err, tt.want) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
			if e := fault.From(err); e != nil && e.Codes().HTTP != 400 {
				t.Errorf("HTTP status %d", e.Codes().HTTP)
			}
		})
	}
}

func TestCheckModernOtherMessages(t *testing.T) {
	h := header("MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "notifications/cancelled")
	if err := mcp.CheckModern(h, &mcp.Message{Method: "notifications/cancelled"}); err != nil {
		t.Errorf("a notification without _meta: %v", err)
	}
	if err := mcp.CheckModern(http.Header{}, &mcp.Message{ID: json.RawMessage("1"), Result: json.RawMessage("{}")}); err != nil {
		t.Errorf("a response: %v", err)
	}
}

func TestBadVersionSaysWhatIsSpoken(t *testing.T) {
	m := mcp.Message{ID: json.RawMessage("1"), Method: "tools/list", Params: json.RawMessage(`{"_meta":{"io.modelcontextprotocol/protocolVersion":"2027-01-01"}}`)}
	err := mcp.CheckModern(header("MCP-Protocol-Version", "2027-01-01"), &m)
	obj := mcp.ErrorObject(fault.From(err), "")
	if code, _ := mcp.Int(mcp.Get(obj, "code")); code != -32022 {
		t.Errorf("code %d", code)
	}
	if got := string(mcp.Get(obj, "data")); got != `{"requested":"2027-01-01","supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]}` {
		t.Errorf("data %s", got)
	}
}

const paramSchema = `{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},
	"count":{"type":"integer","x-mcp-header":"Count"},
	"on":{"type":"boolean","x-mcp-header":"On"},
	"free":{"type":"string"},
	"cfg":{"type":"object","properties":{"a.b":{"type":"string","x-mcp-header":"Nested"}}},
	"list":{"type":"array","items":{"type":"object","properties":{"z":{"type":"string","x-mcp-header":"Unreachable"}}}}}}`

func TestCheckParamHeaders(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		h          http.Header
		ok         bool
	}{
		{"string", `{"region":"us-west1"}`, header("Mcp-Param-Region", "us-west1"), true},
		{"header name without case", `{"region":"us-west1"}`, header("mcp-param-REGION", "us-west1"), true},
		{"string, white space around", `{"region":"us-west1"}`, header("Mcp-Param-Region", " us-west1 "), true},
		{"value with case", `{"region":"us-west1"}`, header("Mcp-Param-Region", "US-West1"), false},
		{"base64", `{"region":"Hello"}`, header("Mcp-Param-Region", "=?base64?SGVsbG8=?="), true},
		{"base64 of another", `{"region":"Hallo"}`, header("Mcp-Param-Region", "=?base64?SGVsbG8=?="), false},
		{"base64, bad padding", `{"region":"Hello"}`, header("Mcp-Param-Region", "=?base64?SGVsbG8?="), false},
		{"base64, bad alphabet", `{"region":"Hello"}`, header("Mcp-Param-Region", "=?base64?SGVs!!!bG8=?="), false},
		{"base64 without prefix is literal", `{"region":"SGVsbG8="}`, header("Mcp-Param-Region", "SGVsbG8="), true},
		{"base64 without suffix is literal", `{"region":"=?base64?SGVsbG8="}`, header("Mcp-Param-Region", "=?base64?SGVsbG8="), true},
		{"base64 in upper case is literal", `{"region":"=?BASE64?SGVsbG8=?="}`, header("Mcp-Param-Region", "=?BASE64?SGVsbG8=?="), true},
		{"leading space", `{"region":" us-west1"}`, header("Mcp-Param-Region", "=?base64?IHVzLXdlc3Qx?="), true},
		{"empty", `{"region":""}`, header("Mcp-Param-Region", ""), true},
		{"missing header", `{"region":"x"}`, header(), false},
		{"missing header for an empty value", `{"region":""}`, header(), false},
		{"header for an absent argument", `{}`, header("Mcp-Param-Region", "x"), false},
		{"header for null", `{"region":null}`, header("Mcp-Param-Region", "null"), false},
		{"null", `{"region":null}`, header(), true},
		{"twice", `{"region":"x"}`, header("Mcp-Param-Region", "x", "Mcp-Param-Region", "y"), false},
		{"object value", `{"region":{}}`, header("Mcp-Param-Region", "{}"), false},
		{"integer", `{"count":42}`, header("Mcp-Param-Count", "42"), true},
		{"integer 42.0 in the body", `{"count":42.0}`, header("Mcp-Param-Count", "42"), true},
		{"integer 42.0 in the header", `{"count":42}`, header("Mcp-Param-Count", "42.0"), true},
		{"integer 1e2 in the header", `{"count":100}`, header("Mcp-Param-Count", "1e2"), true},
		{"negative", `{"count":-7}`, header("Mcp-Param-Count", "-7.0"), true},
		{"another integer", `{"count":43}`, header("Mcp-Param-Count", "42"), false},
		{"fraction in the header", `{"count":3}`, header("Mcp-Param-Count", "3.14"), false},
		{"fraction in the body", `{"count":3.14}`, header("Mcp-Param-Count", "3.14"), false},
		{"fraction that a float64 would lose", `{"count":42.00000000000000000001}`, header("Mcp-Param-Count", "42"), false},
		{"not a number", `{"count":42}`, header("Mcp-Param-Count", "forty-two"), false},
		{"hexadecimal", `{"count":42}`, header("Mcp-Param-Count", "0x2a"), false},
		{"out of the safe range", `{"count":9007199254740993}`, header("Mcp-Param-Count", "9007199254740993"), false},
		{"largest safe", `{"count":9007199254740991}`, header("Mcp-Param-Count", "9007199254740991"), true},
		{"huge exponent", `{"count":1e999999999999}`, header("Mcp-Param-Count", "1e999999999999"), false},
		{"boolean", `{"on":true}`, header("Mcp-Param-On", "true"), true},
		{"boolean with case", `{"on":true}`, header("Mcp-Param-On", "True"), false},
		{"nested", `{"cfg":{"a.b":"x"}}`, header("Mcp-Param-Nested", "x"), true},
		{"nested, missing", `{"cfg":{"a.b":"x"}}`, header(), false},
		{"nested under no object", `{"cfg":1}`, header(), true},
		{"not annotated", `{"free":"x"}`, header("Mcp-Param-Free", "anything"), true},
		{"not reachable", `{"list":[{"z":"x"}]}`, header(), true},
		{"no arguments", ``, header(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			params := `{"name":"t"}`
			if tt.args != "" {
				params = `{"name":"t","arguments":` + tt.args + `}`
			}
			err := mcp.CheckParamHeaders(tt.h, json.RawMessage(params), json.RawMessage(paramSchema))
			if tt.ok && err != nil || !tt.ok && !fault.Is(err, fault.HeaderMismatch) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestSetModernHeaders(t *testing.T) {
	call := func(args string) string { return `{"name":"test","arguments":` + args + `,` + goodMeta + `}` }
	for _, tt := range []struct {
		name, method, params string
		want                 http.Header
	}{
		{"list", "tools/list", `{` + goodMeta + `}`, header("Mcp-Method", "tools/list")},
		{"version of the body", "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2027-01-01"}}`, header("Mcp-Protocol-Version", "2027-01-01", "Mcp-Method", "tools/list")},
		{"notification", "notifications/cancelled", `{"requestId":1}`, header("Mcp-Method", "notifications/cancelled")},
		{"resource", "resources/read", `{"uri":"a://ü"}`, header("Mcp-Method", "resources/read", "Mcp-Name", "=?base64?YTovL8O8?=")},
		{"task", "tasks/cancel", `{"taskId":"t"}`, header("Mcp-Method", "tasks/cancel", "Mcp-Name", "t")},
		{"plain", "tools/call", call(`{"region":"us west 1","count":42.0,"on":false,"free":"x","cfg":{"a.b":"n"}}`),
			header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "us west 1", "Mcp-Param-Count", "42", "Mcp-Param-On", "false", "Mcp-Param-Nested", "n")},
		{"non-ASCII", "tools/call", call(`{"region":"Hello, 世界"}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "=?base64?SGVsbG8sIOS4lueVjA==?=")},
		{"line break", "tools/call", call(`{"region":"line1\r\nline2"}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "=?base64?bGluZTENCmxpbmUy?=")},
		{"tab", "tools/call", call(`{"region":"\tindented"}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "=?base64?CWluZGVudGVk?=")},
		{"trailing space", "tools/call", call(`{"region":"us-west1 "}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "=?base64?dXMtd2VzdDEg?=")},
		{"looks encoded", "tools/call", call(`{"region":"=?base64?literal?="}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=")},
		{"empty", "tools/call", call(`{"region":""}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test", "Mcp-Param-Region", "")},
		{"null, absent, unsafe and compound", "tools/call", call(`{"region":null,"count":9007199254740992,"cfg":{"a.b":[]}}`), header("Mcp-Method", "tools/call", "Mcp-Name", "test")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := header("Mcp-Param-Old", "x", "Mcp-Name", "old", "Mcp-Method", "old")
			mcp.SetModernHeaders(h, tt.method, json.RawMessage(tt.params), json.RawMessage(paramSchema))
			if tt.want.Get("Mcp-Protocol-Version") == "" {
				tt.want.Set("Mcp-Protocol-Version", "2026-07-28")
			}
			if !reflect.DeepEqual(h, tt.want) {
				t.Errorf("got  %v\nwant %v", h, tt.want)
			}
		})
	}
}

func TestValidParamHeaders(t *testing.T) {
	prop := func(s string) string { return `{"type":"object","properties":{"a":` + s + `}}` }
	for _, tt := range []struct {
		name, schema string
		ok           bool
	}{
		{"none", prop(`{"type":"string"}`), true},
		{"no properties", `{"type":"object"}`, true},
		{"no object", `true`, true},
		{"empty", ``, true},
		{"string", prop(`{"type":"string","x-mcp-header":"A"}`), true},
		{"integer", prop(`{"type":"integer","x-mcp-header":"A"}`), true},
		{"boolean", prop(`{"type":"boolean","x-mcp-header":"A"}`), true},
		{"every token character", prop(`{"type":"string","x-mcp-header":"!#$%&'*+-.^_` + "`" + `|~09azAZ"}`), true},
		{"nested", prop(`{"type":"object","properties":{"b":{"type":"object","properties":{"c":{"type":"string","x-mcp-header":"C"}}}}}`), true},
		{"not reachable is ignored", prop(`{"type":"array","items":{"type":"array","x-mcp-header":""}}`), true},
		{"boolean schema", prop(`true`), true},
		{"a property of that name", `{"properties":{"x-mcp-header":{"type":"array"}}}`, true},
		{"number", prop(`{"type":"number","x-mcp-header":"A"}`), false},
		{"object", prop(`{"type":"object","x-mcp-header":"A"}`), false},
		{"array", prop(`{"type":"array","x-mcp-header":"A"}`), false},
		{"null type", prop(`{"type":"null","x-mcp-header":"A"}`), false},
		{"no type", prop(`{"x-mcp-header":"A"}`), false},
		{"two types", prop(`{"type":["string","null"],"x-mcp-header":"A"}`), false},
		{"empty name", prop(`{"type":"string","x-mcp-header":""}`), false},
		{"null name", prop(`{"type":"string","x-mcp-header":null}`), false},
		{"name of another type", prop(`{"type":"string","x-mcp-header":1}`), false},
		{"space", prop(`{"type":"string","x-mcp-header":"My Region"}`), false},
		{"colon", prop(`{"type":"string","x-mcp-header":"A:B"}`), false},
		{"parenthesis", prop(`{"type":"string","x-mcp-header":"A(B)"}`), false},
		{"non-ASCII", prop(`{"type":"string","x-mcp-header":"Région"}`), false},
		{"tab", prop(`{"type":"string","x-mcp-header":"Region\t1"}`), false},
		{"line break", prop(`{"type":"string","x-mcp-header":"A\r\nB"}`), false},
		{"spelled with an escape", prop(`{"type":"string","\u0078-mcp-header":"A B"}`), false},
		{"twice", `{"properties":{"a":{"type":"string","x-mcp-header":"R"},"b":{"type":"string","x-mcp-header":"R"}}}`, false},
		{"twice without case", `{"properties":{"a":{"type":"string","x-mcp-header":"MyField"},"b":{"type":"string","x-mcp-header":"myfield"}}}`, false},
		{"twice across levels", `{"properties":{"a":{"type":"string","x-mcp-header":"R"},"b":{"type":"object","properties":{"c":{"type":"string","x-mcp-header":"r"}}}}}`, false},
		{"nested number", prop(`{"type":"object","properties":{"b":{"type":"number","x-mcp-header":"B"}}}`), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := mcp.ValidParamHeaders(json.RawMessage(tt.schema))
			if tt.ok && err != nil || !tt.ok && !fault.Is(err, fault.InvalidParams) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

var (
	token   = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	visible = regexp.MustCompile(`^[ -~]*$`)
)

// FuzzHeaders: what the client side sets, net/http can send and the server
// side accepts; another value is refused.
func FuzzHeaders(f *testing.F) {
	f.Add("tool", "us-west1", "42", "Region")
	f.Add("ü", " padded ", "-9007199254740991", "x")
	f.Add("=?base64?", "=?base64?AA==?=", "1e3", "a-b")
	f.Add("", "line1\r\nline2", "9007199254740993", "A B")
	f.Add("\x7f", "\x00", "1.5", "")
	f.Fuzz(func(t *testing.T, name, text, number, annotation string) {
		num := json.RawMessage(number)
		if mcp.Check(num, mcp.Limits{}) != nil || len(num) > 0 && (num[0] == '"' || num[0] == '{' || num[0] == '[') || strings.TrimSpace(number) != number {
			num = json.RawMessage("7")
		}
		schema := json.RawMessage(`{"properties":{"s":{"type":"string","x-mcp-header":` + string(mcp.Quote(annotation)) + `},"n":{"type":"integer","x-mcp-header":"n-` + "1" + `"}}}`)
		body := func(text string) json.RawMessage {
			return json.RawMessage(`{"name":` + string(mcp.Quote(name)) + `,"arguments":{"s":` + string(mcp.Quote(text)) + `,"n":` + string(num) + `},` + goodMeta + `}`)
		}
		h := http.Header{}
		mcp.SetModernHeaders(h, "tools/call", body(text), schema)
		for k, vs := range h {
			if !token.MatchString(k) || !visible.MatchString(vs[0]) || strings.TrimSpace(vs[0]) != vs[0] {
				t.Fatalf("header %q: %q cannot be sent", k, vs)
			}
		}
		m := mcp.Message{ID: json.RawMessage("1"), Method: "tools/call", Params: body(text)}
		if err := mcp.CheckModern(h, &m); err != nil {
			t.Fatal(err)
		}
		valid := mcp.ValidParamHeaders(schema) == nil
		if valid != token.MatchString(annotation) && !strings.EqualFold(annotation, "n-1") {
			t.Fatalf("annotation %q valid: %v", annotation, valid)
		}
		if !valid {
			return
		}
		err := mcp.CheckParamHeaders(h, m.Params, schema)
		if mirrored := len(h.Values("Mcp-Param-N-1")) > 0; mirrored != (err == nil) && string(num) != "null" {
			t.Fatalf("mirrored %v, err %v, headers %v", mirrored, err, h)
		}
		if other := text + "x"; mcp.CheckParamHeaders(h, body(other), schema) == nil {
			t.Fatalf("header of %q accepted for %q", text, other)
		}
	})
}
