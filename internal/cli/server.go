package cli

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

const serversPath = "/api/v1/mcp/servers"

// server is a server as REST shows it; only what is printed.
type server struct {
	catalog.Server
	ToolCount    int           `json:"tool_count"`
	WaitingCount int           `json:"waiting_count"`
	Health       string        `json:"health"`
	LastError    string        `json:"last_error"`
	Spec         *catalog.Spec `json:"spec"`
	Connection   *struct {
		Era             string `json:"era"`
		ProtocolVersion string `json:"protocol_version"`
		PID             int    `json:"pid"`
		Stderr          string `json:"stderr"`
	} `json:"connection"`
}

func serverPath(name string, more ...string) string {
	return serversPath + "/" + url.PathEscape(name) + strings.Join(more, "")
}

type serverAddCmd struct {
	Name        string            `arg:"" help:"Name of the server."`
	Command     []string          `arg:"" optional:"" help:"Command and its arguments, after --."`
	URL         string            `name:"url" help:"Address of an HTTP server." placeholder:"URL"`
	Transport   string            `help:"stdio or http; follows from the rest." placeholder:"WORD"`
	Header      map[string]string `help:"HTTP header NAME=VALUE; VALUE may be $${VARIABLE} or @FILE." placeholder:"NAME=VALUE" mapsep:"none"`
	Env         map[string]string `help:"Environment of the command NAME=VALUE; VALUE may be $${VARIABLE} or @FILE." placeholder:"NAME=VALUE" mapsep:"none"`
	Cwd         string            `help:"Working folder of the command." placeholder:"DIR"`
	Description string            `help:"What the server is for." placeholder:"TEXT"`
}

func (c *serverAddCmd) Run(e *env) error {
	spec := catalog.Spec{Name: c.Name, Description: c.Description, Transport: c.Transport, Cwd: c.Cwd, URL: c.URL}
	if len(c.Command) > 0 {
		spec.Command, spec.Args = c.Command[0], c.Command[1:]
	}
	if (spec.Command == "") == (spec.URL == "") {
		return fault.New(fault.InvalidParams, "give either a command after -- or --url URL")
	}
	if spec.Cwd == "" && spec.Command != "" && strings.ContainsRune(spec.Command, filepath.Separator) {
		if abs, err := filepath.Abs(spec.Command); err == nil {
			spec.Command = abs // the server's working folder is another one
		}
	}
	var err error
	if spec.Env, err = e.values(c.Env); err != nil {
		return err
	}
	if spec.Headers, err = e.values(c.Header); err != nil {
		return err
	}
	return ask(e, "POST", serversPath, spec, func(s server) { e.print("registered", s.Name) })
}

// values resolves references and warns of secrets that stood in the process list.
func (e *env) values(in map[string]string) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		text, literal, err := value(in[name])
		if err != nil {
			return nil, err
		}
		if literal && secret.SensitiveKey(name) {
			fmt.Fprintln(e.stderr, e.say("secret_in_argv", name))
		}
		out[name] = text
	}
	return out, nil
}

type serverImportCmd struct {
	File string `arg:"" help:"The file." type:"existingfile"`
	Yes  bool   `short:"y" help:"Do not ask."`
}

func (c *serverImportCmd) Run(e *env) error {
	b, err := os.ReadFile(c.File)
	if err != nil {
		return fault.Wrap(fault.Config, err, "cannot read %s", c.File)
	}
	specs, err := catalog.ParseImport(b, os.LookupEnv)
	if err != nil {
		return err
	}
	if !e.json {
		fmt.Fprintln(e.stdout, e.say("would_run"))
		for _, s := range specs {
			e.preview(s.Masked())
		}
	}
	if !c.Yes && !e.confirm() {
		e.print("nothing_done")
		return exitCode(2)
	}
	var failed error
	for _, spec := range specs {
		err := ask(e, "POST", serversPath, spec, func(s server) { e.print("registered", s.Name) })
		var f *fault.Error
		if errors.As(err, &f) && f.Class == fault.Conflict {
			fmt.Fprintln(e.stderr, clean(e.say("skipped", spec.Name, f.Message)))
		} else if err != nil {
			fmt.Fprintln(e.stderr, clean(e.say("skipped", spec.Name, err.Error())))
			failed = err
		}
	}
	return failed
}

