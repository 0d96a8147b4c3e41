package catalog

import (
	"bytes"
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/mcp"
)

// flatSchema is the usual schema of a tool: an object whose properties have
// one plain type each, some of them required. Checking it decodes nothing.
type flatSchema struct {
	props    map[string]flatProp
	required uint64 // bits of the required properties
}

type flatProp struct {
	bit   uint64
	types string // first bytes a value may have: `"`, `tf`, `-0123456789`; empty: any value
	whole bool   // integer
}

// Keywords that say nothing about validity, and may stand in a flat schema.
var silent = map[string]bool{"$schema": true, "$comment": true, "title": true, "description": true, "default": true, "examples": true, "deprecated": true}

// newFlatSchema gives nil for any schema it does not understand completely.
func newFlatSchema(raw json.RawMessage) *flatSchema {
	f := &flatSchema{props: map[string]flatProp{}}
	var required json.RawMessage
	seen := map[string]bool{}
	typed, ok := false, true
	mcp.Each(raw, func(key string, value json.RawMessage) bool {
		ok = ok && !seen[key]
		seen[key] = true
		switch key {
		case "type":
			name, isString := mcp.String(value)
			typed = isString && name == "object"
		case "properties":
			ok = ok && mcp.IsObject(value) && f.addProps(value)
		case "required":
			required = value
		case "additionalProperties":
			// Either way: a property that is not described is left to the full check.
			_, isBool := mcp.Bool(value)
			ok = ok && isBool
		case "$schema": // another meta-schema may give words another meaning
			uri, isString := mcp.String(value)
			ok = ok && isString && knownDraft(uri)
		default:
			ok = ok && silent[key]
		}
		return ok
	})
	if !ok || !typed || !f.addRequired(required) {
		return nil
	}
	return f
}

func knownDraft(uri string) bool {
	for _, d := range []string{"https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema"} {
		if uri == d || uri == d+"#" {
			return true
		}
	}
	return false
}

func (f *flatSchema) addProps(raw json.RawMessage) bool {
	ok := true
	mcp.Each(raw, func(name string, value json.RawMessage) bool {
		_, twice := f.props[name]
		p, plain := newFlatProp(value)
		if ok = plain && !twice && len(f.props) < 64; ok {
			p.bit = 1 << len(f.props)
			f.props[name] = p
		}
		return ok
	})
	return ok
}

func newFlatProp(raw json.RawMessage) (flatProp, bool) {
	var p flatProp
	ok := mcp.IsObject(raw)
	mcp.Each(raw, func(key string, value json.RawMessage) bool {
		if key != "type" {
			ok = ok && silent[key]
			return ok
		}
		name, isString := mcp.String(value)
		switch {
		case !isString || p.types != "":
			ok = false
		case name == "string":
			p.types = `"`
		case name == "boolean":
			p.types = "tf"
		case name == "number", name == "integer":
			p.types, p.whole = "-0123456789", name == "integer"
		default:
			ok = false
		}
		return ok
	})
	return p, ok
}

func (f *flatSchema) addRequired(raw json.RawMessage) bool {
	for _, r := range mcp.Elements(raw) {
		name, isString := mcp.String(r)
		p, known := f.props[name]
		if !isString || !known {
			return false // required but not described: left to the full check
		}
		f.required |= p.bit
	}
	return true
}

// valid reports that args match for sure. false says nothing: the full check
// decides, which knows 1.0 as an integer and words the answer.
func (f *flatSchema) valid(args json.RawMessage) bool {
	var seen uint64
	ok := true
	mcp.Each(args, func(key string, value json.RawMessage) bool {
		p, known := f.props[key]
		switch {
		case !known, seen&p.bit != 0:
			ok = false
		case p.types != "" && strings.IndexByte(p.types, value[0]) < 0:
			ok = false
		case p.whole && bytes.ContainsAny(value, ".eE"):
			ok = false
		}
		seen |= p.bit
		return ok
	})
	return ok && seen&f.required == f.required
}
