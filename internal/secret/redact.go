package secret

import (
	"bytes"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Masked is what is shown instead of a secret. Saving it back keeps the stored value.
const Masked = "[redacted]"

// minSecret is the shortest value that is redacted; shorter ones would hit ordinary text.
const minSecret = 6

// Redactor replaces known secret values in text. The zero value is ready; it
// is safe for concurrent use and lock-free for readers.
type Redactor struct {
	mu      sync.Mutex
	owners  map[string][]string
	current atomic.Pointer[needles]
}

// Set replaces the secrets of one owner (a server id, a config section). Values
// shorter than 6 bytes are ignored: they would redact ordinary text.
func (r *Redactor) Set(owner string, values []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners == nil {
		r.owners = make(map[string][]string)
	}
	if len(values) == 0 {
		delete(r.owners, owner)
	} else {
		r.owners[owner] = append([]string(nil), values...)
	}
	set := make(map[string]bool)
	for _, vs := range r.owners {
		for _, v := range vs {
			addForms(set, v)
		}
	}
	r.current.Store(newNeedles(set))
}

// Redact returns text with every known secret (also in its JSON-escaped,
// base64 and percent-encoded form) replaced by Masked. It returns text itself when there is none.
func (r *Redactor) Redact(text []byte) []byte {
	n := r.current.Load()
	if n == nil {
		return text
	}
	return n.redact(text)
}

// RedactString is Redact for a string; it returns text itself where none is known.
func (r *Redactor) RedactString(text string) string {
	n := r.current.Load()
	if n == nil || len(text) < n.least {
		return text
	}
	return string(n.redact([]byte(text)))
}

// Longest is the length in bytes of the longest form looked for. Who redacts
// a part of a text must give that much more than it keeps, so that no secret is cut in two unseen.
func (r *Redactor) Longest() int {
	n := r.current.Load()
	if n == nil {
		return 0
	}
	return n.longest
}

// needles is an immutable set of byte strings that finds all of them in one
// pass, skipping ahead (Wu and Manber): a tool result of 32 KiB must cost
// microseconds however many secrets are configured.
type needles struct {
	least   int                 // length of the shortest: the window
	longest int                 // length of the longest
	shift   [tableSize]uint8    // how far the window may move, by the hash of its last 3 bytes
	bucket  map[uint16][][]byte // needles whose window ends in a block of that hash, longest first
}

const (
	block     = 3
	tableSize = 1 << 13
)

func hash3(b []byte) uint16 {
	_ = b[2]
	v := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
	return uint16(v * 0x9E3779B1 >> (32 - 13))
}

func newNeedles(set map[string]bool) *needles {
	if len(set) == 0 {
		return nil
	}
	n := &needles{least: 255, bucket: make(map[uint16][][]byte, len(set))}
	for s := range set {
		n.least = min(n.least, len(s))
		n.longest = max(n.longest, len(s))
	}
	for i := range n.shift {
		n.shift[i] = uint8(n.least - block + 1)
	}
	for s := range set {
		for end := block; end <= n.least; end++ {
			h := hash3([]byte(s[end-block : end]))
			n.shift[h] = min(n.shift[h], uint8(n.least-end))
		}
		h := hash3([]byte(s[n.least-block : n.least]))
		n.bucket[h] = append(n.bucket[h], []byte(s))
	}
	for _, b := range n.bucket {
		sort.Slice(b, func(i, j int) bool { return len(b[i]) > len(b[j]) })
	}
	return n
}

// redact replaces the union of all occurrences: where two secrets overlap, no
// part of either is left.
func (n *needles) redact(text []byte) []byte {
	var out []byte
	kept, from, to := 0, -1, -1 // text[:kept] is in out; text[from:to] is the open occurrence
	for pos := n.least; pos <= len(text); {
		h := hash3(text[pos-block : pos])
		if s := n.shift[h]; s > 0 {
			pos += int(s)
			continue
		}
		start := pos - n.least
		for _, needle := range n.bucket[h] {
			if !bytes.HasPrefix(text[start:], needle) {
				continue
			}
			if from >= 0 && start >= to {
				out = append(append(out, text[kept:from]...), Masked...)
				kept, from = to, -1
			}
			if from < 0 {
				from = start
			}
			to = max(to, start+len(needle))
			break
		}
		pos++
	}
	if from < 0 {
		return text
	}
	out = append(append(out, text[kept:from]...), Masked...)
	return append(out, text[to:]...)
}

// sensitive are the marks of spec/iac-code 2.2.1, and a few that are secrets beyond doubt.
var sensitive = []string{
	"auth", "api-key", "api_key", "apikey", "accesskeysecret", "access_key_secret", "access-key",
	"cookie", "credential", "passwd", "password", "private-key", "private_key", "privatekey", "secret", "session", "token",
}

// SensitiveKey reports whether a header, environment or argument name holds a secret by its name
// (authorization, token, password, …; list in spec/iac-code 2.2.1).
func SensitiveKey(name string) bool {
	name = strings.ToLower(name)
	for _, mark := range sensitive {
		if strings.Contains(name, mark) {
			return true
		}
	}
	return false
}
