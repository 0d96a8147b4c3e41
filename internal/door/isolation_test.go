package door_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// mark is in every name of the other workspace, and so must be in no answer.
const mark = "zzforeign"

// idKinds are the fields of bodies and the parameters of queries that name something, by what they name.
var idKinds = map[string]string{
	"tool_id": "tools", "mcp_tool_id": "tools", "tool_ids": "tools", "agent_id": "agents", "agent": "agents", "person_id": "people", "server_id": "servers",
	"trace_id": "traces", "policy_id": "policies", "remove": "policies", "task_id": "tasks", "tool": "tool names", "seq": "rows", "scan_id": "scans", "target_id": "targets",
}

// noIDs are those that name nothing. A field that stands in neither list fails the test.
var noIDs = strings.Fields(`older_than escalated name description connector_type transport command args env cwd server_url headers is_proxied status action fingerprint reason
	confirm_loosening tier confirm condition scope allowlist capability script_allowlist expires_at expires_in role disabled password current keys checkpoints
	older_than_days arguments title project_id labels slug owner ttl workspace limit days cursor before after door method decision kind from to format time_range trace_type oidc_email client_id issuer return state code iss error per n`)

// positional kinds may be answered otherwise than 404, but never otherwise than for an id that does not exist.
var positional = []string{"scans"}

// place is what one workspace has, by kind.
type place map[string]string

// furnish fills the workspace of w.owner with one of everything.
func (w *world) furnish(prefix string) (place, string) {
	w.t.Helper()
	s := w.addFake(prefix+"-server", &fake{defs: []json.RawMessage{def(prefix + "_held"), def(prefix + "_open")}})
	w.rule(s.ID, prefix+"_held", "REQUIRE_APPROVAL")
	agentKey := w.key(prefix+"-agent", "*")
	c := w.wire("/tools/call").with("Authorization", "Bearer "+agentKey)
	if a := c.post(`{"name":"` + prefix + `_open"}`); a.status != 200 {
		w.t.Fatalf("call: %d %s", a.status, a.body)
	}
	held := c.post(`{"name":"` + prefix + `_held"}`)
	var h struct {
		Approval string `json:"approval_id"`
		Trace    string `json:"trace_id"`
	}
	ok(w.t, json.Unmarshal([]byte(held.body), &h))
	ws := w.owner.WorkspaceID
	p := place{"servers": s.ID, "approvals": h.Approval, "traces": h.Trace, "audit": h.Trace, "tool names": prefix + "-server/" + prefix + "_held", "server": s.ID}
	for _, tool := range must(w.catalog.Tools(w.ctx, ws, s.ID))(w.t) {
		p["tools"] = tool.ID
	}
	for _, a := range w.auth.Agents(ws) {
		if a.Name == prefix+"-agent" {
			p["agents"], p["agent"] = a.ID, a.ID
		}
	}
	cfg := upstream.Config{Transport: "builtin", Builtin: &fake{defs: []json.RawMessage{def(prefix + "_waiting")}}}
	waiting := must(w.catalog.Register(w.ctx, ws, catalog.Spec{Name: prefix + "-waiting", Transport: "builtin", Origin: "builtin"}, "owner"))(w.t)
	cfg.ID, cfg.Name, cfg.Revision = waiting.ID, waiting.Name, "1"
	scan := must(w.catalog.ApplyListing(w.ctx, waiting.ID, w.pool.Scan(w.ctx, cfg)))(w.t)
	p["waiting server"], p["scans"] = waiting.ID, scan.ID
	p["waiting tools"] = must(w.catalog.Tools(w.ctx, ws, waiting.ID))(w.t)[0].ID
	p["people"] = must(w.auth.CreatePerson(w.ctx, ws, prefix+"-person", auth.Viewer))(w.t).ID
	p["policies"] = must(w.catalog.Policies(w.ctx, ws))(w.t)[0].ID
	p["limits"] = must(w.catalog.CreateLimit(w.ctx, ws, catalog.Limit{ToolID: p["tools"], Per: "day", N: 1000, Reason: prefix}, "owner"))(w.t).ID
	_, key, err := w.auth.CreateKey(w.ctx, ws, p["agents"], "", prefix+"-key", 0)
	ok(w.t, err)
	p["keys"] = key.ID
	p["clients"] = must(w.auth.BindOAuthClient(w.ctx, ws, "https://login.example", prefix+"-client", p["agents"]))(w.t).ID
	_, task, err := w.auth.CreateTask(w.ctx, w.owner, auth.Task{Title: prefix + " task"}, 0)
	ok(w.t, err)
	p["tasks"] = task.ID
	var seq int64
	ok(w.t, w.db.Read.QueryRowContext(w.ctx, `SELECT MAX(seq) FROM audit_events WHERE trace_id = $1`, h.Trace).Scan(&seq))
	p["rows"] = fmt.Sprint(seq)
	return p, agentKey
}

