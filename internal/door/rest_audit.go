package door

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesAudit are checkpoints, proofs, export and retention of the record, and the traces.
func routesAudit() []route {
	const v1, a = "/api/v1", "/api/v1/audit"
	return []route{
		operation("GET", a+"/checkpoint", auth.Viewer, "audit.checkpoint", (*Door).showCheckpoint, "Show the newest signed checkpoint and the public keys"),
		operation("GET", a+"/proof", auth.Viewer, "audit.proof", (*Door).proveEvent, "Prove that a row is in the record (?seq= or ?trace_id=)"),
		operation("GET", a+"/attestations", auth.Viewer, "audit.attestations", (*Door).listAttestations, "List emergency stops with the state of their attestation"),
		operation("GET", a+"/export", auth.Viewer, "audit.export", (*Door).exportAudit, "Stream the record, oldest first (?format=ndjson|csv)"),
		operation("POST", a+"/prune", auth.Owner, "audit.prune", (*Door).pruneAudit, "Remove old rows up to a signed checkpoint; owners of the first workspace only"),
		operation("GET", v1+"/traces", auth.Viewer, "trace.list", (*Door).listTraces, "List attempts, newest first"),
		operation("GET", v1+"/traces/{id}", auth.Viewer, "trace.show", (*Door).showTrace, "Show an attempt with all its rows"),
	}
}

func (d *Door) showCheckpoint(c *restCall) (any, error) {
	p, err := d.d.Audit.Checkpoint(c.Context())
	if err != nil {
		return nil, err
	}
	keys, err := audit.Keys(c.Context(), d.d.DB)
	if err != nil {
		return nil, err
	}
	out := checkpointAnswer{Keys: keys}
	if p.Size > 0 {
		out.Checkpoint = &p
	}
	return out, nil
}

// proveEvent proves the row of a number, or the last row of a trace: its outcome.
func (d *Door) proveEvent(c *restCall) (any, error) {
	q := c.URL.Query()
	seq, err := c.number("seq", 0)
	if err != nil {
		return nil, err
	}
	if (seq == 0) == (q.Get("trace_id") == "") {
		return nil, fault.New(fault.InvalidParams, "give seq or trace_id")
	}
	var e audit.Event
	if seq > 0 {
		e, err = audit.Row(c.Context(), d.d.DB, c.caller.WorkspaceID, seq)
	} else {
		var all []audit.Event
		if all, err = audit.Get(c.Context(), d.d.DB, c.caller.WorkspaceID, q.Get("trace_id")); err == nil {
			e = all[len(all)-1]
		}
	}
	if err != nil {
		return nil, err
	}
	if _, err := d.d.Audit.Checkpoint(c.Context()); err != nil {
		return nil, err
	}
	return audit.Prove(c.Context(), d.d.DB, e)
}

func (d *Door) listAttestations(c *restCall) (any, error) {
	before, err := c.number("cursor", 0)
	if err != nil {
		return nil, err
	}
	limit, err := c.number("limit", 50)
	if err != nil {
		return nil, err
	}
	limit = min(max(limit, 1), 200)
	list, err := audit.Attestations(c.Context(), d.d.DB, c.caller.WorkspaceID, before, int(limit))
	if err != nil {
		return nil, err
	}
	out := attestationList{Attestations: list}
	if len(list) == int(limit) {
		out.Next = list[len(list)-1].Seq
	}
	return out, nil
}

// streamed is an answer that writes itself, for what is too large to be made before it is sent.
type streamed func(w http.ResponseWriter)

