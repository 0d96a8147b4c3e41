package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// The headers of MCP over HTTP, in the canonical form of net/http. All are per
// hop: they are made anew for the next one, never forwarded.
const (
	HeaderVersion     = "Mcp-Protocol-Version"
	HeaderSession     = "Mcp-Session-Id"
	HeaderMethod      = "Mcp-Method"
	HeaderName        = "Mcp-Name"
	HeaderParamPrefix = "Mcp-Param-"
)

const (
	base64Open  = "=?base64?"
	base64Close = "?="
	maxSafe     = 1<<53 - 1 // integers beyond are not mirrored into headers
)

// CheckModern holds a POSTed message of the modern era against its headers:
// version, _meta, method and name. Responses are not checked. Errors are
// *fault.Error: HeaderMismatch, InvalidParams (a required field of _meta is
// missing) or BadVersion, with the data the protocol asks for.
func CheckModern(h http.Header, m *Message) error {
	if m.IsResponse() {
		return nil
	}
	if err := checkVersion(h, m); err != nil {
		return err
	}
	method, n := headerValue(h, HeaderMethod)
	switch {
	case n == 0 || method == "":
		return mismatch("header %s is missing", HeaderMethod)
	case n > 1:
		return mismatch("header %s is there twice", HeaderMethod)
	case method != m.Method:
		return mismatch("header %s is not the method of the body", HeaderMethod)
	}
	if err := checkName(h, m); err != nil {
		return err
	}
	if m.IsRequest() && !IsObject(GetPath(m.Params, "_meta", MetaClientCapabilities)) {
		return missingMeta(MetaClientCapabilities)
	}
	return nil
}

func checkVersion(h http.Header, m *Message) *fault.Error {
	header, n := headerValue(h, HeaderVersion)
	body := MetaVersion(m.Params)
	switch {
	case n == 0 || header == "":
		return mismatch("header %s is missing", HeaderVersion)
	case n > 1:
		return mismatch("header %s is there twice", HeaderVersion)
	case body == "" && m.IsRequest():
		return missingMeta(MetaProtocolVersion)
	case body != "" && header != body:
		return mismatch("header %s is not the protocol version of the body", HeaderVersion)
	case !Known(header) || EraOf(header) != Modern:
		return fault.New(fault.BadVersion, "this protocol version is not supported: use one of data.supported").
			With("supported", Supported()).With("requested", header)
	}
	return nil
}

func checkName(h http.Header, m *Message) error {
	member := nameMember(m.Method)
	if member == "" {
		return nil
	}
	name, ok := String(Get(m.Params, member))
	if !ok {
		return fault.New(fault.InvalidParams, "params.%s must be a string", member)
	}
	header, n := headerValue(h, HeaderName)
	switch {
	case n == 0 || header == "" && name != "":
		return mismatch("header %s is missing", HeaderName)
	case n > 1:
		return mismatch("header %s is there twice", HeaderName)
	case header == name:
		return nil
	}
	// A name that a header cannot carry comes in the encoded form.
	if decoded, ok := decodeHeader(header); !ok || decoded != name {
		return mismatch("header %s is not params.%s of the body", HeaderName, member)
	}
	return nil
}

// nameMember is the member of params that Mcp-Name mirrors, empty when there is none.
func nameMember(method string) string {
	switch method {
	case "tools/call", "prompts/get":
		return "name"
	case "resources/read":
		return "uri"
	case "tasks/get", "tasks/update", "tasks/cancel":
		return "taskId"
	}
	return ""
}

// CheckParamHeaders holds the Mcp-Param-* headers of a modern tools/call
// against its arguments, by the x-mcp-header annotations of the input schema
// that was shown to the caller. Headers without an annotation are ignored, and
// so are annotations of a schema that ValidParamHeaders refuses: clients do
// not use such a tool, and the body alone decides.
func CheckParamHeaders(h http.Header, params, schema json.RawMessage) error {
	bindings, err := paramHeaders(schema)
	if err != nil {
		return nil
	}
	for _, b := range bindings {
		if err := b.check(h, params); err != nil {
			return err
		}
	}
	return nil
}

