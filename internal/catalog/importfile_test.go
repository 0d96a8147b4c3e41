package catalog_test

import (
	"reflect"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
)

func TestParseImport(t *testing.T) {
	env := func(name string) (string, bool) { return "v-" + name, name == "KNOWN" || name == "DOORWARD_KEY" }
	stdio := []catalog.Spec{{Name: "a", Transport: "stdio", Command: "npx", Args: []string{"-y", "x"}}}
	for name, c := range map[string]struct {
		text string
		want []catalog.Spec
	}{
		"claude":                  {`{"mcpServers":{"a":{"command":"npx","args":["-y","x"]}}}`, stdio},
		"vs code":                 {`{"servers":{"a":{"type":"stdio","command":"npx","args":["-y","x"]}}}`, stdio},
		"vs code settings":        {`{"mcp":{"servers":{"a":{"command":"npx","args":["-y","x"]}}}}`, stdio},
		"comments and commas":     {"\ufeff{ // c\n \"mcpServers\": {\"a\": {\"command\":\"npx\", /* , */ \"args\":[\"-y\",\"x\",],},},}", stdio},
		"comment signs in a text": {`{"mcpServers":{"a":{"command":"a//b","args":["/*","\",]"]}}}`, []catalog.Spec{{Name: "a", Transport: "stdio", Command: "a//b", Args: []string{"/*", `",]`}}}},
		"url":                     {`{"mcpServers":{"b":{"url":"https://h/mcp","headers":{"X":"y"}},"a":{"type":"streamable-http","url":"https://i/"}}}`, []catalog.Spec{{Name: "a", Transport: "http", URL: "https://i/"}, {Name: "b", Transport: "http", URL: "https://h/mcp", Headers: map[string]string{"X": "y"}}}},
		"references":              {`{"mcpServers":{"a":{"command":"${KNOWN}","env":{"A":"${env:KNOWN}","B":"${NOT}","C":"${NOT:-d}","D":"${DOORWARD_KEY}","E":7}}}}`, []catalog.Spec{{Name: "a", Transport: "stdio", Command: "v-KNOWN", Env: map[string]string{"A": "v-KNOWN", "B": "${NOT}", "C": "${NOT:-d}", "D": "${DOORWARD_KEY}", "E": "7"}}}},
	} {
		got, err := catalog.ParseImport([]byte(c.text), env)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for text, mark := range map[string]string{
		`{`:                        "not valid JSON",
		"{\n\n\"mcpServers\": {]}": "line 3",
		`{}`:                       "names no servers",
		`{"mcpServers":{"a":{}}}`:  "needs either",
		`{"mcpServers":{"a":{"command":"secret-x","url":"https://h/"}}}`:       "needs either",
		`{"mcpServers":{"a":{"command":1}}}`:                                   `"a"`,
		`{"mcpServers":{"a":{"command":"x"}},"servers":{"a":{"command":"x"}}}`: "two places",
		`{"servers":{"a":{"command":"x","env":{"K":"${input:secret}"}}}}`:      "input:secret",
		`{"mcpServers":{"a":{"command":"x"}} /* no end`:                        "no end",
	} {
		_, err := catalog.ParseImport([]byte(text), env)
		if !fault.Is(err, fault.InvalidParams) || !strings.Contains(err.Error(), mark) || strings.Contains(err.Error(), "secret-x") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func FuzzParseImport(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"a":{"command":"x"}}}`))
	f.Add([]byte("{//\n\"servers\":{\"a\":{\"url\":\"${A:-b}\",},},}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		specs, err := catalog.ParseImport(b, nil)
		if err == nil && len(specs) == 0 {
			t.Fatal("neither servers nor an error")
		}
	})
}
