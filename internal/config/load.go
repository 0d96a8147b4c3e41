package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"doorward.dev/doorward/internal/fault"
)

// Source says where the settings come from.
type Source struct {
	File    string            // YAML file; empty: none
	Environ []string          // as os.Environ
	Flags   map[string]string // key (upstream.parallel) -> value, the strongest
}

// maxFile bounds a configuration or secret file, in bytes.
const maxFile = 1 << 20

// Load reads, merges and checks the settings. The error is fault.Config; it lists everything that is wrong, one
// problem a line, each with file, line and key (or the name of the variable or flag), and shows no secret value.
func Load(src Source) (*Config, error) {
	env := make(map[string]string, len(src.Environ))
	for _, kv := range src.Environ {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	c := Default(func(name string) string { return env[name] })
	c.origins = map[string]string{}
	l := loader{c: &c, fields: map[string]field{}}
	for _, f := range fields(&c) {
		l.fields[f.key] = f
	}
	if src.File != "" {
		l.file(src.File)
	}
	l.environment(env)
	for _, key := range slices.Sorted(maps.Keys(src.Flags)) {
		l.set(key, src.Flags[key], "flag --"+strings.NewReplacer("_", "-", ".", "-").Replace(key))
	}
	if len(l.problems) == 0 {
		l.problems = c.validate()
	}
	if len(l.problems) > 0 {
		return nil, fault.New(fault.Config, "%s", strings.Join(l.problems, "\n"))
	}
	return &c, nil
}

type loader struct {
	c        *Config
	fields   map[string]field
	problems []string
}

func (l *loader) problem(where, format string, args ...any) {
	l.problems = append(l.problems, where+": "+fmt.Sprintf(format, args...))
}

// set gives one setting its value and remembers where it came from.
func (l *loader) set(key, text, origin string) {
	f, ok := l.fields[key]
	if !ok {
		l.problem(origin, "no such setting")
		return
	}
	if err := f.set(text); err != nil {
		if f.secret {
			err = errors.New("the value is not valid")
		}
		l.problem(origin, "%v", err)
		return
	}
	l.c.origins[key] = origin
}

// environment applies DOORWARD_<SECTION>_<KEY> and, for secrets, the _FILE twin.
func (l *loader) environment(env map[string]string) {
	for _, f := range fields(l.c) {
		text, ok := env[f.env]
		if ok && text == "" && f.value.Kind() != reflect.String {
			ok = false // an empty variable is no number; for a text it says "empty"
		}
		path := ""
		if f.secret {
			path = env[f.env+"_FILE"]
		}
		switch {
		case path != "" && text != "":
			l.problem("environment "+f.env, "also set through %s_FILE; keep one of them", f.env)
		case path != "":
			l.secretFile(f.key, path, "environment "+f.env+"_FILE")
		case ok:
			l.set(f.key, text, "environment "+f.env)
		}
		delete(env, f.env)
		if f.secret {
			delete(env, f.env+"_FILE")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, "DOORWARD_") && !slices.Contains(clientVariables, name) && !kubernetes.MatchString(name) {
			l.c.unknown = append(l.c.unknown, name)
		}
	}
}

// clientVariables are read by the command line itself.
var clientVariables = []string{"DOORWARD_URL", "DOORWARD_KEY", "DOORWARD_KEY_FILE", "DOORWARD_CONFIG"}

// kubernetes puts such variables into every pod beside a service named doorward.
var kubernetes = regexp.MustCompile(`^DOORWARD_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)$`)

func (l *loader) secretFile(key, path, origin string) {
	text, err := ReadSecret(path)
	if err != nil {
		l.problem(origin, "%v", err)
		return
	}
	l.set(key, text, origin)
}

// ReadSecret reads a secret from a file, without the line end that editors add.
func ReadSecret(path string) (string, error) {
	b, err := readFile(path)
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return text, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			return nil, fmt.Errorf("cannot read %s: %v", path, pe.Err)
		}
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder, not a file", path)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s", path)
	}
	return b, nil
}

