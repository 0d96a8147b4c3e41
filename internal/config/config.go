// Package config owns the settings of Doorward: one typed struct, read from one strict YAML file, the
// environment and command line flags, in this order of precedence from weak to strong. The JSON Schema and
// the reference page are made from the same struct. It opens nothing but the files it is told to read.
package config

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Size is a number of bytes, written as a number or as "64KiB", "16MiB", "1GiB", "10MB".
type Size int64

// Config is every setting. The yaml tag is the key, doc the line in the reference; secret settings also
// have a twin <key>_file (environment: NAME_FILE) that names a file holding the value.
type Config struct {
	Data           string        `yaml:"data" doc:"Folder of the database, the sealing key and nothing else. Default: $XDG_DATA_HOME/doorward or ~/.local/share/doorward."`
	Database       string        `yaml:"database" secret:"true" doc:"PostgreSQL URL (postgres://…). Empty: SQLite, file doorward.db in the data folder."`
	Listen         string        `yaml:"listen" doc:"Address to serve on, host:port. Beyond loopback it needs TLS or insecure_listen."`
	InsecureListen bool          `yaml:"insecure_listen" doc:"Serve without TLS beyond loopback, for example behind a proxy that does TLS."`
	PublicURL      string        `yaml:"public_url" doc:"Address under which callers reach Doorward, such as https://doorward.example. Empty: derived from listen."`
	OpenListen     string        `yaml:"open_listen" doc:"A second, loopback-only address that asks for no key: every caller is the agent open_agent. For tests. Empty: off."`
	OpenAgent      string        `yaml:"open_agent" doc:"Name of the agent that callers of open_listen act as."`
	MCPConfig      string        `yaml:"mcp_config" doc:"An .mcp.json file whose servers are registered at start, waiting for approval."`
	AllowedHosts   []string      `yaml:"allowed_hosts" doc:"Host names, beside the loopback ones, that a loopback listener answers to (DNS rebinding)."`
	AllowedOrigins []string      `yaml:"allowed_origins" doc:"Origins whose web pages may call, such as https://app.example, beside Doorward's own."`
	MaxBody        Size          `yaml:"max_body" min:"1024" doc:"Largest body of a request from a caller."`
	MaxMessage     Size          `yaml:"max_message" min:"1024" doc:"Largest message of a server behind Doorward."`
	ShutdownGrace  time.Duration `yaml:"shutdown_grace" min:"0" doc:"How long running calls may go on after SIGTERM before they are cancelled."`
	TLS            TLS           `yaml:"tls" doc:"Certificate of the listener."`
	OIDC           OIDC          `yaml:"oidc" doc:"Sign-in of people with an OpenID Connect provider."`
	OAuth          OAuth         `yaml:"oauth" doc:"Doorward as an OAuth protected resource for MCP clients."`
	Bootstrap      Bootstrap     `yaml:"bootstrap" doc:"Keys of the first start, for automation. Later starts ignore them."`
	Upstream       Upstream      `yaml:"upstream" doc:"Connections to the servers behind Doorward."`
	Approvals      Approvals     `yaml:"approvals" doc:"Held calls."`
	Confirmation   Confirmation  `yaml:"confirmation" doc:"The two-step confirmation of calls."`
	Limits         Limits        `yaml:"limits" doc:"How many calls may run. Each number has its own variable."`
	Audit          Audit         `yaml:"audit" doc:"The record."`
	OTLP           OTLP          `yaml:"otlp" doc:"Export of the record to a collector of OpenTelemetry."`
	Builtins       Builtins      `yaml:"builtins" doc:"The servers inside the binary."`
	Log            Log           `yaml:"log" doc:"Log on standard error."`
	GC             GC            `yaml:"gc" doc:"Memory."`

	origins map[string]string // key -> where its value came from, for messages
	unknown []string
}

// UnknownVariables are the DOORWARD_ variables of the environment that no setting has: most likely mistyped.
func (c *Config) UnknownVariables() []string { return c.unknown }

// TLS is the certificate of the listener.
type TLS struct {
	Cert string `yaml:"cert" doc:"File with the certificate chain, PEM."`
	Key  string `yaml:"key" doc:"File with the private key, PEM."`
}

