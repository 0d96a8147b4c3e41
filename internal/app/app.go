// Package app wires Doorward together and owns its life cycle: what is opened in which order, which
// goroutines run, and how all of it ends. It decides nothing and serves nothing itself.
// It may import everything; only cli and tests import it.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/notify"
	"doorward.dev/doorward/internal/secret"
	"doorward.dev/doorward/internal/upstream"
)

// Version of the program, set by the linker.
var Version = "dev"

// Keys are what the first start shows once. Created is false on every later start, and the keys are empty then.
type Keys struct {
	Created      bool
	Admin, Agent string
}

// App is a whole Doorward in one process. Create it with New, then Run it; Close ends one that never ran.
type App struct {
	Keys Keys

	cfg       *config.Config
	log       *slog.Logger
	redactor  *secret.Redactor
	db        *db.DB
	audit     *audit.Log
	auth      *auth.Auth
	catalog   *catalog.Catalog
	pool      *upstream.Pool
	notify    *notify.Queue
	gate      *gate.Gate
	door      *door.Door
	servers   *servers
	workspace string
	listener  net.Listener
	open      net.Listener // without keys; nil when off
	closers   []func() error
	pending   []*audit.Event // written once the record runs
}

// New opens everything in order: database, secrets, record, listeners, callers, catalogue, connections, gate, door.
// Nothing is connected or served before Run. Errors are *fault.Error; what was opened is closed again. first, if not
// nil, is told the keys of a first start as soon as they exist: they can be shown only once, also when something later fails.
func New(ctx context.Context, cfg *config.Config, log Logger, first func(Keys)) (a *App, err error) {
	a = &App{cfg: cfg, redactor: log.Redactor, log: log.Logger}
	defer func() {
		if err != nil {
			a.Close()
			a = nil
		}
	}()
	for _, name := range cfg.UnknownVariables() {
		a.log.Warn("environment variable is not a setting and is ignored", "name", name)
	}
	box, err := a.openStore(ctx)
	if err != nil {
		return a, err
	}
	if a.audit, err = audit.New(ctx, audit.Options{
		DB: a.db, Redactor: a.redactor, MaxBody: int(cfg.Audit.MaxBody), PowerSafe: cfg.Audit.PowerSafe,
		Linger: cfg.Audit.Linger, Now: time.Now,
		Box: box, CheckpointEvery: cfg.Audit.CheckpointEvery, Anchors: anchors(cfg.Audit), Log: a.log, OTLP: collector(cfg.OTLP),
		Keep: time.Duration(cfg.Audit.KeepDays) * 24 * time.Hour,
	}); err != nil {
		return a, err
	}
	if err = a.bind(); err != nil {
		return a, err
	}
	if err = a.openCallers(ctx, first); err != nil {
		return a, err
	}
	if a.catalog, err = catalog.New(ctx, catalog.Deps{DB: a.db, Box: box, Redactor: a.redactor, Now: time.Now, Reserved: reserved(cfg.Builtins)}); err != nil {
		return a, err
	}
	a.servers = newServers(a)
	a.pool = upstream.New(upstream.Deps{
		Log: a.log, OnListing: a.servers.listed, OnStatus: a.servers.status,
		OnChanged: func(id, method string, params json.RawMessage) { a.door.Changed(id, method, params) },
		Redact:    a.redactor.Redact, ConnectTimeout: cfg.Upstream.ConnectTimeout, MaxMessage: int(cfg.MaxMessage),
		Parallel: cfg.Upstream.Parallel, KillGrace: cfg.Upstream.KillGrace,
	})
	if s := cfg.Confirmation.Secret; s != "" && len(s) < gate.MinConfirmationSecret {
		a.log.Warn("the confirmation secret is shorter than 32 bytes: calls that need confirmation are refused")
	}
	if a.notify, err = notify.New(notify.Options{DB: a.db, Channels: channels(cfg.Approvals), Now: time.Now, Log: a.log, Redact: a.redactor.Redact}); err != nil {
		return a, err
	}
	if a.gate, err = gate.New(gate.Deps{
		DB: a.db, Auth: a.auth, Catalog: a.catalog, Upstream: a.pool, Audit: a.audit, Redactor: a.redactor, Now: time.Now,
		ApprovalTTL: cfg.Approvals.TTL, HoldFor: cfg.Approvals.Hold, PublicURL: a.PublicURL(),
		DecideRole: role(cfg.Approvals.DecideRole), EscalateRole: role(cfg.Approvals.EscalateRole), EscalateAfter: cfg.Approvals.EscalateAfter,
		Notify: a.notify, StateKey: box.Key("request state"),
		Limits:              gate.Limits{Task: cfg.Limits.Task, Workspace: gate.Budget(cfg.Limits.Workspace), Profile: gate.Budget(cfg.Limits.Profile)},
		ConfirmationSecrets: []string{cfg.Confirmation.Secret, cfg.Confirmation.Previous},
	}); err != nil {
		return a, err
	}
	if a.door, err = door.New(door.Deps{
		Auth: a.auth, Catalog: a.catalog, Gate: a.gate, Upstream: a.pool, Audit: a.audit, DB: a.db,
		Redactor: a.redactor, Box: box, Log: a.log, Now: time.Now, MaxBody: int64(cfg.MaxBody),
		AllowedHosts: cfg.AllowedHosts, AllowedOrigins: cfg.AllowedOrigins, OpenAgent: cfg.OpenAgent, Version: Version,
		PublicURL: a.PublicURL(), Scan: a.servers.scan, OpenID: a.openID(box), OAuth: a.oauth(),
	}); err != nil {
		return a, err
	}
	// Replicas that start together must not register the same servers at the same time.
	if err = a.db.Alone(ctx, func() error { return a.servers.seed(ctx) }); err != nil {
		return a, err
	}
	return a, nil
}

