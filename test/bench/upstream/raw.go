package main

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
)

// rawHandler answers just enough of Streamable HTTP for a benchmark client or
// a gateway to use it: initialize, notifications, ping, tools/list and
// tools/call, all as application/json. Sessions are named but not stored.
type rawHandler struct {
	list json.RawMessage // the tools/list result
}

func newRawHandler(dummies int) *rawHandler {
	tools := []toolDef{
		{"create_note", "Takes a note and returns it.", json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)},
		{"echo", "Returns the given text.", json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)},
		{"add", "Adds two numbers.", json.RawMessage(`{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`)},
	}
	for i := range dummies {
		tools = append(tools, dummyTool(i))
	}
	b, err := json.Marshal(map[string]any{"tools": tools})
	if err != nil {
		panic(err) // plain data always marshals
	}
	return &rawHandler{list: b}
}

type rawRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Name            string          `json:"name"`
		Arguments       json.RawMessage `json:"arguments"`
	} `json:"params"`
}

func (h *rawHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
	case http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		http.Error(w, "no event stream here", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var req rawRequest
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(req.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result, rpcErr := h.answer(&req)
	if req.Method == "initialize" {
		w.Header().Set("Mcp-Session-Id", rand.Text())
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response(req.ID, result, rpcErr))
}

// answer is what the server says to a request, over either transport.
func (h *rawHandler) answer(req *rawRequest) (result, rpcErr any) {
	switch req.Method {
	case "initialize":
		return map[string]any{
			"protocolVersion": req.Params.ProtocolVersion,
			"capabilities":    map[string]any{"tools": map[string]any{}},
			"serverInfo":      map[string]string{"name": "bench-upstream", "version": "1.0.0"},
		}, nil
	case "ping":
		return struct{}{}, nil
	case "tools/list":
		return h.list, nil
	case "tools/call":
		text, err := runTool(req.Params.Name, req.Params.Arguments)
		if err != nil {
			return nil, map[string]any{"code": -32602, "message": err.Error()}
		}
		return map[string]any{"content": []map[string]string{{"type": "text", "text": text}}}, nil
	}
	return nil, map[string]any{"code": -32601, "message": "method not found"}
}

// message is a JSON-RPC response.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

func response(id json.RawMessage, result, rpcErr any) message {
	return message{"2.0", id, result, rpcErr}
}
