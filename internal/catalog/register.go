package catalog

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

// Register adds a server. It waits for approval; nothing of it can be called before.
func (c *Catalog) Register(ctx context.Context, ws string, s Spec, by string) (Server, error) {
	s.normalise()
	if err := s.check(c.d.Reserved); err != nil {
		return Server{}, err
	}
	if s.holdsMask() {
		return Server{}, invalid("%s stands for a stored secret; a new server needs the value itself", secret.Masked)
	}
	id, now := db.NewID(), c.now()
	sealed, args, err := c.seal(id, s)
	if err != nil {
		return Server{}, err
	}
	var out Server
	err = c.change(ctx, func(tx *sql.Tx) error {
		if err := nameFree(ctx, tx, ws, "", s.Name); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO server (id, workspace_id, name, description, connector_type, transport, command, args, cwd, server_url, secrets,
				origin, origin_path, state, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)`,
			id, ws, s.Name, s.Description, s.ConnectorType, s.Transport, s.Command, args, s.Cwd, maskURL(s.URL), sealed,
			s.Origin, s.OriginPath, StatePending, now)
		if err != nil {
			return err
		}
		out, err = getServer(ctx, tx, ws, id)
		return err
	})
	return out, err
}

// nameFree refuses the name of another server, and a new name that differs from one by case only. It locks the workspace, so that
// of two such names that come at once one is refused.
func nameFree(ctx context.Context, tx *sql.Tx, ws, id, name string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE workspace SET name = name WHERE id = $1`, ws); err != nil {
		return err
	}
	var other string
	err := tx.QueryRowContext(ctx, `SELECT name FROM server WHERE workspace_id = $1 AND id <> $3
			AND (name = $2 OR lower(name) = lower($2) AND NOT EXISTS (SELECT 1 FROM server WHERE id = $3 AND name = $2))`, ws, name, id).Scan(&other)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case other != name:
		return fault.New(fault.Conflict, "the name looks like that of the server %s, which exists; choose one that can be told apart", other).Why("NAME_LOOKS_ALIKE")
	}
	return fault.New(fault.Conflict, "a server named %s exists already; choose another name", name).Why("mcp_server_exists")
}

