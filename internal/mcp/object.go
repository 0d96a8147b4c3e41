package mcp

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// The functions below work on valid JSON (from Parse or Check) and copy
// nothing but what they return anew. On anything else they find nothing; they
// never panic. Where an object has a member twice, the last one counts, as in
// the readers of Go, JavaScript and Python.

// Get returns the raw value of a member of an object, nil when absent.
func Get(obj []byte, key string) json.RawMessage {
	var found json.RawMessage
	members(obj, func(m member) bool {
		if m.is(obj, key) {
			found = obj[m.value:m.end:m.end]
		}
		return true
	})
	return found
}

// GetPath is Get through nested objects.
func GetPath(obj []byte, keys ...string) json.RawMessage {
	for _, k := range keys {
		if obj = Get(obj, k); obj == nil {
			return nil
		}
	}
	return obj
}

// Each calls fn for every member of an object until it returns false.
func Each(obj []byte, fn func(key string, value json.RawMessage) bool) {
	members(obj, func(m member) bool {
		key, ok := String(obj[m.key:m.keyEnd])
		return ok && fn(key, obj[m.value:m.end:m.end])
	})
}

// Elements returns the raw elements of an array.
func Elements(arr []byte) []json.RawMessage {
	i := skipSpace(arr, 0)
	if i >= len(arr) || arr[i] != '[' {
		return nil
	}
	var out []json.RawMessage
	for i = skipSpace(arr, i+1); i < len(arr) && arr[i] != ']'; {
		end := skipValue(arr, i)
		if end < 0 {
			return nil
		}
		out = append(out, arr[i:end:end])
		if i = skipSpace(arr, end); i < len(arr) && arr[i] == ',' {
			i = skipSpace(arr, i+1)
		}
	}
	return out
}

// Set returns obj with a member replaced or added; every other byte stays.
// Where the member stands twice, both are replaced. A nil, empty or null obj
// is taken as {}; what is no object comes back as it is.
func Set(obj []byte, key string, value []byte) json.RawMessage {
	if t := bytes.TrimSpace(obj); len(t) == 0 || string(t) == "null" {
		obj = []byte("{}")
	}
	out := make([]byte, 0, len(obj)+len(key)+len(value)+8)
	copied, last := 0, 0
	found := false
	ok := members(obj, func(m member) bool {
		last = m.end
		if m.is(obj, key) {
			found = true
			out = append(out, obj[copied:m.value]...)
			out = append(out, value...)
			copied = m.end
		}
		return true
	})
	if !ok {
		return obj
	}
	if !found {
		comma := last > 0
		if last == 0 {
			last = bytes.IndexByte(obj, '{') + 1
		}
		out = append(out, obj[:last]...)
		if comma {
			out = append(out, ',')
		}
		out = AppendQuote(out, key)
		out = append(out, ':')
		out = append(out, value...)
		copied = last
	}
	return append(out, obj[copied:]...)
}

// Delete returns obj without a member; every other byte stays. Where the
// member stands twice, both go.
func Delete(obj []byte, key string) json.RawMessage {
	if Get(obj, key) == nil {
		return obj
	}
	// What stands between two commas is kept with its white space.
	out := make([]byte, 0, len(obj))
	start := bytes.IndexByte(obj, '{') + 1
	out = append(out, obj[:start]...)
	empty := true
	end := start
	members(obj, func(m member) bool {
		end = skipSpace(obj, m.end)
		if !m.is(obj, key) {
			if !empty {
				out = append(out, ',')
			}
			empty = false
			out = append(out, obj[start:end]...)
		}
		start = end + 1
		return true
	})
	return append(out, obj[end:]...)
}

// String decodes a JSON string; false when raw is not one.
func String(raw []byte) (string, bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", false
	}
	body := raw[1 : len(raw)-1]
	if plain(body, 0) == len(body) {
		return string(body), true
	}
	out, ok := unquote(make([]byte, 0, len(body)), body)
	return string(out), ok
}

