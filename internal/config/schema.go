package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// kind says in words what a setting takes.
func (f field) kind() string {
	switch f.value.Interface().(type) {
	case bool:
		return "true or false"
	case int:
		return "a whole number"
	case Size:
		return "a size such as 64KiB or 16MiB"
	case time.Duration:
		return "a duration such as 500ms, 10s or 30m"
	case []string:
		return "a list of texts"
	default:
		return "a text"
	}
}

// published is the configuration that schema and reference show as the default: that of no particular machine.
func published() *Config {
	c := Default(func(string) string { return "/" })
	c.Data = ""
	return &c
}

// schema is the subset of JSON Schema that is needed here; the order of the members is that of the struct.
type schema struct {
	Schema      string          `json:"$schema,omitempty"`
	ID          string          `json:"$id,omitempty"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Type        any             `json:"type"`
	Enum        []string        `json:"enum,omitempty"`
	Minimum     *int64          `json:"minimum,omitempty"`
	Pattern     string          `json:"pattern,omitempty"`
	Items       *schema         `json:"items,omitempty"`
	Default     any             `json:"default,omitempty"`
	Closed      *bool           `json:"additionalProperties,omitempty"`
	Properties  json.RawMessage `json:"properties,omitempty"`
}

// Schema is the JSON Schema of the configuration file, indented.
func Schema() []byte {
	root := object(reflect.ValueOf(published()).Elem(), "", "Settings of Doorward. Every setting is also an environment variable: DOORWARD_<SECTION>_<KEY>, but for those of limits (docs/limits.md).")
	root.Schema = "https://json-schema.org/draft/2020-12/schema"
	root.Title = "doorward.yaml"
	b, err := json.Marshal(root)
	if err != nil {
		panic(err) // built from our own types
	}
	var out bytes.Buffer
	_ = json.Indent(&out, b, "", "  ")
	out.WriteByte('\n')
	return out.Bytes()
}

func object(v reflect.Value, prefix, doc string) schema {
	var props bytes.Buffer
	add := func(name string, s schema) {
		if props.Len() > 0 {
			props.WriteByte(',')
		}
		k, _ := json.Marshal(name)
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		props.Write(k)
		props.WriteByte(':')
		props.Write(b)
	}
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name := sf.Tag.Get("yaml")
		if name == "" {
			continue
		}
		if sf.Type.Kind() == reflect.Struct {
			add(name, object(v.Field(i), prefix+name+".", sf.Tag.Get("doc")))
			continue
		}
		for _, f := range fields(published()) {
			if f.key != prefix+name {
				continue
			}
			add(name, f.schema())
			if f.secret {
				add(name+"_file", schema{Type: "string", Description: "File that holds the value of " + f.key + "."})
			}
		}
	}
	closed := false
	return schema{Type: "object", Description: doc, Closed: &closed, Properties: json.RawMessage("{" + props.String() + "}")}
}

func (f field) schema() schema {
	s := schema{Type: "string", Description: f.doc, Enum: f.enum}
	switch v := f.value.Interface().(type) {
	case bool:
		s.Type, s.Default = "boolean", v
	case int:
		s.Type, s.Default, s.Minimum = "integer", v, &f.min
	case Size:
		s.Type, s.Default, s.Pattern = []string{"integer", "string"}, v.String(), "^[0-9]+ ?(B|kB|KiB|MB|MiB|GB|GiB)?$"
	case time.Duration:
		s.Default, s.Pattern = duration(v), `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`
	case []string:
		s.Type, s.Items = "array", &schema{Type: "string"}
	case string:
		if v != "" {
			s.Default = v
		}
	}
	return s
}

// Reference is the table of all settings in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | variable | default | meaning |\n|---|---|---|---|\n")
	for _, f := range fields(published()) {
		def, env := "", "`"+f.env+"`"
		if f.text() != "" {
			def = "`" + f.text() + "`"
		}
		if f.secret {
			env += " or `" + f.env + "_FILE`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.key, env, def, strings.ReplaceAll(f.doc, "|", `\|`))
	}
	return b.String()
}
