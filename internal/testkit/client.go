package testkit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The protocol revisions that tests use.
const (
	Legacy = "2025-11-25"
	Modern = "2026-07-28"
)

// RPCError is a JSON-RPC error with the data that refusals carry.
type RPCError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    struct {
		Reason     string `json:"reason"`
		ApprovalID string `json:"approval_id"`
		TraceID    string `json:"trace_id"`
		Rule       any    `json:"rule"`
	} `json:"data"`
}

// Reply is the answer to one request.
type Reply struct {
	Status        int
	Header        http.Header
	Result        json.RawMessage
	Error         *RPCError
	Raw           []byte            // the whole response message, or the body when it is none
	Notifications []json.RawMessage // that came on the way
	Took          time.Duration
}

// Text is the text of the first content block of a tool's result.
func (r Reply) Text() string {
	var v struct{ Content []struct{ Text string } }
	if json.Unmarshal(r.Result, &v) != nil || len(v.Content) == 0 {
		return ""
	}
	return v.Content[0].Text
}

// IsError reports a tool's own failure.
func (r Reply) IsError() bool {
	var v struct {
		IsError bool `json:"isError"`
	}
	return json.Unmarshal(r.Result, &v) == nil && v.IsError
}

// String is for messages of tests.
func (r Reply) String() string { return fmt.Sprintf("status %d: %.600s", r.Status, r.Raw) }

// Client is a raw MCP client over streamable HTTP, of either era. Its fields may be set before
// the first request. It is safe for concurrent use after Connect.
type Client struct {
	URL          string
	Key          string
	Version      string // default Legacy
	Header       http.Header
	Capabilities string // JSON, default {}
	Session      string
	HTTP         *http.Client

	t  testing.TB
	id atomic.Int64
}

// Client makes a client of a path such as /mcp, with the agent's key, and connects it.
func (g *Gateway) Client(path string, version string) *Client {
	g.t.Helper()
	c := NewClient(g.t, g.URL+path, AgentKey, version)
	c.Connect()
	return c
}

// NewClient makes a client that is not connected.
func NewClient(t testing.TB, url, key, version string) *Client {
	return &Client{URL: url, Key: key, Version: version, Header: http.Header{}, Capabilities: "{}", HTTP: http.DefaultClient, t: t}
}

// Connect does the handshake; there is none in the modern era.
func (c *Client) Connect() {
	c.t.Helper()
	if c.Version >= Modern {
		return
	}
	r := c.Request("initialize", `{"protocolVersion":"`+c.Version+`","capabilities":`+c.Capabilities+`,"clientInfo":{"name":"testkit","version":"1"}}`)
	if r.Error != nil || r.Result == nil {
		c.t.Fatalf("initialize: %v", r)
	}
	c.Session = r.Header.Get("Mcp-Session-Id")
	if got := c.Post(c.t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), "", ""); got.Status != http.StatusAccepted {
		c.t.Fatalf("notifications/initialized: %v", got)
	}
}

// Request sends a request and fails the test when the transport does. params is JSON ("" for none).
func (c *Client) Request(method, params string) Reply {
	c.t.Helper()
	r, err := c.Try(c.t.Context(), method, params)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	return r
}

// Call calls a tool; arguments is JSON.
func (c *Client) Call(tool, arguments string) Reply {
	c.t.Helper()
	return c.Request("tools/call", CallParams(tool, arguments))
}

// CallParams are the params of tools/call.
func CallParams(tool, arguments string) string {
	name, _ := json.Marshal(tool)
	return `{"name":` + string(name) + `,"arguments":` + arguments + `}`
}

// List lists all tools, page by page: raw definitions in order.
func (c *Client) List() []json.RawMessage {
	c.t.Helper()
	var all []json.RawMessage
	for params := "{}"; ; {
		r := c.Request("tools/list", params)
		if r.Error != nil {
			c.t.Fatalf("tools/list: %v", r)
		}
		var page struct {
			Tools      []json.RawMessage `json:"tools"`
			NextCursor json.RawMessage   `json:"nextCursor"`
		}
		Decode(c.t, r.Result, &page)
		all = append(all, page.Tools...)
		if page.NextCursor == nil {
			return all
		}
		params = `{"cursor":` + string(page.NextCursor) + `}`
	}
}

// Names are the names of the listed tools.
func (c *Client) Names() []string {
	c.t.Helper()
	names := []string{}
	for _, d := range c.List() {
		names = append(names, ToolName(c.t, d))
	}
	return names
}

// ToolName is the name in a definition.
func ToolName(t testing.TB, definition json.RawMessage) string {
	t.Helper()
	var v struct{ Name string }
	Decode(t, definition, &v)
	return v.Name
}

