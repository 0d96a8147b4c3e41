// Package cli is the command line. All commands but serve, demo and the database ones talk REST to a
// running Doorward: what a person may do there, they may do here, and no more. It decides nothing.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"doorward.dev/doorward/internal/app"
	"doorward.dev/doorward/internal/fault"
)

// version is set by the linker.
var version = "dev"

// commands is the whole command line on one screen.
type commands struct {
	JSON bool   `help:"Print JSON for programs instead of text for people."`
	Door string `help:"Address of a running Doorward, default http://127.0.0.1:8420." default:"http://127.0.0.1:8420" env:"DOORWARD_URL" placeholder:"URL"`

	Serve   serveCmd   `cmd:"" help:"Serve the door."`
	Demo    demoCmd    `cmd:"" help:"Walk through the product on real calls, then keep serving."`
	Stdio   stdioCmd   `cmd:"" help:"Connect a client that speaks stdio with a running Doorward."`
	Version versionCmd `cmd:"" help:"Print the version."`
	Config  struct {
		Check  configCheckCmd  `cmd:"" help:"Check a configuration file and the environment."`
		Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of the configuration file."`
	} `cmd:"" help:"Settings."`
	Server struct {
		Add     serverAddCmd     `cmd:"" help:"Register a server: doorward server add NAME -- COMMAND ARGS… or --url URL."`
		Import  serverImportCmd  `cmd:"" help:"Register the servers of an .mcp.json, Claude Desktop, Cursor or VS Code file."`
		List    serverListCmd    `cmd:"" help:"List servers."`
		Show    serverShowCmd    `cmd:"" help:"Show a server, secrets masked."`
		Scan    serverScanCmd    `cmd:"" help:"List a server's tools now. Admits nothing."`
		Approve serverApproveCmd `cmd:"" help:"Approve a server and admit tools."`
		Pause   serverPauseCmd   `cmd:"" help:"Pause a server."`
		Resume  serverResumeCmd  `cmd:"" help:"Resume a paused or blocked server. Admits nothing."`
		Remove  serverRemoveCmd  `cmd:"" help:"Remove a server with its tools and rules."`
		Tools   serverToolsCmd   `cmd:"" help:"List a server's tools with admission, suggestion and rule."`
		Admit   serverAdmitCmd   `cmd:"" help:"Admit waiting tools of an approved server."`
		Rule    serverRuleCmd    `cmd:"" help:"Replace the server-wide rule of a tool."`
		Tool    serverToolCmd    `cmd:"" help:"Set a tool's tier and whether its calls need confirmation."`
	} `cmd:"" help:"Servers and their tools."`
	Policy struct {
		Add    policyAddCmd    `cmd:"" help:"Add a rule for a tool, an agent, or both."`
		List   policyListCmd   `cmd:"" help:"List rules."`
		Remove policyRemoveCmd `cmd:"" help:"Remove a rule."`

		Simulate policySimulateCmd `cmd:"" help:"Say which recorded calls proposed rules would decide otherwise. Changes nothing."`
	} `cmd:"" aliases:"rule" help:"Rules; also: doorward rule."`
	Limit struct {
		Add    limitAddCmd    `cmd:"" help:"Set a limit for a tool, an agent, both, or the workspace."`
		List   limitListCmd   `cmd:"" help:"List the limits that were set."`
		Usage  limitUsageCmd  `cmd:"" help:"Show how much of each limit is used."`
		Remove limitRemoveCmd `cmd:"" help:"Remove a limit."`
	} `cmd:"" help:"Limits of calls."`
	Approvals struct {
		List    approvalsListCmd    `cmd:"" help:"List held calls."`
		Approve approvalsApproveCmd `cmd:"" help:"Approve a held call, once, with exactly its arguments."`
		Deny    approvalsDenyCmd    `cmd:"" help:"Deny a held call."`
	} `cmd:"" help:"Held calls."`
	Stop struct {
		Server stopServerCmd `cmd:"" help:"Block a server at once."`
		Agent  stopAgentCmd  `cmd:"" help:"Block an agent at once."`
	} `cmd:"" help:"Targeted emergency stop."`
	Release struct {
		Agent releaseAgentCmd `cmd:"" help:"Lift the emergency stop of an agent."`
	} `cmd:"" help:"Lift an emergency stop."`
	Shutdown shutdownCmd `cmd:"" help:"Stop the whole workspace, release it again, or say how it stands."`
	Agent    struct {
		Add  agentAddCmd  `cmd:"" help:"Create an agent; its key is shown once."`
		List agentListCmd `cmd:"" help:"List agents."`
		Show agentShowCmd `cmd:"" help:"Show an agent, and which entries of its allowlist match nothing."`
		Set  agentSetCmd  `cmd:"" help:"Change an agent's state, allowlist or capability model."`

		OAuth struct {
			Add    oauthAddCmd    `cmd:"" help:"Let a client of an authorization server call as an agent."`
			List   oauthListCmd   `cmd:"" help:"List OAuth clients and their agents."`
			Remove oauthRemoveCmd `cmd:"" help:"Refuse a client's tokens from here on."`
		} `cmd:"" name:"oauth" help:"OAuth clients that call as agents."`
	} `cmd:"" help:"Agents."`
	Key struct {
		Add    keyAddCmd    `cmd:"" help:"Create a key; it is shown once."`
		List   keyListCmd   `cmd:"" help:"List keys by prefix."`
		Revoke keyRevokeCmd `cmd:"" help:"Revoke a key."`
	} `cmd:"" help:"Keys."`
	Task      taskCmd      `cmd:"" help:"Tasks: tokens that live as long as a piece of work."`
	Workspace workspaceCmd `cmd:"" help:"Workspaces, for whoever runs the installation."`
	Person    struct {
		Add    personAddCmd    `cmd:"" help:"Create a person."`
		Set    personSetCmd    `cmd:"" help:"Change a person's role, disable or enable."`
		Passwd personPasswdCmd `cmd:"" help:"Set a password, read from standard input or a file."`
		List   personListCmd   `cmd:"" help:"List people."`
	} `cmd:"" help:"People."`
	Audit struct {
		List   auditListCmd   `cmd:"" help:"List the record, newest first."`
		Show   auditShowCmd   `cmd:"" help:"Show all rows of one attempt."`
		Verify auditVerifyCmd `cmd:"" help:"Verify the record: exit 0 when it is whole, 1 with the first bad row or a counter of a limit that is not what the rows used."`

		Checkpoint   auditCheckpointCmd   `cmd:"" help:"Print the newest signed checkpoint, to be kept elsewhere."`
		Proof        auditProofCmd        `cmd:"" help:"Fetch the proof that a row is in the record, and check it here."`
		Export       auditExportCmd       `cmd:"" help:"Stream the record as NDJSON or CSV, oldest first."`
		Attestations auditAttestationsCmd `cmd:"" help:"List emergency stops with the state of their attestation."`
		Prune        auditPruneCmd        `cmd:"" help:"Remove old rows up to a signed checkpoint. The owner's."`
	} `cmd:"" help:"The record."`
	Replay  replayCmd  `cmd:"" help:"Print the calls of a trace, a task or a range of rows, feed their results to an agent loop, or make them anew."`
	Explain explainCmd `cmd:"" help:"Say which stage decides a call, and why, without calling."`

	Backup  backupCmd  `cmd:"" help:"Write the whole database into one file, beside a running Doorward."`
	Restore restoreCmd `cmd:"" help:"Fill an empty database from a backup and verify its record."`
	Store   struct {
		Copy storeCopyCmd `cmd:"" help:"Move to another database, such as from SQLite to PostgreSQL, and verify the record."`
	} `cmd:"" help:"The database."`
	Migrate struct {
		Up     migrateUpCmd     `cmd:"" help:"Bring the schema up to date, as serve does."`
		Down   migrateDownCmd   `cmd:"" help:"Go back to an older schema, for an older Doorward."`
		Status migrateStatusCmd `cmd:"" help:"List the steps of the schema and which are applied."`
	} `cmd:"" help:"The schema of the database."`

	DemoUpstream demoUpstreamCmd `cmd:"" hidden:"" name:"demo-upstream"`
}

