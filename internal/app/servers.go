package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// servers joins catalogue and connections: catalog must not know a connection and upstream must not know an
// admission. ACTIVE servers are kept connected; others are only reached by a scan that a person asks for.
type servers struct {
	a        *App
	builtins map[string]upstream.Builtin // by server name

	mu       sync.Mutex
	configs  map[string]known           // by server id
	scanning map[string]*[]catalog.Scan // results of listings that arrive while a scan runs
	health   map[string]upstream.Health // last one that was logged
	broken   map[string]string          // server id -> why its configuration cannot be opened
}

// known is a server's opened configuration as of one update.
type known struct {
	updatedAt int64
	cfg       upstream.Config
}

func newServers(a *App) *servers {
	return &servers{
		a: a, builtins: map[string]upstream.Builtin{}, configs: map[string]known{},
		scanning: map[string]*[]catalog.Scan{}, health: map[string]upstream.Health{}, broken: map[string]string{},
	}
}

// apply makes the set of connections what the snapshot says.
func (s *servers) apply(ctx context.Context, snap *catalog.Snapshot) {
	var cfgs []upstream.Config
	for _, v := range snap.Servers {
		if v.State != "ACTIVE" {
			continue
		}
		cfg, err := s.connect(ctx, &v.Server)
		s.complain(&v.Server, err)
		if err != nil {
			continue
		}
		cfgs = append(cfgs, cfg)
	}
	slices.SortFunc(cfgs, func(x, y upstream.Config) int { return strings.Compare(x.ID, y.ID) })
	s.forget(snap)
	s.a.pool.Apply(cfgs)
}

// complain logs why a server's configuration cannot be opened, once.
func (s *servers) complain(srv *catalog.Server, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	s.mu.Lock()
	was := s.broken[srv.ID]
	s.broken[srv.ID] = why
	s.mu.Unlock()
	if why != "" && why != was {
		s.a.log.Error("server cannot be connected", "server", srv.Name, "error", why)
	}
}

// connect gives the configuration of a server. It is opened once per update: every new snapshot asks for
// all servers, and unsealing is not free.
func (s *servers) connect(ctx context.Context, srv *catalog.Server) (upstream.Config, error) {
	s.mu.Lock()
	k, ok := s.configs[srv.ID]
	s.mu.Unlock()
	if ok && k.updatedAt == srv.UpdatedAt {
		return k.cfg, nil
	}
	spec, err := s.a.catalog.Config(ctx, srv.ID)
	if err != nil {
		return upstream.Config{}, err
	}
	cfg := upstream.Config{
		ID: srv.ID, Name: spec.Name, Transport: spec.Transport, Command: spec.Command, Args: spec.Args, Env: spec.Env,
		Cwd: spec.Cwd, URL: spec.URL, Headers: spec.Headers, Timeout: s.a.cfg.Upstream.CallTimeout, Revision: revision(spec),
	}
	if spec.Transport == "builtin" {
		if cfg.Builtin = s.builtins[spec.Name]; cfg.Builtin == nil {
			return upstream.Config{}, fault.New(fault.Unreachable, "the built-in server %s is switched off by the configuration", spec.Name)
		}
	}
	s.mu.Lock()
	s.configs[srv.ID] = known{srv.UpdatedAt, cfg}
	s.mu.Unlock()
	return cfg, nil
}

// revision is a digest of how a server is reached. A change of its description or state does not
// make the connection anew, and the value shows no secret.
func revision(spec catalog.Spec) string {
	spec.Description, spec.ConnectorType = "", ""
	headers := map[string]string{}
	for k, v := range spec.Headers {
		headers[http.CanonicalHeaderKey(k)] = v
	}
	spec.Headers = headers
	b, _ := json.Marshal(spec)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// forget drops what is kept of servers that are gone.
func (s *servers) forget(snap *catalog.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.configs {
		if snap.Servers[id] == nil {
			delete(s.configs, id)
			delete(s.health, id)
			delete(s.broken, id)
		}
	}
}

// listed remembers a new listing of a connected server. Nothing is admitted by it (PV-7).
func (s *servers) listed(ctx context.Context, serverID string, l mcp.Listing) {
	res, err := s.a.catalog.ApplyListing(ctx, serverID, l)
	if err != nil {
		if ctx.Err() == nil && !fault.Is(err, fault.NotFound) {
			s.a.log.Error("listing cannot be stored", "server_id", serverID, "error", err)
		}
		return
	}
	s.mu.Lock()
	if waiting := s.scanning[serverID]; waiting != nil {
		*waiting = append(*waiting, res)
	}
	s.mu.Unlock()
	if v := s.a.catalog.Snapshot().Servers[serverID]; v != nil && v.State == catalog.StateActive && res.Changed+res.New+res.Removed > 0 {
		s.a.log.Warn("tools of a server moved; a person must admit what is new or changed",
			"server", s.name(serverID), "new", res.New, "changed", res.Changed, "removed", res.Removed)
	}
}

func (s *servers) name(id string) string {
	if v := s.a.catalog.Snapshot().Servers[id]; v != nil {
		return v.Name
	}
	return id
}

// scan lists a server's tools now and remembers them; it is how a person looks at a server. A server that
// cannot be reached is a result of status "failed", not an error.
func (s *servers) scan(ctx context.Context, srv *catalog.Server) (catalog.Scan, error) {
	cfg, err := s.connect(ctx, srv)
	if err != nil {
		return s.a.catalog.ApplyListing(ctx, srv.ID, mcp.Listing{Err: err})
	}
	var arrived []catalog.Scan
	s.mu.Lock()
	s.scanning[srv.ID] = &arrived
	s.mu.Unlock()
	l := s.a.pool.Scan(ctx, cfg)
	s.mu.Lock()
	if s.scanning[srv.ID] == &arrived {
		delete(s.scanning, srv.ID)
	}
	seen := slices.Clone(arrived)
	s.mu.Unlock()
	if len(seen) == 0 {
		return s.a.catalog.ApplyListing(ctx, srv.ID, l)
	}
	// The pool delivered this very listing before Scan returned, and perhaps one more: what moved was counted then.
	res := seen[len(seen)-1]
	for _, r := range seen[:len(seen)-1] {
		res.New, res.Changed, res.Removed = res.New+r.New, res.Changed+r.Changed, res.Removed+r.Removed
	}
	return res, nil
}

// status logs when the health of a connection moves.
func (s *servers) status(st upstream.Status) {
	s.mu.Lock()
	was := s.health[st.ServerID]
	s.health[st.ServerID] = st.Health
	s.mu.Unlock()
	if was == st.Health {
		return
	}
	level, attrs := slog.LevelInfo, []any{"server", s.name(st.ServerID), "health", string(st.Health)}
	if st.Health == upstream.Down || st.Health == upstream.Degraded {
		level, attrs = slog.LevelWarn, append(attrs, "error", st.LastError)
	}
	s.a.log.Log(context.Background(), level, "connection", attrs...)
}
