package filesystem

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/op"
)

// world is a folder tree with a root inside it and secrets beside it:
//
//	base/documents          the root
//	base/documents-private  secret.txt: a sibling whose name begins like the root's
//	base/secret.txt
func world(t *testing.T) (base string, s *op.Server) {
	t.Helper()
	base = t.TempDir()
	root := filepath.Join(base, "documents")
	for path, text := range map[string]string{
		"documents/a.txt":              "alpha",
		"documents/empty.txt":          "",
		"documents/dir/b.txt":          "beta",
		"documents/dir/deep/c.txt":     "gamma <&>",
		"documents/..dots/d.txt":       "dots are a name",
		"documents/uml\u00e4ut.txt":    "gr\u00fc\u00dfe",
		"documents/nul.bin":            "a\x00b",
		"documents/latin1.txt":         "gr\xfc\xdfe",
		"documents/limit.txt":          strings.Repeat("x", MaxFile),
		"documents/large.txt":          strings.Repeat("x", MaxFile+1),
		"documents-private/secret.txt": "SECRET",
		"secret.txt":                   "SECRET",
		"private/secret.txt":           "SECRET",
	} {
		full := filepath.Join(base, path)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		must(t, os.WriteFile(full, []byte(text), 0o644))
	}
	for link, target := range map[string]string{
		"in":          "dir/b.txt",
		"indir":       "dir",
		"updown":      "dir/../a.txt",
		"out":         "../secret.txt",
		"outdir":      "..",
		"outabs":      filepath.Join(base, "secret.txt"),
		"passwd":      "/etc/passwd",
		"slash":       "/",
		"proc":        "/proc/self/environ",
		"procroot":    "/proc/self/root",
		"cwd":         "/proc/self/cwd",
		"sibling":     "../documents-private",
		"dangling":    "nowhere",
		"danglingout": "../nowhere",
		"loop":        "loop",
		"ping":        "pong",
		"pong":        "ping",
		"chain":       "dir/chain2",
		"dir/chain2":  "../out",
		"dir/parent":  "..",
		"zero":        "/dev/zero",
	} {
		must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	must(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644))
	must(t, os.Symlink("fifo", filepath.Join(root, "tofifo")))
	s, err := New(root)
	must(t, err)
	return base, s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call calls a tool and returns the text, or the error class of a refusal.
func call(t *testing.T, s *op.Server, tool, path string) (text, class string) {
	t.Helper()
	args, err := json.Marshal(map[string]string{"path": path})
	must(t, err)
	raw, err := s.CallTool(t.Context(), tool, args)
	must(t, err)
	var r struct {
		Content           []struct{ Text string }
		StructuredContent struct {
			OK    *bool  `json:"ok"`
			Class string `json:"error_class"`
			Error string `json:"error"`
		}
		IsError bool
	}
	must(t, json.Unmarshal(raw, &r))
	if r.IsError != (r.StructuredContent.Class != "") || (r.IsError && (r.StructuredContent.OK == nil || *r.StructuredContent.OK)) {
		t.Fatalf("%s %q: not an envelope: %s", tool, path, raw)
	}
	return r.Content[0].Text, r.StructuredContent.Class
}

// TestEscapes is the border: no form of a path reads what lies outside.
func TestEscapes(t *testing.T) {
	base, s := world(t)
	root := filepath.Join(base, "documents")
	up := strings.Repeat("../", 40)
	paths := []string{
		"..", "../", "../secret.txt", "./../secret.txt", "../../etc/passwd", "../../../../etc/passwd", up + "etc/passwd",
		"dir/../../secret.txt", "dir/deep/../../../secret.txt", "dir/./../../secret.txt", "indir/../../secret.txt", "dir//..//..//secret.txt",
		"../documents/../secret.txt", "../documents-private/secret.txt", "../documents-private", "dir/../dir/../../secret.txt",
		"/etc/passwd", "//etc/passwd", "///etc/passwd", "/", "/..", "/../etc/passwd", "/proc/self/environ", "/proc/1/mem", "/dev/zero", "/sys/kernel",
		base, base + "/secret.txt", root + "-private", root + "-private/secret.txt", root + "/../secret.txt", root + "/../documents-private/secret.txt",
		root + "/dir/../../secret.txt", "out", "outdir", "outdir/secret.txt", "outdir/documents/../secret.txt", "outabs", "passwd", "slash", "slash/etc/passwd",
		"proc", "procroot", "procroot/etc/passwd", "cwd", "sibling", "sibling/secret.txt", "chain", "dir/chain2", "danglingout", "dir/parent/../secret.txt",
		"dir/parent/out", "loop", "ping", "fifo", "tofifo", "zero", "a.txt\x00", "../secret.txt\x00.txt", "\x00",
	}
	if len(paths) < 40 {
		t.Fatalf("only %d paths", len(paths))
	}
	for _, tool := range []string{"read_file", "list_directory"} {
		for _, p := range paths {
			text, class := call(t, s, tool, p)
			if strings.Contains(text, "SECRET") || strings.Contains(text, "root:") {
				t.Fatalf("%s %q leaked: %.80s", tool, p, text)
			}
			if class != "path_not_allowed" {
				t.Errorf("%s %q: class %q, want path_not_allowed (%.120s)", tool, p, class, text)
			}
		}
	}
}

// TestNoOracle: what lies outside is refused alike whether it exists or not.
func TestNoOracle(t *testing.T) {
	base, s := world(t)
	for _, pair := range [][2]string{
		{"../secret.txt", "../missing.txt"}, {"/etc/passwd", "/etc/missing"}, {base + "/secret.txt", base + "/missing.txt"},
		{"outdir/secret.txt", "outdir/missing.txt"}, {"outabs", "danglingout"}, {"sibling/secret.txt", "sibling/missing.txt"},
	} {
		_, there := call(t, s, "read_file", pair[0])
		_, missing := call(t, s, "read_file", pair[1])
		if there != missing {
			t.Errorf("%q is %s but %q is %s", pair[0], there, pair[1], missing)
		}
	}
}

func TestReadFile(t *testing.T) {
	base, s := world(t)
	root := filepath.Join(base, "documents")
	for _, c := range []struct{ path, text, class string }{
		{"a.txt", "alpha", ""},
		{"./a.txt", "alpha", ""},
		{"dir/../a.txt", "alpha", ""},
		{root + "/a.txt", "alpha", ""},
		{root + "//dir/./b.txt", "beta", ""},
		{"empty.txt", "", ""},
		{"dir/deep/c.txt", "gamma <&>", ""},
		{"..dots/d.txt", "dots are a name", ""},
		{"uml\u00e4ut.txt", "gr\u00fc\u00dfe", ""},
		{"in", "beta", ""},
		{"indir/b.txt", "beta", ""},
		{"updown", "alpha", ""},
		{"dir/parent/a.txt", "alpha", ""},
		{"limit.txt", strings.Repeat("x", MaxFile), ""},
		{"large.txt", "", "too_large"},
		{"nul.bin", "", "binary_file"},
		{"latin1.txt", "", "binary_file"},
		{"dir", "", "is_directory"},
		{"", "", "is_directory"},
		{root, "", "is_directory"},
		{"missing", "", "not_found"},
		{"a.txt/x", "", "not_found"},
		{"dangling", "", "not_found"},
		{strings.Repeat("n", 300), "", "not_found"},
	} {
		text, class := call(t, s, "read_file", c.path)
		if class != c.class || (c.class == "" && text != c.text) {
			t.Errorf("%.60q: %.80q, class %q; want %.80q, class %q", c.path, text, class, c.text, c.class)
		}
	}
}

func TestListDirectory(t *testing.T) {
	base, s := world(t)
	want := Listing{Path: ".", Entries: []Entry{
		{"..dots", "dir", 0}, {"a.txt", "file", 5}, {"chain", "symlink", 0}, {"cwd", "symlink", 0}, {"dangling", "symlink", 0}, {"danglingout", "symlink", 0},
		{"dir", "dir", 0}, {"empty.txt", "file", 0}, {"fifo", "other", 0}, {"in", "symlink", 0}, {"indir", "symlink", 0}, {"large.txt", "file", MaxFile + 1},
		{"latin1.txt", "file", 5}, {"limit.txt", "file", MaxFile}, {"loop", "symlink", 0}, {"nul.bin", "file", 3}, {"out", "symlink", 0}, {"outabs", "symlink", 0},
		{"outdir", "symlink", 0}, {"passwd", "symlink", 0}, {"ping", "symlink", 0}, {"pong", "symlink", 0}, {"proc", "symlink", 0}, {"procroot", "symlink", 0},
		{"sibling", "symlink", 0}, {"slash", "symlink", 0}, {"tofifo", "symlink", 0}, {"uml\u00e4ut.txt", "file", 7}, {"updown", "symlink", 0}, {"zero", "symlink", 0},
	}}
	for _, path := range []string{"", ".", "dir/..", filepath.Join(base, "documents")} {
		text, class := call(t, s, "list_directory", path)
		var got Listing
		if class != "" || json.Unmarshal([]byte(text), &got) != nil {
			t.Fatalf("%q: %s (%s)", path, text, class)
		}
		want.Path = path
		if path == "" {
			want.Path = "."
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", path, diff)
		}
	}
	for path, class := range map[string]string{"a.txt": "not_directory", "missing": "not_found", "in": "not_directory"} {
		if _, got := call(t, s, "list_directory", path); got != class {
			t.Errorf("%q: class %q, want %q", path, got, class)
		}
	}
}

func TestTooManyEntries(t *testing.T) {
	dir := t.TempDir()
	for i := range MaxEntries + 1 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		must(t, err)
		f.Close()
	}
	s, err := New(dir)
	must(t, err)
	if _, class := call(t, s, "list_directory", ""); class != "too_large" {
		t.Errorf("class %q", class)
	}
	must(t, os.Remove(filepath.Join(dir, "0")))
	if _, class := call(t, s, "list_directory", ""); class != "" {
		t.Errorf("class %q", class)
	}
}

