package door

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// guard checks what comes before every route: the Host header on a loopback listener, the Origin header of
// browsers, and a handler that panicked.
func (d *Door) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer d.recovered(w, r)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !d.hostAllowed(r) {
			d.refuse(w, r, fault.New(fault.Forbidden, "this listener answers to localhost only; add the host name to the allowed hosts"))
			return
		}
		if !d.originAllowed(r) {
			d.refuse(w, r, fault.New(fault.Forbidden, "requests from pages of this origin are not allowed; add it to the allowed origins"))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && crossOrigin(w, r, origin) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recovered turns a panic of a handler into an answer; the others are unharmed.
func (d *Door) recovered(w http.ResponseWriter, r *http.Request) {
	switch v := recover(); v {
	case nil:
	case http.ErrAbortHandler:
		panic(v)
	default:
		d.d.Log.Error("a handler panicked", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
		d.refuse(w, r, fault.New(fault.Internal, "internal error"))
	}
}

// crossOrigin lets a page of an allowed origin read answers; true when the request was only the question whether it may send one.
func crossOrigin(w http.ResponseWriter, r *http.Request, origin string) (preflight bool) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", mcp.HeaderSession+", WWW-Authenticate, ETag")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// hostAllowed is the defence against DNS rebinding: a page whose name was made to
// resolve to 127.0.0.1 still sends its own name as Host.
func (d *Door) hostAllowed(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !isLoopback(addr.String()) {
		return true
	}
	host := hostname(r.Host)
	if isLoopback(host) {
		return true
	}
	for _, h := range d.d.AllowedHosts {
		if strings.EqualFold(h, host) || strings.EqualFold(h, r.Host) {
			return true
		}
	}
	return false
}

// originAllowed: no Origin header, the request's own host, or a configured origin.
func (d *Door) originAllowed(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	for _, o := range d.d.AllowedOrigins {
		if strings.EqualFold(strings.TrimSuffix(o, "/"), origins[0]) {
			return true
		}
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}

func hostname(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

func isLoopback(hostport string) bool {
	h := hostname(hostport)
	if strings.EqualFold(h, "localhost") {
		return true
	}
	ip := net.ParseIP(h)
	return ip != nil && ip.IsLoopback()
}

// authenticate finds the caller of a request's bearer: a key, the token of a task or, where they are accepted, an access token.
func (d *Door) authenticate(r *http.Request) (*auth.Caller, error) {
	var key string
	if v := r.Header.Get("Authorization"); len(v) > 7 && strings.EqualFold(v[:7], "Bearer ") {
		key = strings.TrimSpace(v[7:])
	}
	c, err := d.d.Auth.Authenticate(key)
	if err != nil && d.d.DB != nil && d.d.DB.Current() != nil {
		return nil, d.d.DB.Current() // the key may be a new one
	}
	if err != nil && d.d.OAuth != nil && auth.IsAccessToken(key) {
		if c, err = d.d.OAuth.Authenticate(r.Context(), key, serverDoor(r)); err != nil {
			d.d.Log.Debug("access token refused", "error", clip(err.Error(), 500)) // the answer does not say why
		}
	}
	return c, err
}

// refuse answers an error that comes before any message was understood: as JSON-RPC
// with a null id on the MCP routes, in the form of the plain routes elsewhere.
func (d *Door) refuse(w http.ResponseWriter, r *http.Request, err error) {
	e := fault.From(err)
	d.challenge(w, r, e)
	if isMCP(r.URL.Path) {
		writeJSON(w, e.Codes().HTTP, mcp.AppendError(nil, nil, mcp.ErrorObject(e, "")))
		return
	}
	writePlainError(w, e)
}

func isMCP(path string) bool {
	return path == "/mcp" || strings.HasPrefix(path, "/mcp/") || strings.HasPrefix(path, "/api/v1/mcp/proxy/")
}

// body is a pooled buffer with a whole request body in it. What was sliced from it
// must not be used after release.
type body struct{ b []byte }

var bodies = sync.Pool{New: func() any { return &body{b: make([]byte, 0, 4<<10)} }}

// keepBody is the largest buffer that goes back to the pool: one huge request must not hold its memory for ever.
const keepBody = 256 << 10

func (b *body) release() {
	if cap(b.b) <= keepBody {
		b.b = b.b[:0]
		bodies.Put(b)
	}
}

// readBody reads a request body whole, at most MaxBody bytes of it.
func (d *Door) readBody(r *http.Request) (*body, error) {
	limit := d.d.MaxBody
	if r.ContentLength > limit {
		d.discard(r)
		return nil, d.tooLarge()
	}
	b := bodies.Get().(*body)
	if n := r.ContentLength; n >= 0 {
		if int64(cap(b.b)) < n {
			b.b = make([]byte, 0, n)
		}
		b.b = b.b[:n]
		if _, err := io.ReadFull(r.Body, b.b); err != nil {
			b.release()
			return nil, cutBody(err)
		}
		return b, nil
	}
	for { // chunked: length unknown
		if len(b.b) == cap(b.b) {
			b.b = append(b.b, 0)[:len(b.b)]
		}
		n, err := r.Body.Read(b.b[len(b.b):cap(b.b)])
		b.b = b.b[:len(b.b)+n]
		switch {
		case int64(len(b.b)) > limit:
			b.release()
			d.discard(r)
			return nil, d.tooLarge()
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			b.release()
			return nil, cutBody(err)
		}
	}
}

// discard takes in the rest of a body that is too large, within reason: a client that is still
// sending would not read the answer, and would lose the connection for its next request.
func (d *Door) discard(r *http.Request) { io.CopyN(io.Discard, r.Body, 4*d.d.MaxBody) }

func (d *Door) tooLarge() error {
	return fault.New(fault.TooLarge, "request body is over the limit of %d bytes", d.d.MaxBody)
}

func cutBody(err error) error {
	return fault.Wrap(fault.InvalidRequest, err, "request body could not be read to its end")
}

// jsonBody reports whether the body claims to be JSON.
func jsonBody(r *http.Request) bool {
	ct := r.Header.Get("Content-Type")
	if ct == "application/json" {
		return true
	}
	if i := strings.IndexByte(ct, ';'); i >= 0 {
		ct = ct[:i]
	}
	return strings.EqualFold(strings.TrimSpace(ct), "application/json")
}

// accept is what the client takes as an answer. first: it names the event stream
// before JSON, so that is what it gets when nothing speaks for either.
type accept struct{ json, stream, any, first bool }

// accepts reads the Accept header. A bare */* is kept apart: who sends it can be
// given JSON, but did not say that it can read an event stream.
func accepts(r *http.Request) (a accept) {
	values := r.Header["Accept"]
	if len(values) == 0 {
		return accept{json: true, any: true}
	}
	for _, v := range values {
		if v == "application/json, text/event-stream" {
			a.json, a.stream = true, true
			continue
		}
		for v != "" {
			var one string
			one, v, _ = strings.Cut(v, ",")
			one, _, _ = strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(one)) {
			case "application/json", "application/*":
				a.json = true
			case "text/event-stream", "text/*":
				a.stream, a.first = true, a.first || !a.json
			case "*/*":
				a.json, a.any = true, true
			}
		}
	}
	return a
}