// Update replaces how a server is reached; secret.Masked values keep what is stored. The admission of its
// tools stays. When a configuration file changes how its server is reached, nobody has looked at that: the server waits for approval again.
func (c *Catalog) Update(ctx context.Context, ws, id string, s Spec, by string) (Server, error) {
	s.normalise()
	return c.changeServer(ctx, ws, id, func(tx *sql.Tx, before Server) error {
		old, err := c.readSpec(ctx, tx, before.ID)
		if err != nil {
			return err
		}
		if s.Name == "" {
			s.Name = before.Name
		}
		if err := s.unmask(old); err != nil {
			return err
		}
		fromFile := s.Origin == OriginConfig
		s.Origin, s.OriginPath = before.Origin, orElse(s.OriginPath, before.OriginPath)
		if err := s.check(c.d.Reserved); err != nil {
			return err
		}
		if s.Transport == TransportBuiltin != (before.Transport == TransportBuiltin) {
			return invalid("a built-in server stays built-in")
		}
		if err := nameFree(ctx, tx, ws, before.ID, s.Name); err != nil {
			return err
		}
		if fromFile && !s.reachedLike(old) && before.State != StatePending {
			if err := setState(ctx, tx, before.ID, StatePending, "the configuration file changed how the server is reached"); err != nil {
				return err
			}
		}
		return c.writeSpec(ctx, tx, before, s)
	})
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (c *Catalog) writeSpec(ctx context.Context, tx *sql.Tx, before Server, s Spec) error {
	sealed, args, err := c.seal(before.ID, s)
	if err != nil {
		return err
	}
	// updated_at is the revision of the connection, so it never repeats.
	_, err = tx.ExecContext(ctx, `UPDATE server SET name = $2, description = $3, connector_type = $4, transport = $5, command = $6, args = $7, cwd = $8,
		server_url = $9, secrets = $10, origin_path = $11, updated_at = $12 WHERE id = $1`,
		before.ID, s.Name, s.Description, s.ConnectorType, s.Transport, s.Command, args, s.Cwd, maskURL(s.URL), sealed, s.OriginPath, max(c.now(), before.UpdatedAt+1))
	return err
}

// readSpec reads a spec with its secrets, references not replaced.
func (c *Catalog) readSpec(ctx context.Context, q querier, id string) (Spec, error) {
	var s Spec
	var sealed string
	err := q.QueryRowContext(ctx, `SELECT name, description, connector_type, transport, command, cwd, origin, origin_path, secrets FROM server WHERE id = $1`, id).
		Scan(&s.Name, &s.Description, &s.ConnectorType, &s.Transport, &s.Command, &s.Cwd, &s.Origin, &s.OriginPath, &sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return s, fault.New(fault.NotFound, "no such server")
	}
	if err != nil {
		return s, stored(err)
	}
	p, err := c.open(id, sealed)
	s.Env, s.Headers, s.Args, s.URL = p.Env, p.Headers, p.Args, p.URL
	return s, err
}

// Config opens the spec of a server, for upstream only. References to the environment of this
// process are replaced; one that is missing is fault.Config and named.
func (c *Catalog) Config(ctx context.Context, serverID string) (Spec, error) {
	s, err := c.readSpec(ctx, c.d.DB.Read, serverID)
	if err != nil {
		return Spec{}, err
	}
	if err := s.expandAll(); err != nil {
		return Spec{}, err
	}
	if s.Transport == TransportHTTP {
		if err := checkURL(s.URL); err != nil {
			return Spec{}, err
		}
	}
	return s, nil
}

// Masked is the spec with every secret value replaced by secret.Masked, for showing and for giving back to
// Update with changes. It has no origin: who edits it is a person, not a file.
func (c *Catalog) Masked(ctx context.Context, ws, id string) (Spec, error) {
	server, err := getServer(ctx, c.d.DB.Read, ws, id)
	if err != nil {
		return Spec{}, err
	}
	s, err := c.readSpec(ctx, c.d.DB.Read, server.ID)
	if err != nil {
		return Spec{}, err
	}
	s.Origin, s.OriginPath = "", ""
	return s.Masked(), nil
}

// Remove deletes a server with its tools, their admission and their rules.
func (c *Catalog) Remove(ctx context.Context, ws, id string) error {
	return c.change(ctx, func(tx *sql.Tx) error {
		s, err := lockServer(ctx, tx, ws, id)
		if err == nil {
			err = db.Match(ctx, s.Tag())
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM server WHERE id = $1`, s.ID)
		return err
	})
}

func (s *Spec) holdsMask() bool {
	for _, values := range []map[string]string{s.Env, s.Headers} {
		for _, v := range values {
			if strings.Contains(v, secret.Masked) {
				return true
			}
		}
	}
	for _, v := range append([]string{s.URL}, s.Args...) {
		if strings.Contains(v, secret.Masked) {
			return true
		}
	}
	return false
}

// unmask puts the stored secrets back where the mask stands.
func (s *Spec) unmask(old Spec) error {
	if err := unmaskMap(s.Env, old.Env, "env"); err != nil {
		return err
	}
	if strings.Contains(s.URL, secret.Masked) {
		if s.URL != maskURL(old.URL) {
			return noStored("server_url")
		}
		s.URL = old.URL
	}
	if holds(s.Headers) && origin(s.URL) != origin(old.URL) {
		// Whoever may edit a server may not see its secrets, and so may not have them sent elsewhere.
		return invalid("server_url names another host, so the headers must be given anew")
	}
	if err := unmaskMap(s.Headers, old.Headers, "headers"); err != nil {
		return err
	}
	return s.unmaskArgs(old.Args)
}

func noStored(field string) error {
	return invalid("%s: %s stands where no secret is stored; give the value itself", field, secret.Masked)
}

func holds(values map[string]string) bool {
	for _, v := range values {
		if v == secret.Masked {
			return true
		}
	}
	return false
}

func unmaskMap(values, old map[string]string, field string) error {
	for k, v := range values {
		if !strings.Contains(v, secret.Masked) {
			continue
		}
		kept, ok := old[k]
		if !ok {
			kept, ok = old[http.CanonicalHeaderKey(k)]
		}
		if !ok || v != secret.Masked {
			return noStored(field + " " + k)
		}
		values[k] = kept
	}
	return nil
}

// unmaskArgs matches a masked argument with the stored one that is shown like
// it: at the same place, else behind the same flag, each used once.
func (s *Spec) unmaskArgs(old []string) error {
	shown, given := maskArgs(old), append([]string(nil), s.Args...)
	used := make([]bool, len(old))
	flag := func(args []string, i int) string {
		if i == 0 {
			return ""
		}
		return args[i-1]
	}
	match := func(i, j int) bool {
		return j < len(old) && !used[j] && shown[j] == given[i] && (given[i] != secret.Masked || flag(given, i) == flag(shown, j))
	}
	for i, arg := range given {
		if !strings.Contains(arg, secret.Masked) {
			continue
		}
		at := -1
		if match(i, i) {
			at = i
		}
		for j := 0; at < 0 && j < len(old); j++ {
			if match(i, j) {
				at = j
			}
		}
		if at < 0 {
			return noStored("args")
		}
		used[at] = true
		s.Args[i] = old[at]
	}
	return nil
}

func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Scheme + "://" + u.Host
}

// reachedLike reports whether two specs reach the same server in the same way.
func (s *Spec) reachedLike(o Spec) bool {
	way := func(x Spec) Spec {
		w := Spec{Transport: x.Transport, Command: x.Command, Cwd: x.Cwd, URL: x.URL}
		if len(x.Args) > 0 {
			w.Args = x.Args
		}
		if len(x.Env) > 0 {
			w.Env = x.Env
		}
		if len(x.Headers) > 0 {
			w.Headers = x.Headers
		}
		return w
	}
	return reflect.DeepEqual(way(*s), way(o))
}