// file applies the YAML file. Every key must be known and stand only once.
func (l *loader) file(path string) {
	b, err := readFile(path)
	if err != nil {
		l.problem("--config", "%v", err)
		return
	}
	var doc yaml.Node
	docs, err := yaml.NewLoader(bytes.NewReader(b))
	if err != nil {
		l.problem(path, "not valid YAML: %v", err)
		return
	}
	if err := docs.Load(&doc); err != nil {
		var le *yaml.LoadError
		if errors.As(err, &le) {
			l.problem(fmt.Sprintf("%s:%d", path, le.Mark.Line), "not valid YAML: %s", le.Message)
		} else if !errors.Is(err, io.EOF) { // EOF: the file sets nothing
			l.problem(path, "not valid YAML: %v", err)
		}
		return
	}
	if err := docs.Load(new(yaml.Node)); !errors.Is(err, io.EOF) {
		l.problem(path, "must be one YAML document")
		return
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	if root.Kind == 0 || isNull(root) {
		return // an empty file sets nothing
	}
	l.mapping(path, "", root)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (l *loader) mapping(path, prefix string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		l.problem(at(path, n, strings.TrimSuffix(prefix, ".")), "must be a mapping of keys to values")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		where := at(path, k, key)
		if seen[key] {
			l.problem(where, "stands twice")
			continue
		}
		seen[key] = true
		base, isFile := strings.CutSuffix(key, "_file")
		switch f, ok := l.fields[key]; {
		case ok:
			l.value(path, f, v)
		case isFile && l.fields[base].secret:
			if seen[base] {
				l.problem(where, "%s is set too; keep one of them", base)
			} else if v.Kind != yaml.ScalarNode {
				l.problem(where, "must be the path of a file")
			} else {
				l.secretFile(base, v.Value, where)
			}
		case l.section(key) && isNull(v):
		case l.section(key):
			l.mapping(path, key+".", v)
		default:
			l.problem(where, "no such setting%s", l.nearest(key))
		}
		if l.fields[key].secret && seen[key+"_file"] {
			l.problem(where, "%s_file is set too; keep one of them", key)
		}
	}
}

func (l *loader) section(key string) bool {
	for k := range l.fields {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

// value applies one YAML value. Scalars go through the same reading as the environment, but the YAML type must
// fit: `listen: true` is a mistake, not the text "true".
func (l *loader) value(path string, f field, n *yaml.Node) {
	where := at(path, n, f.key)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if list, ok := f.value.Addr().Interface().(*[]string); ok {
		l.list(where, f, list, n)
		return
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		l.problem(where, "must be %s", f.kind())
		return
	}
	switch tag := n.ShortTag(); f.value.Interface().(type) {
	case string:
		if tag != "!!str" {
			l.problem(where, "must be %s; put it in quotes", f.kind())
			return
		}
	case bool:
		if tag != "!!bool" {
			l.problem(where, "must be %s", f.kind())
			return
		}
	}
	l.set(f.key, n.Value, where)
}

func (l *loader) list(where string, f field, list *[]string, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		l.problem(where, "must be %s", f.kind())
		return
	}
	*list = nil
	for _, item := range n.Content {
		if item.Kind != yaml.ScalarNode || item.Value == "" {
			l.problem(where, "must be %s", f.kind())
			return
		}
		*list = append(*list, item.Value)
	}
	l.c.origins[f.key] = where
}

func at(path string, n *yaml.Node, key string) string {
	if key == "" {
		return fmt.Sprintf("%s:%d", path, n.Line)
	}
	return fmt.Sprintf("%s:%d: %s", path, n.Line, key)
}

// nearest proposes the known key that differs least.
func (l *loader) nearest(key string) string {
	best, least := "", 3
	for k := range l.fields {
		if d := distance(key, k); d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the Levenshtein distance in bytes; keys are short.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
