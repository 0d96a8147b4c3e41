package mcp

import (
	"bytes"
	"slices"
	"strconv"
	"unicode/utf8"

	"doorward.dev/doorward/internal/fault"
)

// canonicalDepth bounds the nesting Canonical takes. It is wider than the
// default of Parse, so that what was let in can also be digested.
const canonicalDepth = 1024

// Canonical returns RFC 8785 JSON: members sorted, no white space, numbers normalised; a number that a float64
// would not hold exactly keeps its own (normalised) digits, so that different numbers stay different.
//
// That last rule is the one departure from RFC 8785, which would round: a
// digest over rounded numbers would let an approval for 9007199254740992 pass
// for 9007199254740993. An object with a member twice is refused (InvalidRequest),
// and so is what Check refuses.
func Canonical(raw []byte) ([]byte, error) {
	if err := Check(raw, Limits{Depth: canonicalDepth}); err != nil {
		return nil, err
	}
	c := canonical{b: raw, out: make([]byte, 0, len(raw))}
	c.value(skipSpace(raw, 0))
	if c.err != nil {
		return nil, c.err
	}
	return c.out, nil
}

// canonical walks checked JSON once and writes to out as it goes.
type canonical struct {
	b       []byte
	out     []byte
	members []canonicalMember // stack: those of the objects that are open
	scratch []byte
	digits  []byte
	err     *fault.Error // first fault; the walk goes on, its output is dropped
}

// canonicalMember is one written member: its decoded name and its place in out.
type canonicalMember struct {
	name       []byte
	start, end int
}

func (c *canonical) value(i int) int {
	switch c.b[i] {
	case '{':
		return c.object(i)
	case '[':
		return c.array(i)
	case '"':
		end := skipString(c.b, i)
		c.text(c.b[i:end])
		return end
	case 't', 'f', 'n':
		end := skipValue(c.b, i)
		c.out = append(c.out, c.b[i:end]...)
		return end
	}
	end := skipValue(c.b, i)
	c.number(c.b[i:end])
	return end
}

// step moves from the end of a value to the next one; done at the closing bracket.
func (c *canonical) step(i int) (_ int, done bool) {
	i = skipSpace(c.b, i)
	if c.b[i] == ',' {
		return skipSpace(c.b, i+1), false
	}
	return i + 1, true
}

func (c *canonical) array(i int) int {
	c.out = append(c.out, '[')
	i = skipSpace(c.b, i+1)
	if c.b[i] == ']' {
		c.out = append(c.out, ']')
		return i + 1
	}
	for done := false; !done; {
		i, done = c.step(c.value(i))
		c.out = append(c.out, ',')
	}
	c.out[len(c.out)-1] = ']' // in place of the last comma
	return i
}

func (c *canonical) object(i int) int {
	start, base := len(c.out), len(c.members)
	c.out = append(c.out, '{')
	i = skipSpace(c.b, i+1)
	if c.b[i] == '}' {
		c.out = append(c.out, '}')
		return i + 1
	}
	for done := false; !done; {
		end := skipString(c.b, i)
		name := c.b[i+1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			name, _ = unquote(nil, name)
		}
		at := len(c.out)
		c.text(c.b[i:end])
		c.out = append(c.out, ':')
		i, done = c.step(c.value(skipSpace(c.b, skipSpace(c.b, end)+1)))
		c.members = append(c.members, canonicalMember{name, at, len(c.out)})
		c.out = append(c.out, ',')
	}
	c.sort(start, c.members[base:])
	c.members = c.members[:base]
	c.out[len(c.out)-1] = '}' // in place of the last comma
	return i
}

// sort brings the members written since start into order.
func (c *canonical) sort(start int, ms []canonicalMember) {
	order := func(a, b canonicalMember) int { return compareUTF16(a.name, b.name) }
	if !slices.IsSortedFunc(ms, order) {
		c.scratch = append(c.scratch[:0], c.out[start:]...)
		slices.SortFunc(ms, order)
		c.out = c.out[:start+1]
		for _, m := range ms {
			c.out = append(append(c.out, c.scratch[m.start-start:m.end-start]...), ',')
		}
	}
	for k := 1; k < len(ms); k++ {
		if bytes.Equal(ms[k-1].name, ms[k].name) && c.err == nil {
			c.err = invalid("an object has the member %q twice", excerpt(ms[k].name))
		}
	}
}

