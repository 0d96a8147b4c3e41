// Package door is what callers see: /mcp in both eras, /tools, the REST
// interface, stdio, health and metrics. It authenticates, parses, builds a
// gate.Call and renders the answer. It decides nothing: every request that
// reaches a server goes through gate.
package door

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/upstream"
)

// Deps is what a Door needs. Auth, Catalog, Gate, Upstream, DB and Box must be set.
type Deps struct {
	Auth     *auth.Auth
	Catalog  *catalog.Catalog
	Gate     *gate.Gate
	Upstream *upstream.Pool
	Audit    *audit.Log
	DB       *db.DB
	Redactor *secret.Redactor
	Box      *secret.Box
	Log      *slog.Logger
	Now      func() time.Time
	MaxBody  int64 // bytes of a request body, default 16 MiB
	// AllowedHosts are host names, beside the loopback ones, that a loopback listener answers to;
	// AllowedOrigins are origins ("https://app.example"), beside the request's own host, whose pages may call.
	AllowedHosts, AllowedOrigins []string
	OpenAgent                    string        // caller of a listener without keys; empty: keys are required
	KeepAlive                    time.Duration // silence before a comment on a stream, default 15 s
	Version                      string
}

// Door serves callers. Safe for concurrent use.
type Door struct {
	d Deps
}

// New makes a door.
func New(d Deps) (*Door, error) { return &Door{d: d}, nil }

// Handler serves every route; callers authenticate with bearer keys.
func (d *Door) Handler() http.Handler { panic("pending") }

// OpenHandler serves the MCP routes to the agent of that name without a key, for a loopback test listener.
func (d *Door) OpenHandler(agent string) http.Handler { panic("pending") }

// Run owns the sweepers and the fan-out of change notifications; it returns when ctx has ended.
func (d *Door) Run(ctx context.Context) error { panic("pending") }

// Drain makes the door refuse new calls (503) and end its event streams; running calls go on.
func (d *Door) Drain() { panic("pending") }

// Changed tells the clients concerned that a server announced a change; wire it to upstream.Deps.OnChanged.
// method is the notification's. It never blocks.
func (d *Door) Changed(serverID, method string, params []byte) { panic("pending") }
