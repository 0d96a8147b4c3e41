package app

import (
	"context"
	"os"
	"path/filepath"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/op"
	"doorward.dev/doorward/internal/tools/filesystem"
	"doorward.dev/doorward/internal/tools/host"
)

// bootstrap is who the record names for what the configuration did at start.
const bootstrap = "bootstrap"

// seed registers the servers that the configuration brings: the built-in ones and those of an .mcp.json
// file. They are ordinary servers: a person approves them, unless builtins.admit says otherwise.
func (s *servers) seed(ctx context.Context) error {
	b := s.a.cfg.Builtins
	if b.Filesystem.Root != "" {
		srv, err := filesystem.New(b.Filesystem.Root)
		if err := s.builtin(ctx, srv, err); err != nil {
			return err
		}
	}
	if b.Host.Enabled {
		srv, err := host.New()
		if err := s.builtin(ctx, srv, err); err != nil {
			return err
		}
	}
	if s.a.cfg.MCPConfig != "" {
		return s.configFile(ctx, s.a.cfg.MCPConfig)
	}
	return nil
}

// reserved are the names that no other server may take while the built-in ones exist.
func reserved(b config.Builtins) (names []string) {
	if b.Filesystem.Root != "" {
		names = append(names, "filesystem")
	}
	if b.Host.Enabled {
		names = append(names, "host")
	}
	return names
}

func (s *servers) builtin(ctx context.Context, b *op.Server, err error) error {
	if err != nil {
		return err
	}
	s.builtins[b.Name()] = b
	c, ws := s.a.catalog, s.a.workspace
	switch have, err := c.Get(ctx, ws, b.Name()); {
	case err == nil && have.Origin == catalog.OriginBuiltin:
		return nil
	case err == nil:
		s.a.log.Warn("a server of this name is registered already; the built-in one is not available", "server", b.Name(), "origin", have.Origin)
		return nil
	case !fault.Is(err, fault.NotFound):
		return err
	}
	srv, err := c.Register(ctx, ws, catalog.Spec{Name: b.Name(), Description: b.Title(), Transport: catalog.TransportBuiltin, Origin: catalog.OriginBuiltin}, bootstrap)
	if err != nil {
		return err
	}
	scan, err := c.ApplyListing(ctx, srv.ID, mcp.Listing{Tools: b.Tools(), Complete: true})
	if err != nil {
		return err
	}
	if s.a.cfg.Builtins.Admit {
		if srv, err = s.admit(ctx, srv, scan.ID); err != nil {
			return err
		}
	}
	s.record("server.register", srv)
	return nil
}

// admit approves a built-in server with the suggested rules: the explicit bootstrap action of the operator
// who set builtins.admit.
func (s *servers) admit(ctx context.Context, srv catalog.Server, scanID string) (catalog.Server, error) {
	tools, err := s.a.catalog.Tools(ctx, s.a.workspace, srv.ID)
	if err != nil {
		return srv, err
	}
	var choices []catalog.Choice
	for _, t := range tools {
		if t.Suggestion != nil {
			choices = append(choices, catalog.Choice{ToolID: t.ID, Action: t.Suggestion.Action})
		}
	}
	approved, err := s.a.catalog.Approve(ctx, s.a.workspace, srv.ID, scanID, choices, bootstrap)
	if err != nil {
		return srv, err
	}
	s.record("server.approve", approved)
	return approved, nil
}

// configFile registers the servers of an .mcp.json file under its path. A server that changed in the file
// is updated; one that is gone from it stays and is named in the log.
func (s *servers) configFile(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fault.Wrap(fault.Config, err, "cannot resolve %s", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fault.Wrap(fault.Config, err, "cannot read %s", path)
	}
	specs, err := catalog.ParseImport(b, nil)
	if err != nil {
		return fault.Wrap(fault.Config, err, "%s", path)
	}
	inFile := map[string]bool{}
	for _, spec := range specs {
		inFile[spec.Name] = true
		spec.Origin, spec.OriginPath = catalog.OriginConfig, path
		if err := s.fromFile(ctx, spec); err != nil {
			return err
		}
	}
	for _, v := range s.a.catalog.Snapshot().Servers {
		if v.Origin == catalog.OriginConfig && v.OriginPath == path && !inFile[v.Name] {
			s.a.log.Warn("server is not in its file any more; remove it if it is not wanted", "server", v.Name, "file", path)
		}
	}
	return nil
}

func (s *servers) fromFile(ctx context.Context, spec catalog.Spec) error {
	c, ws := s.a.catalog, s.a.workspace
	have, err := c.Get(ctx, ws, spec.Name)
	switch {
	case fault.Is(err, fault.NotFound):
		srv, err := c.Register(ctx, ws, spec, bootstrap)
		if err == nil {
			s.record("server.register", srv)
		}
		return err
	case err != nil:
		return err
	case have.Origin != catalog.OriginConfig || have.OriginPath != spec.OriginPath:
		s.a.log.Warn("a server of this name is registered already; the one of the file is ignored",
			"server", spec.Name, "file", spec.OriginPath, "origin", have.Origin)
		return nil
	}
	if same, err := c.ReachedLike(ctx, have.ID, spec); err != nil || same {
		return err
	}
	srv, err := c.Update(ctx, ws, have.ID, spec, bootstrap)
	if err == nil {
		s.record("server.update", srv)
	}
	return err
}

// record notes what the start changed. The writer runs only later: the rows are written by Run.
func (s *servers) record(method string, srv catalog.Server) {
	s.a.pending = append(s.a.pending, &audit.Event{
		Kind: audit.Admin, WorkspaceID: s.a.workspace, Door: "cli", Method: method, ServerID: srv.ID, Server: srv.Name,
		Reason: bootstrap + ": " + srv.State, Status: audit.OK,
	})
}
