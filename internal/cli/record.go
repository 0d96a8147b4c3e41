package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
)

const auditPath = "/api/v1/audit"

// record says where the rows come from: a running Doorward, or the database itself.
type record struct {
	Data     string `help:"Read the database in this data folder instead of asking a running Doorward." placeholder:"DIR"`
	Database string `help:"Read this PostgreSQL database." placeholder:"URL"`
}

// open opens the database for reading, nil when a running Doorward is to be asked.
func (r *record) open(e *env) (*db.DB, error) {
	if r.Data == "" && r.Database == "" {
		return nil, nil
	}
	return db.OpenExisting(e.ctx, r.Database, r.Data)
}

type auditListCmd struct {
	record
	Agent    string `help:"Only of this agent." placeholder:"NAME"`
	Server   string `help:"Only of this server." placeholder:"NAME"`
	Status   string `help:"Only of this status: ok, tool_error, upstream_error, denied, held, …" placeholder:"WORD"`
	Decision string `help:"Only of this decision." placeholder:"WORD"`
	Kind     string `help:"intent, call, admin or stop." placeholder:"WORD"`
	From     string `help:"Not before this time (RFC 3339)." placeholder:"TIME"`
	To       string `help:"Not after this time (RFC 3339)." placeholder:"TIME"`
	Before   int64  `help:"Rows below this number." placeholder:"SEQ"`
	Limit    int    `help:"How many, at most 200." default:"50"`
}

type events struct {
	Events     []audit.Event `json:"events"`
	NextCursor int64         `json:"next_cursor,omitempty"`
}

func (c *auditListCmd) Run(e *env) error {
	d, err := c.open(e)
	if err != nil {
		return err
	}
	if d != nil {
		defer d.Close()
		rows, err := audit.List(e.ctx, d, audit.Filter{
			AgentID: c.Agent, ServerID: c.Server, Status: c.Status, Decision: strings.ToUpper(c.Decision), Kind: audit.Kind(c.Kind),
			Before: c.Before, Limit: c.Limit,
		})
		if err != nil {
			return err
		}
		return e.showEvents(events{Events: rows})
	}
	q := url.Values{}
	for name, v := range map[string]string{"agent_id": c.Agent, "server_id": c.Server, "status": c.Status, "decision": strings.ToUpper(c.Decision),
		"kind": c.Kind, "from": c.From, "to": c.To} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if c.Before > 0 {
		q.Set("before", fmt.Sprint(c.Before))
	}
	q.Set("limit", fmt.Sprint(c.Limit))
	var out events
	if err := e.call("GET", auditPath+"?"+q.Encode(), nil, &out); err != nil {
		return err
	}
	return e.showEvents(out)
}

// actor says who did what. What a person does to an agent (a stop) names both; the person is who did it.
func actor(v audit.Event) (who, what string) {
	who, what = v.AgentID, v.Method
	if who == "" || v.PersonID != "" && v.Kind != audit.Call && v.Kind != audit.Intent {
		who = v.PersonID
	}
	switch {
	case v.Tool != "":
		what += " " + v.Server + "/" + v.Tool
	case v.Server != "":
		what += " " + v.Server
	case v.AgentID != "" && who != v.AgentID:
		what += " " + short(v.AgentID)
	}
	return who, what
}

func (e *env) showEvents(l events) error {
	if e.json {
		if l.Events == nil {
			l.Events = []audit.Event{}
		}
		return json.NewEncoder(e.stdout).Encode(l)
	}
	rows := [][]string{{"SEQ", "TIME", "KIND", "WHO", "WHAT", "DECISION", "STAGE", "STATUS", "REASON", "TRACE"}}
	for _, v := range l.Events {
		who, what := actor(v)
		rows = append(rows, []string{fmt.Sprint(v.Seq), moment(v.At), string(v.Kind), short(who), what, v.Decision, v.Stage, string(v.Status), oneLine(v.Reason, 40), v.TraceID})
	}
	e.table(rows)
	if l.NextCursor > 0 {
		e.print("more", l.NextCursor)
	}
	return nil
}

