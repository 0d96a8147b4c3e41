package mcp_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func TestParseAccepts(t *testing.T) {
	tests := []struct {
		name, in                      string
		id, method, params, res, rerr string
	}{
		{"request", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `1`, "tools/list", "", "", ""},
		{"white space", " \t\r\n{ \"jsonrpc\" : \"2.0\" , \"id\" : 1 , \"method\" : \"x\" , \"params\" : { } } \n", `1`, "x", "{ }", "", ""},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", "notifications/initialized", "", "", ""},
		{"result", `{"jsonrpc":"2.0","id":"a","result":{"x":1.0}}`, `"a"`, "", "", `{"x":1.0}`, ""},
		{"result null", `{"jsonrpc":"2.0","id":"a","result":null}`, `"a"`, "", "", `null`, ""},
		{"error", `{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"m","data":[1]}}`, `7`, "", "", "", `{"code":-32000,"message":"m","data":[1]}`},
		{"error, null id", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`, "", "", "", "", `{"code":1,"message":""}`},
		{"error, no id", `{"jsonrpc":"2.0","error":{"code":1,"message":""}}`, "", "", "", "", `{"code":1,"message":""}`},
		{"id 2^63", `{"jsonrpc":"2.0","id":9223372036854775808,"method":"x"}`, `9223372036854775808`, "x", "", "", ""},
		{"id -2^64", `{"jsonrpc":"2.0","id":-18446744073709551616,"method":"x"}`, `-18446744073709551616`, "x", "", "", ""},
		{"id zero", `{"jsonrpc":"2.0","id":0,"method":"x"}`, `0`, "x", "", "", ""},
		{"id empty string", `{"jsonrpc":"2.0","id":"","method":"x"}`, `""`, "x", "", "", ""},
		{"id with escape stays", `{"jsonrpc":"2.0","id":"\u0041","method":"x"}`, `"\u0041"`, "x", "", "", ""},
		{"escaped member name", `{"jsonrpc":"2.0","id":1,"\u006dethod":"x\u002fy"}`, `1`, "x/y", "", "", ""},
		{"extra members", `{"jsonrpc":"2.0","id":1,"method":"x","trace":{"a":[]},"übung":1}`, `1`, "x", "", "", ""},
		{"surrogate pair", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\ud83d\ude00"}}`, `1`, "x", `{"a":"\ud83d\ude00"}`, "", ""},
		{"other cases of free names", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1,"A":2,"a":3}}`, `1`, "x", `{"a":1,"A":2,"a":3}`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := mcp.Parse([]byte(tt.in), mcp.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got := [5]string{string(m.ID), m.Method, string(m.Params), string(m.Result), string(m.Error)}
			want := [5]string{tt.id, tt.method, tt.params, tt.res, tt.rerr}
			if got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	req := func(params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
	}
	tests := []struct {
		name, in string
		class    fault.Class
		id       string
	}{
		{"empty", ``, fault.Parse, ""},
		{"white space", "  \n", fault.Parse, ""},
		{"cut", `{"jsonrpc":"2.0","id":1,"method":"x"`, fault.Parse, "1"},
		{"trailing data", `{"jsonrpc":"2.0","id":1,"method":"x"} {}`, fault.Parse, "1"},
		{"byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"x"}`, fault.Parse, ""},
		{"trailing comma", `{"jsonrpc":"2.0","id":1,"method":"x",}`, fault.Parse, "1"},
		{"trailing comma in array", req(`{"a":[1,]}`), fault.Parse, "1"},
		{"comment", `{"jsonrpc":"2.0",/**/"id":1,"method":"x"}`, fault.Parse, ""},
		{"single quotes", `{'jsonrpc':'2.0'}`, fault.Parse, ""},
		{"NaN", req(`{"a":NaN}`), fault.Parse, "1"},
		{"leading zero", req(`{"a":01}`), fault.Parse, "1"},
		{"plus", req(`{"a":+1}`), fault.Parse, "1"},
		{"bare point", req(`{"a":1.}`), fault.Parse, "1"},
		{"bare exponent", req(`{"a":1e+}`), fault.Parse, "1"},
		{"bare minus", req(`{"a":-}`), fault.Parse, "1"},
		{"raw newline in string", req("{\"a\":\"\n\"}"), fault.Parse, "1"},
		{"raw NUL in string", req("{\"a\":\"12345678\x00\"}"), fault.Parse, "1"},
		{"invalid UTF-8", req("{\"a\":\"\xff\"}"), fault.Parse, "1"},
		{"overlong UTF-8", req("{\"a\":\"\xc0\xaf\"}"), fault.Parse, "1"},
		{"surrogate in UTF-8", req("{\"a\":\"\xed\xa0\x80\"}"), fault.Parse, "1"},
		{"lone high surrogate", req(`{"a":"\ud800"}`), fault.Parse, "1"},
		{"lone low surrogate", req(`{"a":"\udc00"}`), fault.Parse, "1"},
		{"two high surrogates", req(`{"a":"\ud800\ud800"}`), fault.Parse, "1"},
		{"lone surrogate in a name", req(`{"\ud800":1}`), fault.Parse, "1"},
		{"bad escape", req(`{"a":"\x41"}`), fault.Parse, "1"},
		{"short escape", req(`{"a":"\u00"}`), fault.Parse, "1"},
		{"too deep", req(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), fault.InvalidRequest, "1"},
		{"too deep, never closed", req(`{"a":` + strings.Repeat(`{"a":`, 100_000)), fault.InvalidRequest, "1"},

		{"number", `1`, fault.InvalidRequest, ""},
		{"array", `[]`, fault.InvalidRequest, ""},
		{"empty object", `{}`, fault.InvalidRequest, ""},
		{"no version", `{"id":1,"method":"x"}`, fault.InvalidRequest, "1"},
		{"version 1.0", `{"jsonrpc":"1.0","id":1,"method":"x"}`, fault.InvalidRequest, "1"},
		{"version number", `{"jsonrpc":2.0,"id":1,"method":"x"}`, fault.InvalidRequest, "1"},
		{"id behind the fault", `{"jsonrpc":2,"method":"x","id":"late"}`, fault.InvalidRequest, `"late"`},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"x"}`, fault.InvalidRequest, ""},
		{"id true", `{"jsonrpc":"2.0","id":true,"method":"x"}`, fault.InvalidRequest, ""},
		{"id object", `{"jsonrpc":"2.0","id":{},"method":"x"}`, fault.InvalidRequest, ""},
		{"id array", `{"jsonrpc":"2.0","id":[1],"method":"x"}`, fault.InvalidRequest, ""},
		{"id fraction", `{"jsonrpc":"2.0","id":1.5,"method":"x"}`, fault.InvalidRequest, ""},
		{"id exponent", `{"jsonrpc":"2.0","id":1e2,"method":"x"}`, fault.InvalidRequest, ""},
		{"no method", `{"jsonrpc":"2.0","id":1}`, fault.InvalidRequest, "1"},
		{"method empty", `{"jsonrpc":"2.0","id":1,"method":""}`, fault.InvalidRequest, "1"},
		{"method number", `{"jsonrpc":"2.0","id":1,"method":1}`, fault.InvalidRequest, "1"},
		{"params array", req(`[1]`), fault.InvalidRequest, "1"},
		{"params null", req(`null`), fault.InvalidRequest, "1"},
		{"params string", req(`"x"`), fault.InvalidRequest, "1"},
		{"_meta array", req(`{"_meta":[]}`), fault.InvalidRequest, "1"},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"m"}}`, fault.InvalidRequest, "1"},
		{"result and null error", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, fault.InvalidRequest, "1"},
		{"result without id", `{"jsonrpc":"2.0","result":{}}`, fault.InvalidRequest, ""},
		{"result with null id", `{"jsonrpc":"2.0","id":null,"result":{}}`, fault.InvalidRequest, ""},
		{"method and result", `{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`, fault.InvalidRequest, "1"},
		{"method and error", `{"jsonrpc":"2.0","id":1,"method":"x","error":{"code":1,"message":"m"}}`, fault.InvalidRequest, "1"},
		{"error string", `{"jsonrpc":"2.0","id":1,"error":"no"}`, fault.InvalidRequest, "1"},
		{"error without code", `{"jsonrpc":"2.0","id":1,"error":{"message":"m"}}`, fault.InvalidRequest, "1"},
		{"error code fraction", `{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":"m"}}`, fault.InvalidRequest, "1"},
		{"error without message", `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`, fault.InvalidRequest, "1"},

		{"two ids", `{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}`, fault.InvalidRequest, ""},
		{"two methods", `{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}`, fault.InvalidRequest, "1"},
		{"two methods, one escaped", `{"jsonrpc":"2.0","id":1,"method":"x","\u006dethod":"y"}`, fault.InvalidRequest, "1"},
		{"two params", `{"jsonrpc":"2.0","id":1,"method":"x","params":{},"params":{}}`, fault.InvalidRequest, "1"},
		{"Method", `{"jsonrpc":"2.0","id":1,"method":"x","Method":"y"}`, fault.InvalidRequest, "1"},
		{"Method alone", `{"jsonrpc":"2.0","id":1,"Method":"y"}`, fault.InvalidRequest, "1"},
		{"params with long s", `{"jsonrpc":"2.0","id":1,"method":"x","paramſ":{}}`, fault.InvalidRequest, "1"},
		{"params with escaped long s", `{"jsonrpc":"2.0","id":1,"method":"x","param\u017f":{}}`, fault.InvalidRequest, "1"},
		{"task with Kelvin sign", req(`{"tas` + "\u212a" + `":{}}`), fault.InvalidRequest, "1"},
		{"two names", req(`{"name":"a","name":"b"}`), fault.InvalidRequest, "1"},
		{"Name", req(`{"name":"a","Name":"b"}`), fault.InvalidRequest, "1"},
		{"NAME escaped", req(`{"name":"a","\u004eAME":"b"}`), fault.InvalidRequest, "1"},
		{"two uri", req(`{"uri":"a","uri":"b"}`), fault.InvalidRequest, "1"},
		{"two arguments", req(`{"arguments":{},"arguments":{}}`), fault.InvalidRequest, "1"},
		{"Arguments", req(`{"Arguments":{}}`), fault.InvalidRequest, "1"},
		{"two _meta", req(`{"_meta":{},"_meta":{}}`), fault.InvalidRequest, "1"},
		{"_META", req(`{"_META":{}}`), fault.InvalidRequest, "1"},
		{"two cursors", req(`{"cursor":"","cursor":""}`), fault.InvalidRequest, "1"},
		{"two requestStates", req(`{"requestState":"","requeststate":""}`), fault.InvalidRequest, "1"},
		{"two inputResponses", req(`{"inputResponses":{},"InputResponses":{}}`), fault.InvalidRequest, "1"},
		{"two tasks", req(`{"task":{},"task":{}}`), fault.InvalidRequest, "1"},
		{"two protocol versions", req(`{"_meta":{"io.modelcontextprotocol/protocolVersion":"a","io.modelcontextprotocol\/protocolVersion":"b"}}`), fault.InvalidRequest, "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := mcp.Parse([]byte(tt.in), mcp.Limits{})
			if !fault.Is(err, tt.class) {
				t.Fatalf("err = %v, want class %s", err, tt.class)
			}
			if string(m.ID) != tt.id {
				t.Errorf("id = %q, want %q", m.ID, tt.id)
			}
		})
	}
}

