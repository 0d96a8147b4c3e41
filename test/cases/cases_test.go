// Package cases holds one test for each fault that systems of this kind have shown their users; the comment of a test says what is right.
// Each goes through the real door of the built binary, with a small fake server behind it.
package cases

import (
	"regexp"
	"strings"
	"testing"

	"doorward.dev/doorward/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The codes of refusals.
const (
	blocked     = -32001
	notAdmitted = -32002
	denied      = -32003
	held        = -32004
	upstream    = -32006
	unreachable = -32007
	unknownTool = -32602
)

// What differs from one answer to the next.
var (
	traceID   = regexp.MustCompile(`trc_[0-9a-f]{32}`)
	requestID = regexp.MustCompile(`"id":\d+`)
)

// refused checks a refusal's code and reason ("" for any).
func refused(t *testing.T, r testkit.Reply, code int, reason string) {
	t.Helper()
	if r.Error == nil || r.Error.Code != code || (reason != "" && r.Error.Data.Reason != reason) {
		t.Errorf("want a refusal %d %s, got %v", code, reason, r)
	}
}

// ok checks that a call ran and answered with a part of its text.
func ok(t *testing.T, r testkit.Reply, part string) {
	t.Helper()
	if r.Error != nil || r.IsError() || r.Result == nil || !strings.Contains(r.Text(), part) {
		t.Errorf("want an answer with %q, got %v", part, r)
	}
}

// one starts a gateway with one approved fake server "fake" and a legacy client on its door.
func one(t *testing.T, rule string, tools ...string) (*testkit.Gateway, *testkit.Fake, string, *testkit.Client) {
	t.Helper()
	f := testkit.NewFake(t, tools...)
	g := testkit.Start(t, testkit.Options{})
	id := g.AddHTTP("fake", f.URL, nil).ID
	g.Approve(id, rule)
	return g, f, id, g.Client("/mcp/fake", testkit.Legacy)
}

// scan scans and expects success.
func scan(t *testing.T, g *testkit.Gateway, id string) testkit.Scan {
	t.Helper()
	s := g.Scan(id)
	if s.Status != "ok" {
		t.Fatalf("scan: %+v", s)
	}
	return s
}
