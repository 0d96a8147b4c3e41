package mcp

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"doorward.dev/doorward/internal/fault"
)

// defaultDepth bounds nesting where Limits names none.
const defaultDepth = 128

// scanner is one strict pass over JSON text. Every method takes the index to
// read at and returns the index after what it read, or -1 after fail.
// It allocates nothing.
type scanner struct {
	b     []byte
	depth int // levels still allowed below here
	what  string
	at    int
	class fault.Class
}

func newScanner(b []byte, lim Limits) scanner {
	d := lim.Depth
	if d <= 0 {
		d = defaultDepth
	}
	return scanner{b: b, depth: d}
}

func (s *scanner) fail(at int, what string) int {
	s.what, s.at, s.class = what, at, fault.Parse
	return -1
}

// err is the error of the last fail.
func (s *scanner) err() *fault.Error {
	if s.class == fault.InvalidRequest {
		return fault.New(s.class, "%s at byte %d", s.what, s.at)
	}
	return fault.New(fault.Parse, "not valid JSON: %s at byte %d", s.what, s.at)
}

func (s *scanner) space(i int) int {
	for i < len(s.b) && isSpace(s.b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// end checks that only white space follows i.
func (s *scanner) end(i int) int {
	if i = s.space(i); i < len(s.b) {
		return s.fail(i, "data after the end")
	}
	return i
}

// value reads one value; i is at its first byte, white space already skipped.
func (s *scanner) value(i int) int {
	if i >= len(s.b) {
		return s.fail(i, "unexpected end")
	}
	switch c := s.b[i]; c {
	case '"':
		return s.string(i)
	case '{':
		return s.object(i)
	case '[':
		return s.array(i)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	default:
		if c == '-' || c-'0' <= 9 {
			return s.number(i)
		}
		return s.fail(i, "unexpected character")
	}
}

func (s *scanner) literal(i int, word string) int {
	if len(s.b)-i < len(word) || string(s.b[i:i+len(word)]) != word {
		return s.fail(i, "unexpected word")
	}
	return i + len(word)
}

// open goes one level down.
func (s *scanner) open(i int) bool {
	if s.depth == 0 {
		s.what, s.at, s.class = "JSON is nested too deeply", i, fault.InvalidRequest
		return false
	}
	s.depth--
	return true
}

func (s *scanner) object(i int) int {
	if !s.open(i) {
		return -1
	}
	i, more := s.first(i, '}')
	for more {
		var next int
		if _, next = s.key(i); next < 0 {
			return -1
		}
		if i = s.value(next); i < 0 {
			return -1
		}
		i, more = s.next(i, '}')
	}
	s.depth++
	return i
}

func (s *scanner) array(i int) int {
	if !s.open(i) {
		return -1
	}
	i, more := s.first(i, ']')
	for more {
		if i = s.value(i); i < 0 {
			return -1
		}
		i, more = s.next(i, ']')
	}
	s.depth++
	return i
}

// first steps over an opening bracket; more is false when the container is empty.
func (s *scanner) first(i int, closing byte) (_ int, more bool) {
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == closing {
		return i + 1, false
	}
	return i, true
}

// next steps over a comma (more is true) or the closing bracket. An error is
// -1 with more false.
func (s *scanner) next(i int, closing byte) (_ int, more bool) {
	i = s.space(i)
	if i >= len(s.b) {
		return s.fail(i, "unexpected end"), false
	}
	switch s.b[i] {
	case ',':
		return s.space(i + 1), true
	case closing:
		return i + 1, false
	}
	return s.fail(i, "expected a comma or a closing bracket"), false
}

// key reads a member's name and the colon. end is the index after the closing
// quote, so that the raw name is b[i+1:end-1]; next is where the value starts.
func (s *scanner) key(i int) (end, next int) {
	if i >= len(s.b) || s.b[i] != '"' {
		return -1, s.fail(i, "expected a member name")
	}
	if end = s.string(i); end < 0 {
		return -1, -1
	}
	next = s.space(end)
	if next >= len(s.b) || s.b[next] != ':' {
		return -1, s.fail(next, "expected a colon")
	}
	return end, s.space(next + 1)
}

func (s *scanner) number(i int) int {
	b := s.b
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b) || b[i]-'0' > 9:
		return s.fail(i, "number without digits")
	case b[i] == '0':
		i++
	default:
		i = digits(b, i)
	}
	if i < len(b) && b[i] == '.' {
		start := i + 1
		if i = digits(b, start); i == start {
			return s.fail(i, "number without digits after the point")
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		start := i
		if i = digits(b, start); i == start {
			return s.fail(i, "number without digits in the exponent")
		}
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// string reads a string; i is at the opening quote.
func (s *scanner) string(i int) int {
	b := s.b
	for i++; ; {
		i = plain(b, i)
		if i >= len(b) {
			return s.fail(i, "string without end")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			n := escape(b[i:])
			if n == 0 {
				return s.fail(i, "bad escape in a string")
			}
			i += n
		case c < 0x20:
			return s.fail(i, "raw control character in a string")
		default:
			for i < len(b) && b[i] >= utf8.RuneSelf {
				r, n := utf8.DecodeRune(b[i:])
				if r == utf8.RuneError && n == 1 {
					return s.fail(i, "not UTF-8")
				}
				i += n
			}
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the index of the first byte at or after i that is a quote, a
// backslash, a control character or not ASCII. It looks at eight bytes at a
// time: long strings are most of the bytes that pass the gateway.
func plain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote := w ^ ('"' * ones)
		slash := w ^ ('\\' * ones)
		// A borrow of one subtraction reaches only bytes above a real hit, so
		// the lowest flag is exact.
		hit := ((w-0x20*ones)&^w | (quote-ones)&^quote | (slash-ones)&^slash | w) & highs
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for i < len(b) {
		if c := b[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
		i++
	}
	return i
}

// escape returns the length of the escape sequence that b starts with, zero
// when it is none. Surrogates must come in pairs.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		_, n := unicodeEscape(b)
		return n
	}
	return 0
}

// unicodeEscape decodes \uXXXX or a surrogate pair; n is zero when b starts
// with neither.
func unicodeEscape(b []byte) (r rune, n int) {
	hi := hex4(b)
	switch {
	case hi < 0 || hi >= 0xdc00 && hi <= 0xdfff:
		return 0, 0
	case hi < 0xd800 || hi > 0xdbff:
		return hi, 6
	}
	lo := hex4(b[6:])
	if lo < 0xdc00 || lo > 0xdfff {
		return 0, 0
	}
	return (hi-0xd800)<<10 + (lo - 0xdc00) + 0x10000, 12
}

// hex4 reads \uXXXX, -1 when b does not start with it.
func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case c-'0' <= 9:
			r = r<<4 + rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 + rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// Check reports whether b is one valid JSON value by the same strict rules as
// Parse: UTF-8, no lone surrogates, bounded nesting, nothing after it.
// Errors are *fault.Error (Parse, or InvalidRequest when nested too deeply).
func Check(b []byte, lim Limits) error {
	s := newScanner(b, lim)
	if i := s.value(s.space(0)); i < 0 || s.end(i) < 0 {
		return s.err()
	}
	return nil
}

// invalid is an InvalidRequest error.
func invalid(format string, args ...any) *fault.Error {
	return fault.New(fault.InvalidRequest, format, args...)
}
