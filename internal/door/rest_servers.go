package door

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/upstream"
)

// serverInfo is a server as REST shows it.
type serverInfo struct {
	catalog.Server
	ProxyEndpoint string           `json:"proxy_endpoint"`
	ToolCount     int              `json:"tool_count"`
	WaitingCount  int              `json:"waiting_count"` // not admitted or changed
	ETag          string           `json:"etag"`
	Health        upstream.Health  `json:"health"`
	LastError     string           `json:"last_error,omitempty"`
	Spec          *catalog.Spec    `json:"spec,omitempty"`       // secrets masked
	Connection    *upstream.Status `json:"connection,omitempty"` // with the tail of what a child printed
}

// info gathers what is known of a server from memory.
func (d *Door) info(s catalog.Server) serverInfo {
	out := serverInfo{Server: s, ProxyEndpoint: strings.TrimSuffix(d.d.PublicURL, "/") + "/api/v1/mcp/proxy/" + s.ID, ETag: s.Tag(), Health: upstream.Disabled}
	if v := d.d.Catalog.Snapshot().Servers[s.ID]; v != nil {
		out.ToolCount = len(v.Tools)
		for _, t := range v.Tools {
			if t.Admission != "admitted" {
				out.WaitingCount++
			}
		}
	}
	if st, ok := d.d.Upstream.Status(s.ID); ok {
		out.Health, out.LastError = st.Health, st.LastError
	}
	return out
}

// server finds the server of the path by id or name and names it in the record.
func (d *Door) server(c *restCall) (catalog.Server, error) {
	s, err := d.d.Catalog.Get(c.Context(), c.caller.WorkspaceID, c.PathValue("id"))
	if err == nil {
		c.row.ServerID, c.row.Server = s.ID, s.Name
	}
	return s, err
}

func (d *Door) listServers(c *restCall) (any, error) {
	list, err := d.d.Catalog.List(c.Context(), c.caller.WorkspaceID)
	if err != nil {
		return nil, err
	}
	list, next, err := pageOf(c, list, func(s catalog.Server) string { return s.Name })
	if err != nil {
		return nil, err
	}
	out := make([]serverInfo, 0, len(list))
	for _, s := range list {
		out = append(out, d.info(s))
	}
	return serverList{out, next}, nil
}

func (d *Door) showServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	spec, err := d.d.Catalog.Masked(c.Context(), c.caller.WorkspaceID, s.ID)
	if err != nil {
		return nil, err
	}
	out := d.info(s)
	out.Spec = &spec
	if st, ok := d.d.Upstream.Status(s.ID); ok {
		out.Connection = &st
	}
	return c.tagged(out, out.ETag), nil
}

type registerInput struct {
	catalog.Spec
	IsProxied *bool `json:"is_proxied"`
}

func (d *Door) registerServer(c *restCall) (any, error) {
	var in registerInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.IsProxied != nil && !*in.IsProxied {
		return nil, fault.New(fault.InvalidParams, "is_proxied must be true: every call goes through Doorward").Why("mcp_server_invalid")
	}
	s, err := d.d.Catalog.Register(c.Context(), c.caller.WorkspaceID, in.Spec, c.by())
	if err != nil {
		return nil, err
	}
	c.row.ServerID, c.row.Server, c.status = s.ID, s.Name, http.StatusCreated
	return d.info(s), nil
}

// by names the person for the catalogue.
func (c *restCall) by() string {
	if c.caller.PersonName != "" {
		return c.caller.PersonName
	}
	return c.caller.PersonID
}

// importServers registers the servers of a client's configuration file, which is the body. Those whose name is
// taken are skipped and named; nothing is started.
func (d *Door) importServers(c *restCall) (any, error) {
	var raw json.RawMessage
	if err := c.decode(&raw); err != nil {
		return nil, err
	}
	specs, err := catalog.ParseImport(raw, nil)
	if err != nil {
		return nil, err
	}
	added, left := []serverInfo{}, []skippedServer{}
	for _, spec := range specs {
		s, err := d.d.Catalog.Register(c.Context(), c.caller.WorkspaceID, spec, c.by())
		var f *fault.Error
		switch {
		case err == nil:
			added = append(added, d.info(s))
		case errors.As(err, &f) && (f.Class == fault.Conflict || f.Class == fault.InvalidParams):
			left = append(left, skippedServer{spec.Name, f.Message})
		default:
			return nil, err
		}
	}
	if len(added) > 0 {
		c.status = http.StatusCreated
	}
	return serverImport{added, left}, nil
}