// OIDC is the provider that people sign in with.
type OIDC struct {
	Issuer         string   `yaml:"issuer" doc:"Issuer URL of the provider, exactly as it names itself. Empty: no sign-in with a provider."`
	ClientID       string   `yaml:"client_id" doc:"Client id that the provider gave Doorward; the redirect URI to register is <public_url>/api/v1/signin/oidc/callback."`
	ClientSecret   string   `yaml:"client_secret" secret:"true" doc:"Client secret that the provider gave Doorward. Empty: a public client, PKCE alone."`
	Scopes         []string `yaml:"scopes" doc:"Scopes to ask for; openid must be one of them."`
	Workspace      string   `yaml:"workspace" doc:"Slug of the workspace that people sign in to."`
	RoleClaim      string   `yaml:"role_claim" doc:"Claim that decides a person's role at each sign-in, such as groups. Empty: roles are set in Doorward."`
	Roles          []string `yaml:"roles" doc:"Roles of the claim's values, each as VALUE=ROLE; the highest counts."`
	AllowedDomains []string `yaml:"allowed_domains" doc:"Domains of verified e-mail addresses that may sign in. Empty: all."`
	CreatePeople   bool     `yaml:"create_people" doc:"Make a person at the first sign-in. Without it an admin has to invite."`
	DefaultRole    string   `yaml:"default_role" enum:"viewer,editor,admin" doc:"Role of people who are made, and of those whose claim has no value of roles."`
}

// OAuth is whose access tokens are accepted.
type OAuth struct {
	Issuers   []string `yaml:"issuers" doc:"Issuer URLs of the authorization servers whose access tokens (JWT) are accepted. Empty: none."`
	Audience  string   `yaml:"audience" doc:"Audience that a token must name. Empty: <public_url>/mcp."`
	ReadScope string   `yaml:"read_scope" doc:"Scope for lists, prompts, resources and tools of class read."`
	CallScope string   `yaml:"call_scope" doc:"Scope for all tools."`
}

// Bootstrap is what the first start takes its keys from.
type Bootstrap struct {
	AdminKey string `yaml:"admin_key" secret:"true" doc:"Key of the owner. Empty: a new one is made and printed once."`
	AgentKey string `yaml:"agent_key" secret:"true" doc:"Key of the agent \"default\". Empty: a new one is made and printed once."`
}

// Upstream bounds the connections to servers.
type Upstream struct {
	Parallel       int           `yaml:"parallel" min:"1" doc:"How many servers are connected at the same time."`
	ConnectTimeout time.Duration `yaml:"connect_timeout" min:"1" doc:"Time for start, handshake and first listing of a server."`
	CallTimeout    time.Duration `yaml:"call_timeout" min:"1" doc:"Longest time of one call."`
	KillGrace      time.Duration `yaml:"kill_grace" min:"1" doc:"Time between SIGTERM and SIGKILL of a child process."`
}

// Approvals bounds held calls.
type Approvals struct {
	TTL  time.Duration `yaml:"ttl" min:"1" doc:"How long a held call waits for a person before it expires."`
	Hold time.Duration `yaml:"hold" min:"0" doc:"How long a caller that sent a progress token is kept on the line."`

	DecideRole    string          `yaml:"decide_role" enum:"editor,admin,owner" doc:"Least role of a person who decides about held calls."`
	EscalateAfter time.Duration   `yaml:"escalate_after" min:"0" doc:"After this time without a decision a held call is marked escalated and escalate_role is told. It must be shorter than ttl. 0: never."`
	EscalateRole  string          `yaml:"escalate_role" enum:"editor,admin,owner" doc:"Role that a held call is escalated to; not lower than decide_role."`
	Webhook       ApprovalWebhook `yaml:"webhook" doc:"Address that is told what happens to held calls."`
	Email         ApprovalEmail   `yaml:"email" doc:"Mail about held calls."`
}

// ApprovalWebhook is an address that events of approvals are posted to.
type ApprovalWebhook struct {
	URL           string   `yaml:"url" secret:"true" doc:"Address that every event is posted to as JSON, signed with secret. Empty: off."`
	EscalationURL string   `yaml:"escalation_url" secret:"true" doc:"A second address that is told of escalations. Empty: off."`
	Secret        string   `yaml:"secret" secret:"true" doc:"Key of the HMAC in the header Doorward-Signature, 32 characters or more."`
	Events        []string `yaml:"events" doc:"Events that url is told of: approval.created, approval.decided, approval.escalated, approval.expired. Empty: all."`
	Arguments     bool     `yaml:"arguments" doc:"Whether events have the arguments of the call, without known secrets."`
}

// ApprovalEmail is where mails about approvals go.
type ApprovalEmail struct {
	SMTP         string   `yaml:"smtp" doc:"Mail server, host:port; port 465 speaks TLS from the start. Empty: off."`
	StartTLS     bool     `yaml:"starttls" doc:"Refuse a mail server that does not offer STARTTLS."`
	Username     string   `yaml:"username" doc:"Name to sign in to the mail server with. Empty: no sign-in."`
	Password     string   `yaml:"password" secret:"true" doc:"Password to sign in with; it is sent over TLS or to this machine only."`
	From         string   `yaml:"from" doc:"Sender of the mails."`
	To           []string `yaml:"to" doc:"Receivers of the mails, addresses."`
	EscalationTo []string `yaml:"escalation_to" doc:"Further receivers of escalations."`
	Events       []string `yaml:"events" doc:"Events that the receivers are told of; see webhook.events."`
}

