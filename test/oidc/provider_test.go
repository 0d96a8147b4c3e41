// Package oidc drives the built binary with a real OpenID provider and authorization server, pinned in package.json.
package oidc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// clientSecret must never show (case 15).
const clientSecret = "marker-oidc-client-secret-4720"

// provider is a running oidc-provider.
type provider struct {
	t      *testing.T
	issuer string
}

// startProvider starts it for a gateway at base.
func startProvider(t *testing.T, base string) *provider {
	t.Helper()
	dir := filepath.Join(testkit.Root(), "test", "oidc")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		t.Fatal("the npm package oidc-provider is not installed in test/oidc: run make setup")
	}
	setup, err := json.Marshal(map[string]any{
		"resources": []string{base + "/mcp", base + "/mcp/notes", "https://other.example/mcp"},
		"clients": []map[string]any{
			{"client_id": "doorward", "client_secret": clientSecret, "redirect_uris": []string{base + "/api/v1/signin/oidc/callback"}},
			{"client_id": "bot", "client_secret": "bots", "redirect_uris": []string{}, "response_types": []string{}, "grant_types": []string{"client_credentials"}},
			{"client_id": "stranger", "client_secret": "bots", "redirect_uris": []string{}, "response_types": []string{}, "grant_types": []string{"client_credentials"}},
			{"client_id": "app", "client_secret": "apps", "redirect_uris": []string{"http://127.0.0.1:1/app"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node(t), "provider.mjs")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PROVIDER="+string(setup))
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // open as long as this process lives
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of the provider:\n%s", &log)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	issuer, ok := strings.CutPrefix(strings.TrimSpace(line), "issuer ")
	if err != nil || !ok {
		t.Fatalf("the provider printed %q: %v", line, err)
	}
	go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the process
	return &provider{t, issuer}
}

// node is the Node 22 that the provider asks for, which make setup installs, else the machine's own.
func node(t *testing.T) string {
	t.Helper()
	path := filepath.Join(testkit.Root(), "test", "peers", "node_modules", ".bin", "node")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("Node is not installed: run make setup")
	}
	return path
}

func (p *provider) control(order map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(order)
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := http.Post(p.issuer+"/control", "application/json", bytes.NewReader(b))
	if err != nil {
		p.t.Fatal(err)
	}
	res.Body.Close()
}

// browser follows links and fills in forms as a person would; it never follows a redirect by itself.
type browser struct {
	t *testing.T
	c *http.Client
}

func newBrowser(t *testing.T) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// page is what the browser shows.
type page struct {
	status   int
	location string // absolute; empty unless it is a redirect
	text     string
	header   http.Header
}

func (b *browser) do(req *http.Request, err error) page {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	res, err := b.c.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	p := page{status: res.StatusCode, text: string(text), header: res.Header}
	if to := res.Header.Get("Location"); to != "" {
		u, err := req.URL.Parse(to)
		if err != nil {
			b.t.Fatal(err)
		}
		p.location = u.String()
	}
	return p
}

func (b *browser) get(url string) page {
	b.t.Helper()
	return b.do(http.NewRequest("GET", url, nil))
}

var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)
	formPrompt = regexp.MustCompile(`name="prompt" value="([^"]+)"`)
	abortLink  = regexp.MustCompile(`href="([^"]+/abort)"`)
)

// atProvider walks through the provider's pages as login, or cancels when it is empty, and returns the address that the provider sends the browser back to.
func (b *browser) atProvider(start, login, back string) string {
	b.t.Helper()
	p := page{location: start}
	for range 20 {
		switch {
		case strings.HasPrefix(p.location, back):
			return p.location
		case p.location != "":
			p = b.get(p.location)
		case login == "" && abortLink.MatchString(p.text):
			p = b.get(abortLink.FindStringSubmatch(p.text)[1])
		case formAction.MatchString(p.text):
			form := url.Values{"prompt": {formPrompt.FindStringSubmatch(p.text)[1]}, "login": {login}, "password": {"x"}}
			req, err := http.NewRequest("POST", formAction.FindStringSubmatch(p.text)[1], strings.NewReader(form.Encode()))
			if err == nil {
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			p = b.do(req, err)
		default:
			b.t.Fatalf("the provider shows %d: %.2000s", p.status, p.text)
		}
	}
	b.t.Fatal("the provider sends the browser round and round")
	return ""
}
