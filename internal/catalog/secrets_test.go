package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

const (
	mEnv    = "marker-env-4711"
	mFlag   = "marker-flag-4711"
	mPair   = "marker-pair-4711"
	mArgURL = "marker-argurl-4711"
	mHeader = "marker-header-4711"
	mUser   = "marker-user-4711"
	mQuery  = "marker-query-4711"
	mNested = "marker-nested-4711"
)

var markers = []string{mEnv, mFlag, mPair, mArgURL, mHeader, mUser, mQuery, mNested}

func stdioSpec() catalog.Spec {
	return catalog.Spec{Name: "s", Transport: "stdio", Command: "npx",
		Args: []string{"-y", "server", "--api-key", mFlag, "--token=" + mPair, "--db", "postgres://me:" + mArgURL + "@db/x", "--dir", "/data"},
		Env:  map[string]string{"SOMETHING": mEnv, "OPENAPI_MCP_HEADERS": `{"Authorization":"Bearer ` + mNested + `"}`, "REF": "${CATALOG_TEST_TOKEN}"}}
}

func httpSpec() catalog.Spec {
	return catalog.Spec{Name: "h", Transport: "http", URL: "https://u:" + mUser + "@example.com/mcp?api_key=" + mQuery + "&x=1",
		Headers: map[string]string{"authorization": "Bearer " + mHeader}}
}

// Case 15, as far as it is the catalogue's: secrets are sealed, masked and known to the redactor.
func TestSecretsAreSealedAndMasked(t *testing.T) {
	t.Setenv("CATALOG_TEST_TOKEN", "marker-reference-4711")
	f := newFixture(t)
	for _, spec := range []catalog.Spec{stdioSpec(), httpSpec()} {
		s, err := f.c.Register(f.ctx, ws, spec, admin)
		f.ok(err)
		shown, err := f.c.Masked(f.ctx, ws, s.ID)
		f.ok(err)
		contains(t, "Register", s, markers...)
		contains(t, "Masked", shown, markers...)
		config, err := f.c.Config(f.ctx, s.ID)
		f.ok(err)
		if spec.Transport == "stdio" {
			if strings.Join(config.Args, " ") != strings.Join(spec.Args, " ") || config.Env["SOMETHING"] != mEnv || config.Env["REF"] != "marker-reference-4711" {
				t.Errorf("Config: %+v", config)
			}
			if shown.Env["SOMETHING"] != secret.Masked || shown.Env["REF"] != "${CATALOG_TEST_TOKEN}" || strings.Join(shown.Args, " ") !=
				"-y server --api-key [redacted] --token=[redacted] --db postgres://me:[redacted]@db/x --dir /data" {
				t.Errorf("Masked: %+v", shown)
			}
		} else if config.URL != spec.URL || config.Headers["Authorization"] != "Bearer "+mHeader ||
			shown.URL != "https://u:[redacted]@example.com/mcp?api_key=[redacted]&x=1" {
			t.Errorf("http: %+v %+v", config, shown)
		}
	}
	rows, err := f.db.Read.Query(`SELECT name || command || args || cwd || server_url || secrets || state_reason FROM server`)
	f.ok(err)
	defer rows.Close()
	for rows.Next() {
		var text string
		f.ok(rows.Scan(&text))
		contains(t, "the database", text, markers...)
	}
	f.restart() // the redactor learns at each start
	f.redactor = new(secret.Redactor)
	f.restart()
	for _, m := range append(markers, "marker-reference-4711") {
		if got := string(f.redactor.Redact([]byte("x " + m + " y"))); strings.Contains(got, m) {
			t.Errorf("the redactor does not know %s", m)
		}
	}
	if got := string(f.redactor.Redact([]byte("npx -y server /data"))); got != "npx -y server /data" {
		t.Errorf("ordinary words are redacted: %s", got)
	}
}

func TestSealedValuesAreBoundToTheirServer(t *testing.T) {
	t.Setenv("CATALOG_TEST_TOKEN", "x")
	f := newFixture(t)
	a, err := f.c.Register(f.ctx, ws, stdioSpec(), admin)
	f.ok(err)
	b := f.register("b")
	f.exec(`UPDATE server SET secrets = (SELECT secrets FROM server WHERE id = $1) WHERE id = $2`, a.ID, b.ID)
	if spec, err := f.c.Config(f.ctx, b.ID); err == nil {
		t.Errorf("secrets of another server opened: %v", spec.Args)
	}
	f.restart() // one unreadable server does not keep the others from being served
	if _, err := f.c.Config(f.ctx, a.ID); err != nil {
		t.Error(err)
	}
}