func (d *Door) exportAudit(c *restCall) (any, error) {
	q := c.URL.Query()
	format := q.Get("format")
	if format == "" {
		format = "ndjson"
	}
	f, err := d.auditFilter(c)
	if err != nil {
		return nil, err
	}
	f.TaskID = q.Get("task_id")
	if f.After, err = c.number("after", 0); err != nil {
		return nil, err
	}
	if _, ok := audit.NewExporter(nil, format); !ok {
		return nil, fault.New(fault.InvalidParams, "format must be ndjson or csv")
	}
	return streamed(func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}[format])
		w.Header().Set("Content-Disposition", `attachment; filename="audit.`+format+`"`)
		b := bufio.NewWriterSize(w, 64<<10)
		x, _ := audit.NewExporter(b, format)
		err := x.Begin()
		if err == nil {
			err = audit.Export(c.Context(), d.d.DB, f, x.Row)
		}
		if err == nil {
			err = x.Flush()
		}
		if err == nil {
			err = b.Flush()
		}
		if err != nil {
			d.d.Log.Error("export broke off", "request_id", c.id, "error", err)
			panic(http.ErrAbortHandler) // a cut-off export must not look like a whole one
		}
	}), nil
}

type pruneInput struct {
	Days int `json:"older_than_days"`
}

// pruneAudit removes rows of every workspace, since all share one chain: so only owners of the first one may.
func (d *Door) pruneAudit(c *restCall) (any, error) {
	var in pruneInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.Days < 2 || in.Days > 36500 {
		return nil, fault.New(fault.InvalidParams, "older_than_days must be 2 or more")
	}
	if err := d.installation(c, "the record is one for all workspaces"); err != nil {
		return nil, err
	}
	p, err := d.d.Audit.Prune(c.Context(), d.d.Now().Add(-time.Duration(in.Days)*24*time.Hour))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// timeRanges are the words of time_range.
var timeRanges = map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "30d": 30 * 24 * time.Hour, "all": 0, "": 0}

func (d *Door) listTraces(c *restCall) (any, error) {
	f, err := d.traceFilter(c)
	if err != nil {
		return nil, err
	}
	list, err := audit.Traces(c.Context(), d.d.DB, f)
	if err != nil {
		return nil, err
	}
	out := traceList{Traces: list}
	if len(list) == f.Limit {
		out.Next = &list[len(list)-1].Seq
	}
	return out, nil
}

func (d *Door) traceFilter(c *restCall) (f audit.TraceFilter, err error) {
	q := c.URL.Query()
	f = audit.TraceFilter{WorkspaceID: c.caller.WorkspaceID, AgentID: q.Get("agent_id"), PolicyID: q.Get("policy_id"), Decision: q.Get("decision"), Type: q.Get("trace_type")}
	if f.Decision != "" && !slices.Contains(audit.TraceDecisions, f.Decision) {
		return f, fault.New(fault.InvalidParams, "decision must be one of %s", strings.Join(audit.TraceDecisions, ", "))
	}
	if f.Type != "" && !slices.Contains(audit.TraceTypes, f.Type) {
		return f, fault.New(fault.InvalidParams, "trace_type must be one of %s", strings.Join(audit.TraceTypes, ", "))
	}
	if a := d.agentNamed(c.caller.WorkspaceID, f.AgentID); a != nil {
		f.AgentID = a.ID
	}
	span, ok := timeRanges[q.Get("time_range")]
	if !ok {
		return f, fault.New(fault.InvalidParams, "time_range must be 1h, 24h, 7d, 30d or all")
	}
	if span > 0 {
		f.From = d.d.Now().Add(-span).UnixMicro()
	}
	from, err := moment(q.Get("from"))
	if err != nil {
		return f, err
	}
	f.From = max(f.From, from)
	if f.To, err = moment(q.Get("to")); err != nil {
		return f, err
	}
	if f.Before, err = c.number("cursor", 0); err != nil {
		return f, err
	}
	limit, err := c.number("limit", 50)
	f.Limit = int(min(max(limit, 1), 200))
	return f, err
}

func (d *Door) showTrace(c *restCall) (any, error) {
	t, events, err := audit.OneTrace(c.Context(), d.d.DB, c.caller.WorkspaceID, c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return traceAnswer{t, events}, nil
}
