package auth

import (
	"regexp"
	"strings"
	"unicode"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// Pattern is one parsed allowlist entry: "*", "server/*", "server/tool", a bare tool name, or an entry of the work
// platform, "supacloud.…". Server and Tool are "*" where any will do, and empty in an entry that
// only names tiers; the zero Pattern matches nothing.
type Pattern struct {
	Text, Server, Tool string

	tiers         policy.TierSet // every tool of these
	conversations bool           // of tiers only the two reads of support conversations
}

const (
	anything   = "*"
	maxPattern = 512 // bytes

	// platformPrefix begins the entries of the work platform; what follows is a wildcard of platformEntries or the name of a tool.
	platformPrefix = "supacloud."
)

var serverName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// platformEntries are the entries of SC-3 that grant by tier. The traps are meant: supacloud.* is the baseline and no more
// (SC-6), supacloud.ops.* has neither script.run nor deploy in it (SC-4, SC-5), supacloud.conversation.*
// is the two reads (SC-44).
var platformEntries = map[string]Pattern{
	"*":              {tiers: policy.SetOf(policy.TierBaseline)},
	"full":           {Server: anything, Tool: anything},
	"read.*":         {tiers: policy.SetOf(policy.TierRead)},
	"ops.*":          {tiers: policy.SetOf(policy.TierOps)},
	"script.run":     {Server: anything, Tool: "script.run", tiers: policy.SetOf(policy.TierScriptRun)}, // the carve-out, and a tool's exact name
	"scaffold.*":     {tiers: policy.SetOf(policy.TierScaffoldProposal, policy.TierScaffoldTask)},
	"deploy.*":       {tiers: policy.SetOf(policy.TierDeploy)},
	"conversation.*": {tiers: policy.SetOf(policy.TierRead), conversations: true},
}

// ParsePattern parses an allowlist entry; the error says what is wrong and
// what is possible. What could never match is refused: it would look like a grant and be none.
func ParsePattern(s string) (Pattern, error) {
	server, tool, ok := strings.Cut(s, "/")
	if !ok {
		server, tool = anything, s
	}
	name, platform := strings.CutPrefix(s, platformPrefix)
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
	case platform && !ok:
		return platformPattern(s, name)
	case tool != anything && strings.Contains(tool, anything):
		return Pattern{}, badPattern(s, "* can only stand alone")
	}
	return Pattern{Text: s, Server: server, Tool: tool}, nil
}

// platformPattern parses what follows "supacloud.": a wildcard, or the exact name of a tool (SC-9).
func platformPattern(s, name string) (Pattern, error) {
	if p, ok := platformEntries[name]; ok {
		p.Text = s
		return p, nil
	}
	switch {
	case name == "":
		return Pattern{}, badPattern(s, "the tool is missing")
	case strings.Contains(name, anything):
		return Pattern{}, badPattern(s, "there is no such tier")
	}
	return Pattern{Text: s, Server: anything, Tool: name}, nil
}

func badPattern(s, why string) error {
	return fault.New(fault.InvalidParams, `allowlist entry %q: %s; possible are "*", "server/*", "server/tool", a tool name, `+
		`supacloud.<tool>, and supacloud.* (baseline only), supacloud.full, supacloud.read.*, supacloud.ops.*, supacloud.script.run, `+
		`supacloud.scaffold.*, supacloud.deploy.*, supacloud.conversation.*`, s, why)
}

// Match reports whether the entry grants the tool by its name, whatever its tier.
func (p Pattern) Match(server, tool string) bool {
	return p.Tool != "" && (p.Server == anything || p.Server == server) && (p.Tool == anything || p.Tool == tool)
}

// Grants reports whether the entry grants the tool by name or by tier.
func (p *Pattern) Grants(server, tool string, tier policy.Tier) bool {
	if p.tiers.Has(tier) && (!p.conversations || tool == "conversation.get" || tool == "conversation.list") {
		return true
	}
	return p.Match(server, tool)
}