// env is what a command gets to work with.
type env struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	json   bool
	url    string
	match  string // If-Match of the requests, empty: none
	lang   string
}

// exitCode is an error that has been reported already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Main runs a command and returns the exit code: 0 done, 1 fault or record not whole, 2 wrong use or
// configuration, 3 no permission, 4 not found, 5 conflict, 6 refused by the gate, 7 not reachable.
func Main(args []string) int {
	app.Version = version
	// The first signal asks for an orderly end, the second one is not waited for.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(&env{ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lang: language(os.Getenv)}, args)
}

func run(e *env, args []string) (code int) {
	var c commands
	exited := false
	parser, err := kong.New(&c, kong.Name("doorward"), kong.Description("One door between AI agents and tools."),
		kong.Writers(e.stdout, e.stderr), kong.UsageOnError(), kong.Exit(func(n int) { exited, code = true, n }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}))
	if err != nil {
		return e.fail(err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		fmt.Fprintf(e.stderr, "doorward: %v\n", err)
		fmt.Fprintln(e.stderr, e.say("try_help"))
		return 2
	}
	e.json, e.url = c.JSON, strings.TrimSuffix(c.Door, "/")
	if err := kctx.Run(e); err != nil {
		return e.fail(err)
	}
	return 0
}

// fail reports an error and gives its exit code.
func (e *env) fail(err error) int {
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	f := fault.From(err)
	if e.json {
		out := map[string]any{"class": f.Class, "message": f.Message}
		if f.Reason != "" {
			out["code"] = f.Reason
		}
		b, _ := json.Marshal(map[string]any{"error": out})
		fmt.Fprintf(e.stderr, "%s\n", b)
		return f.Codes().Exit
	}
	fmt.Fprintf(e.stderr, "doorward: %s\n", clean(f.Error()))
	if hint := e.hint(f); hint != "" {
		fmt.Fprintln(e.stderr, hint)
	}
	return f.Codes().Exit
}

// hint says what to do about the errors that everybody meets.
func (e *env) hint(f *fault.Error) string {
	switch f.Reason {
	case "MISSING_API_KEY", "INVALID_API_KEY", "EXPIRED_API_KEY":
		return e.say("hint_key")
	case "mcp_scan_required":
		return e.say("hint_scan")
	case "NOT_REACHABLE":
		return e.say("hint_url")
	}
	return ""
}
