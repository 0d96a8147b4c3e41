package door

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// routesTools are the plain routes: no protocol to learn, one request, one answer.
func (d *Door) routesTools(mux *http.ServeMux) {
	mux.HandleFunc("GET /tools", d.getTools)
	mux.HandleFunc("POST /tools/call", d.postToolsCall)
}

// getTools lists the tools the caller may call, by their own names; a name that two
// servers have is shown as server/tool, as it must be called.
func (d *Door) getTools(w http.ResponseWriter, r *http.Request) {
	caller, err := d.authenticate(r)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	if err := d.unable(); err != nil {
		d.refuse(w, r, err)
		return
	}
	tools := d.d.Gate.Visible(caller, "")
	key := listKey{n: len(tools), tail: "GET /tools"}
	if have := d.lists.get(key, tools); have != nil {
		writeJSON(w, http.StatusOK, have)
		return
	}
	made := plainList(tools)
	d.lists.put(key, tools, made)
	writeJSON(w, http.StatusOK, made)
}

func plainList(tools []*catalog.Tool) []byte {
	count := make(map[string]int, len(tools))
	for _, t := range tools {
		count[t.Name]++
	}
	out := []byte(`{"tools":[`)
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		name := t.Name
		if count[name] > 1 {
			name = t.ServerName + "/" + t.Name
		}
		out = mcp.AppendQuote(append(out, `{"name":`...), name)
		description := mcp.Get(t.Definition, "description")
		if description == nil {
			description = json.RawMessage(`""`)
		}
		out = append(append(out, `,"description":`...), description...)
		schema := mcp.Get(t.Definition, "inputSchema")
		if schema == nil {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		out = append(append(append(out, `,"inputSchema":`...), schema...), '}')
	}
	return append(out, `]}`...)
}

// postToolsCall runs one tool: {"name", "arguments"} in, {"result"} out.
func (d *Door) postToolsCall(w http.ResponseWriter, r *http.Request) {
	caller, err := d.authenticate(r)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	if err := d.unable(); err != nil {
		d.refuse(w, r, err)
		return
	}
	if !jsonBody(r) {
		writePlainStatus(w, http.StatusUnsupportedMediaType, fault.New(fault.InvalidRequest, "content type must be application/json"))
		return
	}
	b, err := d.readBody(r)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	name, args, err := plainCall(b.b)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	call := gate.Call{
		Caller: caller, Door: doorTools, Method: "tools/call", Name: name, Arguments: args,
		Client: &upstream.Client{Era: mcp.Legacy, Version: mcp.V20251125, Capabilities: emptyResult}, // the shape without an envelope of its own
	}
	if call.ReplayOf, err = d.replayOf(r, caller); err != nil {
		d.refuse(w, r, err)
		return
	}
	// The wire has no params object here; this is what one would have said.
	call.Params = mcp.Set(mcp.Set(emptyResult, "name", mcp.Quote(name)), "arguments", args)
	res, err := d.d.Gate.Call(r.Context(), &call)
	d.metrics.call(res.Raw, err)
	if err != nil {
		d.challenge(w, r, fault.From(err))
		plainFailure(w, name, call.TraceID, err)
		return
	}
	out := append(make([]byte, 0, len(res.Raw)+16), `{"result":`...)
	writeJSON(w, http.StatusOK, append(append(out, res.Raw...), '}'))
	b.release()
}

// plainCall reads the body of POST /tools/call by the strict rules of the wire.
func plainCall(b []byte) (name string, args json.RawMessage, err error) {
	if err := mcp.Check(b, mcp.Limits{}); err != nil {
		return "", nil, err
	}
	if !mcp.IsObject(b) {
		return "", nil, fault.New(fault.InvalidRequest, `body must be an object: {"name": …, "arguments": {…}}`)
	}
	seen := make(map[string]bool, 2)
	mcp.Each(b, func(key string, value json.RawMessage) bool {
		lower := strings.ToLower(key)
		switch {
		case lower != "name" && lower != "arguments":
			return true
		case key != lower || seen[key]: // two readers might see two calls
			err = fault.New(fault.InvalidRequest, "member %q is written twice or in another case", lower)
			return false
		case key == "name":
			name, _ = mcp.String(value)
		default:
			args = value
		}
		seen[key] = true
		return true
	})
	switch {
	case err != nil:
		return "", nil, err
	case name == "":
		return "", nil, fault.New(fault.InvalidRequest, "name is missing: it names the tool to call")
	case args == nil:
		args = emptyResult
	case !mcp.IsObject(args):
		return "", nil, fault.New(fault.InvalidRequest, "arguments must be an object")
	}
	return name, args, nil
}

// plainFailure answers a call that gave no result.
func plainFailure(w http.ResponseWriter, name, traceID string, err error) {
	var re *mcp.RPCError
	if errors.As(err, &re) { // the server's own words
		body := append([]byte(`{"error":`), mcp.Quote(re.Message)...)
		body = append(append(body, `,"error_class":"UpstreamError","code":-32006,"upstream":`...), re.Raw...)
		body = mcp.AppendQuote(append(body, `,"trace_id":`...), traceID)
		writeJSON(w, http.StatusBadGateway, append(body, '}'))
		return
	}
	e := *fault.From(err)
	if e.Class == fault.UnknownTool {
		e.Message = "Tool not found: " + clip(name, 200)
	}
	data := map[string]any{"trace_id": traceID}
	for k, v := range e.Data {
		data[k] = v
	}
	e.Data = data
	writePlainError(w, &e)
}

// reasonAmbiguous is the gate's reason for a name that several servers have; the error lists the candidates.
const reasonAmbiguous = "AMBIGUOUS_TOOL"

// classNames are the error_class words of the plain routes.
var classNames = map[fault.Class]string{
	fault.UnknownTool:    "ToolNotFound",
	fault.InvalidParams:  "InvalidArguments",
	fault.Parse:          "InvalidRequest",
	fault.InvalidRequest: "InvalidRequest",
	fault.TooLarge:       "TooLarge",
}

// plainClass is a class as the plain routes write it: known words, else the class in CamelCase.
func plainClass(c fault.Class) string {
	if n, ok := classNames[c]; ok {
		return n
	}
	var out strings.Builder
	for _, part := range strings.Split(string(c), "_") {
		if part != "" {
			out.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return out.String()
}

// writePlainError answers an error on a plain route with its own status.
func writePlainError(w http.ResponseWriter, e *fault.Error) {
	status := e.Codes().HTTP
	switch {
	case e.Reason == reasonAmbiguous:
		status = http.StatusConflict
	case e.Class == fault.InvalidParams:
		status = http.StatusUnprocessableEntity
	}
	writePlainStatus(w, status, e)
}

func writePlainStatus(w http.ResponseWriter, status int, e *fault.Error) {
	body := map[string]any{}
	for k, v := range e.Data { // approval_id, expires_at, rule, trace_id, …
		body[k] = v
	}
	if e.Class == fault.InvalidParams && body["details"] == nil {
		body["details"] = []string{}
	}
	body["error"], body["error_class"], body["code"] = e.Message, plainClass(e.Class), e.Codes().RPC
	if e.Reason != "" {
		body["reason"] = e.Reason
	}
	if e.Reason == reasonAmbiguous {
		body["error_class"] = "AmbiguousTool"
	}
	b, err := json.Marshal(body)
	if err != nil {
		b = []byte(`{"error":"internal error","error_class":"Internal"}`)
	}
	writeJSON(w, status, b)
}
