package mcp_test

import (
	"encoding/json"
	"errors"
	"testing"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

func TestAppend(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, tt := range []struct {
		got  []byte
		want string
	}{
		{mcp.AppendRequest([]byte("x"), raw("18446744073709551616"), "tools/call", raw(`{"a": 1.0}`)), `x{"jsonrpc":"2.0","id":18446744073709551616,"method":"tools/call","params":{"a": 1.0}}`},
		{mcp.AppendRequest(nil, raw(`"a"`), "p\"q", nil), `{"jsonrpc":"2.0","id":"a","method":"p\"q"}`},
		{mcp.AppendNotification(nil, "n", raw(`{}`)), `{"jsonrpc":"2.0","method":"n","params":{}}`},
		{mcp.AppendNotification(nil, "n", nil), `{"jsonrpc":"2.0","method":"n"}`},
		{mcp.AppendResult(nil, raw("1"), raw(`{ "x":1}`)), `{"jsonrpc":"2.0","id":1,"result":{ "x":1}}`},
		{mcp.AppendResult(nil, raw("1"), nil), `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{mcp.AppendError(nil, nil, raw(`{"code":1,"message":"m"}`)), `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}`},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
	// What is appended is what Parse reads.
	m, err := mcp.Parse(mcp.AppendRequest(nil, raw(`"\u0041"`), "tools/call", raw(`{"name":"x"}`)), mcp.Limits{})
	if err != nil || string(m.ID) != `"\u0041"` || m.Method != "tools/call" || string(m.Params) != `{"name":"x"}` {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestErrorObject(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   *fault.Error
		trace string
		want  string
	}{
		{"bare", fault.New(fault.Parse, "no \"JSON\""), "", `{"code":-32700,"message":"no \"JSON\""}`},
		{"cause is not shown", fault.Wrap(fault.Internal, errors.New("secret"), "internal error"), "t1", `{"code":-32603,"message":"internal error","data":{"trace_id":"t1"}}`},
		{"all, in order", fault.New(fault.Held, "wait").Why("APPROVAL_REQUIRED").With("z", 1).With("a", "<b>").With("m", []string{"x"}), "t",
			`{"code":-32004,"message":"wait","data":{"reason":"APPROVAL_REQUIRED","a":"<b>","m":["x"],"z":1,"trace_id":"t"}}`},
		{"own keys win", fault.New(fault.Denied, "no").Why("RULE_DENY").With("reason", "x").With("trace_id", "y"), "t",
			`{"code":-32003,"message":"no","data":{"reason":"RULE_DENY","trace_id":"t"}}`},
		{"free keys stay", fault.New(fault.Denied, "no").With("reason", "x").With("trace_id", "y"), "",
			`{"code":-32003,"message":"no","data":{"reason":"x","trace_id":"y"}}`},
		{"raw and unencodable", fault.New(fault.Limit, "no").With("r", json.RawMessage(`{"n":9007199254740993}`)).With("f", func() {}), "",
			`{"code":-32005,"message":"no","data":{"f":null,"r":{"n":9007199254740993}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := mcp.ErrorObject(tt.err, tt.trace)
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if e := mcp.ParseRPCError(got); e.Code != int64(tt.err.Codes().RPC) || e.Message != tt.err.Message || string(e.Raw) != tt.want {
				t.Errorf("read back: %+v", e)
			}
		})
	}
	if e := mcp.ParseRPCError(json.RawMessage(`[]`)); e.Code != 0 || e.Message != "" || string(e.Raw) != "[]" {
		t.Errorf("%+v", e)
	}
}
