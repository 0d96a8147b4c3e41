package cases

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

// Case 14: of what the client sends, only the message goes on.
func TestCase14Headers(t *testing.T) {
	f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
	g := testkit.Start(t, testkit.Options{})
	g.Approve(g.AddHTTP("fake", f.URL, map[string]string{"Authorization": "Bearer upstream-secret-value", "X-Team": "blue"}).ID, "ALLOW")
	for _, version := range []string{testkit.Legacy, "2025-06-18", "2025-03-26", "2024-11-05", testkit.Modern} {
		c := testkit.NewClient(t, g.URL+"/mcp/fake", testkit.AgentKey, version)
		c.Header = http.Header{"Cookie": {"sid=client-cookie"}, "X-Client": {"client-header"}, "Forwarded": {"for=client-forwarded"}, "Proxy-Authorization": {"Basic client-proxy"}}
		c.Connect()
		ok(t, c.Call("work", `{}`), "work")
		own := []string{testkit.AgentKey, "client-cookie", "client-header", "client-forwarded", "client-proxy"}
		if c.Session != "" {
			own = append(own, c.Session)
		}
		for _, r := range f.Requests("") {
			raw := &bytes.Buffer{}
			_ = r.Header.Write(raw)
			for _, mark := range own {
				if strings.Contains(raw.String(), mark) || bytes.Contains(r.Body, []byte(mark)) {
					t.Fatalf("%s: %q went on to the server:\n%s%s", version, mark, raw, r.Body)
				}
			}
			if r.Header.Get("Authorization") != "Bearer upstream-secret-value" || r.Header.Get("X-Team") != "blue" {
				t.Errorf("the configured headers are missing:\n%s", raw)
			}
		}
	}
}

// marks are the secrets that are planted, by the place they are planted in. They have characters that are
// written differently in JSON and in a URL.
var marks = map[string]string{
	"env":    `MARK-env-5f"1+/é`,
	"arg":    `MARK-arg-7c+/=x`,
	"url":    `MARK-url-91+z`,
	"header": `MARK-header-c3/+k=`,
	"query":  `MARK-query-e8`,
}

// leaky is a server that tells its environment and arguments wherever it can.
var _ = testkit.Register("leaky", func(s *testkit.FakeStdio) {
	all := strings.Join(os.Args[1:], " ") + " " + os.Getenv("API_TOKEN")
	fmt.Fprintln(os.Stderr, "starting with", all)
	s.Print("started with " + all)
	s.Tools = []string{testkit.ToolDef("work", "Works.")}
	s.OnCall = func(_ string, args json.RawMessage) (string, string) {
		fmt.Fprintln(os.Stderr, "called with", all)
		if string(args) == `{"fail":true}` {
			b, _ := json.Marshal("failed with " + all)
			return "", `{"code":-32000,"message":` + string(b) + `}`
		}
		return testkit.TextResult(fmt.Sprintf("ran with %s %x", all, sha256.Sum256([]byte(os.Getenv("API_TOKEN"))))), ""
	}
	s.Serve()
})

