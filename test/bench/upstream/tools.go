package main

import (
	"encoding/json"
	"fmt"
	"strconv"
)

type echoArgs struct {
	Text string `json:"text"`
}

type addArgs struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

// toolDef is a tool as it appears in tools/list.
type toolDef struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

var (
	verbs = []string{"list", "get", "create", "update", "delete", "search", "export", "archive"}
	nouns = []string{"issues", "pull_requests", "branches", "documents", "calendar_events", "invoices",
		"customers", "dashboards", "alerts", "deployments", "messages", "channels", "files"}
)

// dummyTool returns the i-th dummy tool. Its schema has the shape and size of
// those of common SaaS servers: strings with descriptions and formats, an enum,
// bounded integers, an array, a nested object, and required properties.
func dummyTool(i int) toolDef {
	verb, noun := verbs[i%len(verbs)], nouns[(i/len(verbs))%len(nouns)]
	schema := map[string]any{
		"type": "object",
		"properties": map[string]any{
			"workspace_id": map[string]any{"type": "string", "minLength": 1, "maxLength": 64,
				"description": "Identifier of the workspace that owns the " + noun + "."},
			"query": map[string]any{"type": "string",
				"description": "Free-text filter. Supports quoted phrases, field:value terms and a leading minus to exclude."},
			"state": map[string]any{"type": "string", "enum": []string{"open", "closed", "archived", "all"}, "default": "open",
				"description": "Only " + noun + " in this state."},
			"labels": map[string]any{"type": "array", "maxItems": 50, "items": map[string]any{"type": "string"},
				"description": "Only " + noun + " that carry every one of these labels."},
			"updated_since": map[string]any{"type": "string", "format": "date-time",
				"description": "RFC 3339 time; older " + noun + " are left out."},
			"page_size": map[string]any{"type": "integer", "minimum": 1, "maximum": 100, "default": 30,
				"description": "Number of results per page."},
			"options": map[string]any{
				"type":        "object",
				"description": "Advanced options.",
				"properties": map[string]any{
					"include_deleted": map[string]any{"type": "boolean", "default": false, "description": "Also return soft-deleted items."},
					"sort":            map[string]any{"type": "string", "enum": []string{"created", "updated", "priority"}},
				},
				"additionalProperties": false,
			},
		},
		"required":             []string{"workspace_id"},
		"additionalProperties": false,
	}
	b, err := json.Marshal(schema)
	if err != nil {
		panic(err) // the literal above always marshals
	}
	return toolDef{
		Name: fmt.Sprintf("%s_%s_%03d", verb, noun, i),
		Description: fmt.Sprintf("%s %s of a workspace. Results are paged and sorted by last update; "+
			"use the query and state filters to narrow them down.", verb, noun),
		InputSchema: b,
	}
}

// runTool runs echo or add on raw arguments.
func runTool(name string, args json.RawMessage) (string, error) {
	switch name {
	case "echo", "create_note":
		var in echoArgs
		if err := json.Unmarshal(args, &in); err != nil {
			return "", err
		}
		return in.Text, nil
	case "add":
		var in addArgs
		if err := json.Unmarshal(args, &in); err != nil {
			return "", err
		}
		return strconv.FormatFloat(in.A+in.B, 'g', -1, 64), nil
	}
	return "", fmt.Errorf("unknown tool %q", name)
}
