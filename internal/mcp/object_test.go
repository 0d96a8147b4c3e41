package mcp_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"doorward.dev/doorward/internal/mcp"
)

func TestGet(t *testing.T) {
	obj := []byte(` { "a" : 1.0 , "b":{"c":[1, {"d":"}]\""}],"e\u0066":true},"dup":1,"dup":2,"":null } `)
	for _, tt := range []struct{ key, want string }{
		{"a", "1.0"}, {"b", `{"c":[1, {"d":"}]\""}],"e\u0066":true}`}, {"dup", "2"}, {"", "null"}, {"A", ""}, {"x", ""},
	} {
		if got := mcp.Get(obj, tt.key); string(got) != tt.want {
			t.Errorf("Get(%q) = %q, want %q", tt.key, got, tt.want)
		}
	}
	if got := mcp.GetPath(obj, "b", "ef"); string(got) != "true" {
		t.Errorf("GetPath through an escaped name = %q", got)
	}
	if got := mcp.GetPath(obj, "b", "x", "y"); got != nil {
		t.Errorf("GetPath to nowhere = %q", got)
	}
	if mcp.Get([]byte(`[1]`), "a") != nil || mcp.Get(nil, "a") != nil {
		t.Error("Get on no object finds something")
	}
}

func TestSetAndDelete(t *testing.T) {
	for _, tt := range []struct{ in, key, value, set, del string }{
		{`{"a":1,"b":2}`, "a", "9", `{"a":9,"b":2}`, `{"b":2}`},
		{`{ "a" : 1 , "b" : 2 }`, "b", "9", `{ "a" : 1 , "b" : 9 }`, `{ "a" : 1 }`},
		{`{"a":1,"b":2,"c":3}`, "b", "9", `{"a":1,"b":9,"c":3}`, `{"a":1,"c":3}`},
		{`{"a":1}`, "a", "9", `{"a":9}`, `{}`},
		{`{"a":1 }`, "n\n", "9", `{"a":1,"n\n":9 }`, `{"a":1 }`},
		{` { } `, "n", "9", ` {"n":9 } `, ` { } `},
		{`{"a":1,"a":2,"b":3}`, "a", "9", `{"a":9,"a":9,"b":3}`, `{"b":3}`},
		{`{"\u0061":1,"b":3}`, "a", "9", `{"\u0061":9,"b":3}`, `{"b":3}`},
		{``, "a", "9", `{"a":9}`, ``},
		{`null`, "a", "9", `{"a":9}`, `null`},
		{`[1]`, "a", "9", `[1]`, `[1]`},
	} {
		if got := mcp.Set([]byte(tt.in), tt.key, []byte(tt.value)); string(got) != tt.set {
			t.Errorf("Set(%s, %q) = %s, want %s", tt.in, tt.key, got, tt.set)
		}
		if got := mcp.Delete([]byte(tt.in), tt.key); string(got) != tt.del {
			t.Errorf("Delete(%s, %q) = %s, want %s", tt.in, tt.key, got, tt.del)
		}
	}
}

func TestElements(t *testing.T) {
	got := mcp.Elements([]byte(` [ 1 , "a,]" ,[2,3], {"x":[]} ,null ] `))
	want := []string{"1", `"a,]"`, "[2,3]", `{"x":[]}`, "null"}
	if len(got) != len(want) {
		t.Fatalf("%d elements", len(got))
	}
	for i := range want {
		if string(got[i]) != want[i] {
			t.Errorf("element %d = %q, want %q", i, got[i], want[i])
		}
	}
	if n := mcp.Elements([]byte(`[]`)); len(n) != 0 {
		t.Errorf("empty array has %d elements", len(n))
	}
	if mcp.Elements([]byte(`{}`)) != nil {
		t.Error("an object has elements")
	}
}

