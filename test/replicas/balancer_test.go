package replicas

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

// balancer sends each request to the next replica, as a load balancer does that is not sticky. A request whose replica dies
// is answered 502 and never sent again.
type balancer struct {
	url     string
	next    atomic.Int64
	mu      sync.Mutex
	targets []*url.URL
}

func (c *cluster) balancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{targets: make([]*url.URL, len(c.replicas))}
	for i := range c.replicas {
		b.point(t, i, c.replicas[i].URL)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(b.pick()) },
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		// Every request on a connection of its own: the transport itself would send one again whose old connection broke.
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// point sends the share of replica i to another address.
func (b *balancer) point(t *testing.T, i int, to string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets[i] = u
}

func (b *balancer) pick() *url.URL {
	n := b.next.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.targets[int(n)%len(b.targets)]
}

// client is a client of the balancer with the agent's key.
func (b *balancer) client(t *testing.T, version string) *testkit.Client {
	t.Helper()
	c := testkit.NewClient(t, b.url+"/mcp/fake", testkit.AgentKey, version)
	c.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(c.HTTP.CloseIdleConnections)
	c.Connect()
	return c
}

// ledger is what the server behind has executed: tool and id → times.
type ledger struct {
	mu   sync.Mutex
	runs map[string]int
}

// upstream is a fake server that keeps a ledger by the argument id.
func upstream(t *testing.T, tools ...string) (*testkit.Fake, *ledger) {
	t.Helper()
	l := &ledger{runs: map[string]int{}}
	f := testkit.NewFake(t, tools...)
	f.OnCall(func(tool string, args json.RawMessage) (string, string) {
		var in struct{ ID int64 }
		_ = json.Unmarshal(args, &in)
		l.mu.Lock()
		l.runs[entry(tool, in.ID)]++
		l.mu.Unlock()
		return testkit.TextResult(fmt.Sprint("done ", in.ID)), ""
	})
	return f, l
}

func entry(tool string, id int64) string { return fmt.Sprint(tool, " ", id) }

func (l *ledger) times(tool string, id int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[entry(tool, id)]
}
