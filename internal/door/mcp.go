package door

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// Names of the doors, as they stand in the record.
const (
	doorAggregate = "mcp"
	doorServer    = "mcp_server"
	doorProxy     = "proxy"
	doorTools     = "tools"
)

// identify finds the caller of a request.
type identify func(*http.Request) (*auth.Caller, error)

func (d *Door) routesMCP(mux *http.ServeMux, who identify) {
	mux.HandleFunc("/mcp", d.serveMCP(who, doorAggregate))
	mux.HandleFunc("/mcp/{$}", d.serveMCP(who, doorAggregate))
	mux.HandleFunc("/mcp/{server}", d.serveMCP(who, doorServer))
	mux.HandleFunc("/api/v1/mcp/proxy/{server}", d.serveMCP(who, doorProxy))
}

// scope is what one URL shows: one server with its own names, or all of them.
type scope struct {
	door   string
	server *catalog.ServerView // nil: the aggregate
}

func (s *scope) serverID() string {
	if s.server == nil {
		return ""
	}
	return s.server.ID
}

// peer is one HTTP request to an MCP door, its caller known.
type peer struct {
	d      *Door
	w      http.ResponseWriter
	r      *http.Request
	who    identify
	caller *auth.Caller
	snap   *catalog.Snapshot
	sc     scope
}

func (d *Door) serveMCP(who identify, door string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := who(r)
		if err != nil {
			d.refuse(w, r, err)
			return
		}
		p := peer{d: d, w: w, r: r, who: who, caller: caller, snap: d.d.Catalog.Snapshot(), sc: scope{door: door}}
		if door != doorAggregate {
			name := r.PathValue("server")
			p.sc.server = p.snap.ServerByName(caller.WorkspaceID, name)
			if p.sc.server == nil || !gate.Knows(caller, p.sc.server) {
				d.refuse(w, r, fault.New(fault.NotFound, "no such server; GET /tools lists what this key may use"))
				return
			}
		}
		switch r.Method {
		case http.MethodPost:
			p.post()
		case http.MethodGet:
			p.get()
		case http.MethodDelete:
			p.delete()
		default:
			w.Header().Set("Allow", "GET, POST, DELETE")
			writeJSON(w, http.StatusMethodNotAllowed, rpcError(nil, fault.New(fault.InvalidRequest, "method %s is not allowed here", r.Method), ""))
		}
	}
}

// servers lists the servers the caller can use in this scope, in order of name.
func (p *peer) servers() []*catalog.ServerView { return p.d.usable(p.snap, p.caller, p.sc.server) }

func (d *Door) usable(snap *catalog.Snapshot, c *auth.Caller, only *catalog.ServerView) []*catalog.ServerView {
	if only != nil {
		if d.d.Gate.Reaches(c, only.ID) {
			return []*catalog.ServerView{only}
		}
		return nil
	}
	var out []*catalog.ServerView
	for _, s := range snap.Servers {
		if d.d.Gate.Reaches(c, s.ID) {
			out = append(out, s)
		}
	}
	sortServers(out)
	return out
}

// post reads the body, finds the era and hands over.
func (p *peer) post() {
	if !jsonBody(p.r) {
		p.fail(http.StatusUnsupportedMediaType, nil, fault.New(fault.InvalidRequest, "content type must be application/json"))
		return
	}
	acc := accepts(p.r)
	if !acc.json && !acc.stream {
		p.fail(http.StatusNotAcceptable, nil, fault.New(fault.InvalidRequest, "accept must name application/json and text/event-stream"))
		return
	}
	b, err := p.d.readBody(p.r)
	if err != nil {
		p.refuse(nil, err)
		return
	}
	header := p.r.Header.Get(mcp.HeaderVersion)
	if isBatch(b.b) {
		p.postBatch(b.b, header, acc)
		return // the parts of a batch may outlive it: its buffer is not used again
	}
	m, err := mcp.Parse(b.b, mcp.Limits{})
	if err != nil {
		p.refuse(m.ID, err)
		b.release()
		return
	}
	var clean bool
	if isModern(header) || modernMessage(&m) {
		clean = p.postModern(&m, acc)
	} else {
		clean = p.postLegacy(&m, header, acc)
	}
	if clean {
		b.release()
	}
}

