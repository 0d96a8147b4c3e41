package door

import (
	"maps"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// contract is what an operation takes, for those who write it down (the OpenAPI document) and those who try it out (the
// test that walks every route with ids of another workspace).
type contract struct {
	in    any      // a value of the type of the body, nil: none
	query []string // names of the parameters of the query, each in queryWords
}

// filters of the record.
var auditQuery = []string{"agent_id", "server_id", "tool_id", "trace_id", "door", "method", "decision", "status", "kind", "from", "to", "before"}

// contracts has an entry for every operation by its name in the record.
var contracts = map[string]contract{
	"server.list":            {},
	"server.register":        {in: registerInput{}},
	"server.import":          {in: map[string]any{}},
	"server.show":            {},
	"server.update":          {in: updateInput{}},
	"server.remove":          {},
	"server.scan":            {},
	"server.approve":         {in: approveInput{}},
	"server.pause":           {},
	"server.resume":          {},
	"tool.list":              {},
	"tool.admit_suggestions": {in: suggestionsInput{}},
	"tool.admit":             {in: admitInput{}},
	"tool.verdict":           {in: verdictInput{}},
	"tool.set":               {in: catalog.ToolSettings{}},
	"policy.list":            {},
	"policy.create":          {in: policyInput{}},
	"policy.delete":          {},
	"emergency_stop":         {in: gate.StopRequest{}},
	"approval.list":          {query: []string{"status", "limit"}},
	"approval.show":          {},
	"approval.approve":       {in: decisionInput{}},
	"approval.deny":          {in: decisionInput{}},
	"approval.status":        {query: []string{"trace_id"}},
	"agent.list":             {},
	"agent.create":           {in: agentInput{}},
	"agent.show":             {},
	"agent.update":           {in: agentInput{}},
	"agent.release":          {},
	"key.list":               {},
	"key.create":             {in: keyInput{}},
	"key.revoke":             {},
	"person.list":            {},
	"person.create":          {in: personInput{}},
	"person.update":          {in: personChange{}},
	"person.password":        {in: passwordInput{}},
	"audit.list":             {query: append(slices.Clone(auditQuery), "limit")},
	"audit.verify":           {in: verifyInput{}},
	"audit.show":             {},
	"audit.checkpoint":       {},
	"audit.proof":            {query: []string{"seq", "trace_id"}},
	"audit.attestations":     {query: []string{"cursor", "limit"}},
	"audit.export":           {query: append(slices.Clone(auditQuery), "format", "task_id", "after")},
	"audit.prune":            {in: pruneInput{}},
	"trace.list":             {query: []string{"time_range", "from", "to", "decision", "agent_id", "policy_id", "trace_type", "cursor", "limit"}},
	"trace.show":             {},
	"explain":                {in: explainInput{}, query: []string{"agent", "tool", "arguments"}},
	"task.list":              {query: []string{"before"}},
	"task.create":            {in: taskInput{}},
	"task.show":              {},
	"task.finish":            {},
	"auth.login":             {in: loginInput{}},
	"auth.oidc":              {query: []string{"return"}},
	"auth.login_oidc":        {query: []string{"state", "code", "iss", "error"}}, // and whatever else the provider adds
	"auth.logout":            {},
	"auth.me":                {},
}

// checkQuery refuses a parameter that the operation does not have: a mistyped filter is never silently nothing.
func (rt route) checkQuery(c *restCall) error {
	known, ok := contracts[rt.name]
	if !ok || c.URL.RawQuery == "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.URL.Query())) {
		if !slices.Contains(known.query, name) {
			possible := "none"
			if len(known.query) > 0 {
				possible = strings.Join(known.query, ", ")
			}
			return fault.New(fault.InvalidParams, "unknown parameter %s; possible: %s", clip(name, 40), possible)
		}
	}
	return nil
}
