package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/secret"
)

func redactor(values ...string) *secret.Redactor {
	r := new(secret.Redactor)
	r.Set("test", values)
	return r
}

func TestRedactFindsEveryForm(t *testing.T) {
	value := "p@ss \"wörd\"/<key>\n7+=="
	quoted, _ := json.Marshal(value)
	std, raw := base64.StdEncoding, base64.RawURLEncoding
	texts := map[string]string{
		"plain":         value,
		"json":          string(quoted),
		"json ascii":    `p@ss \"w\u00f6rd\"/<key>\n7+==`,
		"json no html":  `p@ss \"wörd\"/<key>\n7+==`,
		"base64":        std.EncodeToString([]byte(value)),
		"base64url":     raw.EncodeToString([]byte(value)),
		"basic, 1 off":  std.EncodeToString([]byte("u" + value)),
		"basic, 2 off":  std.EncodeToString([]byte("u:" + value)),
		"within base64": std.EncodeToString([]byte("user:" + value + " and more")),
		"query":         url.QueryEscape(value),
		"path":          url.PathEscape(value),
	}
	r := redactor(value)
	for name, text := range texts {
		got := string(r.Redact([]byte("before " + text + " after")))
		if !strings.Contains(got, secret.Masked) || strings.Contains(got, text) {
			t.Errorf("%s: %q", name, got)
		}
		if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s: the rest changed: %q", name, got)
		}
		// At most two characters at the edges of a base64 group may remain.
		if len(got) > len("before  after")+len(secret.Masked)+len(text)/2 {
			t.Errorf("%s: too much is left: %q", name, got)
		}
	}
}

func TestRedactHeaderValues(t *testing.T) {
	r := redactor("Bearer tok_abcdef", "Basic "+base64.StdEncoding.EncodeToString([]byte("me:pass word")), "not a scheme: keep7")
	for in, want := range map[string]string{
		"Authorization: Bearer tok_abcdef": "Authorization: [redacted]",
		"token tok_abcdef":                 "token [redacted]",
		"the pass word is":                 "the [redacted] is",
		"me:pass word":                     "[redacted]",
		"a scheme":                         "a scheme",
	} {
		if got := string(r.Redact([]byte(in))); got != want {
			t.Errorf("%q gave %q, want %q", in, got, want)
		}
	}
}

func TestRedactTable(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		values           []string
	}{
		{"none known", "abcdefgh", "abcdefgh", nil},
		{"too short to be one", "abcde", "abcde", []string{"abcde"}},
		{"text shorter than the secret", "abc", "abc", []string{"abcdefgh"}},
		{"whole text", "abcdefgh", "[redacted]", []string{"abcdefgh"}},
		{"twice, adjacent", "abcdefghabcdefgh.", "[redacted][redacted].", []string{"abcdefgh"}},
		{"overlapping secrets leave nothing", "-abcdefghijkl-", "-[redacted]-", []string{"abcdefgh", "efghijkl"}},
		{"one within the other", "-abcdefghijkl-", "-[redacted]-", []string{"defghi", "abcdefghijkl"}},
		{"longest at one start", "-abcdefghij-", "-[redacted]-", []string{"abcdef", "abcdefghij"}},
		{"itself repeated", "aaaaaaaaaa", "[redacted]", []string{"aaaaaa"}},
		{"the mask is no secret", "x [redacted] y", "x [redacted] y", []string{secret.Masked}},
		{"longer than a window", "-" + strings.Repeat("x", 999) + "y-", "-[redacted]-", []string{strings.Repeat("x", 999) + "y"}},
	} {
		if got := string(redactor(c.values...).Redact([]byte(c.text))); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSetReplacesOneOwner(t *testing.T) {
	r := new(secret.Redactor)
	r.Set("a", []string{"secret-of-a"})
	r.Set("b", []string{"secret-of-b"})
	r.Set("a", []string{"newer-of-a"})
	if got := string(r.Redact([]byte("secret-of-a newer-of-a secret-of-b"))); got != "secret-of-a [redacted] [redacted]" {
		t.Error(got)
	}
	r.Set("a", nil)
	r.Set("b", nil)
	text := []byte("newer-of-a secret-of-b")
	if got := r.Redact(text); &got[0] != &text[0] || r.Longest() != 0 {
		t.Error("removed secrets are still redacted")
	}
}

// Whatever the secrets, the answer is what a naive search for the union of all occurrences gives.
func TestRedactEqualsNaiveSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{6,9}`) // few letters, so that much overlaps; too few for other forms to differ
		values := rapid.SliceOfN(word, 1, 4).Draw(t, "values")
		text := rapid.StringMatching(`[abc]{0,60}`).Draw(t, "text")
		hit := make([]int, len(text)+1) // 1: covered, 2: covered and joined to the byte before
		for _, v := range values {
			for i := 0; i+len(v) <= len(text); i++ {
				if text[i:i+len(v)] != v {
					continue
				}
				for j := range len(v) {
					if j > 0 {
						hit[i+j] = 2
					} else {
						hit[i] = max(hit[i], 1)
					}
				}
			}
		}
		var want strings.Builder
		for i := range len(text) {
			switch hit[i] {
			case 0:
				want.WriteByte(text[i])
			case 1:
				want.WriteString(secret.Masked)
			}
		}
		if got := string(redactor(values...).Redact([]byte(text))); got != want.String() {
			t.Fatalf("%v in %q: got %q, want %q", values, text, got, want.String())
		}
	})
}

func TestNothingFoundAllocatesNothing(t *testing.T) {
	r := redactor("first-secret-value", "second-secret-value")
	text := bytes.Repeat([]byte("harmless text, "), 2000)
	if n := testing.AllocsPerRun(20, func() { r.Redact(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSensitiveKey(t *testing.T) {
	for _, name := range []string{"Authorization", "X-Api-Key", "OPENAI_API_KEY", "apikey", "AccessKeySecret", "ACCESS_KEY_SECRET", "client_secret",
		"Cookie", "Set-Cookie", "DB_PASSWORD", "session", "GITHUB_TOKEN", "PGPASSWD", "PRIVATE_KEY", "Proxy-Auth"} {
		if !secret.SensitiveKey(name) {
			t.Errorf("%s is not seen as sensitive", name)
		}
	}
	for _, name := range []string{"", "PATH", "HOME", "Content-Type", "NODE_ENV", "timeout", "key"} {
		if secret.SensitiveKey(name) {
			t.Errorf("%s is seen as sensitive", name)
		}
	}
}

func BenchmarkRedact32KiB(b *testing.B) {
	values := make([]string, 50)
	for i := range values {
		values[i] = fmt.Sprintf("sk-%d-0123456789abcdef%d", i, i*7919)
	}
	r := redactor(values...)
	text := bytes.Repeat([]byte(`{"name":"item","path":"/home/user/file.txt","n":12345,"text":"The quick brown fox"},`), 400)[:32<<10]
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		r.Redact(text)
	}
}