// short is the end of an id, where ids of one time differ.
func short(id string) string {
	if len(id) > 12 {
		return "…" + id[len(id)-12:]
	}
	return id
}

type auditShowCmd struct {
	record
	Trace string `arg:"" help:"Trace id."`
}

func (c *auditShowCmd) Run(e *env) error {
	d, err := c.open(e)
	if err != nil {
		return err
	}
	var out events
	if d != nil {
		defer d.Close()
		out.Events, err = audit.List(e.ctx, d, audit.Filter{TraceID: c.Trace, Limit: 200})
		if err == nil && len(out.Events) == 0 {
			err = fault.New(fault.NotFound, "the record has no such trace")
		}
	} else {
		err = e.call("GET", auditPath+"/"+url.PathEscape(c.Trace), nil, &out)
	}
	if err != nil {
		return err
	}
	if e.json {
		return e.showEvents(out)
	}
	for _, v := range out.Events {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintln(e.stdout, clean(string(b)))
	}
	return nil
}

type auditVerifyCmd struct {
	record
	Key        []string `help:"Public key that checkpoints must be signed with, kept elsewhere." placeholder:"KEY"`
	Checkpoint []string `help:"File with a checkpoint kept elsewhere, which the record must still fit." placeholder:"FILE"`
}

func (c *auditVerifyCmd) Run(e *env) error {
	d, err := c.open(e)
	if err != nil {
		return err
	}
	known, err := kept(c.Key, c.Checkpoint)
	if err != nil {
		return err
	}
	var v audit.Verdict
	if d != nil {
		defer d.Close()
		v, err = audit.Verify(e.ctx, d, known)
	} else {
		err = e.call("POST", auditPath+"/verify", map[string][]string{"keys": known.Keys, "checkpoints": known.Checkpoints}, &v)
	}
	if err != nil {
		return err
	}
	switch {
	case e.json:
		err = json.NewEncoder(e.stdout).Encode(v)
	case v.Whole:
		e.print("record_whole", v.Rows, v.Head)
		e.print("record_signed", v.Checkpoints, v.Signed)
		if v.Counter != "" {
			e.print("record_counter", v.Counter)
		}
	default:
		e.print("record_broken", v.BadSeq, v.Why, v.Rows)
	}
	if err == nil && (!v.Whole || v.Counter != "") {
		return exitCode(1)
	}
	return err
}

type explainCmd struct {
	Agent string `help:"Name or id of the agent; without it, the person who asks." placeholder:"NAME"`
	Tool  string `help:"SERVER/TOOL." required:"" placeholder:"SERVER/TOOL"`
	Args  string `help:"Arguments: JSON, @FILE or - for standard input." placeholder:"JSON"`
}

func (c *explainCmd) Run(e *env) error {
	args, err := arguments(e, c.Args)
	if err != nil {
		return err
	}
	in := map[string]any{"agent": c.Agent, "tool": c.Tool}
	if len(args) > 0 {
		in["arguments"] = args
	}
	return ask(e, "POST", "/api/v1/explain", in, func(x gate.Explanation) {
		e.print("decides", x.Tool, x.Action, x.Stage)
		if x.Message != "" {
			fmt.Fprintln(e.stdout, clean(x.Message))
		}
		var rows [][]string
		rows = append(rows, []string{"STAGE", "OUTCOME", "DETAIL"})
		for _, s := range x.Steps {
			rows = append(rows, []string{s.Stage, s.Outcome, oneLine(s.Detail, 160)})
		}
		e.table(rows)
	})
}

func arguments(e *env, text string) (json.RawMessage, error) {
	b := []byte(text)
	var err error
	if path, ok := strings.CutPrefix(text, "@"); ok {
		if b, err = os.ReadFile(path); err != nil {
			return nil, fault.Wrap(fault.Config, err, "cannot read %s", path)
		}
	} else if text == "-" {
		if err := json.NewDecoder(e.stdin).Decode((*json.RawMessage)(&b)); err != nil {
			return nil, fault.New(fault.InvalidParams, "standard input is not JSON")
		}
	}
	if len(b) > 0 && !json.Valid(b) {
		return nil, fault.New(fault.InvalidParams, "--args is not JSON")
	}
	return b, nil
}
