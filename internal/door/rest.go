package door

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

const doorREST = "rest"

// maxAdminBody bounds the body of an administrative request, in bytes.
const maxAdminBody = 1 << 20

// route is one operation of /api/v1.
type route struct {
	method, path string
	min          auth.Role // least role of the person who calls; an agent has none
	name         string    // in the record
	change       bool      // it changes something: it stands in the record before and after
	own          bool      // the gate writes the record itself
	open         bool      // nobody has to be known yet; the operation keeps the record of it
	agents       bool      // an agent may ask too, about itself
	serve        func(*Door, *restCall) (any, error)
	summary      string
}

// routes is the whole interface on one screen.
func routes() []route {
	const v1, s = "/api/v1", "/api/v1/mcp/servers"
	r := operation
	read := func(x route) route { x.change = false; return x } // asks with a body, changes nothing
	asked := func(x route) route { x.agents = true; return x } // agents ask about themselves
	gated := func(x route) route { x.own = true; return x }    // package gate keeps the record of it
	table := []route{
		r("GET", s, auth.Viewer, "server.list", (*Door).listServers, "List servers with tool counts and health"),
		r("POST", s, auth.Admin, "server.register", (*Door).registerServer, "Register a server"),
		r("POST", s+"/import", auth.Admin, "server.import", (*Door).importServers, "Register the servers of an MCP configuration file"),
		r("GET", s+"/{id}", auth.Viewer, "server.show", (*Door).showServer, "Show a server, secrets masked"),
		r("PATCH", s+"/{id}", auth.Admin, "server.update", (*Door).updateServer, "Change how a server is reached"),
		r("DELETE", s+"/{id}", auth.Admin, "server.remove", (*Door).removeServer, "Remove a server with its tools and rules"),
		r("POST", s+"/{id}/scan", auth.Editor, "server.scan", (*Door).scanServer, "List the server's tools now; admits nothing"),
		r("POST", s+"/{id}/approve", auth.Admin, "server.approve", (*Door).approveServer, "Approve a server and admit the chosen tools"),
		r("POST", s+"/{id}/pause", auth.Admin, "server.pause", (*Door).pauseServer, "Pause a server"),
		r("POST", s+"/{id}/resume", auth.Admin, "server.resume", (*Door).resumeServer, "Resume a paused or blocked server; admits nothing"),
		r("GET", s+"/{id}/tools", auth.Viewer, "tool.list", (*Door).listTools, "List a server's tools with admission, suggestion and rule"),
		r("POST", s+"/{id}/tools/admit-suggestions", auth.Admin, "tool.admit_suggestions", (*Door).admitSuggestions, "Admit all (or the named) waiting tools as suggested"),
		r("POST", s+"/{id}/tools/{tool_id}/admit", auth.Admin, "tool.admit", (*Door).admitTool, "Admit one tool as it is now"),
		r("POST", s+"/{id}/tools/{tool_id}/verdict", auth.Admin, "tool.verdict", (*Door).setVerdict, "Replace the tool's server-wide rule"),
		r("PATCH", s+"/{id}/tools/{tool_id}", auth.Admin, "tool.set", (*Door).setTool, "Set a tool's tier and whether its calls need confirmation"),
		r("GET", v1+"/mcp/policies", auth.Viewer, "policy.list", (*Door).listPolicies, "List rules"),
		r("POST", v1+"/mcp/policies", auth.Editor, "policy.create", (*Door).createPolicy, "Add a rule; ALLOW and LOG_ONLY need an admin"),
		read(r("POST", v1+"/mcp/policies/simulate", auth.Editor, "policy.simulate", (*Door).simulate, "Say which recorded calls proposed rules would decide otherwise")),
		r("DELETE", v1+"/mcp/policies/{id}", auth.Admin, "policy.delete", (*Door).deletePolicy, "Remove a rule"),
		gated(r("POST", v1+"/mcp/emergency-stop", auth.Admin, "emergency_stop", (*Door).emergencyStop, "Block a server or an agent at once")),
		r("GET", v1+"/emergency-shutdown", auth.Viewer, "shutdown.show", (*Door).showShutdown, "Say whether the workspace is shut down, since when, by whom and why"),
		gated(r("POST", v1+"/emergency-shutdown", auth.Admin, "emergency_shutdown", (*Door).shutDown, "Stop the whole workspace: every call of anybody")),
		gated(r("POST", v1+"/emergency-shutdown/release", auth.Owner, "shutdown.release", (*Door).releaseShutdown, "Lift the shutdown of the workspace")),
		r("GET", v1+"/mcp/approvals", auth.Viewer, "approval.list", (*Door).listApprovals, "List held calls (?status=&agent_id=&older_than=&escalated=&cursor=)"),
		r("GET", v1+"/mcp/approvals/{id}", auth.Viewer, "approval.show", (*Door).showApproval, "Show a held call"),
		gated(r("POST", v1+"/mcp/approvals/{id}/approve", auth.Editor, "approval.approve", (*Door).approveCall, "Approve a held call, once, with exactly its arguments; needs approvals.decide_role (admin)")),
		gated(r("POST", v1+"/mcp/approvals/{id}/deny", auth.Editor, "approval.deny", (*Door).denyCall, "Deny a held call; needs approvals.decide_role (admin)")),
		asked(r("GET", v1+"/approvals/status", auth.Viewer, "approval.status", (*Door).approvalStatus, "Status of a held call (?trace_id=); an agent asks about its own")),
		r("GET", v1+"/agents", auth.Viewer, "agent.list", (*Door).listAgents, "List agents"),
		r("POST", v1+"/agents", auth.Admin, "agent.create", (*Door).createAgent, "Create an agent; its key is shown once"),
		r("GET", v1+"/agents/{id}", auth.Viewer, "agent.show", (*Door).showAgent, "Show an agent"),
		r("PATCH", v1+"/agents/{id}", auth.Admin, "agent.update", (*Door).updateAgent, "Change an agent's profile or state"),
		r("POST", v1+"/mcp/agents/{id}/release", auth.Admin, "agent.release", (*Door).releaseAgent, "Lift the emergency stop of an agent"),
		r("POST", v1+"/agents/{id}/release", auth.Admin, "agent.release", (*Door).releaseAgent, "The same"),
		r("GET", v1+"/keys", auth.Admin, "key.list", (*Door).listKeys, "List keys by prefix"),
		r("POST", v1+"/keys", auth.Admin, "key.create", (*Door).createKey, "Create a key; it is shown once"),
		r("DELETE", v1+"/keys/{id}", auth.Admin, "key.revoke", (*Door).revokeKey, "Revoke a key"),
		r("GET", v1+"/people", auth.Viewer, "person.list", (*Door).listPeople, "List people"),
		r("POST", v1+"/people", auth.Admin, "person.create", (*Door).createPerson, "Create a person, or invite one (oidc_email); the role is at most one's own"),
		r("GET", v1+"/audit", auth.Viewer, "audit.list", (*Door).listAudit, "List the record, newest first"),
		read(r("POST", v1+"/audit/verify", auth.Editor, "audit.verify", (*Door).verifyAudit, "Verify the whole record")),
		r("GET", v1+"/audit/{trace_id}", auth.Viewer, "audit.show", (*Door).showAudit, "Show all rows of one attempt"),
		r("GET", v1+"/explain", auth.Viewer, "explain", (*Door).explain, "Say which stage decides a call, and why (?agent=&tool=)"),
		read(r("POST", v1+"/explain", auth.Viewer, "explain", (*Door).explain, "The same with arguments")),
	}
	return slices.Concat(table, routesLimits(), routesTasks(), routesAudit(), routesSignIn(), routesOpenID(), routesOAuthClients(), routesOpenAPI(), routesWorkspaces())
}

