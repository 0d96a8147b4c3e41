package mcp_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/mcp"
)

func TestPublicName(t *testing.T) {
	long := strings.Repeat("x", 80)
	for _, tt := range []struct{ server, tool, want string }{
		{"fs", "read_file", "fs__read_file"},
		{"fs", "read.file/v2 ü", "fs__read_file_v2__"},
		{"supacloud", "supacloud.read.logs", "supacloud__supacloud_read_logs"},
		{"s", strings.Repeat("x", 61), "s__" + strings.Repeat("x", 61)},
		{"s", long, "s__" + strings.Repeat("x", 52) + "_cbf4205d"},
		{"s", "\xff\xfe", "s____"},
	} {
		if got := mcp.PublicName(tt.server, tt.tool); got != tt.want {
			t.Errorf("PublicName(%q, %q) = %q, want %q", tt.server, tt.tool, got, tt.want)
		}
	}
}

func TestPublicNamesCollide(t *testing.T) {
	refs := []mcp.ToolRef{{"a", "b.c"}, {"a", "b_c"}, {"a", "d"}, {"a", "b.c"}}
	got := mcp.PublicNames(refs)
	if got[2] != "a__d" {
		t.Errorf("a name that does not collide changed: %q", got[2])
	}
	if !strings.HasPrefix(got[0], "a__b_c_") || !strings.HasPrefix(got[1], "a__b_c_") || got[0] == got[1] || got[0] != got[3] {
		t.Errorf("got %q", got)
	}
	// A tool that is called like the digest form of another one.
	trap := mcp.ToolRef{Server: "a", Tool: strings.TrimPrefix(got[0], "a__")}
	more := mcp.PublicNames(append(refs, trap))
	if more[4] == more[0] {
		t.Errorf("the trap was not seen: %q", more)
	}
}

var public = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func TestPublicNamesInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ref := rapid.Custom(func(t *rapid.T) mcp.ToolRef {
			return mcp.ToolRef{
				Server: rapid.StringMatching(`[ab._]{1,2}`).Draw(t, "server"),
				Tool:   rapid.OneOf(rapid.StringMatching(`[ab._]{1,3}`), rapid.StringMatching(`[ab.]{70}`), rapid.String()).Draw(t, "tool"),
			}
		})
		refs := rapid.SliceOfN(ref, 0, 30).Draw(t, "refs")
		names := mcp.PublicNames(refs)
		byName := map[string]mcp.ToolRef{}
		byRef := map[mcp.ToolRef]string{}
		for i, n := range names {
			if !public.MatchString(n) {
				t.Fatalf("%q is not a public name", n)
			}
			if r, ok := byName[n]; ok && r != refs[i] {
				t.Fatalf("%v and %v are both %q", r, refs[i], n)
			}
			byName[n], byRef[refs[i]] = refs[i], n
		}
		shuffled := rapid.Permutation(refs).Draw(t, "shuffled")
		for i, n := range mcp.PublicNames(shuffled) {
			if byRef[shuffled[i]] != n {
				t.Fatalf("%v is %q or %q, by order", shuffled[i], byRef[shuffled[i]], n)
			}
		}
	})
}

func TestParseName(t *testing.T) {
	type refs = []mcp.ToolRef
	for name, want := range map[string]refs{
		"fs/read":                   {{"fs", "read"}},
		"fs/a/b":                    {{"fs", "a/b"}},
		"fs__read":                  {{"fs", "read"}},
		"mcp__fs__read":             {{"fs", "read"}, {"mcp", "fs__read"}, {"mcp__fs", "read"}},
		"a__b__c":                   {{"a", "b__c"}, {"a__b", "c"}},
		"a___b":                     {{"a", "_b"}, {"a_", "b"}},
		"read":                      nil,
		"":                          nil,
		"/x":                        nil,
		"x/":                        nil,
		"__x":                       nil,
		"x__":                       nil,
		"mcp__":                     nil,
		strings.Repeat("a__", 1000): nil,
	} {
		if got := mcp.ParseName(name); !slices.Equal(got, want) {
			t.Errorf("ParseName(%q) = %v, want %v", name, got, want)
		}
	}
}