// Case 15: saving a masked value back does not overwrite the secret.
func TestUpdateKeepsMaskedValues(t *testing.T) {
	f := newFixture(t)
	s, err := f.c.Register(f.ctx, ws, stdioSpec(), admin)
	f.ok(err)
	shown, err := f.c.Masked(f.ctx, ws, s.ID)
	f.ok(err)
	shown.Args = append([]string{"--verbose"}, shown.Args...) // the places move
	shown.Env["NEW"] = "new-value"
	shown.Description = "changed"
	given := shown.Args[4]
	after, err := f.c.Update(f.ctx, ws, s.ID, shown, admin)
	f.ok(err)
	if shown.Args[4] != given {
		t.Error("the caller's spec was written to")
	}
	if after.UpdatedAt <= s.UpdatedAt || after.Description != "changed" {
		t.Errorf("after: %+v", after)
	}
	t.Setenv("CATALOG_TEST_TOKEN", "x")
	config, err := f.c.Config(f.ctx, s.ID)
	f.ok(err)
	if want := append([]string{"--verbose"}, stdioSpec().Args...); strings.Join(config.Args, " ") != strings.Join(want, " ") {
		t.Errorf("args: %v", config.Args)
	}
	if config.Env["SOMETHING"] != mEnv || config.Env["NEW"] != "new-value" || !strings.Contains(config.Env["OPENAPI_MCP_HEADERS"], mNested) {
		t.Errorf("env: %v", config.Env)
	}
	// A mask without anything behind it is no value.
	for name, spoil := range map[string]func(*catalog.Spec){
		"env":        func(s *catalog.Spec) { s.Env["OTHER"] = secret.Masked },
		"part":       func(s *catalog.Spec) { s.Env["SOMETHING"] = "x" + secret.Masked },
		"other flag": func(s *catalog.Spec) { s.Args = []string{"--password", secret.Masked} },
		"twice":      func(s *catalog.Spec) { s.Args = append(s.Args, "--api-key", secret.Masked) },
	} {
		again, err := f.c.Masked(f.ctx, ws, s.ID)
		f.ok(err)
		spoil(&again)
		if _, err = f.c.Update(f.ctx, ws, s.ID, again, admin); !fault.Is(err, fault.InvalidParams) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := f.c.Register(f.ctx, ws, shown, admin); err == nil {
		t.Error("a new server was registered with masks for secrets")
	}
}

func TestMaskedHeadersDoNotFollowToAnotherHost(t *testing.T) {
	f := newFixture(t)
	s, err := f.c.Register(f.ctx, ws, httpSpec(), admin)
	f.ok(err)
	shown, err := f.c.Masked(f.ctx, ws, s.ID)
	f.ok(err)
	_, err = f.c.Update(f.ctx, ws, s.ID, shown, admin)
	f.ok(err)
	config, err := f.c.Config(f.ctx, s.ID)
	f.ok(err)
	if config.URL != httpSpec().URL || config.Headers["Authorization"] != "Bearer "+mHeader {
		t.Errorf("kept: %+v", config)
	}
	shown.URL = "https://evil.example/mcp"
	_, err = f.c.Update(f.ctx, ws, s.ID, shown, admin)
	f.refused(err, fault.InvalidParams, "mcp_server_invalid")
}

func TestReferences(t *testing.T) {
	t.Setenv("CATALOG_TEST_A", "aaa")
	t.Setenv("DOORWARD_TEST_SECRET", "never")
	f := newFixture(t)
	config := func(value string) (string, error) {
		s, err := f.c.Register(f.ctx, ws, catalog.Spec{Name: fmt.Sprint("s", f.now.UnixMicro()), Command: "x", Env: map[string]string{"V": value}}, admin)
		f.ok(err)
		spec, err := f.c.Config(f.ctx, s.ID)
		return spec.Env["V"], err
	}
	for in, want := range map[string]string{"${CATALOG_TEST_A}/b": "aaa/b", "${CATALOG_TEST_NO:-d}": "d", "${CATALOG_TEST_NO:-}": "", "$CATALOG_TEST_A": "$CATALOG_TEST_A", "${}": "${}"} {
		if got, err := config(in); err != nil || got != want {
			t.Errorf("%s: got %q %v", in, got, err)
		}
	}
	for in, name := range map[string]string{"${CATALOG_TEST_MISSING}": "CATALOG_TEST_MISSING", "${DOORWARD_TEST_SECRET}": "DOORWARD_TEST_SECRET"} {
		_, err := config(in)
		f.refused(err, fault.Config, "mcp_variable_missing")
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "never") {
			t.Errorf("%s: the error must name the variable: %v", in, err)
		}
	}
}