func TestScalars(t *testing.T) {
	for in, want := range map[string]bool{`1`: true, `-9223372036854775808`: true, `9223372036854775808`: false, `1.0`: false, `1e2`: false, `"1"`: false, ``: false} {
		if _, ok := mcp.Int([]byte(in)); ok != want {
			t.Errorf("Int(%s) ok = %v", in, ok)
		}
	}
	if v, ok := mcp.Bool([]byte("true")); !v || !ok {
		t.Error("Bool(true)")
	}
	if _, ok := mcp.Bool([]byte(`"true"`)); ok {
		t.Error(`Bool("true")`)
	}
	for _, in := range []string{`1`, `"`, `"a`, `"\ud800"`, "\"\xff\"", `"a"b"`, ``} {
		if s, ok := mcp.String([]byte(in)); ok {
			t.Errorf("String(%s) = %q", in, s)
		}
	}
	if got := mcp.Quote("<a>\u2028\x01\"\\\b\xff/"); string(got) != "\"<a>\u2028\\u0001\\\"\\\\\\b\ufffd/\"" {
		t.Errorf("Quote = %s", got)
	}
}

// FuzzObject holds the raw accessors against encoding/json.
func FuzzObject(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":{"c":[1,2]}}`, `{"\u0061":"x","a":"\\\"","":{}}`, `[1,"]",{"a":[]}]`, `"é\n"`, `{`, `{"a"`, `{"a":`, `[1`, `]`} {
		f.Add([]byte(s), "a", "v")
	}
	f.Fuzz(func(t *testing.T, b []byte, key, text string) {
		// On anything: no panic.
		mcp.Get(b, key)
		mcp.Elements(b)
		mcp.String(b)
		mcp.Set(b, key, []byte("1"))
		mcp.Delete(b, key)
		quoted := mcp.Quote(text)
		std, _ := json.Marshal(text)
		var back, want string
		if json.Unmarshal(quoted, &back) != nil || json.Unmarshal(std, &want) != nil || back != want {
			t.Fatalf("Quote(%q) = %s", text, quoted)
		}
		if mcp.Check(b, mcp.Limits{}) != nil {
			return
		}
		var s string
		if err := json.Unmarshal(b, &s); err == nil && !mcp.IsNull(b) {
			if got, ok := mcp.String(b); !ok || got != s {
				t.Fatalf("String(%q) = %q, %v", b, got, ok)
			}
		}
		var arr []json.RawMessage
		if json.Unmarshal(b, &arr) == nil && arr != nil {
			got := mcp.Elements(b)
			if len(got) != len(arr) {
				t.Fatalf("%q: %d elements, want %d", b, len(got), len(arr))
			}
			for i := range arr {
				if !bytes.Equal(got[i], arr[i]) {
					t.Fatalf("%q: element %d = %q", b, i, got[i])
				}
			}
		}
		var obj map[string]json.RawMessage
		if json.Unmarshal(b, &obj) != nil || obj == nil {
			return
		}
		seen := map[string]json.RawMessage{}
		mcp.Each(b, func(k string, v json.RawMessage) bool { seen[k] = v; return true })
		if len(seen) != len(obj) {
			t.Fatalf("%q: %d members, want %d", b, len(seen), len(obj))
		}
		for k, v := range obj {
			if !bytes.Equal(seen[k], v) || !bytes.Equal(mcp.Get(b, k), v) {
				t.Fatalf("%q: member %q = %q", b, k, seen[k])
			}
			checkEdit(t, b, obj, k)
		}
		if json.Unmarshal(std, &want) == nil {
			checkEdit(t, b, obj, want)
		}
	})
}

// checkEdit sets and deletes one member; all others must stay.
func checkEdit(t *testing.T, b []byte, obj map[string]json.RawMessage, key string) {
	t.Helper()
	var set, del map[string]json.RawMessage
	out := mcp.Set(b, key, []byte(`{"new":1}`))
	if err := json.Unmarshal(out, &set); err != nil {
		t.Fatalf("Set(%q, %q) = %q: %v", b, key, out, err)
	}
	if string(set[key]) != `{"new":1}` {
		t.Fatalf("Set(%q, %q) = %q", b, key, out)
	}
	out = mcp.Delete(b, key)
	if err := json.Unmarshal(out, &del); err != nil {
		t.Fatalf("Delete(%q, %q) = %q: %v", b, key, out, err)
	}
	if _, ok := del[key]; ok {
		t.Fatalf("Delete(%q, %q) = %q", b, key, out)
	}
	for k, v := range obj {
		if k != key && (!bytes.Equal(set[k], v) || !bytes.Equal(del[k], v)) {
			t.Fatalf("editing %q in %q changed %q", key, b, k)
		}
	}
}
