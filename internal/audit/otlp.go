package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// OTLP is a collector that gets the rows of the record as log records, without bodies.
type OTLP struct {
	URL     string            // of the logs: http://collector:4318/v1/logs
	Headers map[string]string // such as Authorization
	Version string            // of doorward, for the resource

	every time.Duration // tests shorten it
}

const (
	otlpSetting  = "audit_otlp"     // "<last row that came through> <who exports> <until when, unix microseconds>"
	otlpEvery    = time.Second      // how often new rows are looked for
	otlpTime     = 10 * time.Second // of one post
	otlpLease    = 30 * time.Second // so long nobody else exports after who does was last heard of
	otlpBackoff  = time.Minute      // longest wait after a failure
	otlpPage     = 500              // rows of one post
	otlpMaxReply = 64 << 10
)

// exporter follows the record to a common. It reads rows back from the database: no call waits for it, and what came while
// the collector or this process was away is exported later. Of several replicas one has the lease.
type exporter struct {
	o    OTLP
	l    *Log
	me   string
	held string // the setting as this process left it, empty when it has no lease

	exported, dropped atomic.Int64
}

// newExporter begins with what is written from now on, the first time.
func newExporter(ctx context.Context, l *Log) (*exporter, error) {
	x := &exporter{o: *l.o.OTLP, l: l, me: db.NewID()}
	if x.o.every <= 0 {
		x.o.every = otlpEvery
	}
	_, err := l.o.DB.Setting(ctx, otlpSetting, func() (string, error) {
		var last int64
		err := l.o.DB.Read.QueryRowContext(ctx, `SELECT COALESCE(MAX(seq), 0) FROM audit_events`).Scan(&last)
		return fmt.Sprintf("%d - 0", last), err
	})
	return x, err
}

// Exported is how many rows the collector took, and how many will never reach it: it refused them, or they were pruned before.
func (l *Log) Exported() (exported, dropped int64) {
	if l.keeper == nil || l.keeper.otlp == nil {
		return 0, 0
	}
	return l.keeper.otlp.exported.Load(), l.keeper.otlp.dropped.Load()
}

func (x *exporter) run(ctx context.Context) {
	defer x.release(context.WithoutCancel(ctx))
	wait := x.o.every
	for {
		err := x.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			x.l.keeper.log.Warn("the record could not be exported; trying again", "error", err)
			wait = min(2*wait, otlpBackoff)
		default:
			wait = x.o.every
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// step exports all there is, if the lease is or becomes this process's.
func (x *exporter) step(ctx context.Context) error {
	last, mine, err := x.lease(ctx)
	for err == nil && mine {
		var page []Event
		if page, err = x.read(ctx, last); err != nil || len(page) == 0 {
			return err
		}
		if err = x.post(ctx, page); err != nil {
			return err
		}
		if gap := page[0].Seq - last - 1; gap > 0 { // pruned before they came through
			x.dropped.Add(gap)
		}
		last = page[len(page)-1].Seq
		mine, err = x.hold(ctx, x.held, last)
	}
	return err
}

// lease finds out where the export stands, and whether this process goes on with it.
func (x *exporter) lease(ctx context.Context) (last int64, mine bool, err error) {
	var value, who string
	var until int64
	if err := x.l.o.DB.Read.QueryRowContext(ctx, `SELECT value FROM setting WHERE name = $1`, otlpSetting).Scan(&value); err != nil {
		return 0, false, unreadable(err)
	}
	if _, err := fmt.Sscanf(value, "%d %s %d", &last, &who, &until); err != nil {
		return 0, false, fault.Wrap(fault.Internal, err, "the setting %s is damaged", otlpSetting)
	}
	left := until - x.l.o.Now().UnixMicro()
	if who != x.me && left > 0 && left <= otlpLease.Microseconds() {
		return 0, false, nil
	}
	if x.held = value; who == x.me && left > (otlpLease/2).Microseconds() {
		return last, true, nil // no need to write while there is nothing to export
	}
	mine, err = x.hold(ctx, value, last)
	return last, mine, err
}

// hold moves the setting, unless another process has moved it meanwhile.
func (x *exporter) hold(ctx context.Context, from string, last int64) (bool, error) {
	to := fmt.Sprintf("%d %s %d", last, x.me, x.l.o.Now().Add(otlpLease).UnixMicro())
	done, err := x.l.o.DB.Write.ExecContext(ctx, `UPDATE setting SET value = $1 WHERE name = $2 AND value = $3`, to, otlpSetting, from)
	if err != nil {
		return false, unwritable(err)
	}
	n, err := done.RowsAffected()
	if err != nil || n != 1 {
		return false, err
	}
	x.held = to
	return true, nil
}

// release lets another process go on at once. If it fails the lease runs out.
func (x *exporter) release(ctx context.Context) {
	last, mine, ok := strings.Cut(x.held, " ")
	if !ok || !strings.HasPrefix(mine, x.me) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastCheckpoint)
	defer cancel()
	_, _ = x.l.o.DB.Write.ExecContext(ctx, `UPDATE setting SET value = $1 WHERE name = $2 AND value = $3`, last+" - 0", otlpSetting, x.held)
}

// read gives the next rows, without bodies.
func (x *exporter) read(ctx context.Context, after int64) ([]Event, error) {
	found, err := x.l.o.DB.Read.QueryContext(ctx, `SELECT seq, id, at, kind, trace_id, workspace_id, agent_id, person_id, task_id, door, method, server_name, tool_name,
		decision, stage, rule_id, reason, approval_id, status, error_class, latency_us, hash FROM audit_events WHERE seq > $1 ORDER BY seq LIMIT $2`, after, otlpPage)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	var page []Event
	for found.Next() {
		var e Event
		if err := found.Scan(&e.Seq, &e.ID, &e.At, &e.Kind, &e.TraceID, &e.WorkspaceID, &e.AgentID, &e.PersonID, &e.TaskID, &e.Door, &e.Method, &e.Server, &e.Tool,
			&e.Decision, &e.Stage, &e.RuleID, &e.Reason, &e.ApprovalID, &e.Status, &e.ErrorClass, &e.LatencyUS, &e.Hash); err != nil {
			return nil, unreadable(err)
		}
		page = append(page, e)
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	return page, nil
}

// direct follows no redirects: where they lead, nobody configured.
var direct = &http.Client{Timeout: otlpTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post brings rows to the common. Rows that it cannot ever take are given up, so that they do not keep the others.
func (x *exporter) post(ctx context.Context, page []Event) error {
	body, err := proto.Marshal(x.request(page))
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the rows cannot be encoded")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.o.URL, bytes.NewReader(body))
	if err != nil {
		return fault.New(fault.Config, "the URL of the collector is not valid")
	}
	for name, value := range x.o.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "doorward")
	res, err := direct.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address
		}
		return fault.Wrap(fault.Unreachable, err, "the collector cannot be reached")
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, otlpMaxReply)) // the connection can be used again
	switch {
	case res.StatusCode/100 == 2:
		x.exported.Add(int64(len(page)))
		return nil
	case res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusRequestEntityTooLarge || res.StatusCode == http.StatusUnprocessableEntity:
		x.dropped.Add(int64(len(page)))
		x.l.keeper.log.Error("the collector refuses rows of the record; they are left out", "status", res.StatusCode, "from", page[0].Seq, "rows", len(page))
		return nil
	}
	return fault.New(fault.UpstreamError, "the collector answered with status %d", res.StatusCode)
}

