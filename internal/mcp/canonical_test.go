package mcp_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf16"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func TestCanonical(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		// RFC 8785 3.2.2; 333333333.33333329 keeps its digits (the one departure).
		{"rfc 3.2.2", `{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}`, `{"literals":[null,true,false],"numbers":[333333333.33333329,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		// RFC 8785 3.2.3: order by UTF-16 code units.
		{"rfc 3.2.3", `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		// Published test data of RFC 8785 (arrays, french, structures, unicode, values, weird).
		{"arrays", `[ 56, { "d": true, "10": null, "1": [ ] } ]`, `[56,{"1":[],"10":null,"d":true}]`},
		{"french", `{"peach": "This sorting order","péché": "is wrong according to French","pêche": "but canonicalization MUST","sin":   "ignore locale"}`,
			`{"peach":"This sorting order","péché":"is wrong according to French","pêche":"but canonicalization MUST","sin":"ignore locale"}`},
		{"structures", `{"1": {"f": {"f": "hi","F": 5} ,"\n": 56.0},"10": { },"": "empty","a": { },"111": [ {"e": "yes","E": "no" } ],"A": { }}`,
			`{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}`},
		{"unicode", `{"Unnormalized Unicode":"A\u030a"}`, "{\"Unnormalized Unicode\":\"A\u030a\"}"},
		{"weird", `{"\u20ac":"Euro Sign","\r":"Carriage Return","\u000a":"Newline","1":"One","\u0080":"Control\u007f","\ud83d\ude02":"Smiley","\u00f6":"Latin Small Letter O With Diaeresis","\ufb33":"Hebrew Letter Dalet With Dagesh","</script>":"Browser Challenge"}`,
			"{\"\\n\":\"Newline\",\"\\r\":\"Carriage Return\",\"1\":\"One\",\"</script>\":\"Browser Challenge\",\"\u0080\":\"Control\x7f\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😂\":\"Smiley\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		{"empty", " { } ", "{}"},
		{"scalars", ` "\/" `, `"/"`},
		{"nested empties", `[[],[{}],{"a":[[]]}]`, `[[],[{}],{"a":[[]]}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := mcp.Canonical([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestCanonicalNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "-0.0e5": "0", "0e99999999999999": "0", "1.0": "1", "1e2": "100", "100": "100", "10E-1": "1", "0.10": "0.1",
		"9007199254740992": "9007199254740992", "9007199254740993": "9007199254740993",
		"9007199254740993.0": "9007199254740993", "-9007199254740993": "-9007199254740993",
		"18446744073709551616": "18446744073709551616", "1234567890123456789012": "1.234567890123456789012e+21",
		"1e400": "1e+400", "-1e-400": "-1e-400", "0.30000000000000000001": "0.30000000000000000001",
		"1e9999999999": "1e+9999999999",
		// RFC 8785 appendix B, by the form ECMAScript writes.
		"5e-324": "5e-324", "-5e-324": "-5e-324", "1.7976931348623157e+308": "1.7976931348623157e+308",
		"295147905179352830000": "295147905179352830000", "9.999999999999997e+22": "9.999999999999997e+22",
		"1e23": "1e+23", "1.0000000000000001e+23": "1.0000000000000001e+23", "999999999999999700000": "999999999999999700000",
		"1e21": "1e+21", "9.999999999999997e-7": "9.999999999999997e-7", "0.000001": "0.000001", "1e-7": "1e-7",
		"333333333.3333332": "333333333.3333332", "-0.0000033333333333333333": "-0.0000033333333333333333",
		"1424953923781206.2": "1424953923781206.2", "1e20": "100000000000000000000",
	} {
		got, err := mcp.Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
}

func TestCanonicalRefuses(t *testing.T) {
	for in, class := range map[string]fault.Class{
		``:                             fault.Parse,
		`{"a":1}x`:                     fault.Parse,
		`"\ud800"`:                     fault.Parse,
		`{"\udfff":1}`:                 fault.Parse,
		`{"a":1,"a":1}`:                fault.InvalidRequest,
		`{"a":1,"\u0061":2}`:           fault.InvalidRequest,
		`[{"b":{"x":1,"y":{},"x":2}}]`: fault.InvalidRequest,
		`1e99999999999`:                fault.InvalidRequest,
		strings.Repeat("[", 2000) + strings.Repeat("]", 2000): fault.InvalidRequest,
	} {
		if got, err := mcp.Canonical([]byte(in)); !fault.Is(err, class) {
			t.Errorf("%.40s: %s, %v, want %s", in, got, err, class)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1.0,-0,1e21,123456789012345678901234567890,"\u0041\n"]}`, `{"\ue000":1,"\ud83d\ude00":2,"":3}`, `{"a":{"d":1,"c":2},"a":3}`, `[{}, [], ""]`} {
		f.Add([]byte(s), uint64(0x3ff0000000000001))
	}
	f.Add([]byte(`0`), uint64(0x0010000000000000))
	f.Fuzz(func(t *testing.T, b []byte, bits uint64) {
		// Where a float64 holds the number, the form is that of ECMAScript, which encoding/json writes too.
		if x := math.Float64frombits(bits); x != 0 && !math.IsNaN(x) && !math.IsInf(x, 0) {
			lit, _ := json.Marshal(x)
			if got, err := mcp.Canonical(lit); err != nil || string(got) != string(lit) {
				t.Fatalf("%s: %s, %v", lit, got, err)
			}
		}
		out, err := mcp.Canonical(b)
		if err != nil {
			return
		}
		again, err := mcp.Canonical(out)
		if err != nil || string(again) != string(out) {
			t.Fatalf("%q: not stable: %q, then %q, %v", b, out, again, err)
		}
		var in, back any
		if json.Unmarshal(b, &in) != nil {
			return // a number no float64 holds
		}
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%q: %q: %v", b, out, err)
		}
		if !reflect.DeepEqual(in, back) {
			t.Fatalf("%q means something else than %q", out, b)
		}
		checkOrder(t, out)
	})
}

// checkOrder holds the members of every object to the order of UTF-16 code units.
func checkOrder(t *testing.T, b []byte) {
	t.Helper()
	for _, e := range mcp.Elements(b) {
		checkOrder(t, e)
	}
	var last []uint16
	first := true
	mcp.Each(b, func(k string, v json.RawMessage) bool {
		units := utf16.Encode([]rune(k))
		if !first && !less(last, units) {
			t.Fatalf("%q: %q is out of order", b, k)
		}
		last, first = units, false
		checkOrder(t, v)
		return true
	})
}

func less(a, b []uint16) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return len(a) < len(b)
}

func BenchmarkCanonical(b *testing.B) {
	in := mcp.Get(mcp.Get(small(), "params"), "arguments")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mcp.Canonical(in); err != nil {
			b.Fatal(err)
		}
	}
}