// operation makes a route whose method says whether it changes something.
func operation(method, path string, min auth.Role, name string, serve func(*Door, *restCall) (any, error), summary string) route {
	return route{method: method, path: path, min: min, name: name, change: method != http.MethodGet, serve: serve, summary: summary}
}

// routesREST registers the routes of /api/v1.
func (d *Door) routesREST(mux *http.ServeMux) {
	for _, rt := range routes() {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { d.rest(w, r, rt) })
	}
	// What is not in the table still wants a key first: an outsider learns nothing about the routes.
	mux.HandleFunc("/api/v1/", func(w http.ResponseWriter, r *http.Request) {
		d.rest(w, r, route{name: "unknown", serve: func(*Door, *restCall) (any, error) {
			return nil, fault.New(fault.NotFound, "no such route: %s %s", r.Method, clip(r.URL.Path, 200))
		}})
	})
}

// restCall is one administrative request.
type restCall struct {
	*http.Request
	caller  *auth.Caller
	session *auth.Session // with which a person asks, nil: with a key
	header  http.Header   // of the answer
	id      string        // of the request, also the trace id in the record
	status  int           // of a success, default 200
	row     audit.Event   // what the record will say; handlers name the target
}

// rest takes a request through its stages: key, role, record, operation, record, answer.
func (d *Door) rest(w http.ResponseWriter, r *http.Request, rt route) {
	c := &restCall{Request: r, header: w.Header(), id: db.NewID(), status: http.StatusOK}
	w.Header().Set("X-Request-Id", c.id)
	w.Header().Set("Cache-Control", "no-store")
	out, err := d.operate(c, rt)
	if err != nil {
		d.restError(w, c, err)
		return
	}
	if s, ok := out.(streamed); ok {
		s(w)
		return
	}
	b, err := json.Marshal(out)
	if err != nil {
		d.restError(w, c, fault.Wrap(fault.Internal, err, "internal error"))
		return
	}
	writeJSON(w, c.status, b)
}