// Confirmation is what its tokens are signed with (SC-86).
type Confirmation struct {
	Secret   string `yaml:"secret" secret:"true" env:"SUPACLOUD_MCP_CONFIRMATION_SECRET" doc:"Signs the tokens of the two-step confirmation, at least 32 bytes. Empty or shorter: calls that need confirmation are refused."`
	Previous string `yaml:"previous" secret:"true" env:"SUPACLOUD_MCP_CONFIRMATION_SECRET_PREVIOUS" doc:"The secret before, while it is being replaced: its tokens are accepted, none is signed with it."`
}

// Limits are how many calls may run, by the tier of the tool.
type Limits struct {
	Task      int       `yaml:"task" env:"AGENT_MCP_TOOL_RATE_LIMIT" min:"1" doc:"Calls of one task to tools of the tiers baseline and read, together."`
	Workspace Workspace `yaml:"workspace" doc:"Calls of the workspace on a calendar day (UTC)."`
	Profile   Profile   `yaml:"profile" doc:"Calls of one agent in the last 60 minutes."`
}

// Workspace are the limits of a day.
type Workspace struct {
	Ops       int `yaml:"ops" env:"AGENT_MCP_WORKSPACE_OPS_DAILY_LIMIT" min:"1" doc:"Tools of the tiers ops and script_run, a day."`
	Deploy    int `yaml:"deploy" env:"AGENT_MCP_WORKSPACE_DEPLOY_DAILY_LIMIT" min:"1" doc:"Tools of the tier deploy, a day."`
	Proposals int `yaml:"proposals" env:"AGENT_MCP_WORKSPACE_PROPOSAL_DAILY_LIMIT" min:"1" doc:"Tools of the tier scaffold_proposal, a day."`
	Spawns    int `yaml:"spawns" env:"AGENT_MCP_WORKSPACE_TASK_SPAWN_DAILY_LIMIT" min:"1" doc:"Tools of the tier scaffold_task, a day."`
}

// Profile are the limits of an hour.
type Profile struct {
	Ops       int `yaml:"ops" env:"AGENT_MCP_PROFILE_OPS_HOURLY_LIMIT" min:"1" doc:"Tools of the tiers ops and script_run, an hour."`
	Deploy    int `yaml:"deploy" env:"AGENT_MCP_PROFILE_DEPLOY_HOURLY_LIMIT" min:"1" doc:"Tools of the tier deploy, an hour."`
	Proposals int `yaml:"proposals" env:"AGENT_MCP_PROFILE_PROPOSAL_HOURLY_LIMIT" min:"1" doc:"Tools of the tier scaffold_proposal, an hour."`
	Spawns    int `yaml:"spawns" env:"AGENT_MCP_PROFILE_TASK_SPAWN_HOURLY_LIMIT" min:"1" doc:"Tools of the tier scaffold_task, an hour."`
}

// Audit tunes the record.
type Audit struct {
	MaxBody   Size          `yaml:"max_body" min:"0" doc:"Largest body of arguments or result kept whole; of a larger one an excerpt is kept. Digest and size are always kept."`
	PowerSafe bool          `yaml:"power_safe" doc:"Every row survives loss of power before the answer leaves, not only the intents of calls with side effects."`
	Linger    time.Duration `yaml:"linger" min:"0" doc:"How long the writer waits for company under load. Alone it commits at once."`

	CheckpointEvery time.Duration `yaml:"checkpoint_every" min:"1" doc:"How often new rows are signed. Many rows, or a stop, are signed earlier."`
	KeepDays        int           `yaml:"keep_days" min:"0" doc:"Rows older than so many days are removed up to a signed checkpoint, as by doorward audit prune. 0: never."`
	AnchorFile      string        `yaml:"anchor_file" doc:"File that every checkpoint is added to as a line of JSON, best on another disk. Empty: off."`
	AnchorURL       string        `yaml:"anchor_url" doc:"Webhook that every checkpoint is posted to, signed with anchor_secret. Empty: off."`
	AnchorSecret    string        `yaml:"anchor_secret" secret:"true" doc:"Key of the HMAC in the header Doorward-Signature of anchor_url."`
}

