package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// ParseImport reads the servers of a client's configuration file: .mcp.json, Claude Desktop and Cursor
// ("mcpServers"), VS Code ("servers", also under "mcp"). Comments and trailing commas are tolerated. References
// ${NAME} and ${NAME:-default} (VS Code: ${env:NAME}) are replaced where lookup (may be nil) knows the name; others
// stay, for Config to replace when the server is reached. Errors are fault.InvalidParams and name the server.
func ParseImport(b []byte, lookup func(string) (string, bool)) ([]Spec, error) {
	b, err := plainJSON(b)
	if err != nil {
		return nil, err
	}
	var file struct {
		MCPServers map[string]json.RawMessage `json:"mcpServers"`
		Servers    map[string]json.RawMessage `json:"servers"`
		MCP        struct {
			Servers map[string]json.RawMessage `json:"servers"`
		} `json:"mcp"`
		Settings struct { // a whole VS Code settings.json
			Servers map[string]json.RawMessage `json:"servers"`
		} `json:"mcp.servers"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fault.New(fault.InvalidParams, "the file is not JSON of servers: %s", jsonProblem(b, err))
	}
	all := map[string]json.RawMessage{}
	for _, group := range []map[string]json.RawMessage{file.MCPServers, file.Servers, file.MCP.Servers, file.Settings.Servers} {
		for name, raw := range group {
			if _, twice := all[name]; twice {
				return nil, fault.New(fault.InvalidParams, "server %q stands in two places of the file", name)
			}
			all[name] = raw
		}
	}
	if len(all) == 0 {
		return nil, fault.New(fault.InvalidParams, `the file names no servers; expected "mcpServers" or "servers"`)
	}
	var specs []Spec
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s, err := importServer(name, all[name], lookup)
		if err != nil {
			return nil, err
		}
		specs = append(specs, s)
	}
	return specs, nil
}

func importServer(name string, raw json.RawMessage, lookup func(string) (string, bool)) (Spec, error) {
	var in struct {
		Type, Transport, Command, URL, ServerURL, Cwd string
		Args                                          []string
		Env, Headers                                  map[string]any
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Spec{}, fault.New(fault.InvalidParams, "server %q: %s", name, jsonProblem(raw, err))
	}
	e := expander{lookup: lookup}
	s := Spec{
		Name: name, Transport: strings.ToLower(in.Type + in.Transport), Command: e.text(in.Command), Cwd: e.text(in.Cwd),
		URL: e.text(in.URL + in.ServerURL), Env: e.texts(in.Env), Headers: e.texts(in.Headers),
	}
	for _, a := range in.Args {
		s.Args = append(s.Args, e.text(a))
	}
	switch s.Transport {
	case "":
		s.Transport = "stdio"
		if s.URL != "" {
			s.Transport = "http"
		}
	case "streamable-http", "streamable_http", "streamablehttp":
		s.Transport = "http"
	}
	if len(e.unknown) > 0 {
		return Spec{}, fault.New(fault.InvalidParams, "server %q asks for %s, which only the editor knows; write the value or ${VARIABLE}", name, strings.Join(e.unknown, ", "))
	}
	if (s.Command == "") == (s.URL == "") {
		return Spec{}, fault.New(fault.InvalidParams, "server %q needs either a command or a url", name)
	}
	return s, nil
}

var importReference = regexp.MustCompile(`\$\{([^}]*)\}`)

type expander struct {
	lookup  func(string) (string, bool)
	unknown []string // references to something that is not the environment, such as VS Code's ${input:…}
}

func (e *expander) text(s string) string {
	return importReference.ReplaceAllStringFunc(s, func(ref string) string {
		name, fallback, _ := strings.Cut(strings.TrimPrefix(ref[2:len(ref)-1], "env:"), ":-")
		if strings.Contains(name, ":") || name == "" {
			e.unknown = append(e.unknown, ref)
			return ref
		}
		// Doorward's own settings hold its keys: they are not given to servers.
		if e.lookup != nil && !strings.HasPrefix(name, "DOORWARD_") {
			if v, ok := e.lookup(name); ok {
				return v
			}
		}
		if fallback != "" {
			return "${" + name + ":-" + fallback + "}"
		}
		return "${" + name + "}"
	})
}

func (e *expander) texts(in map[string]any) map[string]string {
	var out map[string]string
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if out == nil {
			out = map[string]string{}
		}
		if s, ok := in[k].(string); ok {
			out[k] = e.text(s)
		} else {
			out[k] = fmt.Sprint(in[k])
		}
	}
	return out
}

// jsonProblem says where JSON is wrong, without quoting the file.
func jsonProblem(b []byte, err error) string {
	switch e := err.(type) {
	case *json.SyntaxError:
		return fmt.Sprintf("not valid JSON in line %d", 1+bytes.Count(b[:min(int(e.Offset), len(b))], []byte("\n")))
	case *json.UnmarshalTypeError:
		return fmt.Sprintf("%s must not be a %s", e.Field, e.Value)
	default:
		return "not valid JSON"
	}
}

// plainJSON turns JSON with comments and trailing commas into JSON; line numbers stay.
func plainJSON(b []byte) ([]byte, error) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	out := make([]byte, 0, len(b))
	comma := -1 // where the last comma stands in out, if nothing but space came after it
	for i := 0; i < len(b); {
		rest := b[i:]
		switch {
		case bytes.HasPrefix(rest, []byte("//")):
			n := bytes.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			i += n
			continue
		case bytes.HasPrefix(rest, []byte("/*")):
			n := bytes.Index(rest[2:], []byte("*/"))
			if n < 0 {
				return nil, fault.New(fault.InvalidParams, "a comment in the file has no end")
			}
			out = append(out, bytes.Repeat([]byte("\n"), bytes.Count(rest[:n+4], []byte("\n")))...)
			i += n + 4
			continue
		case rest[0] == '"':
			n := stringEnd(rest)
			out = append(out, rest[:n]...)
			comma = -1
			i += n
			continue
		case rest[0] == ',':
			comma = len(out)
		case rest[0] == '}' || rest[0] == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		case rest[0] > ' ':
			comma = -1
		}
		out = append(out, rest[0])
		i++
	}
	return out, nil
}

// stringEnd is the length of the JSON string that b begins with.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// ReachedLike reports whether a server is stored with the same way to reach it, references not replaced.
func (c *Catalog) ReachedLike(ctx context.Context, serverID string, s Spec) (bool, error) {
	s.normalise()
	stored, err := c.readSpec(ctx, c.d.DB.Read, serverID)
	return err == nil && s.reachedLike(stored), err
}