func TestRegisterChecks(t *testing.T) {
	f := newFixture(t)
	ok := catalog.Spec{Name: "ok", Transport: "stdio", Command: "x"}
	for name, spoil := range map[string]func(*catalog.Spec){
		"no name":          func(s *catalog.Spec) { s.Name = "" },
		"space":            func(s *catalog.Spec) { s.Name = "a b" },
		"slash":            func(s *catalog.Spec) { s.Name = "a/b" },
		"long":             func(s *catalog.Spec) { s.Name = strings.Repeat("a", 65) },
		"separator":        func(s *catalog.Spec) { s.Name = "a__b" },
		"prefix":           func(s *catalog.Spec) { s.Name = "mcp__x" },
		"dots":             func(s *catalog.Spec) { s.Name = ".." },
		"an id":            func(s *catalog.Spec) { s.Name = "01890a5d-ac96-774b-bcce-b302099a8057" },
		"built-in name":    func(s *catalog.Spec) { s.Name = "Host" },
		"no command":       func(s *catalog.Spec) { s.Command = "" },
		"command and url":  func(s *catalog.Spec) { s.URL = "https://x/y" },
		"transport":        func(s *catalog.Spec) { s.Transport = "tcp" },
		"builtin":          func(s *catalog.Spec) { s.Transport = "builtin" },
		"no url":           func(s *catalog.Spec) { *s = catalog.Spec{Name: "ok", Transport: "http"} },
		"url without host": func(s *catalog.Spec) { *s = catalog.Spec{Name: "ok", Transport: "http", URL: "http:///x"} },
		"file url":         func(s *catalog.Spec) { *s = catalog.Spec{Name: "ok", Transport: "http", URL: "file:///etc/passwd"} },
		"header of the hop": func(s *catalog.Spec) {
			*s = catalog.Spec{Name: "ok", URL: "http://h/", Headers: map[string]string{"mcp-session-id": "x"}}
		},
		"header with newline": func(s *catalog.Spec) {
			*s = catalog.Spec{Name: "ok", URL: "http://h/", Headers: map[string]string{"X": "a\r\nY: b"}}
		},
		"NUL":       func(s *catalog.Spec) { s.Args = []string{"a\x00"} },
		"env name":  func(s *catalog.Spec) { s.Env = map[string]string{"A=B": "x"} },
		"connector": func(s *catalog.Spec) { s.ConnectorType = "fax" },
	} {
		spec := ok
		spoil(&spec)
		_, err := f.c.Register(f.ctx, ws, spec, admin)
		f.refused(err, fault.InvalidParams, "mcp_server_invalid")
		if t.Failed() {
			t.Fatal(name)
		}
	}
	for _, transport := range []string{"sse", "ws"} {
		_, err := f.c.Register(f.ctx, ws, catalog.Spec{Name: "ok", Transport: transport, URL: "https://h/"}, admin)
		f.refused(err, fault.InvalidParams, "mcp_transport_unsupported")
	}
	s, err := f.c.Register(f.ctx, ws, ok, admin)
	f.ok(err)
	if s.State != "PENDING_APPROVAL" || s.Origin != "database" || s.Transport != "stdio" {
		t.Errorf("registered: %+v", s)
	}
	_, err = f.c.Register(f.ctx, ws, ok, admin)
	f.refused(err, fault.Conflict, "mcp_server_exists")
	_, err = f.c.Update(f.ctx, ws, f.register("second").ID, ok, admin)
	f.refused(err, fault.Conflict, "mcp_server_exists")
	_, err = f.c.Register(f.ctx, ws, catalog.Spec{Name: "host", Transport: "builtin", Origin: "builtin"}, admin)
	f.ok(err)
	inferred, err := f.c.Register(f.ctx, ws, catalog.Spec{Name: "url", URL: "http://127.0.0.1:1/mcp"}, admin)
	f.ok(err)
	if inferred.Transport != "http" {
		t.Errorf("inferred: %+v", inferred)
	}
	f.ok(f.c.Remove(f.ctx, ws, "url"))
	if _, err := f.c.Get(f.ctx, ws, inferred.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("removed: %v", err)
	}
}

// A file that anybody with the project can write must not change what an approval stood for.
func TestConfigFileChangeNeedsApprovalAgain(t *testing.T) {
	f := newFixture(t)
	spec := catalog.Spec{Name: "c", Command: "good", Origin: "config", OriginPath: "/p/.mcp.json"}
	s, err := f.c.Register(f.ctx, ws, spec, admin)
	f.ok(err)
	f.list(s, def("read_x", "r"))
	s = f.approve(s, "read_x", "ALLOW")
	spec.Description = "only words"
	s, err = f.c.Update(f.ctx, ws, s.ID, spec, "config")
	f.ok(err)
	if s.State != "ACTIVE" {
		t.Errorf("words: %s", s.State)
	}
	byPerson, err := f.c.Masked(f.ctx, ws, s.ID)
	f.ok(err)
	byPerson.Args = []string{"a"}
	s, err = f.c.Update(f.ctx, ws, s.ID, byPerson, admin)
	f.ok(err)
	if s.State != "ACTIVE" || s.Origin != "config" {
		t.Errorf("a person's change: %+v", s)
	}
	spec.Command = "evil"
	s, err = f.c.Update(f.ctx, ws, s.ID, spec, "config")
	f.ok(err)
	if s.State != "PENDING_APPROVAL" || s.StateReason == "" {
		t.Errorf("the command changed: %+v", s)
	}
	f.expect(s, "read_x", "DENY SERVER_PENDING_APPROVAL")
}
