package door

import "net/http"

// routesREST registers the routes of /api/v1.
func (d *Door) routesREST(mux *http.ServeMux) {}