func (b paramHeader) check(h http.Header, params []byte) error {
	key := HeaderParamPrefix + b.name
	header, n := headerValue(h, key)
	raw := b.argument(params)
	switch {
	case n > 1:
		return mismatch("header %s is there twice", key)
	case raw == nil && n > 0:
		return mismatch("header %s has no argument %s in the body", key, b.where())
	case raw == nil:
		return nil
	case n == 0:
		return mismatch("header %s is missing for argument %s", key, b.where())
	}
	value, ok := headerText(raw)
	if !ok {
		return mismatch("argument %s has no value that header %s can mirror", b.where(), key)
	}
	got, ok := decodeHeader(header)
	if !ok {
		return mismatch("header %s is not valid base64", key)
	}
	if raw[0] != '"' && raw[0] != 't' && raw[0] != 'f' { // a number: 42.0 and 42 are the same
		if got, ok = safeInteger([]byte(got)); !ok {
			return mismatch("header %s is not an integer", key)
		}
	}
	if got != value {
		return mismatch("header %s is not argument %s of the body", key, b.where())
	}
	return nil
}

// SetModernHeaders sets the headers of a modern request from its body: version
// (that of _meta, else the newest), method, name, and for tools/call the
// Mcp-Param-* headers by the input schema of the upstream tool (nil: none).
// Headers of this kind that h had before are removed.
func SetModernHeaders(h http.Header, method string, params, schema json.RawMessage) {
	for k := range h {
		if strings.HasPrefix(http.CanonicalHeaderKey(k), HeaderParamPrefix) {
			delete(h, k)
		}
	}
	h.Del(HeaderName)
	version := MetaVersion(params)
	if version == "" {
		version = V20260728
	}
	h.Set(HeaderVersion, encodeHeader(version))
	h.Set(HeaderMethod, encodeHeader(method))
	if member := nameMember(method); member != "" {
		if name, ok := String(Get(params, member)); ok {
			h.Set(HeaderName, encodeHeader(name))
		}
	}
	if method != "tools/call" {
		return
	}
	bindings, err := paramHeaders(schema)
	if err != nil {
		return
	}
	for _, b := range bindings {
		if raw := b.argument(params); raw != nil {
			if value, ok := headerText(raw); ok {
				h.Set(HeaderParamPrefix+b.name, encodeHeader(value))
			}
		}
	}
}

// ValidParamHeaders checks the x-mcp-header annotations of a tool's input
// schema: on string, integer or boolean properties only, each a header token
// of its own, compared without case. A client must not use a tool whose
// schema is refused here (InvalidParams).
func ValidParamHeaders(schema json.RawMessage) error {
	_, err := paramHeaders(schema)
	return err
}

// paramHeader binds an argument, by its path, to the header that mirrors it.
type paramHeader struct {
	path []string
	name string
}

// where is the path as a message shows it.
func (b paramHeader) where() string { return excerpt([]byte(strings.Join(b.path, "."))) }

// argument is the raw value in params, nil when absent or null.
func (b paramHeader) argument(params []byte) json.RawMessage {
	raw := GetPath(Get(params, "arguments"), b.path...)
	if len(raw) == 0 || IsNull(raw) {
		return nil
	}
	return raw
}

// paramHeaders collects the annotations of the properties that are statically
// reachable: through properties only, not through items, $ref or anyOf.
func paramHeaders(schema []byte) ([]paramHeader, error) {
	// Nearly all schemas have none; an escape could spell the word.
	if !bytes.Contains(schema, []byte("x-mcp-header")) && !bytes.Contains(schema, []byte(`\u`)) {
		return nil, nil
	}
	c := collector{seen: map[string]bool{}}
	if err := c.properties(Get(schema, "properties"), nil); err != nil {
		return nil, err
	}
	return c.found, nil
}

type collector struct {
	found []paramHeader
	seen  map[string]bool // names in lower case
}

