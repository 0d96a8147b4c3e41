package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

const flatText = `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"s":{"type":"string","description":"x"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},"any":{}},"required":["s"],"additionalProperties":false}`

func TestCheckArguments(t *testing.T) {
	nested := `{"type":"object","properties":{"list":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string","enum":["secret-enum"]}},"required":["k"]}},"u":{"anyOf":[{"type":"string"},{"type":"number"}]}},"required":["list"]}`
	for _, c := range []struct {
		name, schema, args string
		fields             string // of the refusal, in order; empty: valid
	}{
		{"nothing required, nothing given", `{}`, ``, ""},
		{"null is {}", `{"required":["a"]}`, `null`, "a"},
		{"absent is {}", `{"required":["a","b"]}`, ``, "a b"},
		{"no schema", ``, `{"x":1}`, ""},
		{"an array", `{}`, `[]`, "arguments"},
		{"a string", `{}`, `"x"`, "arguments"},
		{"flat, valid", flatText, `{"s":"x","n":1.5,"i":-3,"b":true,"any":[1]}`, ""},
		{"flat, 1.0 is an integer", flatText, `{"s":"x","i":1.0}`, ""},
		{"flat, 1e2 is an integer", flatText, `{"s":"x","i":1e2}`, ""},
		{"flat, 1.5 is none", flatText, `{"s":"x","i":1.5}`, "i"},
		{"flat, 2^63", flatText, `{"s":"x","i":9223372036854775808}`, ""},
		{"flat, null is no string", flatText, `{"s":null}`, "s"},
		{"flat, required and unknown", flatText, `{"zz":1}`, "s zz"},
		{"flat, every field is named", flatText, `{"n":"1","i":true,"b":0}`, "s b i n"},
		{"twice", flatText, `{"s":"x","s":"y"}`, "s"},
		{"twice, open", `{"type":"object","properties":{"s":{"type":"string"}}}`, `{"z":1,"z":2}`, "z"},
		{"nested, valid", nested, `{"list":[{"k":"secret-enum"}],"u":"x"}`, ""},
		{"nested", nested, `{"list":[{},{"k":"q"}],"u":true}`, "list.0.k list.1.k u"},
		{"required but not described", `{"type":"object","required":["a"]}`, `{}`, "a"},
		{"a remote reference: required only", `{"type":"object","required":["a"],"properties":{"a":{"$ref":"https://evil.example/x.json"}}}`, `{"a":1}`, ""},
		{"a remote reference: required", `{"type":"object","required":["a"],"properties":{"a":{"$ref":"file:///etc/passwd"}}}`, `{}`, "a"},
		{"an unknown meta-schema: required only", `{"$schema":"https://evil.example/s","type":"object","properties":{"a":{"type":"string"}},"required":["b"]}`, `{"a":1}`, "b"},
		{"a broken schema: required only", `{"type":"objekt","required":["a"]}`, `{"a":1}`, ""},
		{"draft 4", `{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"a":{"type":"number","minimum":1,"exclusiveMinimum":true}}}`, `{"a":1}`, "a"},
		{"2020-12 by default", `{"type":"object","properties":{"a":{"prefixItems":[{"type":"string"}]}}}`, `{"a":[1]}`, "a.0"},
		{"local references", `{"type":"object","$defs":{"p":{"type":"object","properties":{"k":{"type":"string"}}}},"properties":{"a":{"$ref":"#/$defs/p"}}}`, `{"a":{"k":1}}`, "a.k"},
		{"a recursive list", `{"type":"object","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":"string"}}}},"properties":{"a":{"$ref":"#/$defs/n"}}}`, `{"a":{"next":{"next":{"v":1}}}}`, "a.next.next.v"},
		{"a huge exponent", `{"type":"object","properties":{"a":{"type":"number","minimum":1}}}`, `{"a":1e999999999}`, "arguments"},
		{"false", `{"type":"object","properties":{"a":false}}`, `{"a":1}`, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var raw json.RawMessage
			if c.schema != "" {
				raw = json.RawMessage(c.schema)
			}
			err := newArgsSchema(raw).Check(json.RawMessage(c.args))
			if c.fields == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !fault.Is(err, fault.InvalidParams) || fault.From(err).Reason != "INVALID_ARGUMENTS" {
				t.Fatalf("got %v", err)
			}
			fields := fault.From(err).Data["fields"].([]string)
			if got, want := sorted(fields), sorted(strings.Fields(c.fields)); got != want {
				t.Errorf("fields %s, want %s: %v", got, want, err)
			}
			if lines := strings.Split(err.Error(), "\n"); len(lines) != len(fields)+1 {
				t.Errorf("one line a field: %q", lines)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("a value is quoted: %v", err)
			}
		})
	}
	var none *ArgsSchema
	if err := none.Check(json.RawMessage(`{"x":1}`)); err != nil {
		t.Error(err)
	}
}