func (d *Door) operate(c *restCall, rt route) (any, error) {
	if err := d.unable(); err != nil {
		return nil, err
	}
	if rt.open {
		return rt.serve(d, c)
	}
	var err error
	if c.caller, err = d.restCaller(c); err != nil {
		return nil, err
	}
	start := d.d.Now()
	by := c.caller
	c.row = audit.Event{
		Kind: audit.Admin, TraceID: c.id, WorkspaceID: by.WorkspaceID, AgentID: by.AgentID, PersonID: by.PersonID,
		KeyID: by.KeyID, TaskID: by.TaskID, Door: doorREST, Method: rt.name,
	}
	if !(by.AgentID != "" && rt.agents) && (by.AgentID != "" || by.Role < rt.min) {
		err := fault.New(fault.Forbidden, "this needs a person with the role %s", rt.min).Why("INSUFFICIENT_PERMISSIONS")
		return nil, errors.Join(err, d.note(c, start, err))
	}
	if err := rt.checkQuery(c); err != nil {
		return nil, err
	}
	if err := rt.conditional(c); err != nil {
		return nil, err
	}
	if !rt.change || rt.own {
		return rt.serve(d, c)
	}
	if err := d.noteStarted(c, start); err != nil {
		return nil, err
	}
	out, err := rt.serve(d, c)
	if nerr := d.note(c, start, err); err == nil && nerr != nil {
		return nil, nerr
	}
	return out, err
}

// noteStarted records that a change is about to be made. What cannot be recorded is not done.
func (d *Door) noteStarted(c *restCall, start time.Time) error {
	c.row.ServerID = c.PathValue("id")
	if !strings.HasPrefix(c.row.Method, "server.") && !strings.HasPrefix(c.row.Method, "tool.") {
		c.row.ServerID = ""
	}
	c.row.ToolID = c.PathValue("tool_id")
	c.row.ServerID, c.row.ToolID = clip(c.row.ServerID, 64), clip(c.row.ToolID, 64)
	row := c.row
	row.At, row.Status = start.UnixMicro(), audit.Started
	if err := d.d.Audit.Write(c.Context(), &row, audit.Process); err != nil {
		return fault.Wrap(fault.Unavailable, err, "nothing was changed, because it cannot be recorded now; try again later").Why("AUDIT_UNAVAILABLE")
	}
	return nil
}