// workspace makes a further workspace with an owner. The product has one only; the tables know more.
func (w *world) workspace(name string) *auth.Caller {
	w.t.Helper()
	id := db.NewID()
	_, err := w.db.Write.ExecContext(w.ctx, `INSERT INTO workspace (id, slug, name, created_at) VALUES ($1, $2, $2, 1)`, id, name)
	ok(w.t, err)
	p := must(w.auth.CreatePerson(w.ctx, id, name+"-owner", auth.Owner))(w.t)
	key, _, err := w.auth.CreateKey(w.ctx, id, "", p.ID, name+"-owner", 0)
	ok(w.t, err)
	return must(w.auth.Authenticate(key))(w.t)
}

// bodies are good bodies by operation, in one's own workspace.
func (p place) bodies() map[string][]string {
	list := map[string][]string{
		"server.register":        {`{"name":"new","transport":"http","server_url":"http://127.0.0.1:1/"}`},
		"server.import":          {`{"mcpServers":{"imported":{"url":"http://127.0.0.1:1/"}}}`},
		"server.update":          {`{"description":"words"}`},
		"server.approve":         {`{"tools":[{"tool_id":"$waiting tools","action":"DENY"}],"scan_id":"$scans"}`},
		"tool.admit_suggestions": {`{"tool_ids":["$tools"]}`},
		"tool.admit":             {`{"action":"DENY","fingerprint":"x"}`},
		"tool.verdict":           {`{"action":"DENY"}`},
		"tool.set":               {`{"confirm":true}`},
		"policy.create":          {`{"action":"DENY","mcp_tool_id":"$tools","agent_id":"$agents"}`},
		"limit.create":           {`{"mcp_tool_id":"$tools","agent_id":"$agents","per":"day","n":5}`},
		"policy.simulate": {`{"add":[{"action":"DENY","mcp_tool_id":"$tools","agent_id":"$agents"}],"remove":["$policies"],"replace":[{"mcp_tool_id":"$tools","action":"DENY"}]}`,
			`{"add":[{"action":"DENY","mcp_tool_id":"$tools","agent_id":"$agents"}]}`},
		"emergency_stop":     {`{"scope":"server","target_id":"$server"}`, `{"scope":"agent","target_id":"$agent"}`},
		"emergency_shutdown": {`{"reason":"drill"}`},
		"approval.approve":   {`{}`},
		"approval.deny":      {`{}`},
		"agent.create":       {`{"name":"made","allowlist":["*"]}`},
		"agent.update":       {`{"description":"words"}`},
		"key.create":         {`{"agent_id":"$agents"}`, `{"person_id":"$people"}`},
		"oauth.bind":         {`{"agent_id":"$agents","client_id":"made","issuer":"https://login.example"}`},
		"person.create":      {`{"name":"made","role":"viewer"}`},
		"person.update":      {`{"disabled":true}`},
		"person.password":    {`{"password":"correct horse battery staple"}`},
		"audit.verify":       {`{}`},
		"audit.prune":        {`{"older_than_days":36500}`},
		"explain":            {`{"tool":"$tool names","agent":"$agents"}`},
		"workspace.create":   {`{"slug":"made"}`},
		"task.create":        {`{"title":"made","agent_id":"$agents"}`},
		"auth.login":         {`{"name":"nobody","password":"nothing at all"}`},
	}
	for _, texts := range list {
		for i := range texts {
			for kind, id := range p {
				texts[i] = strings.ReplaceAll(texts[i], `"$`+kind+`"`, `"`+id+`"`)
			}
		}
	}
	return list
}

var pathParam = regexp.MustCompile(`([a-z-]+)/\{([a-z_]+)\}`)

// fill puts ids into the path of a route; choose gives the place that the i-th comes from.
func fill(t *testing.T, rt door.Route, choose func(i int) place) string {
	i := -1
	return pathParam.ReplaceAllStringFunc(rt.Path, func(m string) string {
		i++
		kind, _, _ := strings.Cut(m, "/")
		id := choose(i)[kind]
		if own := choose(i)["waiting server"]; rt.Name == "server.approve" && choose(i)["own"] != "" {
			id = own // one that can be approved
		}
		if id == "" {
			t.Fatalf("%s: no fixture for what stands behind /%s/; add one to furnish", rt.Path, kind)
		}
		return kind + "/" + id
	})
}

