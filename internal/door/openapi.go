package door

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesOpenAPI is the description of the interface by itself.
func routesOpenAPI() []route {
	r := operation("GET", "/api/v1/openapi.json", auth.Viewer, "openapi", (*Door).showOpenAPI, "Describe this interface as an OpenAPI 3.1 document; any key will do")
	r.agents = true
	return []route{r}
}

// showOpenAPI makes the document at the first request; it is the same for everybody.
func (d *Door) showOpenAPI(*restCall) (any, error) { return d.openAPI() }

func describe() (json.RawMessage, error) {
	b, err := json.Marshal(openAPIDocument(false))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "internal error")
	}
	return b, nil
}

type object = map[string]any

// queryWord describes a parameter of a query; its meaning is the same on every operation that has it.
type queryWord struct{ typ, text string }

var queryWords = map[string]queryWord{
	"after":      {"integer", "Only rows behind this number"},
	"agent":      {"string", "Name or id of the agent; without it, the person who asks"},
	"agent_id":   {"string", "Only of this agent (name or id)"},
	"arguments":  {"string", "Arguments of the call, a JSON object"},
	"code":       {"string", "What the provider says"},
	"error":      {"string", "What the provider says"},
	"iss":        {"string", "What the provider says"},
	"return":     {"string", "Local path to go to after signing in"},
	"state":      {"string", "What the provider was sent with"},
	"before":     {"string", "Where the last page ended (next_cursor)"},
	"cursor":     {"string", "Where the last page ended (next_cursor)"},
	"decision":   {"string", "Only with this decision"},
	"door":       {"string", "Only through this door"},
	"format":     {"string", "ndjson or csv"},
	"from":       {"string", "Not before this time: RFC 3339 or unix microseconds"},
	"kind":       {"string", "Only rows of this kind: intent, call, admin, stop"},
	"limit":      {"integer", "At most so many, 1 to 200"},
	"method":     {"string", "Only of this method or operation"},
	"policy_id":  {"string", "Only what this rule decided"},
	"seq":        {"integer", "Number of the row"},
	"server_id":  {"string", "Only of this server (name or id)"},
	"status":     {"string", "Only with this status"},
	"task_id":    {"string", "Only of this task"},
	"older_than": {"string", "Only what was held so long ago, such as 10m"},
	"escalated":  {"boolean", "Only what was escalated"},
	"time_range": {"string", "1h, 24h, 7d, 30d or all"},
	"to":         {"string", "Before this time: RFC 3339 or unix microseconds"},
	"tool":       {"string", "The tool as server/tool"},
	"tool_id":    {"string", "Only of this tool"},
	"trace_id":   {"string", "Only of this attempt"},
	"trace_type": {"string", "Only traces of this type"},
}

// failures are the statuses of errors; what each operation may answer is in failuresOf.
var failures = map[string]string{
	"400": "The request is not understood or asks for something that is not possible; code and message say what",
	"401": "No key or session, or one that does not work (any more)",
	"403": "Known, but not allowed",
	"404": "It does not exist in this workspace",
	"409": "It contradicts the present state",
	"412": "It was changed since you read it; read it again and decide anew",
	"413": "The body is too large",
	"429": "Too often; Retry-After says when to try again",
	"503": "Not now: what cannot be recorded is not done",
	"504": "It takes longer than it may",
}

// openAPIDocument describes every route. strict: answers have no member that is not described, for tests; a client must take further ones.
func openAPIDocument(strict bool) object {
	s := newSchemas(strict)
	paths, ids, tags := object{}, map[string]int{}, map[string]bool{}
	for _, rt := range routes() {
		known := contracts[rt.name]
		item, _ := paths[rt.path].(object)
		if item == nil {
			item = object{}
			paths[rt.path] = item
		}
		tag, _, _ := strings.Cut(rt.name, ".")
		tags[tag] = true
		id := strings.ReplaceAll(rt.name, ".", "_")
		if ids[id]++; ids[id] > 1 {
			id += "_" + strconv.Itoa(ids[id])
		}
		op := object{"operationId": id, "summary": rt.summary, "tags": []string{tag}, "x-doorward-role": rt.min.String(), "responses": s.responses(rt, known)}
		if rt.agents {
			op["x-doorward-agents"] = true
		}
		if rt.open {
			op["security"] = []any{}
		}
		if p := parameters(rt, known); len(p) > 0 {
			op["parameters"] = p
		}
		if known.in != nil && rt.method != http.MethodGet {
			op["requestBody"] = object{"required": known.needs != "", "content": object{"application/json": object{"schema": s.body(known)}}}
		}
		item[strings.ToLower(rt.method)] = op
	}
	var tagList []object
	for _, t := range slices.Sorted(maps.Keys(tags)) {
		tagList = append(tagList, object{"name": t})
	}
	return object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Doorward", "version": "v1", "description": "Administration of Doorward. Agents call tools elsewhere; see docs/rest.md."},
		"servers":    []object{{"url": "/"}},
		"tags":       tagList,
		"security":   []object{{"bearer": []string{}}, {"session": []string{}}, {"sessionTLS": []string{}}},
		"paths":      paths,
		"components": object{"schemas": s.made, "responses": s.failures(), "securitySchemes": securitySchemes()},
	}
}

func securitySchemes() object {
	return object{
		"bearer":     object{"type": "http", "scheme": "bearer", "description": "The key of a person (dw_…)"},
		"session":    object{"type": "apiKey", "in": "cookie", "name": cookiePlain, "description": "Session of a person, without TLS"},
		"sessionTLS": object{"type": "apiKey", "in": "cookie", "name": cookieTLS, "description": "Session of a person, over TLS"},
	}
}