// OTLP is the collector that gets the rows of the record, without bodies.
type OTLP struct {
	Endpoint string `yaml:"endpoint" doc:"Base URL of a collector that speaks OTLP over HTTP (protobuf), such as http://localhost:4318; /v1/logs is added. Empty: off."`
	Headers  string `yaml:"headers" secret:"true" doc:"Headers of each request to the collector, as NAME=VALUE separated by commas."`
}

// URL is where logs go.
func (o OTLP) URL() string { return strings.TrimRight(o.Endpoint, "/") + "/v1/logs" }

var (
	secretHeader = regexp.MustCompile(`(?i)auth|key|token|secret|cookie`)
	headerName   = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
)

// HeaderMap are the headers by name.
func (o OTLP) HeaderMap() (map[string]string, error) {
	out := map[string]string{}
	for item := range strings.SplitSeq(o.Headers, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, found := strings.Cut(item, "=")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !found || !headerName.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, errors.New("must be NAME=VALUE, separated by commas") // without the value: it is a secret
		}
		out[name] = value
	}
	return out, nil
}

// Builtins are the servers inside the binary.
type Builtins struct {
	Admit      bool       `yaml:"admit" doc:"Approve built-in servers with their suggested rules when they are first created, recorded as done by \"bootstrap\"."`
	Filesystem Filesystem `yaml:"filesystem" doc:"The server filesystem: read_file, list_directory."`
	Host       Host       `yaml:"host" doc:"The server host: get_system_stats."`
}

// Filesystem is the built-in server for reading files.
type Filesystem struct {
	Root string `yaml:"root" doc:"Folder that may be read. Empty: the server does not exist."`
}

// Host is the built-in server for machine statistics.
type Host struct {
	Enabled bool `yaml:"enabled" doc:"Whether the server exists."`
}

// Log tunes the log.
type Log struct {
	Level  string `yaml:"level" enum:"debug,info,warn,error" doc:"Least level that is written."`
	Format string `yaml:"format" enum:"text,json" doc:"Form of a line."`
}

// GC tunes memory.
type GC struct {
	HeapFloor Size `yaml:"heap_floor" min:"0" doc:"The collector does not run before the heap has this size; 0 leaves Go's own pacing. GOGC and GOMEMLIMIT in the environment win."`
}

// Default is the configuration without file, environment and flags. env is the environment.
func Default(env func(string) string) Config {
	return Config{
		Data:          defaultData(env),
		Listen:        "127.0.0.1:8420",
		OpenAgent:     "default",
		MaxBody:       16 << 20,
		MaxMessage:    16 << 20,
		ShutdownGrace: 10 * time.Second,
		OIDC:          OIDC{Scopes: []string{"openid", "email", "profile"}, Workspace: "default", DefaultRole: "viewer"},
		OAuth:         OAuth{ReadScope: "tools:read", CallScope: "tools:call"},
		Upstream:      Upstream{Parallel: 8, ConnectTimeout: 20 * time.Second, CallTimeout: 10 * time.Minute, KillGrace: 3 * time.Second},
		Approvals: Approvals{
			TTL: 30 * time.Minute, Hold: 50 * time.Second, DecideRole: "admin", EscalateRole: "owner",
			Email: ApprovalEmail{StartTLS: true, Events: []string{"approval.created", "approval.escalated"}},
		},
		Limits: Limits{
			Task:      50,
			Workspace: Workspace{Ops: 100, Deploy: 20, Proposals: 10, Spawns: 3},
			Profile:   Profile{Ops: 30, Deploy: 10, Proposals: 10, Spawns: 3},
		},
		Audit:    Audit{MaxBody: 32 << 10, Linger: 2 * time.Millisecond, CheckpointEvery: 30 * time.Second},
		Builtins: Builtins{Host: Host{Enabled: true}},
		Log:      Log{Level: "info", Format: "text"},
		GC:       GC{HeapFloor: 32 << 20},
	}
}

func defaultData(env func(string) string) string {
	if dir := env("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "doorward")
	}
	home := env("HOME")
	if home == "" {
		home, _ = os.UserHomeDir()
	}
	return filepath.Join(home, ".local", "share", "doorward")
}

// Secrets are the values that must never be shown, for the redactor.
func (c *Config) Secrets() []string {
	var out []string
	for _, f := range fields(c) {
		if f.secret && f.value.String() != "" {
			out = append(out, f.value.String())
		}
	}
	if headers, err := c.OTLP.HeaderMap(); err == nil {
		for name, v := range headers {
			if secretHeader.MatchString(name) { // not the name of a tenant, which is an ordinary word
				out = append(out, v, strings.TrimPrefix(v, "Bearer "))
			}
		}
	}
	return out
}