// idFields finds the fields of a body that name something, as paths of member names.
func idFields(t *testing.T, name string, typ reflect.Type) (out [][]string) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return nil
	}
	for f := range typ.Fields() {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		switch {
		case field == "-":
		case f.Anonymous:
			out = append(out, idFields(t, name, f.Type)...)
		case field == "":
			t.Errorf("%s: the field %s of the body has no name in JSON", name, f.Name)
		case idKinds[field] != "":
			out = append(out, []string{field})
		case inner.Kind() == reflect.Struct:
			for _, p := range idFields(t, name, inner) {
				out = append(out, append([]string{field}, p...))
			}
		case !slices.Contains(noIDs, field):
			t.Errorf("%s: the field %s of the body is unknown; add it to idKinds or noIDs", name, field)
		}
	}
	return out
}

// put replaces the member of a path; false when the body does not have it.
func put(v any, path []string, id string) bool {
	switch v := v.(type) {
	case []any:
		return len(v) > 0 && put(v[0], path, id)
	case map[string]any:
		had, found := v[path[0]]
		if !found || len(path) > 1 {
			return found && put(had, path[1:], id)
		}
		if v[path[0]] = id; reflect.TypeOf(had).Kind() == reflect.Slice {
			v[path[0]] = []any{id}
		}
		return true
	}
	return false
}

// walk is one walk over all routes.
type walk struct {
	*world
	t                    *testing.T
	own, foreign, absent place
	requests             int
}

// request sends one request as the owner.
func (k *walk) request(rt door.Route, path, query, body string) answer {
	k.t.Helper()
	c := k.wire(path).with("Authorization", "Bearer "+k.adminKey)
	if query != "" {
		c.url += "?" + query
	}
	k.requests++
	a := c.send(rt.Method, body)
	// A name that the caller wrote itself may come back.
	if strings.Contains(strings.ReplaceAll(a.body, k.foreign["tool names"], ""), mark) {
		k.t.Errorf("%s %s?%s %s: a foreign name in %s", rt.Method, path, query, body, a.body)
	}
	return a
}

var requestID = regexp.MustCompile(`"request_id":"[^"]*"`)

// same sends what names something foreign and what names nothing; the answers must be the same.
func (k *walk) same(rt door.Route, kind string, must404 bool, send func(p place) answer) {
	k.t.Helper()
	a, b := send(k.foreign), send(k.absent)
	neutral := func(a answer, p place) string {
		return requestID.ReplaceAllString(strings.ReplaceAll(a.body, p[kind], "ID"), "")
	}
	if a.status != b.status || neutral(a, k.foreign) != neutral(b, k.absent) {
		k.t.Errorf("%s %s, foreign %s: %d %.500s, but for none: %d %.500s", rt.Method, rt.Path, kind, a.status, a.body, b.status, b.body)
	}
	if must404 && a.status != 404 {
		k.t.Errorf("%s %s, foreign %s: %d %s", rt.Method, rt.Path, kind, a.status, a.body)
	}
}

func (k *walk) paths(rt door.Route, body string) {
	own := func(int) place { return k.own }
	for i, m := range pathParam.FindAllStringSubmatch(rt.Path, -1) {
		k.same(rt, m[1], true, func(p place) answer {
			return k.request(rt, fill(k.t, rt, func(j int) place {
				if i == j {
					return p
				}
				return k.own
			}), "", body)
		})
	}
	if rt.Method == "GET" && len(rt.Query) == 0 {
		k.request(rt, fill(k.t, rt, own), "", "")
	}
}

func (k *walk) queries(rt door.Route) {
	path := fill(k.t, rt, func(int) place { return k.own })
	for _, name := range rt.Query {
		kind := idKinds[name]
		if kind == "" && !slices.Contains(noIDs, name) {
			k.t.Errorf("%s %s: the parameter %s is unknown; add it to idKinds or noIDs", rt.Method, rt.Path, name)
		}
		if kind == "" || rt.Method != "GET" {
			continue
		}
		k.same(rt, kind, false, func(p place) answer {
			q := url.Values{}
			if rt.Name == "explain" {
				q.Set("tool", k.own["tool names"])
			}
			q.Set(name, p[kind])
			return k.request(rt, path, q.Encode(), "")
		})
	}
}

