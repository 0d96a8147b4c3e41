// Package internal_test guards the shape of the source tree: which package may import which, that each
// says what it owns, which third-party modules there are and why.
package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "doorward.dev/doorward"

// edges is the table of docs/architecture.md: the packages of ours that each package may import. "*" is
// every package but the ones that only the ends of the program may import (see above).
var edges = map[string]string{
	"cmd/doorward":              "cli",
	"internal/fault":            "",
	"internal/mcp":              "fault sandbox",
	"internal/bridge":           "mcp fault",
	"internal/sandbox":          "fault",
	"internal/upstream":         "bridge mcp sandbox fault",
	"internal/op":               "fault",
	"internal/policy":           "fault",
	"internal/catalog":          "policy mcp secret db fault",
	"internal/auth":             "policy db secret fault",
	"internal/audit":            "webhook db secret fault",
	"internal/webhook":          "fault",
	"internal/notify":           "webhook db fault",
	"internal/gate":             "policy catalog auth audit notify upstream mcp secret db fault",
	"internal/secret":           "fault",
	"internal/db":               "fault",
	"internal/tools/filesystem": "op fault",
	"internal/tools/host":       "op fault",
	"internal/door":             "gate catalog auth audit upstream bridge mcp op secret db fault",
	"internal/config":           "fault",
	"internal/cli":              "* app",
	"internal/app":              "*",
	"internal/testkit":          "",
}

// above are the packages that no other package may import by "*".
var above = []string{"cli", "app", "testkit"}

// file is one Go file of the module.
type file struct {
	path string // relative to the root of the module
	dir  string
	test bool
	ast  *ast.File
}

// sources parses every Go file of the module (not of the modules nested in it).
func sources(t *testing.T) []file {
	t.Helper()
	var files []file
	fset := token.NewFileSet()
	err := fs.WalkDir(os.DirFS(".."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." {
			_, nested := os.Stat(filepath.Join("..", p, "go.mod"))
			if nested == nil || skipped(d.Name()) {
				return fs.SkipDir
			}
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, filepath.Join("..", p), nil, parser.ParseComments|parser.SkipObjectResolution)
		files = append(files, file{path: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), ast: f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func skipped(dir string) bool {
	return slices.Contains([]string{".git", "node_modules", "testdata", "bin", "dist", ".cache"}, dir)
}

func imports(f file) []string {
	var list []string
	for _, i := range f.ast.Imports {
		list = append(list, strings.Trim(i.Path.Value, `"`))
	}
	return list
}

func TestImports(t *testing.T) {
	used := map[string]bool{}
	for _, f := range sources(t) {
		if f.dir == "internal" || strings.HasPrefix(f.dir, "test/") {
			continue
		}
		allowed, known := edges[f.dir]
		if !known {
			t.Errorf("%s: package is in no row of the table: say in docs/architecture.md and here what it may import", f.path)
			continue
		}
		used[f.dir] = true
		for _, imp := range imports(f) {
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok || ours == f.dir {
				continue
			}
			if name := strings.TrimPrefix(ours, "internal/"); !mayImport(f, allowed, name) {
				t.Errorf("%s imports %s, which the table of docs/architecture.md does not allow", f.path, name)
			}
		}
	}
	for dir := range edges {
		if !used[dir] && dir != "internal/testkit" {
			t.Errorf("the table has %s, which does not exist", dir)
		}
	}
}

// mayImport applies the table. A test may use any package below its own, and testkit: what it is tested with
// is its neighbours; it may not reach up to the ends of the program.
func mayImport(f file, allowed, name string) bool {
	words := strings.Fields(allowed)
	switch {
	case slices.Contains(words, name):
		return true
	case f.test:
		return name == "testkit" || !slices.Contains(above, name)
	default:
		return slices.Contains(words, "*") && !slices.Contains(above, name)
	}
}

func TestTestkitIsForTestsOnly(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || f.dir == "internal/testkit" {
			continue
		}
		if slices.Contains(imports(f), module+"/internal/testkit") {
			t.Errorf("%s imports testkit", f.path)
		}
	}
}

func TestEveryPackageSaysWhatItOwns(t *testing.T) {
	doc := map[string]string{}
	for _, f := range sources(t) {
		if _, seen := doc[f.dir]; !seen {
			doc[f.dir] = ""
		}
		if f.ast.Doc != nil {
			doc[f.dir] += f.ast.Doc.Text()
		}
	}
	for dir, text := range doc {
		if len(strings.Fields(text)) < 5 {
			t.Errorf("%s has no package comment that says what it owns", dir)
		}
	}
}

func TestMainIsShort(t *testing.T) {
	text, err := os.ReadFile("../cmd/doorward/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 30 {
		t.Errorf("main.go has %d lines; what it does belongs into internal/cli", n)
	}
}

// TestDependencies compares the modules that the code imports with docs/deps.md.
func TestDependencies(t *testing.T) {
	gomod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^\t?(?:require )?(\S+\.\S+/\S+|\S+\.\S+) v\S+`).FindAllStringSubmatch(string(gomod), -1)
	var modules []string
	for _, m := range required {
		modules = append(modules, m[1])
	}
	page, err := os.ReadFile("../docs/deps.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| \\S.*\\|$").FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = false
	}
	for _, f := range sources(t) {
		for _, imp := range imports(f) {
			if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") || strings.HasPrefix(imp, module) {
				continue
			}
			m := moduleOf(imp, modules)
			if m == "" {
				t.Errorf("%s imports %s, which is in no module of go.mod", f.path, imp)
				continue
			}
			if _, ok := listed[m]; !ok {
				t.Errorf("%s imports %s: add a row with the reason to docs/deps.md", f.path, m)
			}
			listed[m] = true
		}
	}
	for m, used := range listed {
		if !used {
			t.Errorf("docs/deps.md lists %s, which nothing imports", m)
		}
	}
}

// moduleOf finds the module of a package: the longest one that is a prefix of its path.
func moduleOf(imp string, modules []string) string {
	best := ""
	for _, m := range modules {
		if (imp == m || strings.HasPrefix(imp, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

// foreign are words of the machines this is built on; they mean nothing to a reader of the project. They are
// written in two parts so that this file does not hold them.
var foreign = regexp.MustCompile(`(^|[^\w.-])/wo` + `rk/|\.lib` + `rary/|helper-` + `common|/tmp/bash` + `_jobs|registry\.npm` + `js|proxy\.golang` + `\.org|deb\.debian` + `\.org`)

func TestNothingOfTheWorkplace(t *testing.T) {
	err := fs.WalkDir(os.DirFS(".."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(d.Name()) && d.Name() != "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() == ".git" { // the file that a linked worktree has in place of the folder
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 4<<20 {
			return err
		}
		text, err := os.ReadFile(filepath.Join("..", p))
		if err != nil {
			return err
		}
		if hit := foreign.Find(text); hit != nil {
			t.Errorf("%s holds %q", p, hit)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