// openStore opens the data folder: the database, which is locked against a second process, and the sealing key.
func (a *App) openStore(ctx context.Context) (*secret.Box, error) {
	dir := a.cfg.Data
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(fault.Config, err, "cannot create the data folder %s", dir)
	}
	var err error
	if a.db, err = db.Open(ctx, a.cfg.Database, dir); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.db.Close)
	box, err := secret.OpenBox(filepath.Join(dir, "secret.key"))
	if err != nil {
		return nil, err
	}
	return box, a.sameKey(ctx, box)
}

// sameKey refuses to be a replica with a sealing key of its own: it could not open the secrets of servers, and sessions
// would end at each change of the replica. SQLite has its key beside it.
func (a *App) sameKey(ctx context.Context, box *secret.Box) error {
	if !a.db.IsPostgres() {
		return nil
	}
	id, err := a.db.Setting(ctx, "sealing_key", func() (string, error) { return box.ID(), nil })
	if err != nil {
		return err
	}
	if id != box.ID() {
		return fault.New(fault.Config, "the database is used with the sealing key %s, but %s is the key %s: copy the file from a replica or a backup (docs/operations.md)",
			id, filepath.Join(a.cfg.Data, "secret.key"), box.ID())
	}
	return nil
}

// openCallers loads who may call, and on the first start creates the workspace, its owner and one agent.
func (a *App) openCallers(ctx context.Context, first func(Keys)) (err error) {
	a.redactor.Set("config", a.cfg.Secrets())
	if a.auth, err = auth.New(ctx, a.db, time.Now); err != nil {
		return err
	}
	a.Keys.Created, a.Keys.Admin, a.Keys.Agent, err = a.auth.Bootstrap(ctx, a.cfg.Bootstrap.AdminKey, a.cfg.Bootstrap.AgentKey)
	if err != nil {
		return err
	}
	if !a.Keys.Created {
		a.Keys = Keys{}
	} else if first != nil {
		first(a.Keys)
	}
	a.redactor.Set("bootstrap", []string{a.Keys.Admin, a.Keys.Agent})
	a.workspace, err = a.auth.FirstWorkspace(ctx)
	return err
}

// bind takes the addresses, so that a wrong one is an error of the start and not of later.
func (a *App) bind() (err error) {
	if a.listener, err = net.Listen("tcp", a.cfg.Listen); err != nil {
		return fault.Wrap(fault.Config, err, "cannot listen on %s", a.cfg.Listen)
	}
	a.closers = append(a.closers, closeQuietly(a.listener))
	if a.cfg.OpenListen == "" {
		return nil
	}
	if a.open, err = net.Listen("tcp", a.cfg.OpenListen); err != nil {
		return fault.Wrap(fault.Config, err, "cannot listen on %s", a.cfg.OpenListen)
	}
	a.closers = append(a.closers, closeQuietly(a.open))
	return nil
}

// closeQuietly closes a listener that the HTTP server may have closed before.
func closeQuietly(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// Close releases what New opened, in reverse order. Run calls it; it is safe to call again.
func (a *App) Close() error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i]())
	}
	a.closers = nil
	return errors.Join(errs...)
}

// Addr is the address that is served.
func (a *App) Addr() string { return a.listener.Addr().String() }

// OpenAddr is the address that is served without keys, empty when there is none.
func (a *App) OpenAddr() string {
	if a.open == nil {
		return ""
	}
	return a.open.Addr().String()
}

// PublicURL is where callers reach Doorward.
func (a *App) PublicURL() string {
	if a.cfg.PublicURL != "" {
		return a.cfg.PublicURL
	}
	scheme := "http"
	if a.cfg.TLS.Cert != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(a.Addr())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
