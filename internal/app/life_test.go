package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// slowServer is an MCP server over HTTP whose one tool runs until it is let go or its caller leaves.
type slowServer struct {
	*httptest.Server
	began chan struct{} // one item a call
	letGo chan struct{} // closed: calls end
	left  chan struct{} // one item a call whose caller left

	mu   sync.Mutex
	seen []http.Header
}

func newSlowServer(t *testing.T) *slowServer {
	s := &slowServer{began: make(chan struct{}, 8), letGo: make(chan struct{}), left: make(chan struct{}, 8)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *slowServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.Header.Clone())
	s.mu.Unlock()
	b, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.Unmarshal(b, &m)
	result := `{}`
	switch {
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	case m.Method == "initialize":
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}`
	case m.Method == "tools/list":
		result = `{"tools":[{"name":"slow","description":"Read slowly.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`
	case m.Method == "tools/call":
		s.began <- struct{}{}
		select {
		case <-s.letGo:
			result = `{"content":[{"type":"text","text":"done at last"}]}`
		case <-r.Context().Done():
			s.left <- struct{}{}
			return
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"error":{"code":-32601,"message":"Method not found"}}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":`+result+`}`)
}

// add registers a server and approves it as suggested.
func (s *site) add(spec map[string]any) string {
	s.t.Helper()
	id := s.admin("POST", "mcp/servers", spec)["id"].(string)
	if scan := s.admin("POST", "mcp/servers/"+id+"/scan", nil); scan["status"] != "ok" {
		s.t.Fatalf("scan = %v", scan)
	}
	var choices []map[string]any
	for _, t := range s.admin("GET", "mcp/servers/"+id+"/tools", nil)["tools"].([]any) {
		t := t.(map[string]any)
		choices = append(choices, map[string]any{"tool_id": t["id"], "action": t["suggestion"].(map[string]any)["action"]})
	}
	s.admin("POST", "mcp/servers/"+id+"/approve", map[string]any{"tools": choices})
	s.healthy(id)
	return id
}

// later calls the slow tool in the background.
func (s *site) later() <-chan string {
	out := make(chan string, 1)
	go func() {
		req, err := http.NewRequest("POST", s.PublicURL()+"/tools/call", strings.NewReader(`{"name":"slow","arguments":{}}`))
		if err != nil {
			out <- err.Error()
			return
		}
		req.Header.Set("Authorization", "Bearer "+agentKey)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			out <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		out <- string(b)
	}()
	return out
}

func TestEndLetsRunningCallsFinish(t *testing.T) {
	slow := newSlowServer(t)
	s := start(t, "", map[string]string{"shutdown_grace": "20s"})
	s.add(map[string]any{"name": "slow", "server_url": slow.URL})
	answer := s.later()
	<-slow.began
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	s.until("new requests are refused", func() bool {
		res, err := http.Get(s.PublicURL() + "/readyz")
		if err != nil {
			return true // the listener is closed
		}
		res.Body.Close()
		return res.StatusCode == http.StatusServiceUnavailable
	})
	close(slow.letGo)
	if got := <-answer; !strings.Contains(got, "done at last") {
		t.Errorf("the running call got %s", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEndCancelsCallsAfterTheGraceTime(t *testing.T) {
	slow := newSlowServer(t)
	s := start(t, "", map[string]string{"shutdown_grace": "50ms"})
	s.add(map[string]any{"name": "slow", "server_url": slow.URL})
	answer := s.later()
	<-slow.began
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	<-slow.left
	<-answer
	again := start(t, s.dir, nil) // the cancelled call has its outcome in the record
	rows := again.admin("GET", "audit?kind=call", nil)["events"].([]any)
	if len(rows) != 1 || rows[0].(map[string]any)["status"] != "cancelled" {
		t.Errorf("rows = %v", rows)
	}
	if v := again.admin("POST", "audit/verify", nil); v["whole"] != true {
		t.Errorf("verify = %v", v)
	}
}