func (k *walk) bodies(rt door.Route, texts []string) {
	path := fill(k.t, rt, func(int) place { return k.own })
	for _, field := range idFields(k.t, rt.Name, reflect.TypeOf(rt.In)) {
		kinds, tried := []string{idKinds[field[len(field)-1]]}, false
		if kinds[0] == "targets" {
			kinds = []string{"server", "agent"}
		}
		for i, text := range texts {
			kind := kinds[min(i, len(kinds)-1)]
			var try any
			ok(k.t, json.Unmarshal([]byte(text), &try))
			if !put(try, field, "x") {
				continue
			}
			tried = true
			k.same(rt, kind, !slices.Contains(positional, kind), func(p place) answer {
				var body any
				ok(k.t, json.Unmarshal([]byte(text), &body))
				put(body, field, p[kind])
				b := must(json.Marshal(body))(k.t)
				return k.request(rt, path, "", string(b))
			})
		}
		if !tried {
			k.t.Errorf("%s: no body of the fixtures has the field %s; add it to bodies", rt.Name, strings.Join(field, "."))
		}
	}
}

// TestWorkspacesAreIsolatedREST walks every route with ids of another workspace in every path, query and body. A route that the test does not
// know how to ask fails it, so that none escapes.
func TestWorkspacesAreIsolatedREST(t *testing.T) {
	w := newWorld(t)
	k := &walk{world: w, t: t, absent: place{}}
	mine := w.owner
	w.owner = w.workspace(mark)
	k.foreign, _ = w.furnish(mark)
	theirs := w.owner.WorkspaceID
	w.owner = mine
	k.own, _ = w.furnish("own")
	k.own["own"] = "yes"
	for kind := range k.own {
		k.absent[kind] = db.NewID()
	}
	k.absent["rows"], k.absent["tool names"] = "99999999", "absent-server/absent_held"
	before := w.dump(theirs)
	for _, rt := range door.Routes() { // first what only reads: later the record has these attempts, by the ids they named
		k.queries(rt)
	}
	for _, rt := range door.Routes() {
		texts := k.own.bodies()[rt.Name]
		if rt.Method == "GET" {
			texts = nil
		}
		switch {
		case !rt.Known:
			t.Errorf("%s %s: the operation %s has no entry in contracts", rt.Method, rt.Path, rt.Name)
			continue
		case rt.In != nil && rt.Method != "GET" && len(texts) == 0:
			t.Errorf("%s %s: no body for the operation %s in the fixtures; add one to bodies", rt.Method, rt.Path, rt.Name)
			continue
		}
		body := ""
		if len(texts) > 0 {
			body = texts[0]
		}
		k.paths(rt, body)
		if rt.In != nil && rt.Method != "GET" {
			k.bodies(rt, texts)
		}
	}
	if after := w.dump(theirs); after != before {
		t.Errorf("the other workspace was changed:\n%s\n%s", before, after)
	}
	if k.requests < 125 {
		t.Errorf("only %d requests", k.requests)
	}
	t.Logf("%d requests over %d routes", k.requests, len(door.Routes()))
}

// TestAgentsOpenNoRoute: an agent's key opens no operation but those about itself, and learns no name from the refusal.
func TestAgentsOpenNoRoute(t *testing.T) {
	w := newWorld(t)
	own, key := w.furnish("own")
	before := w.dump(w.owner.WorkspaceID)
	for _, rt := range door.Routes() {
		body := ""
		if texts := own.bodies()[rt.Name]; len(texts) > 0 && rt.Method != "GET" {
			body = texts[0]
		}
		if rt.Open || rt.Agents {
			continue
		}
		a := w.wire(fill(t, rt, func(int) place { return own })).with("Authorization", "Bearer "+key).send(rt.Method, body)
		if a.status != 403 || !strings.Contains(a.body, "INSUFFICIENT_PERMISSIONS") || strings.Contains(a.body, "own-") || strings.Contains(a.body, "own_") {
			t.Errorf("%s %s: %d %s", rt.Method, rt.Path, a.status, a.body)
		}
	}
	if after := w.dump(w.owner.WorkspaceID); after != before {
		t.Errorf("something was changed:\n%s\n%s", before, after)
	}
}

