package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

// DemoOptions say where the demo prints and serves.
type DemoOptions struct {
	Out    io.Writer // the walk
	Log    io.Writer // problems
	Listen string
	Exit   bool // end after the walk
}

// Demo starts a whole Doorward in a folder that is thrown away, with a server behind it that is part of this
// binary, and walks through the product on real calls. It prints what came back, and fails when that is not
// what it should be. Then it serves until ctx ends.
func Demo(ctx context.Context, o DemoOptions) (err error) {
	dir, err := os.MkdirTemp("", "doorward-demo-")
	if err != nil {
		return fault.Wrap(fault.Config, err, "cannot make a folder for the demo")
	}
	defer os.RemoveAll(dir)
	a, err := newDemo(ctx, dir, o)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(serving, func() { close(ready) }) }()
	select {
	case err := <-ended:
		return err
	case <-ready:
	}
	w := &walk{out: o.Out, state: filepath.Join(dir, "turned"), c: &demoClient{serving, a.PublicURL(), a.Keys.Admin, a.Keys.Agent}}
	if err := w.run(); err != nil {
		stop()
		<-ended
		return err
	}
	if o.Exit {
		stop()
		return <-ended
	}
	w.goodbye()
	return <-ended
}

// newDemo takes the wished address, or any free one when something else has it.
func newDemo(ctx context.Context, dir string, o DemoOptions) (*App, error) {
	if l, err := net.Listen("tcp", o.Listen); err == nil {
		l.Close()
	} else {
		o.Listen = "127.0.0.1:0"
	}
	cfg, err := config.Load(config.Source{Flags: map[string]string{"data": filepath.Join(dir, "data"), "listen": o.Listen, "log.level": "error"}})
	if err != nil {
		return nil, err
	}
	return New(ctx, cfg, NewLogger(o.Log, cfg.Log), nil)
}

// walk is the demo's course. Every step prints what it does and what came back.
type walk struct {
	out   io.Writer
	state string // path of the file that turns the server behind the door bad
	c     *demoClient
	n     int
	id    string // of the server
}

func (w *walk) run() error {
	fmt.Fprint(w.out, "Doorward: one door between AI agents and tools.\nAn agent wants to use the MCP server \"notes\". Everything below really happens.\n")
	for _, step := range []func() error{w.register, w.approve, w.allowed, w.held, w.denied, w.rewritten, w.stopped, w.record} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) step(title string) {
	w.n++
	fmt.Fprintf(w.out, "\n%d. %s\n", w.n, title)
}

func (w *walk) say(format string, args ...any) { fmt.Fprintf(w.out, "   "+format+"\n", args...) }

// try calls a tool, prints the answer and checks it: code 0 means that it ran.
func (w *walk) try(tool string, args map[string]string, code int, reason string) (answer, error) {
	a, err := w.c.call(tool, args)
	if err != nil {
		return a, err
	}
	shown, err := json.Marshal(args)
	if err != nil {
		return a, err
	}
	w.say("agent calls %s %s", tool, shown)
	w.say("  → %s", a)
	if a.code() != code || code != 0 && a.Error.Data.Reason != reason || a.Result.IsError {
		return a, fault.New(fault.Internal, "the demo expected code %d %s of %s", code, reason, tool)
	}
	return a, nil
}

var (
	planArgs = map[string]string{"title": "plan"}
	mailArgs = map[string]string{"to": "all@example.com", "text": "We ship on Friday."}
)

func (w *walk) register() error {
	w.step("Nothing known, nothing allowed: a registered server waits for approval")
	exe, err := os.Executable()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "cannot find this program")
	}
	spec := catalog.Spec{Name: "notes", Transport: "stdio", Command: exe, Args: []string{"demo-upstream", "--state", w.state}}
	var s catalog.Server
	if err := w.c.rest("POST", "mcp/servers", spec, &s); err != nil {
		return err
	}
	w.id = s.ID
	var scan catalog.Scan
	if err := w.c.rest("POST", "mcp/servers/"+w.id+"/scan", nil, &scan); err != nil {
		return err
	}
	w.say("scan: %s, %d tools found, %d new", scan.Status, scan.Found, scan.New)
	if scan.Status != "ok" || scan.Found != 4 {
		return fault.New(fault.Internal, "the demo expected 4 tools: %s", scan.Error)
	}
	_, err = w.try("read_note", planArgs, -32001, "SERVER_PENDING_APPROVAL")
	return err
}

func (w *walk) tools() ([]catalog.ToolInfo, error) {
	var list struct{ Tools []catalog.ToolInfo }
	err := w.c.rest("GET", "mcp/servers/"+w.id+"/tools", nil, &list)
	return list.Tools, err
}

func (w *walk) approve() error {
	w.step("A person approves the server; each tool has a suggested rule, one is made stricter")
	tools, err := w.tools()
	if err != nil {
		return err
	}
	var choices []catalog.Choice
	for _, t := range tools {
		if t.Suggestion == nil {
			return fault.New(fault.Internal, "the demo expected a suggestion for %s", t.Name)
		}
		action, note := t.Suggestion.Action, ""
		if t.Name == "delete_notes" {
			action, note = "DENY", "  (suggested: "+t.Suggestion.Action+")"
		}
		w.say("%-13s %-8s %s%s", t.Name, t.Action, action, note)
		choices = append(choices, catalog.Choice{ToolID: t.ID, Action: action})
	}
	return w.c.rest("POST", "mcp/servers/"+w.id+"/approve", map[string]any{"tools": choices}, nil)
}

