package door

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// metrics counts what passes the doors. Labels are words of fixed sets only: names of servers,
// tools and callers would make the series endless and would tell a scraper what is governed.
type metrics struct {
	registry *prometheus.Registry
	calls    map[outcome]prometheus.Counter // made once, so that counting is one atomic add
}

// outcome of a tool call as the metrics tell it.
type outcome struct{ decision, status string }

// outcomes are all there are. A tool that says isError has run (tool_error); a server that failed has not answered (upstream_error).
var outcomes = map[fault.Class]outcome{
	"":                    {"ALLOW", "ok"},
	fault.Held:            {"REQUIRE_APPROVAL", "held"},
	fault.Denied:          {"DENY", "denied"},
	fault.Blocked:         {"DENY", "denied"},
	fault.NotAdmitted:     {"DENY", "denied"},
	fault.Limit:           {"DENY", "denied"},
	fault.Forbidden:       {"DENY", "denied"},
	fault.Unauthenticated: {"DENY", "denied"},
	fault.UnknownTool:     {"DENY", "invalid"},
	fault.InvalidParams:   {"DENY", "invalid"},
	fault.InvalidRequest:  {"DENY", "invalid"},
	fault.UpstreamError:   {"ALLOW", "upstream_error"},
	fault.Unreachable:     {"ALLOW", "upstream_error"},
	fault.Timeout:         {"ALLOW", "timeout"},
	fault.OutcomeUnknown:  {"ALLOW", "unknown"},
	fault.Cancelled:       {"ALLOW", "cancelled"},
}

var (
	toolFailed = outcome{"ALLOW", "tool_error"}
	ownFault   = outcome{"DENY", "error"} // Doorward itself could not: nothing was let through
)

func newMetrics(d *Door) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), calls: make(map[outcome]prometheus.Counter)}
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "doorward_calls_total", Help: "Tool calls by decision and how they ended.",
	}, []string{"decision", "status"})
	for _, o := range outcomes {
		m.calls[o] = vec.WithLabelValues(o.decision, o.status)
	}
	for _, o := range []outcome{toolFailed, ownFault} {
		m.calls[o] = vec.WithLabelValues(o.decision, o.status)
	}
	sessions := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "doorward_sessions", Help: "Sessions of older clients with state in memory.",
	}, func() float64 { return float64(d.sessions.Count()) })
	streams := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "doorward_streams", Help: "Standing event streams of clients.",
	}, func() float64 { return float64(d.hub.count()) })
	if d.d.Audit != nil {
		for i, result := range []string{"exported", "dropped"} {
			m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "doorward_otlp_rows_total", Help: "Rows of the record that the collector took, and that will never reach it.",
				ConstLabels: prometheus.Labels{"result": result},
			}, func() float64 {
				exported, dropped := d.d.Audit.Exported()
				return float64([2]int64{exported, dropped}[i])
			}))
		}
	}
	m.registry.MustRegister(vec, sessions, streams, &healthCollector{d: d},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// call counts one tool call.
func (m *metrics) call(result json.RawMessage, err error) {
	m.calls[outcomeOf(result, err)].Inc()
}

func outcomeOf(result json.RawMessage, err error) outcome {
	var re *mcp.RPCError
	switch {
	case err == nil && isToolError(result):
		return toolFailed
	case err == nil:
		return outcomes[""]
	case errors.As(err, &re):
		return outcomes[fault.UpstreamError]
	}
	if o, ok := outcomes[fault.From(err).Class]; ok {
		return o
	}
	return ownFault
}

// healthCollector counts upstream connections by health when it is asked.
type healthCollector struct{ d *Door }

var upstreamsDesc = prometheus.NewDesc("doorward_upstreams", "Connections to servers by health.", []string{"health"}, nil)

// Describe implements prometheus.Collector.
func (c *healthCollector) Describe(ch chan<- *prometheus.Desc) { ch <- upstreamsDesc }

// Collect implements prometheus.Collector.
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	count := map[upstream.Health]int{upstream.Connecting: 0, upstream.Up: 0, upstream.Degraded: 0, upstream.Down: 0, upstream.Disabled: 0}
	for _, st := range c.d.d.Upstream.Statuses() {
		count[st.Health]++
	}
	for h, n := range count {
		ch <- prometheus.MustNewConstMetric(upstreamsDesc, prometheus.GaugeValue, float64(n), string(h))
	}
}
