package cli

import (
	"fmt"
	"os"
	"strings"

	"doorward.dev/doorward/internal/app"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/door"
	"doorward.dev/doorward/internal/fault"
)

type serveCmd struct {
	Config         string  `help:"YAML file with the settings." env:"DOORWARD_CONFIG" placeholder:"FILE"`
	Data           *string `help:"Data folder." placeholder:"DIR"`
	Listen         *string `help:"Address to serve on, default 127.0.0.1:8420." placeholder:"ADDR"`
	Database       *string `help:"PostgreSQL URL; without it SQLite in the data folder." placeholder:"URL"`
	MCPConfig      *string `name:"mcp-config" help:"Register the servers of an .mcp.json file." placeholder:"FILE"`
	InsecureListen *bool   `help:"Allow to listen beyond loopback without TLS."`
	CheckConfig    bool    `help:"Check the settings and end."`
}

func (s *serveCmd) load() (*config.Config, error) {
	flags := map[string]string{}
	for key, v := range map[string]*string{"data": s.Data, "listen": s.Listen, "database": s.Database, "mcp_config": s.MCPConfig} {
		if v != nil {
			flags[key] = *v
		}
	}
	if s.InsecureListen != nil {
		flags["insecure_listen"] = fmt.Sprint(*s.InsecureListen)
	}
	return config.Load(config.Source{File: s.Config, Environ: os.Environ(), Flags: flags})
}

func (s *serveCmd) Run(e *env) error {
	cfg, err := s.load()
	if err != nil {
		return err
	}
	if s.CheckConfig {
		e.print("config_ok")
		return nil
	}
	log := app.NewLogger(e.stderr, cfg.Log)
	a, err := app.New(e.ctx, cfg, log, func(k app.Keys) { e.showKeys(k, cfg.Bootstrap) })
	if err != nil {
		return err
	}
	return a.Run(e.ctx, func() { fmt.Fprintln(e.stdout, e.say("serving", a.PublicURL())) })
}

// showKeys prints the keys of the first start. Those that were given are not repeated: they are known, and the
// output may be kept by a log.
func (e *env) showKeys(k app.Keys, given config.Bootstrap) {
	show := func(made, given string) string {
		if given != "" {
			return e.say("key_given")
		}
		return made
	}
	fmt.Fprintln(e.stdout, e.say("first_start"))
	fmt.Fprintln(e.stdout, e.say("owner_key", show(k.Admin, given.AdminKey)))
	fmt.Fprintln(e.stdout, e.say("agent_key", show(k.Agent, given.AgentKey)))
}

type versionCmd struct{}

func (versionCmd) Run(e *env) error {
	_, err := fmt.Fprintln(e.stdout, version)
	return err
}

type configCheckCmd struct {
	File string `arg:"" optional:"" help:"YAML file with the settings." env:"DOORWARD_CONFIG"`
}

func (c *configCheckCmd) Run(e *env) error {
	cfg, err := config.Load(config.Source{File: c.File, Environ: os.Environ()})
	if err != nil {
		return err
	}
	for _, name := range cfg.UnknownVariables() {
		return fault.New(fault.Config, "environment variable %s is not a setting", name)
	}
	e.print("config_ok")
	return nil
}

type configSchemaCmd struct{}

func (configSchemaCmd) Run(e *env) error {
	_, err := e.stdout.Write(config.Schema())
	return err
}

type stdioCmd struct {
	Server string `help:"Only the tools of this server, by their own names." placeholder:"NAME"`
}

// Run speaks MCP on standard input and output, so nothing else may be printed there.
func (s *stdioCmd) Run(e *env) error {
	k, err := key()
	if err != nil {
		return err
	}
	path := "/mcp"
	if s.Server != "" {
		if strings.ContainsAny(s.Server, "/?#%") {
			return fault.New(fault.InvalidParams, "%q is not the name of a server", s.Server)
		}
		path += "/" + s.Server
	}
	err = door.ProxyStdio(e.ctx, e.url+path, k, e.stdin, e.stdout)
	if e.ctx.Err() != nil {
		return nil
	}
	return err
}
