package op

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"doorward.dev/doorward/internal/fault"
)

type greeting struct {
	Name  string `json:"name" jsonschema:"who is greeted"`
	Times int    `json:"times,omitempty" jsonschema:"how often, default 1"`
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// testServer has one tool for each way a handler can end.
func testServer(t *testing.T) *Server {
	t.Helper()
	s, err := NewServer("test", "Test", quiet(),
		Define("greet", "Greets somebody.", Read, func(_ context.Context, in greeting) (any, error) {
			return "hello " + strings.Repeat(in.Name, max(1, in.Times)), nil
		}),
		Define("facts", "Returns an object.", Read, func(context.Context, struct{}) (any, error) {
			return map[string]any{"big": json.Number("9007199254740993"), "tag": "<b>"}, nil
		}),
		Define("list", "Returns an array.", Read, func(context.Context, struct{}) (any, error) { return []int{1, 2}, nil }),
		Define("refuse", "Refuses.", Write, func(context.Context, struct{}) (any, error) {
			return nil, Fail("no_token", "no token configured for %q", "a/b").With("repo", "a/b")
		}),
		Define("leak", "Fails with an inner error.", Delete, func(context.Context, struct{}) (any, error) {
			return nil, errors.New("dial 10.0.0.7: password s3cret refused")
		}),
		Define("panic", "Panics.", Execute, func(context.Context, struct{}) (any, error) { panic("s3cret") }),
		Define("odd", "Returns what is not JSON.", Send, func(context.Context, struct{}) (any, error) { return func() {}, nil }),
		Define("wait", "Waits for the end of its context.", Read, func(ctx context.Context, _ struct{}) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDefinition(t *testing.T) {
	want := `{"name":"greet","description":"Greets somebody.","inputSchema":{"type":"object","properties":{` +
		`"name":{"type":"string","description":"who is greeted"},"times":{"type":"integer","description":"how often, default 1"}},` +
		`"required":["name"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"readOnlyHint":true}}`
	if diff := cmp.Diff(want, string(testServer(t).Tools()[0])); diff != "" {
		t.Error(diff)
	}
}

func TestCallTool(t *testing.T) {
	s := testServer(t)
	text := func(s string) string {
		b, _ := encode(s)
		return `{"content":[{"type":"text","text":` + string(b) + `}]}`
	}
	failed := func(envelope string) string {
		b, _ := encode(envelope)
		return `{"content":[{"type":"text","text":` + string(b) + `}],"structuredContent":` + envelope + `,"isError":true}`
	}
	internal := failed(`{"error":"internal error","error_class":"InternalError","ok":false}`)
	incomplete := failed(`{"error":"Missing required argument(s): name. The tool was NOT called. Re-issue the call with the missing field(s) included.",` +
		`"error_class":"IncompleteArguments","missing":["name"],"ok":false,"tool":"greet"}`)
	for _, c := range []struct{ name, tool, args, want string }{
		{"text", "greet", `{"name":"Ada","times":2}`, text("hello AdaAda")},
		{"empty string is present", "greet", `{"name":""}`, text("hello ")},
		{"missing", "greet", `{"times":2}`, incomplete},
		{"null is missing", "greet", `{"name":null}`, incomplete},
		{"no arguments", "greet", ``, incomplete},
		{"null arguments", "greet", `null`, incomplete},
		{"object", "facts", `{}`, `{"content":[{"type":"text","text":"{\"big\":9007199254740993,\"tag\":\"<b>\"}"}],"structuredContent":{"big":9007199254740993,"tag":"<b>"}}`},
		{"array has no structured content", "list", `{}`, text("[1,2]")},
		{"refusal", "refuse", `{}`, failed(`{"error":"no token configured for \"a/b\"","error_class":"no_token","ok":false,"repo":"a/b"}`)},
		{"inner error stays inside", "leak", `{}`, internal},
		{"panic", "panic", `{}`, internal},
		{"value that is not JSON", "odd", `{}`, internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.CallTool(t.Context(), c.tool, json.RawMessage(c.args))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStrictArguments(t *testing.T) {
	s := testServer(t)
	for _, args := range []string{`{"name":"x","extra":1}`, `{"Name":"x","name":"y"}`, `{"name":7}`, `{"name":"x","times":1.5}`,
		`{"name":"x","times":99999999999999999999}`, `[]`, `"x"`, `7`, `{"name":`} {
		got, err := s.CallTool(t.Context(), "greet", json.RawMessage(args))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), `"error_class":"InvalidArguments"`) || !strings.Contains(string(got), `"isError":true`) {
			t.Errorf("%s: %s", args, got)
		}
	}
}

func TestErrorsOfCallTool(t *testing.T) {
	s := testServer(t)
	if _, err := s.CallTool(t.Context(), "gone", nil); !fault.Is(err, fault.UnknownTool) || err.Error() != "Tool not found: gone" {
		t.Errorf("unknown tool: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.CallTool(ctx, "wait", nil); !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := s.CallTool(ctx, "wait", nil); !fault.Is(err, fault.Timeout) {
		t.Errorf("timeout: %v", err)
	}
}

func TestWrongDeclarations(t *testing.T) {
	run := func(context.Context, greeting) (any, error) { return nil, nil }
	for name, tool := range map[string]Tool{
		"name":               Define("bad name", "d", Read, run),
		"long name":          Define(strings.Repeat("n", 65), "d", Read, run),
		"no description":     Define("t", "", Read, run),
		"long description":   Define("t", strings.Repeat("ä", 201), Read, run),
		"class":              Define("t", "d", "reads", run),
		"not a struct":       Define("t", "d", Read, func(context.Context, string) (any, error) { return nil, nil }),
		"no schema":          Define("t", "d", Read, func(context.Context, struct{ F func() }) (any, error) { return nil, nil }),
		"argument unexplain": Define("t", "d", Read, func(context.Context, struct{ A int }) (any, error) { return nil, nil }),
	} {
		if _, err := NewServer("s", "S", nil, tool); !fault.Is(err, fault.Config) {
			t.Errorf("%s: accepted (%v)", name, err)
		}
	}
	ok := Define("t", strings.Repeat("ä", 200), Read, run)
	if _, err := NewServer("s", "S", nil, ok); err != nil {
		t.Errorf("200 characters: %v", err)
	}
	if _, err := NewServer("s", "S", nil, ok, ok); err == nil {
		t.Error("a name declared twice was accepted")
	}
}

func TestNamesInOrder(t *testing.T) {
	if diff := cmp.Diff([]string{"greet", "facts", "list", "refuse", "leak", "panic", "odd", "wait"}, testServer(t).Names()); diff != "" {
		t.Error(diff)
	}
}

func FuzzArguments(f *testing.F) {
	for _, seed := range []string{`{}`, `{"name":"x"}`, `{"name":null}`, `[1]`, `{"name":"\ud800"}`, `{"times":1e999}`, ``, `{"name":"x","name":2}`} {
		f.Add([]byte(seed))
	}
	s, err := NewServer("f", "F", quiet(), Define("greet", "Greets.", Read, func(_ context.Context, in greeting) (any, error) { return in.Name, nil }))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		out, err := s.CallTool(t.Context(), "greet", args)
		if err != nil || !json.Valid(out) {
			t.Fatalf("%q: %s, %v", args, out, err)
		}
	})
}
