package cli

import (
	"fmt"

	"doorward.dev/doorward/internal/auth"
)

const workspacesPath = "/api/v1/workspaces"

type workspaceCmd struct {
	Add  workspaceAddCmd  `cmd:"" help:"Create a workspace; its owner's key is shown once. Owners of the first workspace only."`
	List workspaceListCmd `cmd:"" help:"List all workspaces."`
}

type workspaceAddCmd struct {
	Slug  string `arg:"" help:"Short name: a-z, 0-9 and -."`
	Name  string `help:"Name for people." placeholder:"TEXT"`
	Owner string `help:"Name of its first owner." default:"owner" placeholder:"NAME"`
}

func (c *workspaceAddCmd) Run(e *env) error {
	in := map[string]string{"slug": c.Slug, "name": c.Name, "owner": c.Owner}
	type made struct {
		auth.Workspace
		Key string `json:"key"`
	}
	return ask(e, "POST", workspacesPath, in, func(w made) {
		e.print("workspace_added", w.Slug, c.Owner)
		fmt.Fprintln(e.stdout, e.say("key_once", w.Key))
	})
}

type workspaceListCmd struct{}

func (workspaceListCmd) Run(e *env) error {
	type list struct{ Workspaces []auth.Workspace }
	return ask(e, "GET", workspacesPath, nil, func(l list) {
		rows := [][]string{{"SLUG", "NAME", "CREATED", "ID"}}
		for _, w := range l.Workspaces {
			rows = append(rows, []string{w.Slug, oneLine(w.Name, 60), moment(w.CreatedAt), w.ID})
		}
		e.table(rows)
	})
}
