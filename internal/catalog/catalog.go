// Package catalog owns what is governed: servers, their tools, admission and
// rules. It keeps them in the database and as one immutable snapshot in
// memory. It starts no connection and decides no call.
//
// It is a package of its own, beside upstream and policy, because upstream must not know
// what an admission is and policy must not know a database.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

// The states of a server.
const (
	StatePending = "PENDING_APPROVAL"
	StateActive  = "ACTIVE"
	StatePaused  = "PAUSED"
	StateBlocked = "BLOCKED"
)

// The origins of a server.
const (
	OriginDatabase = "database" // registered by a person
	OriginConfig   = "config"   // from an MCP configuration file
	OriginBuiltin  = "builtin"  // part of the binary
)

// Server is a registered server. Env, Headers and secret parts of Args and URL are opened
// only by Config. UpdatedAt moves when, and only when, the way the server is reached or its
// description changes, so it can serve as the revision of a connection.
type Server struct {
	ID          string `json:"id"`
	WorkspaceID string `json:"-"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Transport   string `json:"transport"` // stdio, http, sse, ws, builtin
	State       string `json:"status"`    // PENDING_APPROVAL, ACTIVE, PAUSED, BLOCKED
	StateReason string `json:"status_reason,omitempty"`
	Origin      string `json:"origin"`
	OriginPath  string `json:"origin_path,omitempty"`
	ScanID      string `json:"scan_id,omitempty"`
	ScanAt      int64  `json:"scan_at,omitempty"`
	ScanError   string `json:"scan_error,omitempty"`
	CreatedAt   int64  `json:"created_at"`
	UpdatedAt   int64  `json:"updated_at"`
}

// Tag is the entity tag of what an admin changes of a server. A scan changes nothing of that.
func (s *Server) Tag() string { return db.Tag(s.ID, s.UpdatedAt, s.State, s.StateReason) }

// Deps of a Catalog.
type Deps struct {
	DB       *db.DB
	Box      *secret.Box
	Redactor *secret.Redactor // nil: nothing is registered for redaction
	Now      func() time.Time // nil: time.Now
	// Reserved are server names that only a server of origin builtin may have.
	Reserved []string
}

// Catalog is the governed catalogue. Safe for concurrent use.
type Catalog struct {
	d       Deps
	current atomic.Pointer[Snapshot]

	loading  sync.Mutex        // one load at a time
	redacted map[string]string // server id -> sealed secrets the redactor knows; held by loading

	listeners sync.Mutex
	onChange  []func(*Snapshot)
	telling   bool      // somebody is calling onChange now
	told      *Snapshot // the last one they were called with
}

// New loads the snapshot.
func New(ctx context.Context, d Deps) (*Catalog, error) {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Redactor == nil {
		d.Redactor = new(secret.Redactor)
	}
	c := &Catalog{d: d, redacted: map[string]string{}}
	return c, c.Reload(ctx)
}

// Snapshot is the current snapshot; it never blocks.
func (c *Catalog) Snapshot() *Snapshot { return c.current.Load() }

// OnChange registers fn to be called after each new snapshot, one call at a time.
// Several changes in a row may be told by one call. fn may call the Catalog.
func (c *Catalog) OnChange(fn func(*Snapshot)) {
	c.listeners.Lock()
	defer c.listeners.Unlock()
	c.onChange = append(c.onChange, fn)
}

// tell calls the listeners with the newest snapshot. Who comes while another
// one is telling leaves it to that one, so a listener may change the catalogue.
func (c *Catalog) tell() {
	c.listeners.Lock()
	defer c.listeners.Unlock()
	if c.telling {
		return
	}
	c.telling = true
	for c.told != c.current.Load() {
		c.told = c.current.Load()
		fns, snapshot := c.onChange, c.told
		c.listeners.Unlock()
		for _, fn := range fns {
			fn(snapshot)
		}
		c.listeners.Lock()
	}
	c.telling = false
}

func (c *Catalog) now() int64 { return c.d.Now().UnixMicro() }

// change runs fn in a transaction that changes what calls are decided by, and
// loads the result, so that the caller sees its own write.
func (c *Catalog) change(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if err := c.d.DB.TxChange(ctx, func(tx *sql.Tx) error { return stored(fn(tx)) }); err != nil {
		return err
	}
	return c.Reload(ctx)
}

// stored gives an error of the database a class; errors of ours pass.
func stored(err error) error {
	var f *fault.Error
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case errors.Is(err, sql.ErrNoRows):
		return fault.New(fault.NotFound, "no such thing in this workspace")
	case isUnique(err):
		return fault.Wrap(fault.Conflict, err, "it exists already")
	}
	return fault.Wrap(fault.Unavailable, err, "the database does not answer; try again")
}

func isUnique(err error) bool {
	text := err.Error()
	return strings.Contains(text, "UNIQUE constraint failed") || strings.Contains(text, "SQLSTATE 23505")
}

// querier is a transaction or a pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const serverColumns = `id, workspace_id, name, description, transport, state, state_reason, origin, origin_path,
	scan_id, scan_at, scan_error, created_at, updated_at`

func scanServer(row interface{ Scan(...any) error }, more ...any) (Server, error) {
	var s Server
	err := row.Scan(append([]any{&s.ID, &s.WorkspaceID, &s.Name, &s.Description, &s.Transport, &s.State, &s.StateReason,
		&s.Origin, &s.OriginPath, &s.ScanID, &s.ScanAt, &s.ScanError, &s.CreatedAt, &s.UpdatedAt}, more...)...)
	return s, err
}

// getServer reads a server of a workspace by id or name. Names cannot look
// like ids, so at most one row matches.
func getServer(ctx context.Context, q querier, ws, nameOrID string) (Server, error) {
	s, err := scanServer(q.QueryRowContext(ctx,
		`SELECT `+serverColumns+` FROM server WHERE workspace_id = $1 AND (id = $2 OR name = $2)`, ws, nameOrID))
	if errors.Is(err, sql.ErrNoRows) {
		return s, fault.New(fault.NotFound, "no such server in this workspace")
	}
	return s, stored(err)
}

// lockServer is getServer for a change: on PostgreSQL it keeps others from
// changing the server or its tools at the same time; SQLite has one writer.
func lockServer(ctx context.Context, tx *sql.Tx, ws, nameOrID string) (Server, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE server SET state = state WHERE workspace_id = $1 AND (id = $2 OR name = $2)`, ws, nameOrID); err != nil {
		return Server{}, stored(err)
	}
	return getServer(ctx, tx, ws, nameOrID)
}

// List gives the servers of a workspace by name.
func (c *Catalog) List(ctx context.Context, ws string) ([]Server, error) {
	rows, err := c.d.DB.Read.QueryContext(ctx, `SELECT `+serverColumns+` FROM server WHERE workspace_id = $1 ORDER BY name`, ws)
	if err != nil {
		return nil, stored(err)
	}
	defer rows.Close()
	out := []Server{}
	for rows.Next() {
		s, err := scanServer(rows)
		if err != nil {
			return nil, stored(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		return nil, stored(err)
	}
	return out, c.Reload(ctx) // as in Tools
}

// Get gives one server by name or id.
func (c *Catalog) Get(ctx context.Context, ws, nameOrID string) (Server, error) {
	s, err := getServer(ctx, c.d.DB.Read, ws, nameOrID)
	if err != nil {
		return s, err
	}
	return s, c.Reload(ctx) // as in Tools
}
