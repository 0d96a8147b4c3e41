package auth

import (
	"regexp"
	"strings"
	"unicode"

	"doorward.dev/doorward/internal/fault"
)

// Pattern is one parsed allowlist entry: "*", "server/*", "server/tool" or a
// bare tool name. Server and Tool are "*" where any will do; the zero Pattern matches nothing.
type Pattern struct{ Text, Server, Tool string }

const (
	anything   = "*"
	maxPattern = 512 // bytes
)

var serverName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// ParsePattern parses an allowlist entry; the error says what is wrong and
// what is possible. What could never match is refused: it would look like a grant and be none.
func ParsePattern(s string) (Pattern, error) {
	server, tool, ok := strings.Cut(s, "/")
	if !ok {
		server, tool = anything, s
	}
	switch {
	case s == "":
		return Pattern{}, badPattern(s, "it is empty")
	case len(s) > maxPattern:
		return Pattern{}, badPattern(s[:32]+"…", "it is too long")
	case strings.TrimSpace(s) != s || strings.IndexFunc(s, unicode.IsControl) >= 0:
		return Pattern{}, badPattern(s, "it has spaces around it or control characters in it")
	case ok && server == anything:
		return Pattern{}, badPattern(s, "the server cannot be *; for a tool of any server give its bare name")
	case ok && !serverName.MatchString(server):
		return Pattern{}, badPattern(s, "no server can have that name")
	case tool == "":
		return Pattern{}, badPattern(s, "the tool is missing")
	case tool != anything && strings.Contains(tool, anything):
		return Pattern{}, badPattern(s, "* can only stand alone")
	}
	return Pattern{Text: s, Server: server, Tool: tool}, nil
}

func badPattern(s, why string) error {
	return fault.New(fault.InvalidParams, `allowlist entry %q: %s; possible are "*", "server/*", "server/tool" and a tool name`, s, why)
}

// Match reports whether the entry grants the tool.
func (p Pattern) Match(server, tool string) bool {
	return p.Tool != "" && (p.Server == anything || p.Server == server) && (p.Tool == anything || p.Tool == tool)
}
