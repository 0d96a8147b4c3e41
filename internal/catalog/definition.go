package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// Limits of what is taken from a server's list.
const (
	maxTools      = 5000
	maxDefinition = 256 << 10 // bytes of one definition
	maxToolName   = 256       // bytes
)

// governed are the members of a definition that the fingerprint covers, in
// the order of canonical JSON.
var governed = []string{"annotations", "description", "inputSchema", "name", "outputSchema", "title"}

// definition is one entry of a listing, checked.
type definition struct {
	raw         json.RawMessage
	name        string
	title       string
	description string
	inputSchema json.RawMessage
	fingerprint string
	traits      policy.Definition
}

// parseDefinition checks an entry of a listing. All of it is written by the
// server; what two readers could take for two different tools is refused.
func parseDefinition(raw json.RawMessage) (*definition, error) {
	if len(raw) > maxDefinition {
		return nil, fmt.Errorf("definition is larger than %d bytes", maxDefinition)
	}
	if err := mcp.Check(raw, mcp.Limits{}); err != nil {
		return nil, fmt.Errorf("not valid JSON")
	}
	if !mcp.IsObject(raw) {
		return nil, fmt.Errorf("not an object")
	}
	parts, err := partsOf(raw)
	if err != nil {
		return nil, err
	}
	d := &definition{raw: raw, inputSchema: parts["inputSchema"]}
	name, ok := mcp.String(parts["name"])
	if !ok || name == "" {
		return nil, fmt.Errorf("no name")
	}
	if err := checkToolName(name); err != nil {
		return nil, err
	}
	d.name = name
	for _, text := range []struct {
		key string
		to  *string
	}{{"title", &d.title}, {"description", &d.description}} {
		if v := parts[text.key]; v != nil {
			if *text.to, ok = mcp.String(v); !ok {
				return nil, fmt.Errorf("%s is not a string", text.key)
			}
		}
	}
	for _, key := range []string{"inputSchema", "outputSchema", "annotations"} {
		if v := parts[key]; v != nil && !mcp.IsObject(v) {
			return nil, fmt.Errorf("%s is not an object", key)
		}
	}
	if d.fingerprint, err = fingerprint(parts); err != nil {
		return nil, err
	}
	destructive, _ := mcp.Bool(mcp.Get(parts["annotations"], "destructiveHint"))
	d.traits = policy.Definition{Name: d.name, Title: d.title, Description: d.description, Destructive: destructive}
	return d, nil
}

// partsOf gives the governed members. null is absent, and so are annotations
// that say nothing: servers differ in it between versions (case 2).
func partsOf(raw []byte) (map[string]json.RawMessage, error) {
	parts := make(map[string]json.RawMessage, len(governed))
	seen := make(map[string]bool, len(governed))
	var err error
	mcp.Each(raw, func(key string, value json.RawMessage) bool {
		for _, g := range governed {
			if !strings.EqualFold(key, g) {
				continue
			}
			if key != g || seen[g] {
				err = fmt.Errorf("%s stands twice or in another spelling", g)
				return false
			}
			seen[g] = true
			if !mcp.IsNull(value) {
				parts[g] = value
			}
		}
		return true
	})
	if v := parts["annotations"]; v != nil && mcp.IsObject(v) {
		empty := true
		mcp.Each(v, func(string, json.RawMessage) bool { empty = false; return false })
		if empty {
			delete(parts, "annotations")
		}
	}
	return parts, err
}

// fingerprint is version 1 of the formula: hex SHA-256 over the canonical JSON
// (RFC 8785) of the governed members that are present, behind "v1:".
func fingerprint(parts map[string]json.RawMessage) (string, error) {
	object := []byte{'{'}
	for _, key := range governed {
		if v := parts[key]; v != nil {
			if len(object) > 1 {
				object = append(object, ',')
			}
			object = append(mcp.AppendQuote(object, key), ':')
			object = append(object, v...)
		}
	}
	canonical, err := mcp.Canonical(append(object, '}'))
	if err != nil {
		return "", fmt.Errorf("has no canonical form")
	}
	sum := sha256.Sum256(canonical)
	return "v1:" + hex.EncodeToString(sum[:]), nil
}

func checkToolName(name string) error {
	if len(name) > maxToolName {
		return fmt.Errorf("name is longer than %d bytes", maxToolName)
	}
	if !utf8.ValidString(name) || name != strings.TrimSpace(name) {
		return fmt.Errorf("name has white space around it or is not UTF-8")
	}
	for _, r := range name {
		if unicode.IsControl(r) || isHidden(r) {
			return fmt.Errorf("name holds an invisible character")
		}
	}
	return nil
}

// isHidden: characters a person does not see but a model reads, or that turn
// text around: format characters (zero width, bidi, tags) and the like.
func isHidden(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r) || unicode.Is(unicode.Variation_Selector, r) && r >= 0xE0100 ||
		r == 0x2028 || r == 0x2029 || r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0
}

// suspiciousText are beginnings of the instructions that poisoned
// descriptions were seen to hold, in lower case with single spaces.
var suspiciousText = []string{
	"<important>", "<system>", "<instructions>", "<secret>", "[system]",
	"ignore previous", "ignore all previous", "ignore the previous", "disregard previous", "disregard all previous", "ignore your instructions",
	"do not tell the user", "don't tell the user", "do not mention", "don't mention this", "without telling the user", "do not inform the user",
	"hide this from", "before using this tool", "before you use this tool", "before using any other tool",
	"you must first read", "~/.ssh", "id_rsa", "~/.cursor/mcp.json", ".aws/credentials", "/etc/passwd",
	"system prompt", "side note", "sidenote", "exfiltrate", "this tool overrides", "instead of using the",
}

// suspicious reports whether a text that a model will read looks like poison.
// It is a hint for the person who admits, and decides nothing.
func suspicious(texts ...string) bool {
	for _, text := range texts {
		for _, r := range text {
			// The zero-width joiner and the soft hyphen have honest uses in prose.
			if isHidden(r) && r != 0x200D && r != 0xAD && r != 0xFEFF {
				return true
			}
		}
		plain := strings.ToLower(strings.Join(strings.Fields(text), " "))
		for _, s := range suspiciousText {
			if strings.Contains(plain, s) {
				return true
			}
		}
	}
	return false
}

// descriptionOf reads the description of a stored definition.
func descriptionOf(raw []byte) string {
	s, _ := mcp.String(mcp.Get(raw, "description"))
	return s
}

// poisoned: the description is not the admitted one, or the definition holds
// suspicious text anywhere a model reads it (also in the parameters).
func poisoned(current, admitted []byte) bool {
	if len(admitted) > 0 && descriptionOf(current) != descriptionOf(admitted) {
		return true
	}
	title, _ := mcp.String(mcp.Get(current, "title"))
	texts := []string{descriptionOf(current), title}
	for _, key := range []string{"inputSchema", "outputSchema"} {
		texts = append(texts, stringsIn(mcp.Get(current, key))...)
	}
	return suspicious(texts...)
}

// stringsIn gives every string of a JSON value, keys included.
func stringsIn(raw []byte) []string {
	var out []string
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return out
		}
		if s, ok := token.(string); ok {
			out = append(out, s)
		}
	}
}
