package door

import (
	"maps"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// contract is what an operation takes and gives, for those who write it down (the OpenAPI document) and those who try it out (the
// test that walks every route with ids of another workspace).
type contract struct {
	in      any      // a value of the type of the body, nil: none
	needs   string   // members that the body must have
	query   []string // names of the parameters of the query, each in queryWords
	out     any      // a value of the type of the answer
	created bool     // the answer may be 201
	match   bool     // If-Match is heeded
}

// filters of the record.
var auditQuery = []string{"agent_id", "server_id", "tool_id", "trace_id", "door", "method", "decision", "status", "kind", "from", "to", "before"}

// contracts has an entry for every operation by its name in the record.
var contracts = map[string]contract{
	"server.list":            {query: pageQuery, out: serverList{}},
	"server.register":        {in: registerInput{}, needs: "name", out: serverInfo{}, created: true},
	"server.import":          {in: map[string]any{}, out: serverImport{}, created: true},
	"server.show":            {out: serverInfo{}},
	"server.update":          {in: updateInput{}, out: serverInfo{}, match: true},
	"server.remove":          {out: serverRemoved{}, match: true},
	"server.scan":            {out: catalog.Scan{}},
	"server.approve":         {in: approveInput{}, out: serverApproved{}, match: true},
	"server.pause":           {out: serverInfo{}, match: true},
	"server.resume":          {out: serverInfo{}, match: true},
	"workspace.list":         {out: workspaceList{}},
	"workspace.create":       {in: workspaceInput{}, needs: "slug", out: workspaceCreated{}, created: true},
	"tool.list":              {out: toolList{}},
	"tool.admit_suggestions": {in: suggestionsInput{}, out: admitted{}, match: true},
	"tool.admit":             {in: admitInput{}, needs: "action fingerprint", out: catalog.ToolInfo{}, match: true},
	"tool.verdict":           {in: verdictInput{}, needs: "action", out: catalog.ToolInfo{}, match: true},
	"tool.set":               {in: catalog.ToolSettings{}, out: catalog.ToolInfo{}, match: true},
	"policy.list":            {query: pageQuery, out: policyList{}},
	"policy.create":          {in: policyInput{}, needs: "action", out: catalog.Policy{}, created: true},
	"policy.simulate":        {in: simulateInput{}, out: gate.Simulation{}},
	"policy.delete":          {out: deleted{}},
	"limit.list":             {out: limitList{}},
	"limit.create":           {in: limitInput{}, needs: "per n", out: catalog.Limit{}, created: true},
	"limit.delete":           {out: deleted{}},
	"limit.usage":            {query: []string{"agent_id", "task_id"}, out: limitsUsed{}},
	"emergency_stop":         {in: gate.StopRequest{}, needs: "scope target_id", out: gate.StopResult{}},
	"emergency_shutdown":     {in: gate.ShutdownRequest{}, out: gate.ShutdownResult{}},
	"shutdown.show":          {out: shutdownState{}},
	"shutdown.release":       {out: shutdownState{}},
	"approval.list":          {query: []string{"status", "agent_id", "older_than", "escalated", "cursor", "limit"}, out: approvalList{}},
	"approval.show":          {out: gate.Approval{}},
	"approval.approve":       {in: decisionInput{}, out: gate.Approval{}},
	"approval.deny":          {in: decisionInput{}, out: gate.Approval{}},
	"approval.status":        {query: []string{"trace_id"}, out: gate.ApprovalStatus{}},
	"agent.list":             {query: pageQuery, out: agentList{}},
	"agent.create":           {in: agentInput{}, needs: "name", out: agentInfo{}, created: true},
	"agent.show":             {out: agentInfo{}},
	"agent.update":           {in: agentInput{}, out: agentInfo{}, match: true},
	"agent.release":          {out: agentInfo{}, match: true},
	"key.list":               {query: pageQuery, out: keyList{}},
	"key.create":             {in: keyInput{}, out: keyCreated{}, created: true},
	"key.revoke":             {out: revoked{}},
	"person.list":            {query: pageQuery, out: personList{}},
	"person.create":          {in: personInput{}, needs: "name role", out: auth.Person{}, created: true},
	"person.update":          {in: personChange{}, out: auth.Person{}},
	"person.password":        {in: passwordInput{}, needs: "password", out: passwordSet{}},
	"audit.list":             {query: append(slices.Clone(auditQuery), "limit"), out: eventList{}},
	"audit.verify":           {in: verifyInput{}, out: audit.Verdict{}},
	"audit.show":             {out: eventList{}},
	"audit.checkpoint":       {out: checkpointAnswer{}},
	"audit.proof":            {query: []string{"seq", "trace_id"}, out: audit.Proof{}},
	"audit.attestations":     {query: []string{"cursor", "limit"}, out: attestationList{}},
	"audit.export":           {query: append(slices.Clone(auditQuery), "format", "task_id", "after"), out: streamed(nil)},
	"audit.prune":            {in: pruneInput{}, needs: "older_than_days", out: audit.Pruned{}},
	"trace.list":             {query: []string{"time_range", "from", "to", "decision", "agent_id", "policy_id", "trace_type", "cursor", "limit"}, out: traceList{}},
	"trace.show":             {out: traceAnswer{}},
	"explain":                {in: explainInput{}, query: []string{"agent", "tool", "arguments"}, needs: "tool", out: gate.Explanation{}},
	"task.list":              {query: []string{"before", "limit", "cursor"}, out: taskList{}},
	"task.create":            {in: taskInput{}, needs: "title", out: taskCreated{}, created: true},
	"task.show":              {out: auth.Task{}},
	"task.finish":            {out: auth.Task{}},
	"oauth.list":             {out: clientList{}},
	"oauth.bind":             {in: oauthInput{}, needs: "agent_id client_id", out: auth.OAuthClient{}, created: true},
	"oauth.unbind":           {out: revoked{}},
	"auth.login":             {in: loginInput{}, needs: "name password", out: signedIn{}},
	"auth.logout":            {out: signedOut{}},
	"openapi":                {out: map[string]any{}},
	"auth.me":                {out: identity{}},
	"auth.oidc":              {query: []string{"return"}},
	"auth.login_oidc":        {query: []string{"state", "code", "iss", "error"}}, // and whatever else the provider adds
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

// conditional makes a change depend on the If-Match header of its request. Where that is not heeded it is refused: who sends it relies on it.
func (rt route) conditional(c *restCall) error {
	values := c.Header["If-Match"]
	if len(values) == 0 || !rt.change {
		return nil
	}
	if known, ok := contracts[rt.name]; ok && !known.match {
		return fault.New(fault.InvalidRequest, "If-Match has no effect on this operation; send the request without it")
	}
	c.Request = c.Request.WithContext(db.WithMatch(c.Context(), strings.Join(values, ",")))
	return nil
}

// tagged gives an answer its entity tag.
func (c *restCall) tagged(out any, tag string) any {
	c.header.Set("ETag", tag)
	return out
}
