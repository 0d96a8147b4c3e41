// Package op declares a tool of a built-in server once: a typed input struct, a
// name, a description, an action class and a handler. The JSON Schema, the
// annotations, the checks of arguments and the form of results and errors follow
// from that declaration. It may know nothing of doors, rules or callers: a
// built-in server stands behind the gate like any other.
package op

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"doorward.dev/doorward/internal/fault"
)

// The action classes, word for word those of package policy (which op may not
// import). They decide the annotations that a tool is listed with.
const (
	Read    = "read"
	Write   = "write"
	Delete  = "delete"
	Send    = "send"
	Execute = "execute"
)

// MaxDescription is the length of a tool's description in characters: descriptions
// are prompt load for every agent that sees the tool (WM-34).
const MaxDescription = 200

// nameForm is what every known client accepts as the name of a tool.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Tool is a declared tool. Make it with Define; it is immutable.
type Tool struct {
	name       string
	definition json.RawMessage
	required   []string
	schema     *jsonschema.Resolved
	run        func(ctx context.Context, args json.RawMessage) (any, error)
	err        error // what is wrong with the declaration; NewServer reports it
}

// Name is the tool's own name.
func (t Tool) Name() string { return t.name }

// Definition is the tool as tools/list shows it.
func (t Tool) Definition() json.RawMessage { return slices.Clone(t.definition) }

// Define declares a tool. In is a struct whose JSON fields are the arguments:
// those without omitempty are required, and the tag `jsonschema:"…"` describes
// each. fn returns a string (shown as it is) or a value that marshals to a
// JSON object; an error made with Fail reaches the caller with its class, any
// other error as InternalError without its text. A mistake in the declaration is
// reported by NewServer, so that declarations read as a table.
func Define[In any](name, description, class string, fn func(ctx context.Context, in In) (any, error)) Tool {
	t := Tool{name: name}
	t.err = t.declare(description, class, func() (*jsonschema.Schema, error) { return jsonschema.For[In](nil) })
	t.run = func(ctx context.Context, args json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(args, &in); err != nil {
			return nil, Fail("InvalidArguments", "arguments of %s do not fit: %s", name, cleanJSONError(err))
		}
		return fn(ctx, in)
	}
	return t
}

// declare fills in everything that follows from the declaration.
func (t *Tool) declare(description, class string, infer func() (*jsonschema.Schema, error)) error {
	if !nameForm.MatchString(t.name) {
		return fault.New(fault.Config, "tool name %q must match %s", t.name, nameForm)
	}
	if n := utf8.RuneCountInString(description); n == 0 || n > MaxDescription {
		return fault.New(fault.Config, "description of tool %s has %d characters; 1 to %d are allowed", t.name, n, MaxDescription)
	}
	hints, ok := annotations[class]
	if !ok {
		return fault.New(fault.Config, "tool %s has unknown action class %q", t.name, class)
	}
	s, err := infer()
	if err != nil {
		return fault.Wrap(fault.Config, err, "input of tool %s has no JSON Schema", t.name)
	}
	if s.Type != "object" {
		return fault.New(fault.Config, "input of tool %s must be a struct", t.name)
	}
	for field, p := range s.Properties {
		if p.Description == "" {
			return fault.New(fault.Config, "argument %s of tool %s has no description", field, t.name)
		}
	}
	t.required = s.Required
	if t.schema, err = s.Resolve(nil); err != nil {
		return fault.Wrap(fault.Config, err, "input schema of tool %s does not resolve", t.name)
	}
	t.definition, err = json.Marshal(struct {
		Name        string             `json:"name"`
		Description string             `json:"description"`
		InputSchema *jsonschema.Schema `json:"inputSchema"`
		Annotations map[string]bool    `json:"annotations"`
	}{t.name, description, s, hints})
	if err != nil {
		return fault.Wrap(fault.Config, err, "definition of tool %s cannot be written", t.name)
	}
	return nil
}

// annotations says for each class what a client is told about a tool. All four hints are given: a
// hint that is missing has a default that differs between clients.
var annotations = map[string]map[string]bool{
	Read:    {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false},
	Write:   {"readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": false},
	Delete:  {"readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false},
	Send:    {"readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": true},
	Execute: {"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true},
}

// check refuses arguments that the handler must not see: an incomplete call, or
// one with a wrong type or an unknown field. The gate has checked the admitted
// schema before; this is the server's own word on it.
func (t *Tool) check(args json.RawMessage) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(args, &fields); err != nil {
		return Fail("InvalidArguments", "arguments of %s must be a JSON object", t.name)
	}
	var missing []string
	for _, name := range t.required {
		if v, ok := fields[name]; !ok || string(v) == "null" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return Fail("IncompleteArguments", "Missing required argument(s): %s. The tool was NOT called. "+
			"Re-issue the call with the missing field(s) included.", strings.Join(missing, ", ")).
			With("tool", t.name).With("missing", missing)
	}
	var value any
	if err := json.Unmarshal(args, &value); err != nil {
		return Fail("InvalidArguments", "arguments of %s are not valid JSON", t.name)
	}
	if err := t.schema.Validate(value); err != nil {
		return Fail("InvalidArguments", "arguments of %s do not fit: %s", t.name, cleanSchemaError(err))
	}
	return nil
}

// cleanJSONError names the field and the kind that was expected, without Go's type names.
func cleanJSONError(err error) string {
	if e, ok := err.(*json.UnmarshalTypeError); ok {
		return fmt.Sprintf("%s must not be a %s", e.Field, e.Value)
	}
	return "not valid JSON"
}

// cleanSchemaError cuts the validator's path through the schema down to its last, telling part.
func cleanSchemaError(err error) string {
	text := err.Error()
	for strings.HasPrefix(text, "validating ") {
		_, rest, ok := strings.Cut(text, ": ")
		if !ok {
			break
		}
		text = rest
	}
	if len(text) > 400 {
		text = strings.ToValidUTF8(text[:400], "") + "…"
	}
	return text
}