func TestParseDepthIsExact(t *testing.T) {
	// The message is level 1, params level 2.
	body := func(n int) []byte {
		return []byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}}`)
	}
	if _, err := mcp.Parse(body(126), mcp.Limits{}); err != nil {
		t.Errorf("128 levels: %v", err)
	}
	if _, err := mcp.Parse(body(127), mcp.Limits{}); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("129 levels: %v", err)
	}
	if _, err := mcp.Parse(body(3), mcp.Limits{Depth: 4}); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("5 levels of 4: %v", err)
	}
}

func TestParseTwentyMegabytes(t *testing.T) {
	big := strings.Repeat("0123456789", 2<<20)
	in := []byte(`{"jsonrpc":"2.0","id":1,"result":{"n":` + big[1:] + `,"s":"` + big + `"}}`)
	m, err := mcp.Parse(in, mcp.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := mcp.String(mcp.Get(m.Result, "s")); !ok || s != big {
		t.Error("the string did not survive")
	}
	if n := mcp.Get(m.Result, "n"); string(n) != big[1:] {
		t.Error("the number did not survive")
	}
}

func TestParseAny(t *testing.T) {
	one := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	tests := []struct {
		name, in string
		count    int
		batch    bool
		class    fault.Class
		lastID   string
	}{
		{"one", one, 1, false, "", "1"},
		{"batch of one", "[" + one + "]", 1, true, "", "1"},
		{"batch", " [ " + one + ` , {"jsonrpc":"2.0","method":"n"} ] `, 2, true, "", ""},
		{"hundred", "[" + strings.Repeat(one+",", 99) + one + "]", 100, true, "", "1"},
		{"empty", "[]", 0, true, fault.InvalidRequest, ""},
		{"empty with data after", "[]x", 0, true, fault.Parse, ""},
		{"hundred and one", "[" + strings.Repeat(one+",", 100) + one + "]", 100, true, fault.InvalidRequest, "1"},
		{"batch in batch", "[[" + one + "]]", 1, true, fault.InvalidRequest, ""},
		{"bad one", "[" + one + `,{"jsonrpc":"2.0","id":2}]`, 2, true, fault.InvalidRequest, "2"},
		{"trailing comma", "[" + one + ",]", 2, true, fault.Parse, ""},
		{"not closed", "[" + one, 1, true, fault.Parse, "1"},
		{"trailing data", "[" + one + "] 1", 1, true, fault.Parse, "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msgs, batch, err := mcp.ParseAny([]byte(tt.in), mcp.Limits{})
			if tt.class == "" && err != nil || tt.class != "" && !fault.Is(err, tt.class) {
				t.Fatalf("err = %v, want %q", err, tt.class)
			}
			if len(msgs) != tt.count || batch != tt.batch {
				t.Fatalf("got %d messages, batch %v", len(msgs), batch)
			}
			if n := len(msgs); n > 0 && string(msgs[n-1].ID) != tt.lastID {
				t.Errorf("last id = %q, want %q", msgs[n-1].ID, tt.lastID)
			}
		})
	}
}

func TestMessageKinds(t *testing.T) {
	for in, want := range map[string][3]bool{
		`{"jsonrpc":"2.0","id":1,"method":"x"}`:  {true, false, false},
		`{"jsonrpc":"2.0","method":"x"}`:         {false, true, false},
		`{"jsonrpc":"2.0","id":1,"result":true}`: {false, false, true},
	} {
		m, err := mcp.Parse([]byte(in), mcp.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]bool{m.IsRequest(), m.IsNotification(), m.IsResponse()}; got != want {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	for _, in := range [][]byte{small(), large()} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := mcp.Parse(in, mcp.Limits{}); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%d bytes: %v allocations", len(in), n)
		}
	}
}

var loneSurrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `[]`, `null`, `"\ud800"`, `"\ud83d\ude00"`, `-0.0e-0`, `1e999`, `[1,]`, `{"a":1,"a":2}`,
		`{"jsonrpc":"2.0","id":9223372036854775808,"method":"tools/call","params":{"name":"a","arguments":{"x":[1,2,{"y":null}]},"_meta":{"progressToken":1}}}`,
		`{"jsonrpc":"2.0","id":"\u0000","\u006dethod":"x"}`, `{"jsonrpc":"2.0","method":"x","paramſ":{}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`, `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 70) + `"}`,
		"\"\x7f\u0080é\u2028\"", "\"\xff\"", "[\"\x1f\"]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		valid := json.Valid(b)
		err := mcp.Check(b, mcp.Limits{Depth: 20000})
		if err == nil && (!valid || !utf8.Valid(b)) {
			t.Fatalf("Check accepts what is not valid: %q", b)
		}
		if err != nil && valid && utf8.Valid(b) && !loneSurrogate.Match(b) {
			t.Fatalf("Check refuses valid JSON: %q: %v", b, err)
		}
		m, err := mcp.Parse(b, mcp.Limits{})
		if err != nil {
			return
		}
		if !valid {
			t.Fatalf("Parse accepts what is not valid: %q", b)
		}
		// A reader that ignores case and takes the last of two must see the same message.
		var loose struct {
			ID             json.RawMessage
			Method         string
			Params, Result json.RawMessage
			Error          json.RawMessage
		}
		if err := json.Unmarshal(b, &loose); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if string(loose.ID) == "null" {
			loose.ID = nil
		}
		if loose.Method != m.Method || !bytes.Equal(loose.ID, m.ID) || !bytes.Equal(loose.Params, m.Params) ||
			!bytes.Equal(loose.Result, m.Result) || !bytes.Equal(loose.Error, m.Error) {
			t.Fatalf("two readers, two messages: %q\n%+v\n%+v", b, loose, m)
		}
		var call struct {
			Name      any
			Arguments json.RawMessage
		}
		if m.Params != nil {
			_ = json.Unmarshal(m.Params, &call)
			if !bytes.Equal(call.Arguments, mcp.Get(m.Params, "arguments")) {
				t.Fatalf("two readers, two calls: %q", b)
			}
		}
	})
}

func small() []byte {
	return []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"/srv/data/report-2026.txt","head":100},"_meta":{"progressToken":"p-1","io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
}

func large() []byte {
	return []byte(`{"jsonrpc":"2.0","id":42,"result":{"content":[{"type":"text","text":"` + strings.Repeat("all work and no play ", 3120) + `"}]}}`)
}

func BenchmarkParse200B(b *testing.B) { benchParse(b, small()) }
func BenchmarkParse64K(b *testing.B)  { benchParse(b, large()) }
func BenchmarkParse64KUTF8(b *testing.B) {
	benchParse(b, []byte(`{"jsonrpc":"2.0","id":42,"result":"`+strings.Repeat("Größe und Maß, ", 3700)+`"}`))
}

func benchParse(b *testing.B, in []byte) {
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mcp.Parse(in, mcp.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
