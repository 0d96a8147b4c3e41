package door

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/rest.md lists every route; this fails when it is stale (go test ./internal/door -update).
func TestRoutesAreDocumented(t *testing.T) {
	const path, begin, end = "../../docs/rest.md", "<!-- generated: routes -->\n", "<!-- end -->"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("rest.md has lost its marks")
	}
	var table strings.Builder
	table.WriteString("| route | role | |\n|---|---|---|\n")
	for _, r := range routes() {
		fmt.Fprintf(&table, "| `%s %s` | %s | %s |\n", r.method, r.path, r.min, r.summary)
	}
	want := head + begin + table.String() + end + tail
	if want == string(old) {
		return
	}
	if flag.Lookup("update").Value.String() != "true" {
		t.Fatal("docs/rest.md is stale: run go test ./internal/door -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