// excerpt keeps messages short; a name may be megabytes.
func excerpt(b []byte) string {
	if len(b) > 64 {
		return string(b[:64]) + "…"
	}
	return string(b)
}

func (c *canonical) text(raw []byte) {
	if bytes.IndexByte(raw, '\\') < 0 {
		c.out = append(c.out, raw...)
		return
	}
	s, _ := String(raw)
	c.out = AppendQuote(c.out, s)
}

func (c *canonical) number(lit []byte) {
	var ok bool
	if c.out, c.digits, ok = appendNumber(c.out, lit, c.digits); !ok && c.err == nil {
		c.err = invalid("the exponent of a number is out of range")
	}
}

// appendNumber writes a JSON number as ECMAScript writes one, but from the
// decimal digits of the literal, without rounding. Where the literal is the
// shortest form of a float64, that is the form of RFC 8785. digits is scratch
// space and returned for the next use. ok is false when the exponent has more than ten digits.
func appendNumber(dst, lit, digits []byte) (_, _ []byte, ok bool) {
	neg := lit[0] == '-'
	if neg {
		lit = lit[1:]
	}
	mantissa, exponent := lit, []byte(nil)
	if e := bytes.IndexAny(lit, "eE"); e >= 0 {
		mantissa, exponent = lit[:e], lit[e+1:]
	}
	whole, frac, _ := bytes.Cut(mantissa, []byte{'.'})
	digits = append(append(digits[:0], whole...), frac...)
	sig := bytes.TrimLeft(digits, "0")
	point := int64(len(whole) - (len(digits) - len(sig))) // value = 0.sig × 10^point
	if sig = bytes.TrimRight(sig, "0"); len(sig) == 0 {
		return append(dst, '0'), digits, true
	}
	exp, ok := readExponent(exponent)
	if !ok {
		return dst, digits, false
	}
	if neg {
		dst = append(dst, '-')
	}
	return layout(dst, sig, point+exp), digits, true
}

func readExponent(b []byte) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	b = bytes.TrimLeft(b, "+-0")
	if len(b) > 10 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		n = n*10 + int64(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}

// layout is Number::toString of ECMAScript for 0.sig × 10^n.
func layout(dst, sig []byte, n int64) []byte {
	k := int64(len(sig))
	switch {
	case k <= n && n <= 21:
		return zeros(append(dst, sig...), n-k)
	case 0 < n && n <= 21:
		return append(append(append(dst, sig[:n]...), '.'), sig[n:]...)
	case -6 < n && n <= 0:
		return append(zeros(append(dst, "0."...), -n), sig...)
	}
	dst = append(dst, sig[0])
	if k > 1 {
		dst = append(append(dst, '.'), sig[1:]...)
	}
	dst = append(dst, 'e')
	if n--; n >= 0 {
		dst = append(dst, '+')
	}
	return strconv.AppendInt(dst, n, 10)
}

func zeros(dst []byte, n int64) []byte {
	for ; n > 0; n-- {
		dst = append(dst, '0')
	}
	return dst
}

// compareUTF16 orders UTF-8 text by its UTF-16 code units. That differs from
// the order of bytes only above U+FFFF, whose surrogates sort below U+E000.
func compareUTF16(a, b []byte) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) || i == len(b) {
		return len(a) - len(b)
	}
	for i > 0 && !utf8.RuneStart(a[i]) || i > 0 && !utf8.RuneStart(b[i]) {
		i--
	}
	ra, _ := utf8.DecodeRune(a[i:])
	rb, _ := utf8.DecodeRune(b[i:])
	if (ra > 0xffff) != (rb > 0xffff) {
		ra, rb = firstUnit(ra), firstUnit(rb)
	}
	return int(ra) - int(rb)
}

func firstUnit(r rune) rune {
	if r > 0xffff {
		return 0xd800 + (r-0x10000)>>10
	}
	return r
}
