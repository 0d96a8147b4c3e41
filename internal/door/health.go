package door

import (
	"context"
	"net/http"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// readyWait is how long the database may take to show that it is there.
const readyWait = 2 * time.Second

// routesHealth are for those who run Doorward. They say how it is, never what is governed, and need no key.
func (d *Door) routesHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	})
	mux.HandleFunc("GET /readyz", d.ready)
	mux.Handle("GET /metrics", d.metrics.handler())
}

// ready answers 200 when calls are served.
func (d *Door) ready(w http.ResponseWriter, r *http.Request) {
	if err := d.unable(); err != nil {
		writePlainError(w, fault.From(err))
		return
	}
	if d.d.DB != nil {
		ctx, cancel := context.WithTimeout(r.Context(), readyWait)
		defer cancel()
		if err := d.d.DB.Read.PingContext(ctx); err != nil {
			d.d.Log.Warn("not ready: the database does not answer", "err", err)
			writePlainError(w, fault.New(fault.Unavailable, "the database does not answer"))
			return
		}
	}
	writeJSON(w, http.StatusOK, []byte(`{"status":"ready"}`))
}