// dump is everything a workspace has, as text.
func (w *world) dump(ws string) string {
	w.t.Helper()
	var out strings.Builder
	for _, table := range []string{"person", "agent", "api_key", "server", "policy", "approval", "task", "agent_oauth"} {
		rows, err := w.db.Read.QueryContext(w.ctx, `SELECT * FROM `+table+` WHERE workspace_id = $1 ORDER BY id`, ws)
		ok(w.t, err)
		cols := must(rows.Columns())(w.t)
		for rows.Next() {
			values := make([]any, len(cols))
			for i := range values {
				values[i] = new(any)
			}
			ok(w.t, rows.Scan(values...))
			for i := range values {
				fmt.Fprintf(&out, "%s=%v ", cols[i], *values[i].(*any))
			}
			out.WriteString("\n")
		}
		ok(w.t, rows.Err())
		ok(w.t, rows.Close())
	}
	return out.String()
}

// TestWorkspacesAreIsolatedTools calls the tools of another workspace through every door, by every form of their names: as if they were not there.
func TestWorkspacesAreIsolatedTools(t *testing.T) {
	w := newWorld(t)
	mine := w.owner
	w.owner = w.workspace(mark)
	foreign, _ := w.furnish(mark)
	w.owner = mine
	own, agentKey := w.furnish("own")
	calls := func(srv, tool string) []string {
		return []string{srv + "/" + tool, srv + "__" + tool, "mcp__" + srv + "__" + tool, tool}
	}
	absentServer := db.NewID()
	neutral := func(s string) string {
		for _, r := range [][2]string{{foreign["servers"], "ID"}, {absentServer, "ID"}, {mark, "nothing00"}} {
			s = strings.ReplaceAll(s, r[0], r[1])
		}
		return regexp.MustCompile(`"trace_id":"[^"]*"`).ReplaceAllString(s, "")
	}
	same := func(what string, a, b answer) {
		t.Helper()
		if a.status != b.status || neutral(a.body) != neutral(b.body) {
			t.Errorf("%s: %d %s, but for none %d %s", what, a.status, a.body, b.status, b.body)
		}
	}
	n := 0
	for who, key := range map[string]string{"agent": agentKey, "owner": w.adminKey} {
		as := func(path string) *wire { return w.wire(path).with("Authorization", "Bearer "+key) }
		for _, path := range []string{"/mcp", "/mcp/own-server", "/api/v1/mcp/proxy/" + own["servers"]} {
			legacy := as(path).open(mcp.V20251125, `{}`)
			for i, name := range calls(mark+"-server", mark+"_open") {
				none := calls("nothing00-server", "nothing00_open")[i]
				n++
				same(who+" modern "+path+" "+name, as(path).modern("1", "tools/call", `{"name":"`+name+`"}`), as(path).modern("1", "tools/call", `{"name":"`+none+`"}`))
				rpc := func(name string) answer {
					return legacy.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `"}}`)
				}
				same(who+" legacy "+path+" "+name, rpc(name), rpc(none))
			}
			for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
				for _, a := range []answer{as(path).modern("1", method, `{}`), legacy.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`)} {
					if strings.Contains(a.body, mark) {
						t.Errorf("%s %s at %s: a foreign name in %s", who, method, path, a.body)
					}
				}
			}
		}
		for i, name := range calls(mark+"-server", mark+"_open") {
			none := calls("nothing00-server", "nothing00_open")[i]
			same(who+" plain "+name, as("/tools/call").post(`{"name":"`+name+`"}`), as("/tools/call").post(`{"name":"`+none+`"}`))
		}
		if a := as("/tools").send("GET", ""); strings.Contains(a.body, mark) || !strings.Contains(a.body, "own_open") {
			t.Errorf("%s GET /tools: %s", who, a.body)
		}
		for path, none := range map[string]string{
			"/mcp/" + mark + "-server": "/mcp/nothing00-server", "/mcp/" + foreign["servers"]: "/mcp/" + absentServer,
			"/api/v1/mcp/proxy/" + foreign["servers"]: "/api/v1/mcp/proxy/" + absentServer,
		} {
			for _, method := range []string{"tools/list", "prompts/list", "resources/list"} {
				same(who+" "+path, as(path).modern("1", method, `{}`), as(none).modern("1", method, `{}`))
			}
			same(who+" "+path, as(path).modern("1", "tools/call", `{"name":"`+mark+`_open"}`), as(none).modern("1", "tools/call", `{"name":"`+mark+`_open"}`))
		}
	}
	if n != 24 {
		t.Errorf("%d calls: %v", n, slices.Sorted(maps.Keys(own)))
	}
}