// isModern: the revision has no sessions. What is no revision at all but sorts behind them counts
// too, so that it is refused in that era's way, with the list of what is spoken here.
func isModern(version string) bool { return version >= mcp.V20260728 }

// modernMessage: only clients of the era without sessions name the revision in each message.
func modernMessage(m *mcp.Message) bool {
	v := mcp.MetaVersion(m.Params)
	return v != "" && !(mcp.Known(v) && mcp.EraOf(v) == mcp.Legacy)
}

func isBatch(b []byte) bool {
	for _, c := range b {
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c == '['
		}
	}
	return false
}

// refuse answers an error that has an HTTP status of its own.
func (p *peer) refuse(id json.RawMessage, err error) {
	e := fault.From(err)
	p.fail(e.Codes().HTTP, id, e)
}

func (p *peer) fail(status int, id json.RawMessage, e *fault.Error) {
	writeJSON(p.w, status, rpcError(id, e, ""))
}

// rpcError is a whole error response.
func rpcError(id json.RawMessage, err error, traceID string) []byte {
	return mcp.AppendError(nil, id, errorObject(err, traceID))
}

// errorObject renders any error: one that a server sent stays as it came.
func errorObject(err error, traceID string) json.RawMessage {
	var re *mcp.RPCError
	if errors.As(err, &re) && re.Raw != nil {
		return re.Raw
	}
	return mcp.ErrorObject(fault.From(err), traceID)
}

// exchange is one request on its way: who asks, for what, and where answers go.
type exchange struct {
	*peer
	m       *mcp.Message
	era     mcp.Era
	version string
	sess    *bridge.Session // legacy only
	caps    json.RawMessage
	level   string // log level the client wants to see, "" none was said
	out     *reply
	client  upstream.Client
	traceID string
	told    string // the approval that the person of an older client was sent to
}

// request answers m, in either era. It returns the result object or an error for errorObject.
func (x *exchange) request(ctx context.Context) (json.RawMessage, error) {
	if x.m.Params != nil && !mcp.IsObject(x.m.Params) {
		return nil, fault.New(fault.InvalidParams, "params must be an object")
	}
	switch x.m.Method {
	case "tools/call":
		return x.callTool(ctx)
	case "tools/list":
		return x.listTools()
	case "prompts/list", "resources/list", "resources/templates/list":
		return x.listMerged(ctx)
	case "prompts/get", "resources/read", "completion/complete":
		return x.forwardNamed(ctx)
	}
	if x.era == mcp.Modern {
		if x.m.Method == "server/discover" {
			return x.discover(), nil
		}
		return nil, methodNotFound(x.m.Method)
	}
	switch x.m.Method {
	case "ping":
		return emptyResult, nil
	case "logging/setLevel":
		return x.setLevel(ctx)
	case "resources/subscribe", "resources/unsubscribe":
		return x.subscribe(ctx)
	}
	return nil, methodNotFound(x.m.Method)
}

var emptyResult = json.RawMessage("{}")

func methodNotFound(method string) error {
	return fault.New(fault.MethodNotFound, "method not found: %s", clip(method, 100))
}

// clip shortens hostile text for a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// respond writes the outcome of a request.
func (x *exchange) respond(result json.RawMessage, err error) {
	if err == nil {
		x.out.result(x.m.ID, result)
		return
	}
	x.d.challenge(x.w, x.r, fault.From(err))
	obj := errorObject(err, x.traceID)
	x.out.message(x.status(err), mcp.AppendError(nil, x.m.ID, obj))
}

// status is the HTTP status of an error answer: 200, since the transport did its part, except
// where 2026-07-28 wants the client to see the kind of error in it, or Doorward cannot serve.
func (x *exchange) status(err error) int {
	var code int64
	var re *mcp.RPCError
	if errors.As(err, &re) {
		code = re.Code
	} else {
		e := fault.From(err)
		if e.Class == fault.Unavailable || e.Reason == auth.ReasonScope {
			return e.Codes().HTTP
		}
		code = int64(e.Codes().RPC)
	}
	if x.era == mcp.Modern {
		switch code {
		case -32601:
			return http.StatusNotFound
		case -32602, -32020, -32021, -32022:
			return http.StatusBadRequest
		}
	}
	return http.StatusOK
}
