package config

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// field is one setting: a leaf of Config.
type field struct {
	key    string // upstream.parallel
	env    string // DOORWARD_UPSTREAM_PARALLEL, or the tag env
	doc    string
	secret bool
	enum   []string
	min    int64
	hasMin bool
	value  reflect.Value // settable when the walk began at a pointer
}

// fields lists the settings of c in the order of the struct.
func fields(c *Config) []field {
	var out []field
	walk(reflect.ValueOf(c).Elem(), "", &out)
	return out
}

func walk(v reflect.Value, prefix string, out *[]field) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name := sf.Tag.Get("yaml")
		if name == "" {
			continue
		}
		key := prefix + name
		if sf.Type.Kind() == reflect.Struct {
			walk(v.Field(i), key+".", out)
			continue
		}
		f := field{
			key: key, env: cmp.Or(sf.Tag.Get("env"), envName(key)), doc: sf.Tag.Get("doc"),
			secret: sf.Tag.Get("secret") == "true", value: v.Field(i),
		}
		if name := sf.Tag.Get("env"); name != "" { // a name that a source of the requirements fixes
			f.env = name
		}
		if e := sf.Tag.Get("enum"); e != "" {
			f.enum = strings.Split(e, ",")
		}
		if m := sf.Tag.Get("min"); m != "" {
			f.min, _ = strconv.ParseInt(m, 10, 64)
			f.hasMin = true
		}
		*out = append(*out, f)
	}
}

func envName(key string) string {
	return "DOORWARD_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// set gives the setting the value written as text: the form of the environment, of flags and of YAML scalars.
func (f field) set(text string) error {
	switch p := f.value.Addr().Interface().(type) {
	case *string:
		*p = text
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		*p = b
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*p = n
	case *Size:
		n, err := parseSize(text)
		if err != nil {
			return err
		}
		*p = n
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 500ms, 10s or 30m", text)
		}
		*p = d
	case *[]string:
		*p = nil
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
	default:
		panic("config: no parser for the type of " + f.key)
	}
	return f.check()
}

// check applies the bounds that stand in the tags.
func (f field) check() error {
	if f.hasMin && f.value.CanInt() && f.value.Int() < f.min {
		if f.value.Type() == reflect.TypeFor[time.Duration]() {
			return fmt.Errorf("must be %s", map[bool]string{true: "0 or more", false: "more than 0"}[f.min == 0])
		}
		return fmt.Errorf("must be at least %d", f.min)
	}
	if f.enum == nil {
		return nil
	}
	for _, word := range f.enum {
		if f.value.String() == word {
			return nil
		}
	}
	return fmt.Errorf("%q is not one of %s", f.value.String(), strings.Join(f.enum, ", "))
}

// text writes the value as set reads it, for the reference and the schema.
func (f field) text() string {
	switch v := f.value.Interface().(type) {
	case Size:
		return v.String()
	case time.Duration:
		return duration(v)
	case []string:
		return strings.Join(v, ",")
	default:
		return fmt.Sprint(v)
	}
}

var units = []struct {
	suffix string
	factor int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1},
}

func parseSize(text string) (Size, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.factor {
			break
		}
		return Size(n * u.factor), nil
	}
	return 0, fmt.Errorf("%q is not a size such as 65536, 64KiB or 16MiB", text)
}

func (s Size) String() string {
	for _, u := range units[:3] {
		if s != 0 && int64(s)%u.factor == 0 {
			return strconv.FormatInt(int64(s)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// duration is d.String without the zero parts: 30m, not 30m0s.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