// parameters are those of the path and of the query.
func parameters(rt route, known contract) (out []object) {
	rest := rt.path
	for {
		_, after, ok := strings.Cut(rest, "{")
		if !ok {
			break
		}
		name, tail, _ := strings.Cut(after, "}")
		out, rest = append(out, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}}), tail
	}
	if known.match {
		out = append(out, object{"name": "If-Match", "in": "header", "description": "ETag of what you saw; 412 when it is not that any more. Without it the last one wins",
			"schema": object{"type": "string"}})
	}
	if rt.method != http.MethodGet {
		return out
	}
	for _, name := range known.query {
		w := queryWords[name]
		out = append(out, object{"name": name, "in": "query", "description": w.text, "schema": object{"type": w.typ}})
	}
	return out
}

func failuresOf(rt route) []string {
	out := []string{"400", "401", "403", "503"}
	if strings.Contains(rt.path, "{") || len(contracts[rt.name].query) > 0 || rt.change {
		out = append(out, "404")
	}
	if rt.change {
		out = append(out, "409", "413")
	}
	if contracts[rt.name].match {
		out = append(out, "412")
	}
	if rt.name == "policy.simulate" { // it names what it is about in the body, and may be about much
		out = append(out, "404", "413", "504")
	}
	if strings.HasPrefix(rt.name, "auth.") || rt.name == "person.password" {
		out = append(out, "429")
	}
	return out
}

// schemas collects the schemas of Go types by name.
type schemas struct {
	strict bool
	made   object
	types  map[string]reflect.Type
}

func newSchemas(strict bool) *schemas {
	s := &schemas{strict: strict, made: object{}, types: map[string]reflect.Type{}}
	s.made["Error"] = object{
		"type": "object", "required": []string{"error"},
		"properties": object{"error": object{
			"type": "object", "required": []string{"code", "message", "request_id"}, "description": "Some codes come with further members.",
			"properties": object{"code": object{"type": "string"}, "message": object{"type": "string"}, "request_id": object{"type": "string", "description": "Also the trace_id of the rows in the record"}},
		}},
	}
	return s
}

func (s *schemas) failures() object {
	out := object{}
	for status, text := range failures {
		out["E"+status] = object{"description": text, "content": object{"application/json": object{"schema": ref("schemas", "Error")}}}
	}
	return out
}

func ref(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }

func (s *schemas) responses(rt route, known contract) object {
	out := object{}
	for _, status := range failuresOf(rt) {
		out[status] = ref("responses", "E"+status)
	}
	good := object{"description": "Done"}
	switch {
	case rt.name == "audit.export":
		text := object{"schema": object{"type": "string"}}
		good["content"] = object{"application/x-ndjson": text, "text/csv": text}
	case known.out != nil:
		good["content"] = object{"application/json": object{"schema": s.of(reflect.TypeOf(known.out), false)}}
	default:
		out["303"] = object{"description": "The browser is sent elsewhere"}
		return out
	}
	out["200"] = good
	if known.created {
		out["201"] = good
		if rt.name != "server.import" {
			delete(out, "200")
		}
	}
	return out
}

// body is the schema of a body with the members it needs.
func (s *schemas) body(known contract) object {
	r := s.of(reflect.TypeOf(known.in), true)
	if known.needs == "" {
		return r
	}
	return object{"allOf": []any{r, object{"required": strings.Fields(known.needs)}}}
}

// of gives a reference to the schema of a type, which it makes when it is new. Structs within it get schemas of their own.
func (s *schemas) of(t reflect.Type, in bool) object {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return object{"type": "object"}
	}
	name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
	if in && !strings.HasSuffix(name, "Input") {
		name += "Input"
	}
	if have, ok := s.types[name]; ok && have != t {
		panic(fmt.Sprintf("door: two types are named %s in the OpenAPI document: %s and %s", name, have, t))
	} else if ok {
		return ref("schemas", name)
	}
	s.types[name] = t
	inner := map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[json.RawMessage](): {}}
	for _, p := range parts(t, map[reflect.Type]bool{t: true}) {
		inner[p] = &jsonschema.Schema{Ref: s.of(p, in)["$ref"].(string)}
	}
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: inner})
	if err != nil {
		panic(fmt.Sprintf("door: %s has no schema: %v", t, err))
	}
	if in {
		schema.Required = nil
	} else if !s.strict {
		schema.AdditionalProperties = nil
	}
	s.made[name] = plain(schema)
	return ref("schemas", name)
}

// parts are the named structs of this program that the fields of a struct hold; what is embedded is part of the struct itself.
func parts(t reflect.Type, seen map[reflect.Type]bool) (out []reflect.Type) {
	for _, f := range reflect.VisibleFields(t) {
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			inner = inner.Elem()
		}
		if f.Anonymous || !f.IsExported() || f.Tag.Get("json") == "-" || inner.Kind() != reflect.Struct || !strings.HasPrefix(inner.PkgPath(), "doorward.dev/") || seen[inner] {
			continue
		}
		seen[inner] = true
		out = append(out, inner)
	}
	return out
}

// plain gives a schema as an object, and a reference that may be null in words that every reader takes.
func plain(s *jsonschema.Schema) any {
	b, err := json.Marshal(s)
	var out any
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("door: a schema cannot be written: %v", err))
	}
	return nullable(out)
}

func nullable(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = nullable(v[i])
		}
	case object:
		if r, ok := v["$ref"]; ok && v["type"] != nil {
			return object{"anyOf": []any{object{"$ref": r}, object{"type": "null"}}}
		}
		for k := range v {
			v[k] = nullable(v[k])
		}
	}
	return v
}
