package db_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// modernc.org/sqlite is generated against exactly one version of
// modernc.org/libc; another one compiles and corrupts. goose from v3.30 on pulls a newer one.
func TestLibcIsTheOneSQLiteWants(t *testing.T) {
	list := func(format, module string) string {
		out, err := exec.Command("go", "list", "-m", "-f", format, module).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", module, err)
		}
		return strings.TrimSpace(string(out))
	}
	mod, err := os.ReadFile(list("{{.GoMod}}", "modernc.org/sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`modernc\.org/libc (v\S+)`).FindSubmatch(mod)
	if want == nil {
		t.Fatal("sqlite's go.mod names no libc")
	}
	if got := list("{{.Version}}", "modernc.org/libc"); got != string(want[1]) {
		t.Errorf("libc is %s, sqlite wants %s: pin it in go.mod", got, want[1])
	}
}
