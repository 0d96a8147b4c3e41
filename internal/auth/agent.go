package auth

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// Agent is an agent profile as stored. One that comes out of this package is
// part of a snapshot: never change it.
type Agent struct {
	ID, WorkspaceID, Name, Description string
	State                              string // ACTIVE, PAUSED, …
	Allowlist                          []Pattern
	Capability                         map[string]string // action class, "server/tool" or "*" -> rule word
	ScriptAllowlist                    []string          // slugs that script.run may run; nil: every script (SC-62)
	StoppedAt                          int64
	StopReason                         string
	CreatedAt                          int64
}

// The states of an agent.
const (
	StatePending   = "PENDING_APPROVAL"
	StateActive    = "ACTIVE"
	StatePaused    = "PAUSED"
	StateSuspended = "SUSPENDED"
	StateRevoked   = "REVOKED"  // terminal
	StateRejected  = "REJECTED" // terminal
)

// transitions are the moves of spec/palveron 4.2.4.
var transitions = map[string][]string{
	StatePending:   {StateActive, StateRejected},
	StateActive:    {StatePaused, StateSuspended, StateRevoked},
	StatePaused:    {StateActive, StateSuspended, StateRevoked},
	StateSuspended: {StateActive, StateRevoked},
	StateRevoked:   nil,
	StateRejected:  nil,
}

func checkTransition(from, to string) error {
	if _, ok := transitions[to]; !ok {
		return fault.New(fault.InvalidParams, "no agent state %q; the states are %s", to, strings.Join(slices.Sorted(maps.Keys(transitions)), ", "))
	}
	possible := transitions[from]
	switch {
	case slices.Contains(possible, to):
		return nil
	case len(possible) == 0:
		return fault.New(fault.Conflict, "the agent is %s, which is final; create a new agent", from)
	}
	return fault.New(fault.Conflict, "the agent is %s and cannot become %s; possible: %s", from, to, strings.Join(possible, ", "))
}

var (
	actionClasses = []string{"read", "write", "delete", "send", "execute", "unknown"}
	ruleWords     = []string{"ALLOW", "LOG_ONLY", "REQUIRE_APPROVAL", "DENY"}
)

// blocked is a word that no rule has: whatever it stands for is denied (PV-17).
const blocked = "UNREADABLE"

// checkCapability refuses a capability model with a key that can match nothing or a word that is no rule.
func checkCapability(model map[string]string) error {
	for key, word := range model {
		server, tool, isTool := strings.Cut(key, "/")
		switch {
		case !slices.Contains(ruleWords, word):
			return fault.New(fault.InvalidParams, "capability %q: no rule %q; possible: %s", key, word, strings.Join(ruleWords, ", "))
		case isTool && (!serverName.MatchString(server) || tool == "" || strings.Contains(tool, anything)):
			return fault.New(fault.InvalidParams, "capability %q can match no tool; give server/tool in full", key)
		case !isTool && key != anything && !slices.Contains(actionClasses, key):
			return fault.New(fault.InvalidParams, "capability %q: possible are server/tool, * and the action classes %s", key, strings.Join(actionClasses, ", "))
		}
	}
	return nil
}

// storedCapability reads a stored model. "*" is given to every class that has
// no word of its own, so that looking up a class finds it. Words stay as they are, also unknown ones.
func storedCapability(text string) (map[string]string, bool) {
	var model map[string]string
	if err := json.Unmarshal([]byte(text), &model); err != nil {
		model = map[string]string{anything: blocked}
		spread(model)
		return model, false
	}
	spread(model)
	return model, true
}

func spread(model map[string]string) {
	word, ok := model[anything]
	if !ok {
		return
	}
	for _, class := range actionClasses {
		if _, ok := model[class]; !ok {
			model[class] = word
		}
	}
}

// storedAllowlist reads a stored allowlist; what does not parse grants nothing.
func storedAllowlist(text string) []Pattern {
	var entries []string
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil
	}
	var list []Pattern
	for _, s := range entries {
		if p, err := ParsePattern(s); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// allowlistText parses the entries anew (a Pattern may have been made by hand) and gives them as stored.
func allowlistText(list []Pattern) (string, error) {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		if _, err := ParsePattern(p.Text); err != nil {
			return "", err
		}
		if !slices.Contains(texts, p.Text) {
			texts = append(texts, p.Text)
		}
	}
	out, err := json.Marshal(texts)
	return string(out), err
}

// maxScripts bounds the scripts of an allowlist.
const maxScripts = 1000

// scriptText checks an allowlist of scripts and gives it as stored. An empty list that is not nil allows no script.
func scriptText(slugs []string) (string, error) {
	if slugs == nil {
		return "", nil
	}
	if len(slugs) > maxScripts {
		return "", fault.New(fault.InvalidParams, "script_allowlist has more than %d entries", maxScripts)
	}
	for _, slug := range slugs {
		if !serverName.MatchString(slug) || len(slug) > maxPattern {
			return "", fault.New(fault.InvalidParams, "script_allowlist: %.64q can be the slug of no script", slug)
		}
	}
	out, err := json.Marshal(slugs)
	return string(out), err
}

// storedScripts reads a stored allowlist of scripts; one that cannot be read allows none.
func storedScripts(text string) []string {
	if text == "" {
		return nil
	}
	slugs := []string{}
	if err := json.Unmarshal([]byte(text), &slugs); err != nil {
		return []string{}
	}
	return slugs
}
