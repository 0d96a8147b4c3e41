package op

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"runtime/debug"

	"doorward.dev/doorward/internal/fault"
)

// Server is a built-in MCP server: its tools answer in raw JSON, as an upstream
// would. Make it with NewServer; it is immutable and safe for concurrent use.
type Server struct {
	name, title string
	tools       []Tool
	byName      map[string]int
	log         *slog.Logger
}

// NewServer makes a server of tools, in the order they are listed (WM-8). The
// error names every declaration that is wrong. A nil log is slog.Default.
func NewServer(name, title string, log *slog.Logger, tools ...Tool) (*Server, error) {
	if log == nil {
		log = slog.Default()
	}
	s := &Server{name: name, title: title, tools: tools, byName: make(map[string]int, len(tools)), log: log}
	var wrong []error
	for i, t := range tools {
		if t.err != nil {
			wrong = append(wrong, t.err)
		}
		if _, twice := s.byName[t.name]; twice {
			wrong = append(wrong, fault.New(fault.Config, "tool %s is declared twice", t.name))
		}
		s.byName[t.name] = i
	}
	if len(wrong) > 0 {
		return nil, fault.Wrap(fault.Config, errors.Join(wrong...), "built-in server %s is declared wrongly", name)
	}
	return s, nil
}

// Name is the server's name in the catalogue.
func (s *Server) Name() string { return s.name }

// Title is the server's name for people.
func (s *Server) Title() string { return s.title }

// Tools are the definitions as tools/list shows them, in order of declaration.
func (s *Server) Tools() []json.RawMessage {
	list := make([]json.RawMessage, len(s.tools))
	for i, t := range s.tools {
		list[i] = t.Definition()
	}
	return list
}

// CallTool runs a tool and returns the result object of tools/call. A failure of
// the tool is a result with isError and an envelope (WM-31), not an error. Errors
// are fault.UnknownTool, and fault.Cancelled or fault.Timeout when ctx has ended.
func (s *Server) CallTool(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	i, ok := s.byName[name]
	if !ok {
		return nil, fault.New(fault.UnknownTool, "Tool not found: %s", name)
	}
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	value, err := s.run(ctx, &s.tools[i], args)
	if ended := ctx.Err(); ended != nil && err != nil {
		if errors.Is(ended, context.DeadlineExceeded) {
			return nil, fault.Wrap(fault.Timeout, ended, "tool %s did not answer in time", name)
		}
		return nil, fault.Wrap(fault.Cancelled, ended, "the call of %s was cancelled", name)
	}
	if err != nil {
		return failure(err), nil
	}
	result, err := success(value)
	if err != nil {
		s.log.Error("built-in tool returned a value that is not JSON", "server", s.name, "tool", name, "err", err)
		return failure(err), nil
	}
	return result, nil
}

// run checks the arguments and calls the handler; a panic ends this call only.
func (s *Server) run(ctx context.Context, t *Tool, args json.RawMessage) (value any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("built-in tool panicked", "server", s.name, "tool", t.name, "panic", p, "stack", string(debug.Stack()))
			value, err = nil, fault.New(fault.Internal, "internal error")
		}
	}()
	if err := t.check(args); err != nil {
		return nil, err
	}
	return t.run(ctx, args)
}

// Fail makes an error that the caller of a tool sees: class is the error_class
// of its envelope, such as "not_found".
func Fail(class, format string, args ...any) *fault.Error {
	return fault.New(fault.InvalidParams, format, args...).Why(class)
}

// content is one text block of a result.
type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// result is the result object of tools/call.
type result struct {
	Content           []content       `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent,omitempty"`
	IsError           bool            `json:"isError,omitempty"`
}

// success renders a handler's value: a string as text, anything else as its JSON, once as
// text for models and, when it is an object, once as structured content.
func success(value any) (json.RawMessage, error) {
	if text, ok := value.(string); ok {
		return encode(result{Content: []content{{"text", text}}})
	}
	raw, err := encode(value)
	if err != nil {
		return nil, err
	}
	r := result{Content: []content{{"text", string(raw)}}}
	if raw[0] == '{' {
		r.StructuredContent = raw
	}
	return encode(r)
}

// encode is json.Marshal without the escapes for HTML, which triple the size of a web page in a result.
func encode(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// failure renders an error as an envelope (spec/wintermute 3.2 b). What is not a
// fault with a reason is a fault of ours: its text stays in the log.
func failure(err error) json.RawMessage {
	f := fault.From(err)
	envelope := make(map[string]any, len(f.Data)+3)
	maps.Copy(envelope, f.Data)
	envelope["ok"] = false
	envelope["error"], envelope["error_class"] = f.Message, f.Reason
	if f.Reason == "" {
		envelope["error"], envelope["error_class"] = "internal error", "InternalError"
	}
	raw, merr := encode(envelope)
	if merr != nil { // only data that is not JSON: the envelope is worth more than its extras
		raw, _ = encode(map[string]any{"ok": false, "error": f.Message, "error_class": f.Reason})
	}
	out, _ := encode(result{Content: []content{{"text", string(raw)}}, StructuredContent: raw, IsError: true})
	return out
}

// Names lists the tools' names in order, for the log at start-up (WM-10).
func (s *Server) Names() []string {
	names := make([]string, len(s.tools))
	for i, t := range s.tools {
		names[i] = t.name
	}
	return names
}
