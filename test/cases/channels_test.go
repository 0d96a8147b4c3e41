package cases

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
	"doorward.dev/doorward/internal/webhook"
)

// What is to be told about an approval outlives a kill -9, and the answers of a webhook that fails.
func TestNotificationOutlivesKill(t *testing.T) {
	secret := strings.Repeat("k", 32)
	var mu sync.Mutex
	var got []string
	takes, tried := false, 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		sent := r.Header.Get(webhook.SignatureHeader)
		if tried++; !takes || !strings.HasPrefix(sent, "t=") || len(sent) < 70 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		got = append(got, string(body))
	}))
	defer web.Close()
	f := testkit.NewFake(t, testkit.ToolDef("work", "Works."))
	g := testkit.Start(t, testkit.Options{Env: []string{
		"DOORWARD_APPROVALS_WEBHOOK_URL=" + web.URL + "/hook", "DOORWARD_APPROVALS_WEBHOOK_SECRET=" + secret, "DOORWARD_APPROVALS_ESCALATE_AFTER=1s",
	}})
	g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "REQUIRE_APPROVAL")
	c := g.Client("/mcp/fake", testkit.Legacy)
	r := c.Call("work", `{"a":"sesame"}`)
	refused(t, r, held, "")
	id := r.Error.Data.ApprovalID
	testkit.Eventually(t, 10*time.Second, "the webhook is tried", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return tried > 0
	})
	g.Kill()
	mu.Lock()
	takes = true
	mu.Unlock()
	g.Restart()
	// A message that the killed process was just sending counts as on its way for 90 s.
	testkit.Eventually(t, 3*time.Minute, "both events come", func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := strings.Join(got, "\n")
		return strings.Contains(all, `"type":"approval.created"`) && strings.Contains(all, `"type":"approval.escalated"`)
	})
	mu.Lock()
	defer mu.Unlock()
	for _, body := range got {
		if !strings.Contains(body, id) || strings.Contains(body, "sesame") || strings.Contains(body, secret) {
			t.Errorf("body %s", body)
		}
	}
	if strings.Contains(g.Log(), web.URL) {
		t.Errorf("the log has the address of the webhook")
	}
}
