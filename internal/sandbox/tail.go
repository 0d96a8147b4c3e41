package sandbox

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// tailChars is how much of stderr is kept, in characters.
const tailChars = 8000

// tail keeps the end of what is written to it. Writes never fail and never wait.
type tail struct {
	mu  sync.Mutex
	buf []byte // at most twice the bytes that tailChars characters can have
}

const tailBytes = tailChars * utf8.UTFMax

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > tailBytes {
		p = p[len(p)-tailBytes:]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf)+len(p) > 2*tailBytes {
		keep := t.buf[max(0, len(t.buf)-tailBytes):]
		t.buf = t.buf[:copy(t.buf, keep)]
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// String is the tail without control characters (new lines and tabs stay) and without broken UTF-8.
func (t *tail) String() string {
	t.mu.Lock()
	s := string(t.buf[max(0, len(t.buf)-tailBytes):])
	t.mu.Unlock()
	var chars []rune
	for _, r := range strings.ToValidUTF8(s, "") {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r) {
			chars = append(chars, r)
		}
	}
	return string(chars[max(0, len(chars)-tailChars):])
}