// connected waits until the approved server is connected.
func (w *walk) connected() error {
	return w.until("the server is connected", func() (bool, error) {
		var s struct{ Health string }
		err := w.c.rest("GET", "mcp/servers/"+w.id, nil, &s)
		return s.Health == "up", err
	})
}

// until asks again until it is so, for at most ten seconds.
func (w *walk) until(what string, so func() (bool, error)) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		yes, err := so()
		if err != nil || yes {
			return err
		}
		if time.Now().After(deadline) {
			return fault.New(fault.Internal, "the demo waited in vain: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *walk) allowed() error {
	if err := w.connected(); err != nil {
		return err
	}
	w.step("ALLOW and LOG_ONLY: the call passes, and stands in the record")
	if _, err := w.try("read_note", planArgs, 0, ""); err != nil {
		return err
	}
	_, err := w.try("write_note", map[string]string{"title": "plan", "text": "Ship on Monday."}, 0, "")
	return err
}

func (w *walk) held() error {
	w.step("REQUIRE_APPROVAL: the call is held until a person says yes, to exactly this call, once")
	a, err := w.try("send_mail", mailArgs, -32004, "APPROVAL_REQUIRED")
	if err != nil {
		return err
	}
	var ap gate.Approval
	if err := w.c.rest("GET", "mcp/approvals/"+a.Error.Data.ApprovalID, nil, &ap); err != nil {
		return err
	}
	w.say("a person sees: %s/%s %s, %s until %s", ap.Server, ap.Tool, ap.Arguments, ap.Status, time.UnixMicro(ap.ExpiresAt).Format(time.TimeOnly))
	if err := w.c.rest("POST", "mcp/approvals/"+ap.ID+"/approve", map[string]string{"reason": "the demo's owner says yes"}, &ap); err != nil {
		return err
	}
	w.say("the person decides: %s", ap.Status)
	if _, err := w.try("send_mail", mailArgs, 0, ""); err != nil {
		return err
	}
	_, err = w.try("send_mail", mailArgs, -32004, "APPROVAL_REQUIRED")
	return err
}

func (w *walk) denied() error {
	w.step("DENY: the call does not reach the server")
	_, err := w.try("delete_notes", map[string]string{}, -32003, "RULE_DENY")
	return err
}

func (w *walk) rewritten() error {
	w.step("The server rewrites the description of an admitted tool")
	if err := os.WriteFile(w.state, nil, 0o600); err != nil {
		return fault.Wrap(fault.Internal, err, "cannot turn the demo's server")
	}
	// With its next answer the server announces that its list changed.
	if _, err := w.try("write_note", map[string]string{"title": "x", "text": "y"}, 0, ""); err != nil {
		return err
	}
	err := w.until("the change is noticed", func() (bool, error) {
		tools, err := w.tools()
		if err != nil {
			return false, err
		}
		for _, t := range tools {
			if t.Name == "read_note" && t.Admission == "changed" {
				w.say("read_note is %q now: %s", t.Admission, t.Description)
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	_, err = w.try("read_note", planArgs, -32002, "TOOL_CHANGED")
	return err
}

func (w *walk) stopped() error {
	w.step("Emergency stop of the agent: checked before everything else")
	var r gate.StopResult
	in := gate.StopRequest{Scope: "agent", TargetID: "default", Reason: "demo"}
	if err := w.c.rest("POST", "mcp/emergency-stop", in, &r); err != nil {
		return err
	}
	w.say("stopped: %v, open approvals ended: %d", r.Changed, r.ExpiredApprovals)
	if _, err := w.try("write_note", map[string]string{"title": "x", "text": "y"}, -32001, "AGENT_EMERGENCY_STOP"); err != nil {
		return err
	}
	if err := w.c.rest("POST", "agents/default/release", nil, nil); err != nil {
		return err
	}
	w.say("released again")
	return nil
}

func (w *walk) record() error {
	w.step("The record: every attempt, also a refused one, in a chain that shows tampering")
	var list struct{ Events []audit.Event }
	if err := w.c.rest("GET", "audit?kind=call&limit=20", nil, &list); err != nil {
		return err
	}
	for i := len(list.Events) - 1; i >= 0; i-- {
		e := list.Events[i]
		w.say("%3d  %-12s %-16s %-9s %-6s %s", e.Seq, e.Tool, e.Decision, e.Stage, e.Status, e.Reason)
	}
	var v audit.Verdict
	if err := w.c.rest("POST", "audit/verify", nil, &v); err != nil {
		return err
	}
	w.say("verified: %d rows, whole: %v", v.Rows, v.Whole)
	if !v.Whole || len(list.Events) == 0 {
		return fault.New(fault.Internal, "the record is not whole at row %d: %s", v.BadSeq, v.Why)
	}
	return nil
}

func (w *walk) goodbye() {
	url := w.c.url
	fmt.Fprintf(w.out, `
Doorward keeps serving; Ctrl-C ends it and throws everything away.

  API        %[1]s/api/v1
  MCP        %[1]s/mcp
  admin key  %[2]s
  agent key  %[3]s

Connect a client (Claude Code, Cursor, VS Code, …):

  {"mcpServers":{"doorward":{"type":"http","url":"%[1]s/mcp","headers":{"Authorization":"Bearer %[3]s"}}}}

Look around as the owner:

  export DOORWARD_URL=%[1]s DOORWARD_KEY=%[2]s
  doorward server tools notes --long
  doorward explain --agent default --tool notes/read_note
  doorward audit list
`, url, w.c.admin, w.c.agent)
}