// request is an ExportLogsServiceRequest: on the wire it is the same message as LogsData.
func (x *exporter) request(page []Event) *logs.LogsData {
	records := make([]*logs.LogRecord, len(page))
	for i := range page {
		records[i] = logRecord(&page[i])
	}
	return &logs.LogsData{ResourceLogs: []*logs.ResourceLogs{{
		Resource:  &resource.Resource{Attributes: attributes("service.name", "doorward", "service.version", x.o.Version)},
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "doorward.audit"}, LogRecords: records}},
	}}}
}

func logRecord(e *Event) *logs.LogRecord {
	severity, word := severityOf(e.Status)
	at := uint64(e.At) * 1000
	return &logs.LogRecord{
		TimeUnixNano: at, ObservedTimeUnixNano: at, SeverityNumber: severity, SeverityText: word, EventName: "doorward." + string(e.Kind), TraceId: otlpTrace(e.TraceID),
		Body: text(strings.Join(strings.Fields(e.Method+" "+e.Server+" "+e.Tool+" "+e.Decision+" "+string(e.Status)), " ")),
		Attributes: append(attributes(
			"doorward.id", e.ID, "doorward.trace_id", e.TraceID, "doorward.workspace_id", e.WorkspaceID, "doorward.agent_id", e.AgentID,
			"doorward.person_id", e.PersonID, "doorward.task_id", e.TaskID, "doorward.door", e.Door, "doorward.method", e.Method,
			"doorward.server", e.Server, "doorward.tool", e.Tool, "doorward.decision", e.Decision, "doorward.stage", e.Stage, "doorward.rule_id", e.RuleID,
			"doorward.reason", e.Reason, "doorward.approval_id", e.ApprovalID, "doorward.status", string(e.Status), "error.type", e.ErrorClass, "doorward.hash", e.Hash,
		), number("doorward.seq", e.Seq), number("doorward.latency_us", e.LatencyUS)),
	}
}

func severityOf(s Status) (logs.SeverityNumber, string) {
	switch s {
	case OK, Started, HeldStatus:
		return logs.SeverityNumber_SEVERITY_NUMBER_INFO, "INFO"
	case UpstreamError, TimeoutStatus, UnknownStatus:
		return logs.SeverityNumber_SEVERITY_NUMBER_ERROR, "ERROR"
	}
	return logs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
}

// otlpTrace is the 16 bytes of a trace id, nil where it has others.
func otlpTrace(id string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(id, "trc_"), "-", ""))
	if err != nil || len(b) != 16 {
		return nil
	}
	return b
}

func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(s, "\uFFFD")}}
}

func number(key string, n int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}}
}

// attributes are pairs of key and value, without the empty ones.
func attributes(pairs ...string) []*common.KeyValue {
	var out []*common.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, &common.KeyValue{Key: pairs[i], Value: text(pairs[i+1])})
		}
	}
	return out
}
