package app_test

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Case 15: secrets planted in env, args, URL and headers show up nowhere: not in an answer, a log line, a metric or a file.
func TestSecretsShowNowhere(t *testing.T) {
	const (
		inEnv    = "marker-env-4711-abcdef"
		inArg    = "marker-arg-4712-abcdef"
		inURL    = "marker-url-4713-abcdef"
		inHeader = "marker-header-4714-abcdef"
		inBody   = "marker-import-4715-abcdef"
	)
	slow := newSlowServer(t)
	close(slow.letGo)
	s := start(t, "", nil)
	stdio := s.admin("POST", "mcp/servers", map[string]any{"name": "broken", "command": "/nonexistent/" + "server",
		"args": []string{"--api-key", inArg, "--verbose"}, "env": map[string]string{"API_TOKEN": inEnv}})["id"].(string)
	web := s.add(map[string]any{"name": "slow", "server_url": slow.URL + "/mcp?api_key=" + inURL, "headers": map[string]string{"Authorization": "Bearer " + inHeader}})
	s.admin("POST", "mcp/servers/import", `{"mcpServers":{"more":{"command":"x","env":{"PASSWORD":"`+inBody+`"}}}}`)

	var seen bytes.Buffer
	get := func(method, path, key string, body any) {
		_, text := s.do(method, path, key, body)
		seen.WriteString(text)
	}
	get("POST", "/api/v1/mcp/servers/"+stdio+"/scan", adminKey, nil) // fails, with an error
	get("POST", "/tools/call", agentKey, `{"name":"slow","arguments":{"note":"`+inHeader+`"}}`)
	get("POST", "/api/v1/mcp/servers", adminKey, `{"name":"bad name!","command":"x","env":{"A_TOKEN":"`+inEnv+`"}}`)
	get("PATCH", "/api/v1/mcp/servers/"+web, adminKey, map[string]any{"headers": map[string]string{"Authorization": "[redacted]"}, "description": "masked value saved back"})
	s.healthy(web)
	for _, path := range []string{"mcp/servers", "mcp/servers/" + stdio, "mcp/servers/" + web, "mcp/servers/more", "mcp/servers/" + web + "/tools",
		"mcp/policies", "mcp/approvals", "agents", "keys", "people", "audit?limit=200", "explain?tool=slow/slow"} {
		get("GET", "/api/v1/"+path, adminKey, nil)
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/tools"} {
		get("GET", path, adminKey, nil)
	}
	// Saving the masked value back kept the stored one.
	get("POST", "/tools/call", agentKey, `{"name":"slow","arguments":{}}`)
	slow.mu.Lock()
	last := slow.seen[len(slow.seen)-1]
	slow.mu.Unlock()
	if got := last.Get("Authorization"); got != "Bearer "+inHeader {
		t.Errorf("after a masked value was saved back, the server gets %q", got)
	}
	if last.Get("Cookie") != "" || strings.Contains(strings.Join(headerValues(last), " "), agentKey) {
		t.Errorf("the caller's own credentials went on: %v", last)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	seen.WriteString(s.log.String())
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		seen.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, marker := range []string{inEnv, inArg, inURL, inHeader, inBody} {
		for _, form := range []string{marker, base64.StdEncoding.EncodeToString([]byte(marker)), url.QueryEscape(marker)} {
			if i := strings.Index(seen.String(), form); i >= 0 {
				t.Errorf("%s shows up: …%q…", marker, seen.String()[max(0, i-200):min(seen.Len(), i+80)])
			}
		}
	}
}

func headerValues(h http.Header) (out []string) {
	for _, v := range h {
		out = append(out, v...)
	}
	return out
}