// TestProcUnderRoot: even a root that contains /proc shows no process.
func TestProcUnderRoot(t *testing.T) {
	s, err := New("/")
	must(t, err)
	for _, p := range []string{"proc/self/environ", "/proc/self/environ", "proc", "proc/self", "proc/self/root/etc/passwd", "sys/kernel", "dev/zero", "dev/null"} {
		for _, tool := range []string{"read_file", "list_directory"} {
			text, class := call(t, s, tool, p)
			if class != "path_not_allowed" && class != "not_found" {
				t.Errorf("%s %q: class %q (%.80s)", tool, p, class, text)
			}
		}
	}
}

// TestSwap replaces a folder by a link to the outside while it is read (the race that a check by string compare loses).
func TestSwap(t *testing.T) {
	base, s := world(t)
	root := filepath.Join(base, "documents")
	must(t, os.Mkdir(filepath.Join(root, "swap"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "swap/secret.txt"), []byte("inside"), 0o644))
	must(t, os.Symlink(filepath.Join(base, "private"), filepath.Join(root, "evil")))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				swap(filepath.Join(root, "swap"), filepath.Join(root, "evil"), filepath.Join(root, "tmp"))
			}
		}
	}()
	for range 2000 {
		if text, _ := call(t, s, "read_file", "swap/secret.txt"); strings.Contains(text, "SECRET") {
			t.Error("read the outside")
			break
		}
	}
	close(stop)
	<-done
}