// preview prints exactly what would be run, secrets masked.
func (e *env) preview(s catalog.Spec) {
	target := s.URL
	if s.Command != "" {
		words := []string{s.Command}
		for _, a := range s.Args {
			if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`;&|<>()*?[]#~") && a != secret.Masked {
				a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
			}
			words = append(words, a)
		}
		target = strings.Join(words, " ")
	}
	fmt.Fprintf(e.stdout, "  %s (%s): %s\n", clean(s.Name), clean(s.Transport), oneLine(clean(target), 2000))
	if s.Cwd != "" {
		fmt.Fprintf(e.stdout, "      cwd %s\n", clean(s.Cwd))
	}
	for _, group := range []struct {
		name   string
		values map[string]string
	}{{"env", s.Env}, {"header", s.Headers}} {
		for _, k := range slices.Sorted(maps.Keys(group.values)) {
			fmt.Fprintf(e.stdout, "      %s %s=%s\n", group.name, clean(k), clean(group.values[k]))
		}
	}
}

func (e *env) confirm() bool {
	fmt.Fprint(e.stderr, e.say("confirm"))
	line, _ := bufio.NewReader(e.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes", "j", "ja":
		return true
	}
	return false
}

type serverListCmd struct{}

func (serverListCmd) Run(e *env) error {
	type list struct{ Servers []server }
	return ask(e, "GET", serversPath, nil, func(l list) {
		rows := [][]string{{"NAME", "STATUS", "HEALTH", "TOOLS", "WAITING", "TRANSPORT", "ORIGIN", "ID"}}
		for _, s := range l.Servers {
			rows = append(rows, []string{s.Name, s.State, s.Health, fmt.Sprint(s.ToolCount), fmt.Sprint(s.WaitingCount), s.Transport, s.Origin, s.ID})
		}
		e.table(rows)
	})
}

type serverShowCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *serverShowCmd) Run(e *env) error {
	return ask(e, "GET", serverPath(c.Name), nil, func(s server) {
		e.columns([][]string{{"name", s.Name}, {"id", s.ID}, {"status", s.State + " " + s.StateReason}, {"health", s.Health + " " + oneLine(s.LastError, 200)},
			{"tools", fmt.Sprintf("%d, %d waiting", s.ToolCount, s.WaitingCount)}, {"origin", s.Origin + " " + s.OriginPath},
			{"scanned", moment(s.ScanAt) + " " + oneLine(s.ScanError, 200)}})
		if s.Spec != nil && s.Transport != catalog.TransportBuiltin {
			e.preview(*s.Spec)
		}
		if s.Connection != nil && s.Connection.Stderr != "" {
			fmt.Fprintf(e.stdout, "stderr:\n%s\n", clean(s.Connection.Stderr))
		}
	})
}

type serverScanCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *serverScanCmd) Run(e *env) error {
	var failed error
	err := ask(e, "POST", serverPath(c.Name, "/scan"), nil, func(s catalog.Scan) {
		if s.Status != "ok" {
			fmt.Fprintln(e.stderr, clean(e.say("scan_failed", c.Name, s.Error)))
			failed = exitCode(7)
			return
		}
		e.print("scan_ok", c.Name, s.Found, s.New, s.Changed, s.Removed)
		if s.New+s.Changed > 0 {
			e.print("scan_next", c.Name)
		}
	})
	return errors.Join(err, failed)
}

type serverPauseCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *serverPauseCmd) Run(e *env) error { return e.serverState(c.Name, "/pause") }

type serverResumeCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *serverResumeCmd) Run(e *env) error { return e.serverState(c.Name, "/resume") }

func (e *env) serverState(name, op string) error {
	return ask(e, "POST", serverPath(name, op), nil, func(s server) { e.print("state", s.Name, s.State) })
}

type serverRemoveCmd struct {
	Name string `arg:"" help:"Name or id."`
}

func (c *serverRemoveCmd) Run(e *env) error {
	return ask(e, "DELETE", serverPath(c.Name), nil, func(struct{}) { e.print("removed", c.Name) })
}
