package mcp

import (
	"fmt"
	"strings"
	"testing"
)

func TestRepeated(t *testing.T) {
	wide := func(n int, last string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"k%d":%d,`, i, i)
		}
		return "{" + b.String() + last + ":0}"
	}
	for _, c := range []struct{ in, want string }{
		{`{}`, ""}, {`[]`, ""}, {`1`, ""}, {`"a"`, ""}, {``, ""},
		{`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}`, ""},
		{`{"a":1,"a":2}`, "a"},
		{` { "a" : 1 , "b":[ {"x":{"y":1, "y":1}} ] } `, "y"},
		{`{"\u0061":1,"a":2}`, "a"},
		{`{"a":1,"\u0061":2}`, "a"},
		{`{"":1,"":2}`, ""},
		{`{"ä":1,"\u00e4":2}`, "ä"},
		{`{"A":1,"a":2}`, ""},
		{wide(500, `"z"`), ""},
		{wide(500, `"k3"`), "k3"},
		{wide(500, `"k499"`), "k499"},
		{wide(manyMembers, `"k0"`), "k0"},
	} {
		name, found := Repeated([]byte(c.in))
		if wantFound := c.want != "" || c.in == `{"":1,"":2}`; found != wantFound || name != c.want {
			t.Errorf("Repeated(%.60s) = %q, %v; want %q", c.in, name, found, c.want)
		}
	}
	small := []byte(`{"text":"hello","options":{"a":1,"b":[1,2,3]}}`)
	if n := testing.AllocsPerRun(100, func() { Repeated(small) }); n != 0 {
		t.Errorf("allocates %v times", n)
	}
}

// Where Canonical refuses a value for a repeated name, Repeated finds one, and the other way round; Canonical
// refuses some numbers as well.
func FuzzRepeated(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1,"b":2}}`))
	f.Add([]byte(`[{"a":1},{"\u0061":1,"a":2}]`))
	f.Add([]byte(`1E10000000000`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b, Limits{}) != nil {
			return
		}
		_, err := Canonical(b)
		_, found := Repeated(b)
		if found && err == nil || !found && err != nil && strings.Contains(err.Error(), "twice") {
			t.Errorf("Repeated(%q) = %v, Canonical: %v", b, found, err)
		}
	})
}