func sorted(words []string) string {
	m := map[string]int{}
	for _, w := range words {
		m[w]++
	}
	return fmt.Sprint(m)
}

func TestAtMostTenProblems(t *testing.T) {
	args := []string{}
	for i := range 30 {
		args = append(args, fmt.Sprintf(`"%s%d":1`, strings.Repeat("x", 200), i))
	}
	err := newArgsSchema(json.RawMessage(flatText)).Check(json.RawMessage("{" + strings.Join(args, ",") + "}"))
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 12 || !strings.Contains(lines[11], "21 more") || len(err.Error()) > 2000 {
		t.Errorf("%d lines, %d bytes: %v", len(lines), len(err.Error()), lines[len(lines)-1])
	}
}

// Few lines of schema that would take the validator for ever.
func TestWildSchemasAreNotUsed(t *testing.T) {
	chain := `"d30":{"type":"string"}`
	for i := range 30 {
		chain += fmt.Sprintf(`,"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1)
	}
	deep := strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)
	for name, schema := range map[string]string{
		"branching chain":    `{"type":"object","required":["r"],"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{` + chain + `}}`,
		"branching circle":   `{"required":["r"],"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`,
		"reference siblings": `{"required":["r"],"$defs":{"a":{"properties":{"a":{"$ref":"#/$defs/a","properties":{"a":{"$ref":"#/$defs/a"}}}}}},"properties":{"a":{"$ref":"#/$defs/a"}}}`,
		"anchors":            `{"required":["r"],"$anchor":"x","allOf":[{"properties":{"a":{"$ref":"#x"}}},{"properties":{"a":{"$ref":"#x"}}}]}`,
		"embedded id":        `{"required":["r"],"$defs":{"d":{"$id":"http://x/","$defs":{"e":{"allOf":[{"properties":{"a":{"$ref":"#/$defs/e"}}},{"properties":{"a":{"$ref":"#/$defs/e"}}}]}},"$ref":"#/$defs/e"}},"properties":{"a":{"$ref":"#/$defs/d"}}}`,
		"dynamic references": `{"required":["r"],"$dynamicAnchor":"x","allOf":[{"properties":{"a":{"$dynamicRef":"#x"}}},{"properties":{"a":{"$dynamicRef":"#x"}}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newArgsSchema(json.RawMessage(schema))
			start := time.Now()
			if err := s.Check(json.RawMessage(`{"r":1,"a":` + deep + `}`)); err != nil {
				t.Errorf("refused by a schema that is not used: %v", err)
			}
			if err := s.Check(json.RawMessage(deep)); err == nil || !strings.Contains(err.Error(), `"r" is required`) {
				t.Errorf("required arguments are still checked: %v", err)
			}
			if s.full != nil || time.Since(start) > 5*time.Second {
				t.Errorf("the schema is used (%v)", time.Since(start))
			}
		})
	}
}

func TestFlatSchemas(t *testing.T) {
	if newFlatSchema(json.RawMessage(flatText)) == nil {
		t.Error("the usual schema is not recognised")
	}
	for _, text := range []string{
		`{}`, `{"type":["object"]}`, `{"type":"object","properties":{"a":{"type":"array"}}}`, `{"type":"object","properties":{"a":{"type":"string","minLength":1}}}`,
		`{"type":"object","properties":{"a":{"type":"string","format":"email"}}}`, `{"type":"object","properties":{"a":true}}`, `{"type":"object","properties":[]}`,
		`{"type":"object","additionalProperties":{}}`, `{"type":"object","minProperties":1}`, `{"type":"object","required":["x"]}`, `{"$schema":"https://x/","type":"object"}`,
		`{"type":"object","properties":{"a":{"type":"string","type":"number"}}}`, `{"type":"object","type":"object"}`,
	} {
		if newFlatSchema(json.RawMessage(text)) != nil {
			t.Errorf("%s is taken for a flat schema", text)
		}
	}
	s := newArgsSchema(json.RawMessage(flatText))
	args := json.RawMessage(`{"s":"x","n":1.5,"i":-3,"b":true}`)
	if err := s.Check(args); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { s.flat.valid(args) }); n > 5 {
		t.Errorf("%v allocations", n)
	}
}

// Stored admissions hold these values: a formula that gives others is version 2.
func TestFingerprintV1(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"t"}`: "v1:3647a67649228b62fe3d139c47f7a3c673c31ce57da824082b6654fc0b15751f",
		`{"outputSchema":{"b":1.0,"a":[2,1]},"title":"T\u00e9","name":"t","description":"d","annotations":{"z":true,"a":null},"inputSchema":{"type":"object"},"_meta":{}}`: "v1:c45b9f6791ecf9d285bcb1a419b8cf9915ad1cf9f34f091274587e1491f39877",
	} {
		d, err := parseDefinition(json.RawMessage(text))
		if err != nil || d.fingerprint != want {
			t.Errorf("%s: got %s %v", text, d.fingerprint, err)
		}
	}
}

// The short way never accepts what the validator refuses, whatever the schema and the arguments.
func FuzzCheckArguments(f *testing.F) {
	for _, args := range []string{`{"s":"x"}`, `{"s":1}`, `{"s":"x","i":1.0}`, `{"s":"x","b":null}`, `{"\u0073":"x"}`, `{"s":"x","zz":1}`, `{ }`} {
		f.Add([]byte(flatText), []byte(args))
	}
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"type":"object","properties":{"a":{"pattern":"^(a+)+$"}}}`), []byte(`{"a":"aaaa!"}`))
	f.Fuzz(func(t *testing.T, schema, args []byte) {
		if mcp.Check(schema, mcp.Limits{}) != nil || mcp.Check(args, mcp.Limits{}) != nil || !mcp.IsObject(args) {
			t.Skip()
		}
		s := newArgsSchema(schema)
		err := s.Check(args)
		if err != nil && !fault.Is(err, fault.InvalidParams) {
			t.Fatalf("%T %v", err, err)
		}
		if s.flat == nil || !s.flat.valid(args) || s.full == nil {
			return
		}
		value, decodeErr := jsonschema.UnmarshalJSON(bytes.NewReader(args))
		if decodeErr != nil {
			t.Fatal(decodeErr)
		}
		if problems := validate(s.full, value); problems != nil {
			t.Fatalf("%s accepts %s, but %v", schema, args, problems)
		}
	})
}

func FuzzDefinition(f *testing.F) {
	f.Add([]byte(`{"name":"a","description":"d","inputSchema":{"type":"object"},"annotations":{}}`))
	f.Add([]byte(`{"name":"a","Name":"b"}`))
	f.Add([]byte(`{"name":"\ud800"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := parseDefinition(raw)
		if err != nil {
			return
		}
		if len(d.fingerprint) != len("v1:")+64 || d.name == "" || len(d.name) > maxToolName {
			t.Fatalf("%q: %+v", raw, d)
		}
		// What is stored byte for byte gives the same fingerprint when it is read again, also in canonical form.
		canonical, err := mcp.Canonical(raw)
		if err != nil {
			return // something outside the governed members
		}
		again, err := parseDefinition(canonical)
		if err != nil || again.fingerprint != d.fingerprint {
			t.Fatalf("%s and %s: %v, fingerprints differ", raw, canonical, err)
		}
		poisoned(raw, canonical)
	})
}

func BenchmarkCheckArguments(b *testing.B) {
	args := json.RawMessage(`{"s":"x","n":1.5,"i":-3,"b":true}`)
	for name, schema := range map[string]string{"flat": flatText, "full": strings.Replace(flatText, `"any":{}`, `"any":{"minLength":1}`, 1)} {
		s := newArgsSchema(json.RawMessage(schema))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Check(args); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