// unquote appends the decoded text between the quotes of a string.
func unquote(dst, body []byte) ([]byte, bool) {
	for i := 0; i < len(body); {
		j := plain(body, i)
		dst = append(dst, body[i:j]...)
		if i = j; i == len(body) {
			break
		}
		switch c := body[i]; {
		case c == '\\':
			r, n := unescape(body[i:])
			if n == 0 {
				return nil, false
			}
			dst = utf8.AppendRune(dst, r)
			i += n
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(body[i:])
			if r == utf8.RuneError && n == 1 {
				return nil, false
			}
			dst = append(dst, body[i:i+n]...)
			i += n
		default: // a quote or a control character
			return nil, false
		}
	}
	return dst, true
}

// unescape decodes the escape sequence b starts with; n is zero when it is none.
func unescape(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch c := b[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		return unicodeEscape(b)
	}
	return 0, 0
}

// Int decodes a JSON integer literal that fits an int64; false for anything
// else, 1.0 and 1e2 included.
func Int(raw []byte) (int64, bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '-' && raw[0]-'0' > 9 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// Bool decodes true or false; ok is false for anything else.
func Bool(raw []byte) (value, ok bool) {
	switch string(bytes.TrimSpace(raw)) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// IsObject and IsNull tell what a raw value is.
func IsObject(raw []byte) bool {
	i := skipSpace(raw, 0)
	return i < len(raw) && raw[i] == '{'
}

// IsNull reports whether raw is the JSON null.
func IsNull(raw []byte) bool { return string(bytes.TrimSpace(raw)) == "null" }

// Quote encodes a string as JSON, in the form of RFC 8785: only what must be
// escaped is. Bytes that are not UTF-8 become U+FFFD.
func Quote(s string) json.RawMessage {
	return AppendQuote(make([]byte, 0, len(s)+2), s)
}

// AppendQuote appends Quote(s) to dst.
func AppendQuote(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[start:i]...), "\ufffd"...)
				start = i + 1
			}
			i += n
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

// member is where one member of an object stands.
type member struct{ key, keyEnd, value, end int }

// is compares the decoded name.
func (m member) is(obj []byte, key string) bool {
	raw := obj[m.key+1 : m.keyEnd-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == key
	}
	name, ok := String(obj[m.key:m.keyEnd])
	return ok && name == key
}

// members walks an object; false when it is none or fn stopped the walk.
func members(obj []byte, fn func(member) bool) bool {
	i := skipSpace(obj, 0)
	if i >= len(obj) || obj[i] != '{' {
		return false
	}
	for i = skipSpace(obj, i+1); i < len(obj) && obj[i] != '}'; {
		var m member
		if m.key = i; obj[i] != '"' {
			return false
		}
		if m.keyEnd = skipString(obj, i); m.keyEnd < 0 {
			return false
		}
		if i = skipSpace(obj, m.keyEnd); i >= len(obj) || obj[i] != ':' {
			return false
		}
		m.value = skipSpace(obj, i+1)
		if m.end = skipValue(obj, m.value); m.end < 0 || !fn(m) {
			return false
		}
		if i = skipSpace(obj, m.end); i < len(obj) && obj[i] == ',' {
			i = skipSpace(obj, i+1)
		}
	}
	return i < len(obj)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// skipString returns the index after the string at i, -1 when it has no end.
func skipString(b []byte, i int) int {
	for i++; ; {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return -1
		}
		end := i + j
		slashes := 0
		for end-slashes > i && b[end-slashes-1] == '\\' {
			slashes++
		}
		if i = end + 1; slashes%2 == 0 {
			return i
		}
	}
}

// skipValue returns the index after the value at i, -1 when there is none.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch c := b[i]; c {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return -1
			}
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return -1
			}
			i++
			continue
		default: // a number or a word
			for i++; i < len(b) && !isDelimiter(b[i]); i++ {
			}
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

func isDelimiter(c byte) bool {
	return c == ',' || c == '}' || c == ']' || c == ':' || c == '"' || c == '{' || c == '[' || isSpace(c)
}
