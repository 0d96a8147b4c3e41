package mcp

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"doorward.dev/doorward/internal/fault"
)

// AppendRequest appends a request; nil params are left out.
func AppendRequest(dst []byte, id json.RawMessage, method string, params json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(appendID(dst, id), `,"method":`...)
	return appendParams(AppendQuote(dst, method), params)
}

// AppendNotification appends a notification; nil params are left out.
func AppendNotification(dst []byte, method string, params json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","method":`...)
	return appendParams(AppendQuote(dst, method), params)
}

// AppendResult appends a response; a nil result is {}.
func AppendResult(dst []byte, id, result json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(appendID(dst, id), `,"result":`...)
	if result == nil {
		result = json.RawMessage("{}")
	}
	return append(append(dst, result...), '}')
}

// AppendError appends a response with an error object; a nil id is null.
func AppendError(dst []byte, id, rpcErr json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(appendID(dst, id), `,"error":`...)
	return append(append(dst, rpcErr...), '}')
}

func appendID(dst []byte, id json.RawMessage) []byte {
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

func appendParams(dst []byte, params json.RawMessage) []byte {
	if params != nil {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// RPCError is a JSON-RPC error as a peer sent it; Raw is the error object byte for byte.
type RPCError struct {
	Code    int64
	Message string
	Raw     json.RawMessage
}

func (e *RPCError) Error() string { return e.Message }

// ParseRPCError reads the error object of a response. What cannot be read is
// zero; Raw is always kept.
func ParseRPCError(raw json.RawMessage) *RPCError {
	e := &RPCError{Raw: raw}
	e.Code, _ = Int(Get(raw, "code"))
	e.Message, _ = String(Get(raw, "message"))
	return e
}

// ErrorObject renders err as a JSON-RPC error object: code, message and, when
// there is any, data with the reason, the Data of the error sorted by key, and
// the trace id. The cause (Err) is never shown. A reason or trace id of the
// error wins over an item of Data with that key.
func ErrorObject(err *fault.Error, traceID string) json.RawMessage {
	dst := append(make([]byte, 0, 128), `{"code":`...)
	dst = strconv.AppendInt(dst, int64(err.Codes().RPC), 10)
	dst = AppendQuote(append(dst, `,"message":`...), err.Message)
	data := []byte{'{'}
	item := func(key string, value []byte) {
		if len(data) > 1 {
			data = append(data, ',')
		}
		data = append(append(AppendQuote(data, key), ':'), value...)
	}
	if err.Reason != "" {
		item("reason", Quote(err.Reason))
	}
	keys := make([]string, 0, len(err.Data))
	for k := range err.Data {
		if k == "reason" && err.Reason != "" || k == "trace_id" && traceID != "" {
			continue
		}
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		item(k, encode(err.Data[k]))
	}
	if traceID != "" {
		item("trace_id", Quote(traceID))
	}
	if len(data) > 1 {
		dst = append(append(append(dst, `,"data":`...), data...), '}')
	}
	return append(dst, '}')
}

// encode renders a value of Data; what JSON cannot hold becomes null, so that
// an error can always be answered.
func encode(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return []byte("null")
	}
	return bytes.TrimSpace(buf.Bytes())
}