// note records how an operation ended.
func (d *Door) note(c *restCall, start time.Time, err error) error {
	row, now := c.row, d.d.Now()
	row.At, row.LatencyUS, row.Status = now.UnixMicro(), now.Sub(start).Microseconds(), audit.OK
	if err != nil {
		e := fault.From(err)
		row.ErrorClass, row.Status = string(e.Class), audit.Invalid
		switch e.Class {
		case fault.Forbidden, fault.Unauthenticated, fault.TooMany:
			row.Status, row.Decision = audit.DeniedStatus, "DENY"
		case fault.Internal, fault.Unavailable:
			row.Status = audit.UnknownStatus
		}
		if row.Reason = e.Reason; row.Reason == "" {
			row.Reason = string(e.Class)
		}
	}
	// The answer may be gone; the record is not.
	if werr := d.d.Audit.Write(context.WithoutCancel(c.Context()), &row, audit.Process); werr != nil {
		return fault.Wrap(fault.Unavailable, werr, "it was done, but that could not be recorded").Why("AUDIT_UNAVAILABLE")
	}
	return nil
}

// decode reads the body strictly into out: an unknown or doubled member, wrong types and trailing data are refused, so
// that a mistyped field of a rule is never silently nothing. An empty body is an empty object.
func (c *restCall) decode(out any) error {
	b, err := io.ReadAll(io.LimitReader(c.Body, maxAdminBody+1))
	if err != nil {
		return fault.Wrap(fault.InvalidRequest, err, "the body could not be read")
	}
	if len(b) > maxAdminBody {
		return fault.New(fault.TooLarge, "the body is larger than %d bytes", maxAdminBody)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	if !jsonBody(c.Request) {
		return fault.New(fault.InvalidRequest, "content type must be application/json")
	}
	if err := mcp.Check(b, mcp.Limits{}); err != nil {
		return err
	}
	if !mcp.IsObject(b) {
		return fault.New(fault.InvalidRequest, "the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		return fault.New(fault.InvalidParams, "%s", bodyProblem(err))
	}
	return nil
}

// bodyProblem says what is wrong with a body without quoting its values.
func bodyProblem(err error) string {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return fmt.Sprintf("%s must be a %s, not a %s", te.Field, te.Type, te.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return "unknown field " + clip(name, 100)
	}
	return "the body does not have the expected form"
}

// classCodes are the codes of REST errors whose reason does not say more.
var classCodes = map[fault.Class]string{
	fault.Forbidden:       "INSUFFICIENT_PERMISSIONS",
	fault.Unauthenticated: "INVALID_API_KEY",
}

// restError answers {"error":{"code","message","request_id",…}}.
func (d *Door) restError(w http.ResponseWriter, c *restCall, err error) {
	e := fault.From(err)
	body := make(map[string]any, len(e.Data)+3)
	for k, v := range e.Data {
		body[k] = v
	}
	code := e.Reason
	if code == "" {
		code = classCodes[e.Class]
	}
	if code == "" {
		code = string(e.Class)
	}
	body["code"], body["message"], body["request_id"] = code, e.Message, c.id
	d.challenge(w, c.Request, e)
	if e.Class == fault.Internal || e.Class == fault.Unavailable {
		d.d.Log.Error("request failed", "request_id", c.id, "method", c.Method, "path", c.URL.Path, "error", err)
	}
	b, jerr := json.Marshal(map[string]any{"error": body})
	if jerr != nil {
		b = []byte(`{"error":{"code":"internal","message":"internal error"}}`)
	}
	writeJSON(w, e.Codes().HTTP, b)
}
