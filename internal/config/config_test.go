package config_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the generated pages")

func load(t *testing.T, yaml string, env ...string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "doorward.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Source{File: file, Environ: append(env, "HOME=/home/u")})
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:1\nupstream:\n  parallel: 2\n  call_timeout: 90s\naudit: {max_body: 64KiB}\nallowed_hosts: [a, b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{
		File:    file,
		Environ: []string{"HOME=/home/u", "DOORWARD_UPSTREAM_PARALLEL=3", "DOORWARD_LISTEN=127.0.0.1:2", "DOORWARD_ALLOWED_ORIGINS=https://a.example, https://b.example"},
		Flags:   map[string]string{"listen": "127.0.0.1:3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:3" || c.Upstream.Parallel != 3 || c.Upstream.CallTimeout != 90*time.Second || c.Audit.MaxBody != 65536 {
		t.Errorf("wrong precedence: %+v", c)
	}
	if len(c.AllowedHosts) != 2 || len(c.AllowedOrigins) != 2 || c.AllowedOrigins[1] != "https://b.example" {
		t.Errorf("lists: %q %q", c.AllowedHosts, c.AllowedOrigins)
	}
	if c.Data != "/home/u/.local/share/doorward" {
		t.Errorf("data = %s", c.Data)
	}
}

func TestErrorsNamePlaceAndKey(t *testing.T) {
	tests := map[string]struct {
		yaml string
		env  []string
		want []string
	}{
		"unknown key":         {yaml: "listen: 127.0.0.1:1\n\nlisten_on: x\n", want: []string{"doorward.yaml:3: listen_on: no such setting"}},
		"near miss":           {yaml: "upstream:\n  paralel: 3\n", want: []string{"doorward.yaml:2: upstream.paralel: no such setting; did you mean upstream.parallel?"}},
		"twice":               {yaml: "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", want: []string{"doorward.yaml:2", "listen"}},
		"wrong type":          {yaml: "upstream:\n  parallel: many\n", want: []string{"doorward.yaml:2: upstream.parallel: \"many\" is not a whole number"}},
		"bool for text":       {yaml: "listen: true\n", want: []string{"doorward.yaml:1: listen: must be a text"}},
		"text for bool":       {yaml: "insecure_listen: \"yes please\"\n", want: []string{"doorward.yaml:1: insecure_listen: must be true or false"}},
		"too small":           {yaml: "upstream: {parallel: 0}\n", want: []string{"doorward.yaml:1: upstream.parallel: must be at least 1"}},
		"not positive":        {yaml: "approvals: {ttl: -1s}\n", want: []string{"doorward.yaml:1: approvals.ttl: must be more than 0"}},
		"enum":                {yaml: "log: {level: loud}\n", want: []string{"log.level: \"loud\" is not one of debug, info, warn, error"}},
		"list":                {yaml: "allowed_hosts: a\n", want: []string{"doorward.yaml:1: allowed_hosts: must be a list of texts"}},
		"scalar for section":  {yaml: "\nupstream: 3\n", want: []string{"doorward.yaml:2: upstream: must be a mapping"}},
		"top is a list":       {yaml: "- a\n", want: []string{"doorward.yaml:1: must be a mapping"}},
		"not yaml":            {yaml: "listen: [\n", want: []string{"doorward.yaml:", "not valid YAML"}},
		"all at once":         {yaml: "a: 1\nb: 2\n", want: []string{":1: a: no such setting", ":2: b: no such setting"}},
		"beyond loopback":     {yaml: "tls: {}\nlisten: 0.0.0.0:8420\n", want: []string{"doorward.yaml:2: listen: 0.0.0.0:8420 is reachable from other machines"}},
		"all interfaces":      {yaml: "listen: :8420\n", want: []string{"reachable from other machines"}},
		"open beyond":         {yaml: "insecure_listen: true\nopen_listen: 0.0.0.0:1\n", want: []string{"doorward.yaml:2: open_listen: 0.0.0.0:1 is reachable"}},
		"half of tls":         {yaml: "tls:\n  cert: a.pem\n", want: []string{"doorward.yaml:2: tls.cert: tls.cert and tls.key go together"}},
		"keep a day":          {yaml: "audit: {keep_days: 1}\n", want: []string{"doorward.yaml:1: audit.keep_days: must be 0 (never) or 2"}},
		"collector":           {yaml: "otlp: {endpoint: localhost:4318}\n", want: []string{"doorward.yaml:1: otlp.endpoint: must be an http or https URL"}},
		"collector's header":  {yaml: "otlp: {headers: \"A=b,no name=c\"}\n", want: []string{"doorward.yaml:1: otlp.headers: must be NAME=VALUE"}},
		"origin":              {yaml: "allowed_origins: [app.example]\n", want: []string{"doorward.yaml:1: allowed_origins: \"app.example\" is not an origin"}},
		"limit zero":          {env: []string{"AGENT_MCP_TOOL_RATE_LIMIT=0"}, want: []string{"environment AGENT_MCP_TOOL_RATE_LIMIT: must be at least 1"}},
		"limit word":          {env: []string{"AGENT_MCP_PROFILE_OPS_HOURLY_LIMIT=many"}, want: []string{"environment AGENT_MCP_PROFILE_OPS_HOURLY_LIMIT: \"many\" is not a whole number"}},
		"limit below zero":    {env: []string{"AGENT_MCP_WORKSPACE_DEPLOY_DAILY_LIMIT=-1"}, want: []string{"must be at least 1"}},
		"limit fraction":      {yaml: "limits: {workspace: {ops: 1.5}}\n", want: []string{"limits.workspace.ops: \"1.5\" is not a whole number"}},
		"env":                 {env: []string{"DOORWARD_UPSTREAM_PARALLEL=x"}, want: []string{"environment DOORWARD_UPSTREAM_PARALLEL: \"x\" is not a whole number"}},
		"env listen":          {env: []string{"DOORWARD_LISTEN=0.0.0.0:1"}, want: []string{"environment DOORWARD_LISTEN: 0.0.0.0:1 is reachable"}},
		"secret twice":        {env: []string{"DOORWARD_BOOTSTRAP_ADMIN_KEY=x", "DOORWARD_BOOTSTRAP_ADMIN_KEY_FILE=/y"}, want: []string{"DOORWARD_BOOTSTRAP_ADMIN_KEY: also set through DOORWARD_BOOTSTRAP_ADMIN_KEY_FILE"}},
		"secret file missing": {env: []string{"DOORWARD_BOOTSTRAP_ADMIN_KEY_FILE=/nowhere/y"}, want: []string{"environment DOORWARD_BOOTSTRAP_ADMIN_KEY_FILE: cannot read /nowhere/y"}},
		"yaml secret twice":   {yaml: "database: postgres://a\ndatabase_file: /x\n", want: []string{"doorward.yaml:2: database_file: database is set too"}},
		"yaml twice, swapped": {yaml: "bootstrap:\n  admin_key_file: /dev/null\n  admin_key: abc\n", want: []string{"bootstrap.admin_key_file is set too"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tt.yaml, tt.env...)
			if !fault.Is(err, fault.Config) {
				t.Fatalf("err = %v, want a fault of class config", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	for name, yaml := range map[string]string{
		"empty": "", "comment": "# nothing\n", "empty section": "upstream:\n", "loopback v6": "listen: '[::1]:0'\n", "localhost": "listen: localhost:0\n",
		"explicit": "listen: 0.0.0.0:1\ninsecure_listen: true\n", "number as size": "max_body: 4096\n",
	} {
		if _, err := load(t, yaml); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretsComeFromFilesAndStayOutOfErrors(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("dw_secret_marker_1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, "bootstrap:\n  agent_key_file: "+key+"\n", "DOORWARD_BOOTSTRAP_ADMIN_KEY_FILE="+key)
	if err != nil {
		t.Fatal(err)
	}
	if c.Bootstrap.AdminKey != "dw_secret_marker_1" || c.Bootstrap.AgentKey != "dw_secret_marker_1" {
		t.Errorf("keys = %q, %q", c.Bootstrap.AdminKey, c.Bootstrap.AgentKey)
	}
	if s := c.Secrets(); len(s) != 2 {
		t.Errorf("secrets = %q", s)
	}
	c, err = load(t, "otlp: {endpoint: 'http://h:4318/', headers: 'Authorization=Bearer marker=3, X-Team=t'}\n")
	if err != nil {
		t.Fatal(err)
	}
	if h, err := c.OTLP.HeaderMap(); err != nil || c.OTLP.URL() != "http://h:4318/v1/logs" || h["Authorization"] != "Bearer marker=3" || h["X-Team"] != "t" ||
		!slices.Contains(c.Secrets(), "marker=3") {
		t.Errorf("%v %v %q", err, h, c.Secrets())
	}
	_, err = load(t, "database: mysql://u:marker_2@h/d\n")
	if err == nil || strings.Contains(err.Error(), "marker_2") {
		t.Errorf("err = %v", err)
	}
}

func TestUnknownVariables(t *testing.T) {
	c, err := load(t, "", "DOORWARD_LISTN=x", "DOORWARD_KEY=k", "DOORWARD_SERVICE_HOST=1.2.3.4", "DOORWARD_PORT_8420_TCP=tcp://x", "OTHER=1")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.UnknownVariables(); len(got) != 1 || got[0] != "DOORWARD_LISTN" {
		t.Errorf("unknown = %q", got)
	}
}

// The published schema and the reference page are generated; this fails when they are stale.
func TestPublished(t *testing.T) {
	if !json.Valid(config.Schema()) {
		t.Fatal("the schema is not JSON")
	}
	golden(t, "../../docs/config.schema.json", func(string) string { return string(config.Schema()) })
	golden(t, "../../docs/configuration.md", func(old string) string {
		const begin, end = "<!-- generated: settings -->\n", "<!-- end -->"
		head, rest, ok := strings.Cut(old, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatal("configuration.md has lost its marks")
		}
		return head + begin + config.Reference() + end + tail
	})
}

func golden(t *testing.T, path string, make func(old string) string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := make(string(old))
	if string(old) == want {
		return
	}
	if !*update {
		t.Fatalf("%s is stale: run go test ./internal/config -update", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{"listen: 127.0.0.1:1\n", "upstream: {parallel: 3}\n", "a: &x [*x]\n", "? {a: b}\n: c\n", "database_file: /\n", "<<: {listen: a}\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, yaml string) {
		if _, err := load(t, yaml); err != nil && !fault.Is(err, fault.Config) {
			t.Errorf("err = %T %v", err, err)
		}
	})
}

// Every limit of SC-77 and SC-80 has its default and is set by its own variable, and by no other.
func TestLimits(t *testing.T) {
	for _, l := range []struct {
		name string
		def  int
		get  func(config.Limits) int
	}{
		{"AGENT_MCP_TOOL_RATE_LIMIT", 50, func(l config.Limits) int { return l.Task }},
		{"AGENT_MCP_WORKSPACE_OPS_DAILY_LIMIT", 100, func(l config.Limits) int { return l.Workspace.Ops }},
		{"AGENT_MCP_WORKSPACE_DEPLOY_DAILY_LIMIT", 20, func(l config.Limits) int { return l.Workspace.Deploy }},
		{"AGENT_MCP_WORKSPACE_PROPOSAL_DAILY_LIMIT", 10, func(l config.Limits) int { return l.Workspace.Proposals }},
		{"AGENT_MCP_WORKSPACE_TASK_SPAWN_DAILY_LIMIT", 3, func(l config.Limits) int { return l.Workspace.Spawns }},
		{"AGENT_MCP_PROFILE_OPS_HOURLY_LIMIT", 30, func(l config.Limits) int { return l.Profile.Ops }},
		{"AGENT_MCP_PROFILE_DEPLOY_HOURLY_LIMIT", 10, func(l config.Limits) int { return l.Profile.Deploy }},
		{"AGENT_MCP_PROFILE_PROPOSAL_HOURLY_LIMIT", 10, func(l config.Limits) int { return l.Profile.Proposals }},
		{"AGENT_MCP_PROFILE_TASK_SPAWN_HOURLY_LIMIT", 3, func(l config.Limits) int { return l.Profile.Spawns }},
	} {
		plain, err := load(t, "")
		if err != nil || l.get(plain.Limits) != l.def {
			t.Errorf("%s: default %d, %v", l.name, l.get(plain.Limits), err)
		}
		set, err := load(t, "", l.name+"=7")
		if err != nil || l.get(set.Limits) != 7 {
			t.Fatalf("%s=7: %v", l.name, err)
		}
		if sum := func(l config.Limits) int {
			w, p := l.Workspace, l.Profile
			return l.Task + w.Ops + w.Deploy + w.Proposals + w.Spawns + p.Ops + p.Deploy + p.Proposals + p.Spawns
		}; sum(set.Limits)-sum(plain.Limits) != 7-l.def {
			t.Errorf("%s sets more than one limit", l.name)
		}
	}
}
