package door

import (
	"net/http"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesWorkspaces are for whoever runs the installation: the owners of the first workspace.
func routesWorkspaces() []route {
	const p = "/api/v1/workspaces"
	return []route{
		operation("GET", p, auth.Owner, "workspace.list", (*Door).listWorkspaces, "List all workspaces; owners of the first one only"),
		operation("POST", p, auth.Owner, "workspace.create", (*Door).createWorkspace, "Create a workspace with an owner, whose key is shown once; owners of the first one only"),
	}
}

// installation refuses whoever is no owner of the first workspace; the role was looked at before.
func (d *Door) installation(c *restCall, what string) error {
	first, err := d.d.Auth.FirstWorkspace(c.Context())
	if err != nil {
		return err
	}
	if first != c.caller.WorkspaceID {
		return fault.New(fault.Forbidden, "%s; an owner of the first workspace must do this", what).Why("INSUFFICIENT_PERMISSIONS")
	}
	return nil
}

type workspaceList struct {
	Workspaces []auth.Workspace `json:"workspaces"`
}

func (d *Door) listWorkspaces(c *restCall) (any, error) {
	if err := d.installation(c, "workspaces do not see each other"); err != nil {
		return nil, err
	}
	list, err := d.d.Auth.Workspaces(c.Context())
	if err != nil {
		return nil, err
	}
	return workspaceList{list}, nil
}

type workspaceInput struct {
	Slug  string `json:"slug"`
	Name  string `json:"name"`
	Owner string `json:"owner"` // name of the first owner, default owner
}

type workspaceCreated struct {
	auth.Workspace
	OwnerID string `json:"owner_id"`
	Key     string `json:"key"` // of the owner, shown this once
}

func (d *Door) createWorkspace(c *restCall) (any, error) {
	var in workspaceInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if err := d.installation(c, "workspaces do not make each other"); err != nil {
		return nil, err
	}
	w, owner, key, err := d.d.Auth.CreateWorkspace(c.Context(), in.Slug, in.Name, in.Owner)
	if err != nil {
		return nil, err
	}
	c.target("workspace", w.ID, w.Slug)
	c.status = http.StatusCreated
	return workspaceCreated{w, owner.ID, key}, nil
}
