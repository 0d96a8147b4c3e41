package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "rewrite the generated pages")

// docs/cli.md lists every command; this fails when it is stale (go test ./internal/cli -update).
func TestCommandsAreDocumented(t *testing.T) {
	const path, begin, end = "../../docs/cli.md", "<!-- generated: commands -->\n", "<!-- end -->"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("cli.md has lost its marks")
	}
	parser, err := kong.New(&commands{}, kong.Name("doorward"))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| command | |\n|---|---|\n")
	for _, n := range parser.Model.Leaves(true) {
		fmt.Fprintf(&table, "| `%s` | %s |\n", strings.ReplaceAll(n.Summary(), "|", `\|`), n.Help)
	}
	want := head + begin + table.String() + end + tail
	if want == string(old) {
		return
	}
	if !*update {
		t.Fatal("docs/cli.md is stale: run go test ./internal/cli -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The commands of docs/simulate.md are run by a script, as they stand there.
func TestSimulateCommandsRun(t *testing.T) {
	page, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/script/simulate.txtar")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "doorward ") {
			continue
		}
		n++
		if !strings.Contains(string(script), "\nexec "+line) {
			t.Errorf("no script runs %s", line)
		}
	}
	if n == 0 {
		t.Error("the page has no commands")
	}
}

// Both languages take the same values in the same order.
func TestMessages(t *testing.T) {
	verbs := func(s string) string {
		var out []string
		for i := 0; i+1 < len(s); i++ {
			if s[i] == '%' {
				out = append(out, s[i:i+2])
			}
		}
		return strings.Join(out, "")
	}
	for key, m := range messages {
		if m.en == "" || m.de == "" {
			t.Errorf("%s has a missing language", key)
		}
		if verbs(m.en) != verbs(m.de) {
			t.Errorf("%s: %q and %q take different values", key, m.en, m.de)
		}
	}
}

func TestLanguage(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "en"},
		{map[string]string{"LANG": "de_AT.UTF-8"}, "de"},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, "en"},
		{map[string]string{"LC_MESSAGES": "de", "LANG": "fr_FR"}, "de"},
		{map[string]string{"LANG": "fr_FR.UTF-8"}, "en"},
	} {
		if got := language(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %s, want %s", c.env, got, c.want)
		}
	}
}

func TestValue(t *testing.T) {
	t.Setenv("DW_TEST_VALUE", "known")
	t.Setenv("DOORWARD_SECRET", "own")
	for in, want := range map[string]string{
		"plain": "plain", "$5 and $HOME": "$5 and $HOME", "Bearer ${DW_TEST_VALUE}": "Bearer known", "${DW_TEST_UNKNOWN}": "${DW_TEST_UNKNOWN}",
		"${DW_TEST_UNKNOWN:-x}": "${DW_TEST_UNKNOWN:-x}", "${DOORWARD_SECRET}": "${DOORWARD_SECRET}", "a$${DW_TEST_VALUE}": "a$known",
	} {
		if got, _, err := value(in); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	if _, _, err := value("@/nowhere"); err == nil {
		t.Error("a missing file is no error")
	}
}

// What a server says cannot move the cursor or turn the line around.
func TestClean(t *testing.T) {
	for _, r := range clean("a\x1b[2Jb\u202ec\u200bd\r\t\x00") {
		if r < ' ' || r == '\u202e' || r == '\u200b' {
			t.Errorf("%q is left", r)
		}
	}
}