// Case 15: planted secrets show up nowhere.
func TestCase15Secrets(t *testing.T) {
	g := testkit.Start(t, testkit.Options{Env: []string{"DOORWARD_LOG_LEVEL=debug"}})
	stdio := testkit.Reexec("leaky", map[string]string{"API_TOKEN": marks["env"]})
	stdio.Args = []string{"--api-key", marks["arg"], "--token=" + marks["arg"]}
	leaky := g.AddStdio("leaky", stdio)
	g.Approve(leaky.ID, "ALLOW")

	f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
	f.OnCall(func(string, json.RawMessage) (string, string) {
		b, _ := json.Marshal(f.Requests("tools/call")[0].Header)
		return testkit.TextResult(string(b)), ""
	})
	secretURL := strings.Replace(f.URL, "http://", "http://user:"+url.QueryEscape(marks["url"])+"@", 1) + "?api_key=" + marks["query"]
	web := g.AddHTTP("web", secretURL, map[string]string{"X-Api-Key": marks["header"]})
	g.Approve(web.ID, "ALLOW")
	dead := g.AddHTTP("dead", "http://user:"+url.QueryEscape(marks["url"])+"@"+testkit.FreeAddr(t)+"/mcp?token="+marks["query"], map[string]string{"Authorization": "Bearer " + marks["header"]})
	if s := g.Scan(dead.ID); s.Status == "ok" {
		t.Fatal("the dead server was scanned")
	}
	broken := g.AddStdio("broken", testkit.Stdio{Command: "/nowhere/" + "missing", Args: []string{"--password", marks["arg"]}, Env: map[string]string{"DB_PASSWORD": marks["env"]}})
	g.Scan(broken.ID)

	c := g.Client("/mcp/leaky", testkit.Legacy)
	r := c.Call("work", `{}`)
	if !strings.Contains(r.Text(), fmt.Sprintf("%x", sha256.Sum256([]byte(marks["env"])))) {
		t.Fatalf("the server does not have its secret, so the test shows nothing: %v", r)
	}
	clean(t, "the result", r.Raw)
	clean(t, "the error", c.Call("work", `{"fail":true}`).Raw)
	arguments, _ := json.Marshal(map[string]string{"text": "my token is " + marks["env"]})
	c.Call("work", string(arguments))
	clean(t, "the result", g.Client("/mcp/web", testkit.Legacy).Call("work", `{}`).Raw)
	if h := f.Requests("tools/call")[0].Header; h.Get("X-Api-Key") != marks["header"] || !strings.HasPrefix(h.Get("Authorization"), "Basic ") {
		t.Fatalf("the configured credentials do not arrive: %v", h)
	}

	for _, path := range []string{
		"/api/v1/mcp/servers", "/api/v1/mcp/servers/" + leaky.ID, "/api/v1/mcp/servers/" + web.ID, "/api/v1/mcp/servers/" + dead.ID, "/api/v1/mcp/servers/" + broken.ID,
		"/api/v1/mcp/servers/" + leaky.ID + "/tools", "/api/v1/mcp/servers/" + web.ID + "/tools", "/api/v1/mcp/policies", "/api/v1/mcp/approvals",
		"/api/v1/audit?limit=200", "/api/v1/agents", "/api/v1/keys", "/metrics", "/healthz", "/readyz", "/tools",
	} {
		status, body := g.REST(testkit.AdminKey, "GET", path, nil)
		if status != 200 {
			t.Errorf("GET %s: status %d: %s", path, status, body)
		}
		clean(t, "GET "+path, body)
	}
	for _, e := range g.Events("&kind=call") {
		_, body := g.REST(testkit.AdminKey, "GET", fmt.Sprintf("/api/v1/audit?trace_id=%s", e.TraceID), nil)
		clean(t, "an event", body)
	}
	clean(t, "the log", []byte(g.Log()))
	for _, args := range [][]string{{"server", "list"}, {"audit", "list"}} {
		out, _ := g.CLI(args...)
		clean(t, "doorward "+strings.Join(args, " "), []byte(out))
	}
	g.Stop()
	err := filepath.WalkDir(g.Data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		clean(t, path, raw)
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// clean checks that no mark is in the text, in any form it may take.
func clean(t *testing.T, where string, text []byte) {
	t.Helper()
	for place, mark := range marks {
		quoted, _ := json.Marshal(mark)
		for _, form := range []string{mark, string(quoted[1 : len(quoted)-1]), url.QueryEscape(mark), url.PathEscape(mark),
			base64.StdEncoding.EncodeToString([]byte(mark)), "MARK-" + place} {
			if i := bytes.Index(text, []byte(form)); i >= 0 {
				t.Errorf("%s shows the secret of %s: …%s…", where, place, text[max(0, i-60):min(len(text), i+60)])
				break
			}
		}
	}
}

// Case 15: a masked value saved back keeps the secret.
func TestCase15MaskedValue(t *testing.T) {
	f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
	g := testkit.Start(t, testkit.Options{})
	s := g.AddHTTP("fake", f.URL, map[string]string{"Authorization": "Bearer upstream-secret-value"})
	g.Approve(s.ID, "ALLOW")
	var shown struct {
		Spec struct {
			Headers map[string]string `json:"headers"`
		} `json:"spec"`
	}
	g.Admin("GET", "/api/v1/mcp/servers/"+s.ID, nil, &shown)
	headers := shown.Spec.Headers
	if headers["Authorization"] == "" {
		t.Fatalf("the masked header is not shown: %v", shown)
	}
	g.Admin("PATCH", "/api/v1/mcp/servers/"+s.ID, map[string]any{"description": "changed", "headers": headers}, nil)
	ok(t, g.Client("/mcp/fake", testkit.Legacy).Call("work", `{}`), "work")
	rs := f.Requests("tools/call")
	if got := rs[len(rs)-1].Header.Get("Authorization"); got != "Bearer upstream-secret-value" {
		t.Errorf("the stored secret became %q", got)
	}
}

// Case 16: a tool's own failure is a tool_error, a server's failure is an upstream_error, and only the second opens a breaker.
func TestCase16TwoKindsOfFailure(t *testing.T) {
	g, f, _, c := one(t, "ALLOW", testkit.ToolDef("work", "Works."))
	f.OnCall(func(_ string, args json.RawMessage) (string, string) {
		switch string(args) {
		case `{"kind":"tool"}`:
			return `{"content":[{"type":"text","text":"no such file"}],"isError":true}`, ""
		case `{"kind":"rpc"}`:
			return "", `{"code":-32050,"message":"engine on fire","data":{"n":9007199254740993}}`
		}
		return testkit.TextResult("fine"), ""
	})
	for range 30 {
		r := c.Call("work", `{"kind":"tool"}`)
		if r.Error != nil || !r.IsError() || r.Text() != "no such file" {
			t.Fatalf("%v", r)
		}
	}
	if e := g.LastEvent("work"); e.Status != "tool_error" {
		t.Errorf("isError is recorded as %+v", e)
	}
	ok(t, c.Call("work", `{}`), "fine") // thirty failures of the tool opened nothing
	if e := g.LastEvent("work"); e.Status != "ok" {
		t.Errorf("%+v", e)
	}
	r := c.Call("work", `{"kind":"rpc"}`)
	if r.Error == nil || r.Error.Code != -32050 || !strings.Contains(string(r.Raw), `"data":{"n":9007199254740993}`) {
		t.Errorf("the server's own error did not come as it was: %v", r)
	}
	if e := g.LastEvent("work"); e.Status != "upstream_error" {
		t.Errorf("a JSON-RPC error is recorded as %+v", e)
	}
	f.FailHTTP(func(method string) bool { return method == "tools/call" })
	r = c.Call("work", `{}`)
	refused(t, r, upstream, "")
	if e := g.LastEvent("work"); e.Status != "upstream_error" && e.Status != "unknown" {
		t.Errorf("status 500 is recorded as %+v", e)
	}
	metrics := get(t, g.URL+"/metrics")
	for _, line := range []string{`doorward_calls_total{decision="ALLOW",status="tool_error"} 30`, `doorward_calls_total{decision="ALLOW",status="ok"} 1`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s:\n%s", line, grep(metrics, "doorward_calls_total"))
		}
	}
	if !strings.Contains(metrics, `status="upstream_error"}`) {
		t.Errorf("metrics do not tell upstream errors:\n%s", grep(metrics, "doorward_calls_total"))
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func grep(text, part string) string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}
