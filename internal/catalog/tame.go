package catalog

import "strings"

// maxExpanded is how many subschemas a schema may have once every reference
// in it is replaced by what it refers to.
const maxExpanded = 20000

// tame reports whether a schema takes time in proportion to the arguments. A
// few lines of references that branch ("anyOf" of twice the same, thirty
// levels deep, or in a circle) take for ever, and there is no way to stop the
// validator. Such a schema is not used.
func tame(doc any) bool {
	t := &taming{root: doc, weight: map[string]int{}, open: map[string]bool{}}
	t.first = true
	n := t.size(doc)
	return n >= 0 && n <= maxExpanded && !(t.circle && t.branches)
}

type taming struct {
	root     any
	weight   map[string]int  // size of what a reference stands for
	open     map[string]bool // references being measured
	circle   bool            // a reference leads to itself
	branches bool            // a value is checked against several subschemas
	first    bool            // at the root
}

// size counts the subschemas of v; -1 is too many, or a reference that is not understood.
func (t *taming) size(v any) int {
	root := t.first
	t.first = false
	n := 1
	add := func(m int) bool {
		if m < 0 || n+m > maxExpanded {
			n = -1
			return false
		}
		n += m
		return true
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if !add(t.size(item)) {
				return -1
			}
		}
	case map[string]any:
		if _, ok := v["$ref"]; ok && len(v) > 1 {
			t.branches = t.branches || hasSubschemas(v)
		}
		for key, value := range v {
			switch key {
			case "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "contains", "unevaluatedProperties", "unevaluatedItems", "patternProperties":
				t.branches = true
			case "$dynamicRef", "$recursiveRef":
				return -1
			case "$id", "id":
				// Below an id, references mean something else than resolve takes them for.
				if _, text := value.(string); text && !root {
					return -1
				}
			}
			size := t.size(value)
			if ref, ok := value.(string); ok && key == "$ref" {
				size = t.follow(ref)
			}
			if !add(size) {
				return -1
			}
		}
	}
	return n
}

func (t *taming) follow(ref string) int {
	if n, ok := t.weight[ref]; ok {
		return n
	}
	if t.open[ref] || ref == "#" {
		t.circle = true
		return 1
	}
	target, ok := resolve(t.root, ref)
	if !ok {
		return -1 // an anchor, an embedded resource or something outside
	}
	t.open[ref] = true
	n := t.size(target)
	delete(t.open, ref)
	t.weight[ref] = n
	return n
}

// resolve follows a JSON pointer within the document.
func resolve(root any, ref string) (any, bool) {
	pointer, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	at := root
	for part := range strings.SplitSeq(pointer, "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		m, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = m[part]; !ok {
			return nil, false
		}
	}
	return at, true
}

// hasSubschemas: beside a reference they check the same value once more.
func hasSubschemas(v map[string]any) bool {
	for key, value := range v {
		switch value.(type) {
		case map[string]any, []any:
			if !silent[key] && key != "enum" && key != "required" && key != "$defs" && key != "definitions" {
				return true
			}
		}
	}
	return false
}