func (c *collector) properties(properties []byte, path []string) (err error) {
	Each(properties, func(key string, prop json.RawMessage) bool {
		if !IsObject(prop) {
			return true
		}
		at := append(path[:len(path):len(path)], key)
		if raw := Get(prop, "x-mcp-header"); raw != nil {
			if err = c.annotation(prop, raw, at); err != nil {
				return false
			}
		}
		err = c.properties(Get(prop, "properties"), at)
		return err == nil
	})
	return err
}

func (c *collector) annotation(prop, raw []byte, path []string) error {
	b := paramHeader{path: path}
	switch typ, _ := String(Get(prop, "type")); typ {
	case "string", "integer", "boolean":
	default:
		return fault.New(fault.InvalidParams, "property %s: x-mcp-header needs the type string, integer or boolean", b.where())
	}
	var ok bool
	if b.name, ok = String(raw); !ok || !isToken(b.name) {
		return fault.New(fault.InvalidParams, "property %s: x-mcp-header must be a header name", b.where())
	}
	key := strings.ToLower(b.name)
	if c.seen[key] {
		return fault.New(fault.InvalidParams, "property %s: x-mcp-header %q is there twice", b.where(), excerpt([]byte(b.name)))
	}
	c.seen[key] = true
	c.found = append(c.found, b)
	return nil
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c-'0' > 9 && lower(c)-'a' > 25 && !strings.Contains("!#$%&'*+-.^_`|~", string(rune(c))) {
			return false
		}
	}
	return s != ""
}

// headerText is the text that mirrors a raw argument: a string, a boolean, or
// an integer that every reader holds exactly; ok is false for anything else.
func headerText(raw []byte) (string, bool) {
	switch c := raw[0]; {
	case c == '"':
		return String(raw)
	case c == 't' || c == 'f':
		return string(raw), true
	case c == '-' || c-'0' <= 9:
		return safeInteger(raw)
	}
	return "", false
}

// safeInteger writes a JSON number plainly when it is an integer within ±(2^53-1).
func safeInteger(raw []byte) (string, bool) {
	s := newScanner(raw, Limits{})
	if len(raw) == 0 || raw[0] != '-' && raw[0]-'0' > 9 || s.number(0) != len(raw) {
		return "", false
	}
	out, _, ok := appendNumber(nil, raw, nil)
	if !ok {
		return "", false
	}
	n, err := strconv.ParseInt(string(out), 10, 64)
	return string(out), err == nil && n >= -maxSafe && n <= maxSafe
}

// headerValue is the value of a header without white space around it, and how often the header is there.
func headerValue(h http.Header, key string) (string, int) {
	v := h.Values(key)
	if len(v) == 0 {
		return "", 0
	}
	return strings.Trim(v[0], " \t"), len(v)
}

// encodeHeader writes a value as a header can carry it: as it is when it is
// visible ASCII and inner spaces, else as =?base64?…?=.
func encodeHeader(s string) string {
	if !plainHeader(s) {
		return base64Open + base64.StdEncoding.EncodeToString([]byte(s)) + base64Close
	}
	return s
}

func plainHeader(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	if strings.HasPrefix(s, " ") || strings.HasSuffix(s, " ") {
		return false
	}
	// What looks encoded must be encoded, or it would be decoded.
	return !strings.HasPrefix(s, base64Open) || !strings.HasSuffix(s, base64Close)
}

// decodeHeader reads the encoded form; anything else is meant as it stands.
// ok is false when the form is there but what is in it is not base64.
func decodeHeader(s string) (string, bool) {
	body, ok := strings.CutPrefix(s, base64Open)
	if !ok {
		return s, true
	}
	if body, ok = strings.CutSuffix(body, base64Close); !ok {
		return s, true
	}
	b, err := base64.StdEncoding.DecodeString(body)
	return string(b), err == nil
}

func mismatch(format string, args ...any) *fault.Error {
	return fault.New(fault.HeaderMismatch, format, args...)
}

func missingMeta(key string) *fault.Error {
	return fault.New(fault.InvalidParams, "params._meta is missing %s", key)
}
