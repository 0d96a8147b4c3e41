package cli

import (
	"doorward.dev/doorward/internal/app"
)

type demoCmd struct {
	Exit   bool   `help:"End after the walk instead of serving on."`
	Listen string `help:"Address to serve on." default:"127.0.0.1:8420" placeholder:"ADDR"`
}

func (d *demoCmd) Run(e *env) error {
	return app.Demo(e.ctx, app.DemoOptions{Out: e.stdout, Log: e.stderr, Listen: d.Listen, Exit: d.Exit})
}

// demoUpstreamCmd is the server behind the demo's door; the demo starts it as a child.
type demoUpstreamCmd struct {
	State string `required:""`
}

func (d *demoUpstreamCmd) Run(e *env) error {
	return app.DemoUpstream(e.ctx, d.State, e.stdin, e.stdout)
}
