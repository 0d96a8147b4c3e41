package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"doorward.dev/doorward/internal/fault"
)

// demoClient is what the demo uses of Doorward: nothing but its HTTP doors.
type demoClient struct {
	ctx          context.Context
	url          string
	admin, agent string
}

// answer is the answer to a tool call, as it came.
type answer struct {
	Result struct {
		Content []struct{ Text string }
		IsError bool
	}
	Error *struct {
		Code    int
		Message string
		Data    struct {
			Reason     string `json:"reason"`
			ApprovalID string `json:"approval_id"`
			TraceID    string `json:"trace_id"`
		}
	}
}

func (a answer) String() string {
	if a.Error != nil {
		return fmt.Sprintf("refused %d %s: %s", a.Error.Code, a.Error.Data.Reason, a.Error.Message)
	}
	if len(a.Result.Content) == 0 {
		return "ran"
	}
	return fmt.Sprintf("ran: %q", a.Result.Content[0].Text)
}

func (a answer) code() int {
	if a.Error == nil {
		return 0
	}
	return a.Error.Code
}

// call calls a tool of the server notes as an MCP client of 2026-07-28 does.
func (c *demoClient) call(tool string, args map[string]string) (a answer, err error) {
	body := map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{
			"name": tool, "arguments": args,
			"_meta": map[string]any{
				"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
				"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "demo", "version": Version},
				"io.modelcontextprotocol/clientCapabilities": struct{}{},
			},
		},
	}
	return a, c.do("POST", "/mcp/notes", c.agent, body, &a, map[string]string{
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
		"Accept": "application/json, text/event-stream",
	})
}

// rest makes an administrative request as the owner.
func (c *demoClient) rest(method, path string, in, out any) error {
	return c.do(method, "/api/v1/"+path, c.admin, in, out, nil)
}

func (c *demoClient) do(method, path, key string, in, out any, headers map[string]string) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(c.ctx, method, c.url+path, &body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "%s %s failed", method, path)
	}
	defer res.Body.Close()
	if res.StatusCode >= 400 && headers == nil {
		var e struct{ Error struct{ Message string } }
		_ = json.NewDecoder(res.Body).Decode(&e)
		return fault.New(fault.Internal, "%s %s: HTTP %d %s", method, path, res.StatusCode, e.Error.Message)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fault.Wrap(fault.Internal, err, "the answer of %s %s is not JSON", method, path)
	}
	return nil
}
