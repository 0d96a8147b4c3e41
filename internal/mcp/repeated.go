package mcp

// Repeated returns the name of a member that stands twice in one object of a
// valid JSON value, at any depth. Readers differ in which of the two they
// take, so that a rule, a schema and a tool might each see another call.
func Repeated(raw []byte) (name string, found bool) {
	w := repeatWalk{b: raw}
	w.value(skipSpace(raw, 0))
	return w.name, w.found
}

// manyMembers is from where on names are kept in a map: comparing each with
// each is faster below, and quadratic above.
const manyMembers = 32

type repeatWalk struct {
	b     []byte
	name  string
	found bool
}

// value walks the value at i and returns the index after it, -1 to stop.
func (w *repeatWalk) value(i int) int {
	if i >= len(w.b) {
		return -1
	}
	switch w.b[i] {
	case '{':
		return w.object(i)
	case '[':
		for i = skipSpace(w.b, i+1); i < len(w.b) && w.b[i] != ']'; {
			if i = w.value(i); i < 0 {
				return -1
			}
			i = w.comma(i)
		}
		return i + 1
	}
	return skipValue(w.b, i)
}

func (w *repeatWalk) object(i int) int {
	var few [manyMembers]member
	seen := few[:0]
	var many map[string]bool
	for i = skipSpace(w.b, i+1); i < len(w.b) && w.b[i] != '}'; {
		m := member{key: i, keyEnd: skipString(w.b, i)}
		if m.keyEnd < 0 {
			return -1
		}
		switch {
		case many != nil || len(seen) == manyMembers:
			if many == nil {
				many = make(map[string]bool, 2*manyMembers)
				for _, o := range seen {
					many[w.text(o)] = true
				}
			}
			name := w.text(m)
			if many[name] {
				return w.stop(m)
			}
			many[name] = true
		case w.among(seen, m):
			return w.stop(m)
		default:
			seen = append(seen, m)
		}
		i = skipSpace(w.b, m.keyEnd) // the colon
		if i = w.value(skipSpace(w.b, i+1)); i < 0 {
			return -1
		}
		i = w.comma(i)
	}
	return i + 1
}

func (w *repeatWalk) comma(i int) int {
	if i = skipSpace(w.b, i); i < len(w.b) && w.b[i] == ',' {
		i = skipSpace(w.b, i+1)
	}
	return i
}

func (w *repeatWalk) stop(m member) int {
	w.name, w.found = w.text(m), true
	return -1
}

func (w *repeatWalk) text(m member) string {
	s, _ := String(w.b[m.key:m.keyEnd])
	return s
}

// among compares names as bytes; only where an escape is involved are they decoded.
func (w *repeatWalk) among(seen []member, m member) bool {
	raw := w.b[m.key:m.keyEnd]
	escaped := plain(raw, 1) != len(raw)-1
	for _, o := range seen {
		other := w.b[o.key:o.keyEnd]
		if string(other) == string(raw) {
			return true
		}
		if (escaped || plain(other, 1) != len(other)-1) && w.text(o) == w.text(m) {
			return true
		}
	}
	return false
}
