package door

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// pathResource is where clients find out which authorization server to ask (RFC 9728).
const pathResource = "/.well-known/oauth-protected-resource"

// routesOAuth serve the metadata of the protected resource, when access tokens are accepted.
func (d *Door) routesOAuth(mux *http.ServeMux) {
	if d.d.OAuth == nil {
		return
	}
	mux.HandleFunc("GET "+pathResource, d.serveResource)
	mux.HandleFunc("GET "+pathResource+"/mcp", d.serveResource)
	mux.HandleFunc("GET "+pathResource+"/mcp/{server}", d.serveResource)
}

// serveResource answers the metadata. The door of one server is a resource of its own; that the server exists is not said.
func (d *Door) serveResource(w http.ResponseWriter, r *http.Request) {
	c := d.d.OAuth.Config()
	resource := c.Audience
	if server := r.PathValue("server"); server != "" {
		resource += "/" + url.PathEscape(server)
	}
	b, err := json.Marshal(map[string]any{
		"resource": resource, "authorization_servers": c.Issuers, "scopes_supported": []string{c.ReadScope, c.CallScope},
		"bearer_methods_supported": []string{"header"}, "resource_name": "Doorward",
	})
	if err != nil {
		d.refuse(w, r, fault.Wrap(fault.Internal, err, "internal error"))
		return
	}
	w.Header().Set("Cache-Control", "max-age=300")
	writeJSON(w, http.StatusOK, b)
}

// serverDoor is the part of the resource behind the audience when the request came to the door of one server.
func serverDoor(r *http.Request) string {
	if server := r.PathValue("server"); server != "" && strings.HasPrefix(r.URL.Path, "/mcp/") {
		return url.PathEscape(server)
	}
	return ""
}

// challenge tells the client of a refused request how to come by a credential, or by a token with the scope it lacks.
func (d *Door) challenge(w http.ResponseWriter, r *http.Request, e *fault.Error) {
	short := e.Reason == auth.ReasonScope
	if e.Class != fault.Unauthenticated && !short {
		return
	}
	value := `Bearer realm="doorward"`
	switch {
	case short:
		value += `, error="insufficient_scope"`
	case e.Reason != "MISSING_API_KEY":
		value += `, error="invalid_token"`
	}
	if d.d.OAuth != nil {
		c, path := d.d.OAuth.Config(), "/mcp"
		if server := serverDoor(r); server != "" {
			path += "/" + server
		}
		scope := c.ReadScope + " " + c.CallScope
		if needed, ok := e.Data["scope"].(string); ok && short {
			scope = needed
		}
		value += `, resource_metadata="` + d.d.PublicURL + pathResource + path + `", scope="` + scope + `"`
	}
	w.Header().Set("WWW-Authenticate", value)
}
