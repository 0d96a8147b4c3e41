// Package door is what callers see: /mcp in both eras, /tools, the REST
// interface, stdio, health and metrics. It authenticates, parses, builds a
// gate.Call and renders the answer. It decides nothing: every request that
// reaches a server goes through gate.
package door

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/upstream"
)

// Deps is what a Door needs. Auth, Catalog, Gate, Upstream and Box must be set.
type Deps struct {
	Auth     *auth.Auth
	Catalog  *catalog.Catalog
	Gate     *gate.Gate
	Upstream *upstream.Pool
	Audit    *audit.Log
	DB       *db.DB
	Redactor *secret.Redactor
	Box      *secret.Box
	OpenID   *auth.OpenID // nil: no sign-in with a provider
	OAuth    *auth.OAuth  // nil: no access tokens
	Log      *slog.Logger
	Now      func() time.Time
	MaxBody  int64 // bytes of a request body, default 16 MiB
	// AllowedHosts are host names, beside the loopback ones, that a loopback listener answers to;
	// AllowedOrigins are origins ("https://app.example"), beside the request's own host, whose pages may call.
	AllowedHosts, AllowedOrigins []string
	OpenAgent                    string        // caller of a listener without keys; empty: keys are required
	KeepAlive                    time.Duration // silence before a comment on a stream, default 15 s
	PageSize                     int           // tools in one answer of tools/list, default 1,000
	Version                      string
	PublicURL                    string // where callers reach this door, for links in answers
	// Scan lists a server's tools now and remembers them; what is found wrong with the server is in the
	// result, not the error. app joins upstream and catalog for it.
	Scan func(ctx context.Context, s *catalog.Server) (catalog.Scan, error)
}

// Door serves callers. Safe for concurrent use.
type Door struct {
	d        Deps
	sessions *bridge.Sessions
	lists    listCache
	merged   mergedCache
	looked   atomic.Pointer[look]
	hub      hub
	metrics  *metrics
	openAPI  func() (json.RawMessage, error)
	draining atomic.Bool
	drained  chan struct{} // closed by Drain: standing streams end
	ctx      context.Context
	stop     context.CancelFunc
}

// New makes a door. Run must run for change notifications and sweeping.
func New(d Deps) (*Door, error) {
	if d.Auth == nil || d.Catalog == nil || d.Gate == nil || d.Upstream == nil || d.Box == nil {
		return nil, errors.New("door: Auth, Catalog, Gate, Upstream and Box must be set")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.MaxBody <= 0 {
		d.MaxBody = 16 << 20
	}
	if d.KeepAlive <= 0 {
		d.KeepAlive = 15 * time.Second
	}
	if d.PageSize <= 0 {
		d.PageSize = 1000
	}
	if d.Version == "" {
		d.Version = "dev"
	}
	n := &Door{d: d, drained: make(chan struct{}), openAPI: sync.OnceValues(describe)}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.sessions = bridge.NewSessions(n.ctx, d.Box.Key("session"), d.Now)
	n.metrics = newMetrics(n)
	n.hub.init()
	d.Catalog.OnChange(func(*catalog.Snapshot) {
		n.lists.clear()
		n.merged.clear()
		n.hub.dirty("", kindTools|kindPrompts|kindResources)
	})
	return n, nil
}

// Handler serves every route; callers authenticate with bearer keys.
func (d *Door) Handler() http.Handler {
	mux := http.NewServeMux()
	d.routesMCP(mux, d.authenticate)
	d.routesTools(mux)
	d.routesHealth(mux)
	d.routesREST(mux)
	d.routesOAuth(mux)
	return d.guard(mux)
}

// OpenHandler serves the MCP routes to the agent of that name without a key, for a loopback test listener.
func (d *Door) OpenHandler(agent string) http.Handler {
	mux := http.NewServeMux()
	d.routesMCP(mux, func(*http.Request) (*auth.Caller, error) { return d.d.Auth.AnonymousAgent(agent) })
	d.routesHealth(mux)
	return d.guard(mux)
}

// sweepEvery is how often idle sessions are looked for.
const sweepEvery = time.Minute

// Run owns the sweeper of sessions and the fan-out of change notifications; it returns when ctx has ended.
// Calls of older clients, which outlive their connection, are cancelled then.
func (d *Door) Run(ctx context.Context) error {
	defer d.stop()
	go d.runHub(ctx)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			<-d.hub.stopped
			return nil
		case <-tick.C:
			for _, s := range d.sessions.Sweep() {
				d.d.Upstream.EndSession(s.ID)
			}
		}
	}
}

// unable says why nothing is served now: an end that was asked for, or a database that has not answered for so long that
// nobody knows what is allowed.
func (d *Door) unable() error {
	if d.draining.Load() {
		return errDraining()
	}
	if d.d.DB != nil {
		return d.d.DB.Current()
	}
	return nil
}

// Drain makes the door refuse new calls (503) and end its event streams; running calls go on.
func (d *Door) Drain() {
	if d.draining.CompareAndSwap(false, true) {
		close(d.drained)
	}
}