type updateInput struct {
	*catalog.Spec
	// Maps are replaced as a whole: decoding into the stored ones would merge.
	Env     *map[string]string `json:"env"`
	Headers *map[string]string `json:"headers"`
	Args    *[]string          `json:"args"`
	Status  string             `json:"status"`
}

// updateServer changes the given fields; a masked secret keeps what is stored.
func (d *Door) updateServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	spec, err := d.d.Catalog.Masked(c.Context(), c.caller.WorkspaceID, s.ID)
	if err != nil {
		return nil, err
	}
	in := updateInput{Spec: &spec}
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.Env != nil {
		spec.Env = *in.Env
	}
	if in.Headers != nil {
		spec.Headers = *in.Headers
	}
	if in.Args != nil {
		spec.Args = *in.Args
	}
	switch {
	case in.Status == "" || in.Status == s.State:
	case in.Status == catalog.StatePaused && s.State == catalog.StateActive:
		return d.pauseServer(c)
	case in.Status == catalog.StateActive && s.State == catalog.StatePaused:
		return d.resumeServer(c)
	default:
		return nil, fault.New(fault.Conflict, "a server that is %s cannot become %s this way; use approve, pause or resume", s.State, clip(in.Status, 40)).Why("mcp_status_invalid")
	}
	if s, err = d.d.Catalog.Update(c.Context(), c.caller.WorkspaceID, s.ID, spec, c.by()); err != nil {
		return nil, err
	}
	return c.tagged(d.info(s), s.Tag()), nil
}

func (d *Door) removeServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	if err := d.d.Catalog.Remove(c.Context(), c.caller.WorkspaceID, s.ID); err != nil {
		return nil, err
	}
	n, err := d.d.Gate.Withdraw(c.Context(), c.caller.WorkspaceID, s.ID, "", "the server was removed")
	return serverRemoved{s.ID, n}, err
}

// scanServer answers when the scan is done. A server that cannot be listed is a result, not an error.
func (d *Door) scanServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	res, err := d.d.Scan(c.Context(), &s)
	if err != nil {
		return nil, err
	}
	if res.Status != "ok" {
		c.row.Reason = "scan failed"
	}
	return res, nil
}

type approveInput struct {
	Tools  []catalog.Choice `json:"tools"`
	ScanID string           `json:"scan_id"`
}

func (d *Door) approveServer(c *restCall) (any, error) {
	var in approveInput
	s, err := d.server(c)
	if err == nil {
		err = c.decode(&in)
	}
	if err != nil {
		return nil, err
	}
	if s, err = d.d.Catalog.Approve(c.Context(), c.caller.WorkspaceID, s.ID, in.ScanID, in.Tools, c.by()); err != nil {
		return nil, err
	}
	tools, err := d.d.Catalog.Tools(c.Context(), c.caller.WorkspaceID, s.ID)
	return serverApproved{d.info(s), tools}, err
}

func (d *Door) pauseServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	if s, err = d.d.Catalog.Pause(c.Context(), c.caller.WorkspaceID, s.ID, c.by()); err != nil {
		return nil, err
	}
	_, err = d.d.Gate.Withdraw(c.Context(), c.caller.WorkspaceID, s.ID, "", "the server was paused")
	return d.info(s), err
}

func (d *Door) resumeServer(c *restCall) (any, error) {
	s, err := d.server(c)
	if err != nil {
		return nil, err
	}
	if s, err = d.d.Catalog.Resume(c.Context(), c.caller.WorkspaceID, s.ID, c.by()); err != nil {
		return nil, err
	}
	return d.info(s), nil
}
