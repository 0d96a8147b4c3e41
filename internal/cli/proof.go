package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
)

type auditCheckpointCmd struct{}

// Run prints the newest signed checkpoint; a copy kept elsewhere goes into audit verify --checkpoint.
func (c *auditCheckpointCmd) Run(e *env) error {
	return ask(e, "GET", auditPath+"/checkpoint", nil, func(out struct {
		Keys       []string         `json:"keys"`
		Checkpoint audit.Checkpoint `json:"checkpoint"`
	}) {
		for _, k := range out.Keys {
			fmt.Fprintln(e.stderr, "key "+clean(k))
		}
		fmt.Fprint(e.stdout, clean(out.Checkpoint.Note))
	})
}

type auditProofCmd struct {
	What string   `arg:"" help:"Number of a row, or a trace id for its last row."`
	Key  []string `help:"Public key to trust; without it, the ones that the server names." placeholder:"KEY"`
}

// Run fetches a proof and checks it here.
func (c *auditProofCmd) Run(e *env) error {
	q := url.Values{"trace_id": {c.What}}
	if _, err := strconv.ParseInt(c.What, 10, 64); err == nil {
		q = url.Values{"seq": {c.What}}
	}
	raw, err := e.fetch("GET", auditPath+"/proof?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	var p audit.Proof
	if err := json.Unmarshal(raw, &p); err != nil {
		return fault.Wrap(fault.UpstreamError, err, "the answer of %s is not understood; is it a Doorward of this version?", e.url)
	}
	keys := c.Key
	if len(keys) == 0 {
		keys = p.Keys
	}
	if err := p.Check(keys); err != nil {
		e.print("proof_bad", fault.From(err).Message)
		return exitCode(1)
	}
	if e.json {
		_, err := fmt.Fprintf(e.stdout, "%s\n", raw)
		return err
	}
	e.print("proof_good", p.Event.Seq, p.Event.TraceID, p.Checkpoint.Size, len(p.Hashes))
	fmt.Fprint(e.stdout, clean(p.Checkpoint.Note))
	return nil
}

type auditExportCmd struct {
	Format string `help:"ndjson or csv." enum:"ndjson,csv" default:"ndjson"`
	Agent  string `help:"Only of this agent." placeholder:"NAME"`
	Server string `help:"Only of this server." placeholder:"NAME"`
	Task   string `help:"Only of this task." placeholder:"ID"`
	From   string `help:"Not before this time (RFC 3339)." placeholder:"TIME"`
	To     string `help:"Before this time (RFC 3339)." placeholder:"TIME"`
}

// Run streams rows to standard output.
func (c *auditExportCmd) Run(e *env) error {
	q := url.Values{"format": {c.Format}}
	for name, v := range map[string]string{"agent_id": c.Agent, "server_id": c.Server, "task_id": c.Task, "from": c.From, "to": c.To} {
		if v != "" {
			q.Set(name, v)
		}
	}
	body, err := e.stream(auditPath + "/export?" + q.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(e.stdout, body); err != nil {
		return fault.Wrap(fault.Unreachable, err, "the export broke off; what was written is not whole")
	}
	return nil
}

type auditPruneCmd struct {
	OlderThan int `help:"Remove rows older than so many days, at least 2." required:"" placeholder:"DAYS"`
}

// Run removes old rows.
func (c *auditPruneCmd) Run(e *env) error {
	return ask(e, "POST", auditPath+"/prune", map[string]any{"older_than_days": c.OlderThan}, func(p audit.Pruned) {
		e.print("pruned", p.Removed, p.FirstSeq)
	})
}

type auditAttestationsCmd struct{}

// Run lists stops with the state of their attestation.
func (c *auditAttestationsCmd) Run(e *env) error {
	return ask(e, "GET", auditPath+"/attestations?limit=200", nil, func(out struct {
		Attestations []audit.Attestation `json:"attestations"`
	}) {
		rows := [][]string{{"SEQ", "TIME", "TRACE", "CHECKPOINT", "STATUS", "ANCHORS"}}
		for _, a := range out.Attestations {
			var at []string
			for _, s := range a.Anchors {
				at = append(at, strings.TrimSpace(s.Anchor+" "+s.Status+" "+s.Reference+" "+s.Error))
			}
			rows = append(rows, []string{fmt.Sprint(a.Seq), moment(a.At), a.TraceID, fmt.Sprint(a.Checkpoint), a.Status, oneLine(strings.Join(at, ", "), 120)})
		}
		e.table(rows)
	})
}

// kept reads what was kept elsewhere: notes from files.
func kept(keys, files []string) (audit.Known, error) {
	k := audit.Known{Keys: keys}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return k, fault.Wrap(fault.Config, err, "cannot read %s", path)
		}
		k.Checkpoints = append(k.Checkpoints, string(b))
	}
	return k, nil
}