// Try sends a request with an id of its own.
func (c *Client) Try(ctx context.Context, method, params string) (Reply, error) {
	if params == "" {
		params = "{}"
	}
	name := ""
	var p struct {
		Name string `json:"name"`
		URI  string `json:"uri"`
	}
	_ = json.Unmarshal([]byte(params), &p)
	if name = p.Name; name == "" {
		name = p.URI
	}
	if c.Version >= Modern {
		params = addMeta(params, modernMeta(c.Version, c.Capabilities))
	}
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.id.Add(1), method, params)
	return c.post(ctx, body, method, name)
}

// modernMeta are the members of _meta that the modern era wants in every request.
func modernMeta(version, capabilities string) string {
	return `"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientInfo":{"name":"testkit","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + capabilities
}

// addMeta adds members to the _meta of params; a _meta that is there must come first.
func addMeta(params, meta string) string {
	if strings.HasPrefix(params, `{"_meta":{`) {
		return `{"_meta":{` + meta + `,` + params[len(`{"_meta":{`):]
	}
	if params == "{}" {
		return `{"_meta":{` + meta + `}}`
	}
	return `{"_meta":{` + meta + `},` + params[1:]
}

// Post sends any body and fails the test when the transport does.
func (c *Client) Post(ctx context.Context, body []byte, method, name string) Reply {
	c.t.Helper()
	r, err := c.post(ctx, body, method, name)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *Client) headers(h http.Header, method, name string) {
	for k, v := range c.Header {
		h[k] = v
	}
	if c.Key != "" {
		h.Set("Authorization", "Bearer "+c.Key)
	}
	if c.Session != "" {
		h.Set("Mcp-Session-Id", c.Session)
	}
	if c.Version >= "2025-06-18" && method != "initialize" {
		h.Set("MCP-Protocol-Version", c.Version)
	}
	if c.Version >= Modern && method != "" {
		h.Set("Mcp-Method", method)
		if name != "" && (strings.HasPrefix(method, "tools/") || strings.HasPrefix(method, "prompts/") || strings.HasPrefix(method, "resources/")) {
			h.Set("Mcp-Name", name)
		}
	}
}

func (c *Client) post(ctx context.Context, body []byte, method, name string) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	c.headers(req.Header, method, name)
	start := time.Now()
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	r := Reply{Status: resp.StatusCode, Header: resp.Header}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = EachEvent(resp.Body, func(data []byte) bool {
			if isResponse(data) {
				r.Raw = bytes.Clone(data)
				return false
			}
			r.Notifications = append(r.Notifications, bytes.Clone(data))
			return true
		})
	} else {
		r.Raw, err = io.ReadAll(resp.Body)
	}
	r.Took = time.Since(start)
	if err != nil && err != io.EOF {
		return r, err
	}
	var m struct {
		Result json.RawMessage `json:"result"`
		Error  *RPCError       `json:"error"`
	}
	if json.Unmarshal(r.Raw, &m) == nil {
		r.Result, r.Error = m.Result, m.Error
	}
	return r, nil
}

func isResponse(data []byte) bool {
	var m struct {
		Method *string         `json:"method"`
		ID     json.RawMessage `json:"id"`
	}
	return json.Unmarshal(data, &m) == nil && m.Method == nil && m.ID != nil
}

// Stream opens the standalone event stream of a session and delivers its messages until cancelled.
func (c *Client) Stream(ctx context.Context) <-chan json.RawMessage {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	c.headers(req.Header, "", "")
	resp, err := c.HTTP.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		c.t.Fatalf("GET: status %d", resp.StatusCode)
	}
	out := make(chan json.RawMessage, 64)
	go func() {
		defer close(out)
		defer resp.Body.Close()
		_ = EachEvent(resp.Body, func(data []byte) bool {
			select {
			case out <- bytes.Clone(data):
			case <-ctx.Done():
				return false
			}
			return true
		})
	}()
	return out
}

// Close ends the session.
func (c *Client) Close() int {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodDelete, c.URL, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.headers(req.Header, "", "")
	resp, err := c.HTTP.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// EachEvent reads an event stream and calls fn for the data of each event that has some, until fn returns false.
func EachEvent(r io.Reader, fn func(data []byte) bool) error {
	b := bufio.NewReaderSize(r, 64<<10)
	var data []byte
	for {
		line, err := b.ReadBytes('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if len(bytes.TrimSpace(data)) > 0 && !fn(data) {
				return nil
			}
			data = nil
			continue
		}
		if d, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(d, []byte(" "))...)
		}
	}
}
