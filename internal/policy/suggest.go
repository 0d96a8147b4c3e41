package policy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
)

// The sources of a suggestion.
const (
	SourceAction   = "action"
	SourceTemplate = "template"
)

// Suggest proposes the rule of a tool that waits for a decision (PV-10). A
// template (Allow: none) counts only where it is stricter (PV-11), so only a
// template can propose DENY. A suggestion decides no call (PV-9).
func Suggest(c Class, template Action) (Action, string) {
	byClass := RequireApproval
	switch c {
	case Read:
		byClass = Allow
	case Write:
		byClass = LogOnly
	}
	if template > byClass {
		return min(template, Deny), SourceTemplate
	}
	return byClass, SourceAction
}

// templates.json is the maintained set: per product, what its vendors and
// users learned to be worth more than the class of the action says.
//
//go:embed templates.json
var templatesJSON []byte

type template struct {
	Product string   `json:"product"`
	Source  string   `json:"source"`
	Match   []string `json:"match"` // package, command or server names; "*" is every server
	Tools   []struct {
		Name   string `json:"name"` // path.Match pattern over the tool's name in lower case
		Action string `json:"action"`
		Why    string `json:"why"`
	} `json:"tools"`
}

var templates = mustTemplates(templatesJSON)

// mustTemplates panics on a broken set: it is part of the binary and tested.
func mustTemplates(b []byte) []template {
	var out []template
	if err := json.Unmarshal(b, &out); err != nil {
		panic(fmt.Sprintf("templates.json: %v", err))
	}
	for _, t := range out {
		for _, tool := range t.Tools {
			if _, err := path.Match(tool.Name, ""); err != nil {
				panic(fmt.Sprintf("templates.json: %s: %v", tool.Name, err))
			}
			if a, ok := ParseAction(tool.Action); !ok || a < RequireApproval {
				panic(fmt.Sprintf("templates.json: %s: action %q cannot be stricter than a class", tool.Name, tool.Action))
			}
		}
	}
	return out
}

// Template gives the strictest action that the maintained templates name for
// a tool, Allow when they name none. hints tell the product: the server's
// name, its command and its arguments, which hold the package name.
func Template(hints []string, tool string) Action {
	best := Allow
	tool = strings.ToLower(tool)
	for i := range templates {
		t := &templates[i]
		if !t.matches(hints) {
			continue
		}
		for _, p := range t.Tools {
			if ok, _ := path.Match(p.Name, tool); !ok {
				continue
			}
			if a, _ := ParseAction(p.Action); a > best {
				best = a
			}
		}
	}
	return best
}

func (t *template) matches(hints []string) bool {
	for _, m := range t.Match {
		if m == "*" {
			return true
		}
		for _, h := range hints {
			if matchProduct(strings.ToLower(h), m) {
				return true
			}
		}
	}
	return false
}

// matchProduct knows a package as itself, with a version, and inside a path:
// "@playwright/mcp@0.0.41", "/x/node_modules/@playwright/mcp/cli.js".
func matchProduct(hint, product string) bool {
	hint = strings.ReplaceAll(hint, `\`, "/")
	if rest, ok := strings.CutPrefix(hint, product); ok && (rest == "" || rest[0] == '@' || rest[0] == '/' || strings.HasPrefix(rest, "==")) {
		return true
	}
	return strings.HasSuffix(hint, "/"+product) || strings.Contains(hint, "/"+product+"/") || strings.Contains(hint, "/"+product+"@")
}
