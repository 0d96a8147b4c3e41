package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// Limits of a schema that is compiled; a larger one only has its required arguments checked.
const (
	maxSchema      = 128 << 10 // bytes
	maxSchemaDepth = 64
	maxProblems    = 10 // named in one answer
	maxField       = 80 // bytes of a field's name in an answer
)

// ArgsSchema checks arguments; see Check. It is compiled when first used, and
// lives as long as some snapshot has the tool with this definition.
type ArgsSchema struct {
	raw  json.RawMessage
	once sync.Once

	required []string
	flat     *flatSchema        // nil: not simple enough
	full     *jsonschema.Schema // nil: cannot be compiled
}

// newArgsSchema takes the inputSchema of a definition; none gives a schema that takes any object.
func newArgsSchema(raw json.RawMessage) *ArgsSchema {
	if raw == nil || mcp.IsNull(raw) {
		raw = json.RawMessage(`{}`)
	}
	return &ArgsSchema{raw: raw}
}

// Check checks the required arguments, then the JSON Schema. The error is fault.InvalidParams
// and names every field; a schema that cannot be compiled checks the required ones only. Absent and null arguments are {}.
func (s *ArgsSchema) Check(args json.RawMessage) error {
	if len(args) == 0 || mcp.IsNull(args) {
		args = json.RawMessage(`{}`)
	}
	if !mcp.IsObject(args) {
		return refuse([]problem{{"arguments", "must be an object"}})
	}
	if s == nil {
		return nil
	}
	s.once.Do(s.compile)
	if s.flat != nil && s.flat.valid(args) {
		return nil
	}
	return s.checkFully(args)
}

func (s *ArgsSchema) compile() {
	for _, r := range mcp.Elements(mcp.Get(s.raw, "required")) {
		if name, ok := mcp.String(r); ok {
			s.required = append(s.required, name)
		}
	}
	if len(s.raw) > maxSchema || mcp.Check(s.raw, mcp.Limits{Depth: maxSchemaDepth}) != nil {
		return
	}
	s.flat = newFlatSchema(s.raw)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.raw))
	if err != nil || !tame(doc) {
		return
	}
	s.full = compileDocument(doc)
}

// compileDocument gives nil for what cannot be compiled. The document was
// written by a server: nothing it refers to is ever loaded, and a fault of the
// compiler on it must not end the process.
func compileDocument(doc any) (compiled *jsonschema.Schema) {
	defer func() {
		if recover() != nil {
			compiled = nil
		}
	}()
	const place = "doorward:arguments"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	if c.AddResource(place, doc) != nil {
		return nil
	}
	compiled, err := c.Compile(place)
	if err != nil {
		return nil
	}
	return compiled
}

type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references outside the schema are not followed")
}

// problem is what is wrong with one field. what never quotes a value.
type problem struct{ field, what string }

func (s *ArgsSchema) checkFully(args json.RawMessage) error {
	seen := map[string]bool{}
	var problems []problem
	mcp.Each(args, func(key string, _ json.RawMessage) bool {
		if seen[key] {
			// Two readers may take two different values, and only one was checked.
			problems = append(problems, problem{key, "stands twice"})
		}
		seen[key] = true
		return true
	})
	for _, name := range s.required {
		if !seen[name] {
			problems = append(problems, problem{name, "is required"})
		}
	}
	if s.full == nil {
		return refuse(problems)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return fault.Wrap(fault.InvalidParams, err, "the arguments are not valid JSON").Why("INVALID_ARGUMENTS")
	}
	return refuse(append(problems, validate(s.full, value)...))
}

// validate gives the problems but those that checkFully found itself.
func validate(schema *jsonschema.Schema, value any) (problems []problem) {
	defer func() {
		if recover() != nil { // a number with a huge exponent, say
			problems = []problem{{"arguments", "cannot be checked against the tool's schema"}}
		}
	}()
	err := schema.Validate(value)
	if err == nil {
		return nil
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return []problem{{"arguments", "do not match the tool's schema"}}
	}
	return appendProblems(nil, v)
}

// appendProblems walks to the causes. Below anyOf and the like it stops: one
// of the branches would do, so the causes of all of them mislead.
func appendProblems(out []problem, v *jsonschema.ValidationError) []problem {
	path := strings.Join(v.InstanceLocation, ".")
	at := func(name string) string {
		if path == "" {
			return name
		}
		return path + "." + name
	}
	switch k := v.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range k.Missing {
			if path != "" { // those of the top level are found already
				out = append(out, problem{at(name), "is required"})
			}
		}
		return out
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			out = append(out, problem{at(name), "is not known"})
		}
		return out
	case *kind.AnyOf, *kind.OneOf, *kind.Not:
		return append(out, problem{field(path), describe(v.ErrorKind)})
	}
	if len(v.Causes) == 0 {
		return append(out, problem{field(path), describe(v.ErrorKind)})
	}
	for _, cause := range v.Causes {
		out = appendProblems(out, cause)
	}
	return out
}

func field(path string) string {
	if path == "" {
		return "arguments"
	}
	return path
}

// describe says what was expected, never what was given: that may be a secret.
func describe(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return fmt.Sprintf("must be %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return "is none of the allowed values"
	case *kind.Const:
		return "is not the one allowed value"
	case *kind.Format:
		return fmt.Sprintf("has not the format %q", clip(k.Want, 40))
	case *kind.Pattern:
		return "does not match the pattern"
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d members", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d members", k.Want)
	case *kind.Minimum, *kind.ExclusiveMinimum:
		return "is too small"
	case *kind.Maximum, *kind.ExclusiveMaximum:
		return "is too large"
	case *kind.AnyOf, *kind.OneOf:
		return "matches none, or not exactly one, of the allowed forms"
	case *kind.UniqueItems:
		return "has an item twice"
	case *kind.FalseSchema:
		return "is not allowed"
	}
	path := k.KeywordPath()
	if len(path) == 0 {
		return "does not match the tool's schema"
	}
	return fmt.Sprintf("does not satisfy %q", clip(path[0], 40))
}

// refuse makes one error of all problems, one line each; none makes nil.
func refuse(problems []problem) error {
	if len(problems) == 0 {
		return nil
	}
	lines := []string{"the arguments are not valid:"}
	fields := []string{}
	for i, p := range problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		name := clip(p.field, maxField)
		fields = append(fields, name)
		lines = append(lines, fmt.Sprintf("%q %s", name, p.what))
	}
	return fault.New(fault.InvalidParams, "%s", strings.Join(lines, "\n")).Why("INVALID_ARGUMENTS").With("fields", fields)
}