func swap(a, b, tmp string) {
	_ = os.Rename(a, tmp)
	_ = os.Rename(b, a)
	_ = os.Rename(tmp, b)
}

func TestSecondRegistration(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "x.txt"), []byte("x"), 0o644))
	s, err := Tree{Server: "workspace", Title: "Workspaces", Root: dir, Tools: "workspace_", Prefix: "/workspace:", Where: "the workspace mount at /workspaces"}.Open()
	must(t, err)
	if diff := cmp.Diff([]string{"workspace_read_file", "workspace_list_directory"}, s.Names()); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(string(s.Tools()[0]), `"Read a file from the workspace mount at /workspaces. Returns file content as a string."`) {
		t.Errorf("description: %s", s.Tools()[0])
	}
	text, class := call(t, s, "workspace_read_file", "x.txt")
	if text != "x" || class != "" {
		t.Errorf("%q, %q", text, class)
	}
	if text, _ := call(t, s, "workspace_read_file", "y.txt"); !strings.Contains(text, "/workspace:y.txt does not exist") {
		t.Errorf("prefix is missing: %s", text)
	}
}

func TestReadOnly(t *testing.T) {
	_, s := world(t)
	if diff := cmp.Diff([]string{"read_file", "list_directory"}, s.Names()); diff != "" {
		t.Error(diff)
	}
	for _, d := range s.Tools() {
		if !strings.Contains(string(d), `"readOnlyHint":true`) {
			t.Errorf("a tool that is not read-only: %s", d)
		}
	}
}

func TestRootMustBeAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, root := range []string{"", file, file + "/missing"} {
		if _, err := New(root); !fault.Is(err, fault.Config) {
			t.Errorf("%q: %v", root, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	base := f.TempDir()
	root := filepath.Join(base, "r")
	if os.MkdirAll(filepath.Join(root, "d"), 0o755) != nil || os.WriteFile(filepath.Join(base, "s"), []byte("SECRET"), 0o644) != nil ||
		os.WriteFile(filepath.Join(root, "a"), []byte("alpha"), 0o644) != nil || os.Symlink("..", filepath.Join(root, "u")) != nil {
		f.Fatal("no world")
	}
	s, err := New(root)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"a", "../s", "u/s", "d/../../s", root + "/../s", "//", "./.", "d/./..//a", "u/r/a", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		for _, tool := range []string{"read_file", "list_directory"} {
			if text, _ := call(t, s, tool, path); strings.Contains(text, "SECRET") {
				t.Fatalf("%s %q reads the outside", tool, path)
			}
		}
	})
}
