// Package conformance runs the official conformance suite against the built binary with the official Go SDK's
// reference server behind it, and compares the outcome with a committed table.
package conformance

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

var update = flag.Bool("update", false, "write the outcome into expected.json; the change is for a reviewer to accept")

func TestMain(m *testing.M) { testkit.Main(m) }

// outcome is how the checks of one scenario ended.
type outcome struct {
	Passed int    `json:"passed"`
	Failed int    `json:"failed"`
	Scored bool   `json:"scored"`        // counts for conformance to the revision
	Why    string `json:"why,omitempty"` // checks fail; written by hand
}

// table is revision → scenario → outcome.
type table map[string]map[string]outcome

const expectedFile = "expected.json"

func expected(t *testing.T) table {
	t.Helper()
	raw, err := os.ReadFile(expectedFile)
	if err != nil {
		t.Fatal(err)
	}
	var e table
	testkit.Decode(t, raw, &e)
	return e
}

// TestServer is both cells in which client and upstream are of one era. least is what issue and design ask for:
// checks passed of the legacy revision, scored scenarios passed of the modern one.
func TestServer(t *testing.T) {
	for _, c := range []struct {
		revision  string
		stateless bool
		checks    int
		scored    int
	}{
		{testkit.Legacy, false, 82, 30},
		{testkit.Modern, true, 153, 37},
	} {
		t.Run(c.revision, func(t *testing.T) {
			g := testkit.Start(t, testkit.Options{Open: true})
			g.Approve(g.AddHTTP("reference", testkit.ReferenceServer(t, c.stateless), nil).ID, "ALLOW")
			got, out := run(t, g.OpenURL+"/mcp/reference", c.revision)
			compare(t, c.revision, got, out)
			checks, scored := 0, 0
			for _, o := range got {
				checks += o.Passed
				if o.Scored && o.Failed == 0 && o.Passed > 0 {
					scored++
				}
			}
			t.Logf("%d checks and %d scored scenarios passed", checks, scored)
			if checks < c.checks || scored < c.scored {
				t.Errorf("%d checks and %d scored scenarios passed, want %d and %d", checks, scored, c.checks, c.scored)
			}
		})
	}
}

var (
	summaryLine  = regexp.MustCompile(`(?m)^[✓✗] (\S+): (\d+) passed, (\d+) failed`)
	unscoredLine = regexp.MustCompile(`(?m)^  [✓✗] (\S+) \(`)
)

// run runs the suite and reads its summary.
func run(t *testing.T, url, revision string) (map[string]outcome, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	suite := filepath.Join(testkit.Root(), "test", "peers", "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	cmd := exec.CommandContext(ctx, testkit.NPM(t, "node"), suite, "server", "--url", url, "--requirements", revision)
	cmd.Dir = t.TempDir()
	raw, err := cmd.CombinedOutput() // the exit code only repeats the summary
	out := string(raw)
	got := map[string]outcome{}
	for _, m := range summaryLine.FindAllStringSubmatch(out, -1) {
		passed, _ := strconv.Atoi(m[2])
		failed, _ := strconv.Atoi(m[3])
		got[m[1]] = outcome{Passed: passed, Failed: failed, Scored: true}
	}
	for _, m := range unscoredLine.FindAllStringSubmatch(out, -1) {
		o := got[m[1]]
		o.Scored = false
		got[m[1]] = o
	}
	if len(got) == 0 {
		t.Fatalf("the suite gave no summary: %v\n%s", err, out)
	}
	return got, out
}

// compare fails on a regression; an improvement is welcome and wants the table updated.
func compare(t *testing.T, revision string, got map[string]outcome, out string) {
	t.Helper()
	e := expected(t)
	for name, o := range got {
		o.Why = e[revision][name].Why
		got[name] = o
	}
	if *update {
		e[revision] = got
		raw, err := json.MarshalIndent(e, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(expectedFile, append(raw, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	worse := false
	for name, want := range e[revision] {
		o, ran := got[name]
		switch {
		case !ran:
			t.Errorf("%s did not run", name)
		case o.Passed < want.Passed || o.Failed > want.Failed:
			t.Errorf("%s: %d passed, %d failed; expected %d and %d", name, o.Passed, o.Failed, want.Passed, want.Failed)
			worse = true
		case o != want:
			t.Errorf("%s: better than expected: run with -update and commit expected.json", name)
		}
	}
	for name := range got {
		if _, known := e[revision][name]; !known {
			t.Errorf("%s is not in the table: run with -update and commit expected.json", name)
		}
	}
	if worse {
		file := filepath.Join(os.TempDir(), "doorward-conformance-"+revision+".log")
		if os.WriteFile(file, []byte(out), 0o644) == nil {
			t.Logf("the suite's output is in %s", file)
		}
	}
}
