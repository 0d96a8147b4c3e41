package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf16"
)

// addForms adds every form in which a value may stand in text.
func addForms(set map[string]bool, value string) {
	addEncodings(set, value)
	// "Bearer X" and its kin: X alone is the secret, and of Basic the decoded pair too.
	scheme, rest, ok := strings.Cut(value, " ")
	if !ok || !isScheme(scheme) {
		return
	}
	rest = strings.TrimSpace(rest)
	addEncodings(set, rest)
	if !strings.EqualFold(scheme, "basic") {
		return
	}
	if pair, err := base64.StdEncoding.DecodeString(rest); err == nil {
		addEncodings(set, string(pair))
		_, password, _ := strings.Cut(string(pair), ":")
		addEncodings(set, password)
	}
}

// isScheme reports whether s is a word such as Bearer, Basic or token.
func isScheme(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' {
			return false
		}
	}
	return s != ""
}

func addEncodings(set map[string]bool, value string) {
	if len(value) < minSecret || value == Masked {
		return
	}
	set[value] = true
	for _, html := range []bool{true, false} {
		text := jsonText(value, html)
		set[text] = true
		set[jsonASCII(text)] = true
	}
	set[url.QueryEscape(value)] = true
	set[url.PathEscape(value)] = true
	addBase64(set, value)
}

// jsonText is value as it stands between the quotes of a JSON string.
func jsonText(value string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if err := e.Encode(value); err != nil {
		return value
	}
	return strings.TrimSuffix(b.String()[1:], "\"\n")
}

// jsonASCII writes what is not ASCII as \uXXXX, as many encoders do.
func jsonASCII(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < 0x80 {
			b.WriteRune(r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, u)
		}
	}
	return b.String()
}

// addBase64 adds the characters that value surely gives in base64, also where
// it stands within a longer text ("user:" + value): one form for each of the three positions in a group.
func addBase64(set map[string]bool, value string) {
	for before := range 3 {
		padded := append(make([]byte, before, before+len(value)), value...)
		first := (before*8 + 5) / 6  // characters that what stands before has a part in
		whole := len(padded) * 8 / 6 // characters that what follows has no part in
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			set[enc.EncodeToString(padded)[first:whole]] = true
		}
	}
}
