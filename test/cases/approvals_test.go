package cases

import (
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

// park makes a call that is held and approves it.
func park(t *testing.T, g *testkit.Gateway, c *testkit.Client, args string) (approval string) {
	t.Helper()
	r := c.Call("work", args)
	refused(t, r, held, "")
	if r.Error == nil || r.Error.Data.ApprovalID == "" {
		t.Fatalf("no approval id: %v", r)
	}
	g.Decide(r.Error.Data.ApprovalID, "approve")
	return r.Error.Data.ApprovalID
}

// Case 8: what was approved is exactly one call, decided again when it runs.
func TestCase08Approvals(t *testing.T) {
	const args = `{"a":1,"b":{"x":"y","z":[1,2]}}`
	start := func(t *testing.T) (*testkit.Gateway, *testkit.Fake, string, *testkit.Client) {
		return one(t, "REQUIRE_APPROVAL", testkit.ToolDef("work", "Works."))
	}
	t.Run("rule became DENY", func(t *testing.T) {
		g, f, id, c := start(t)
		park(t, g, c, args)
		g.Verdict(id, "work", "DENY")
		refused(t, c.Call("work", args), denied, "RULE_DENY")
		calls(t, f, 0)
	})
	t.Run("fingerprint changed", func(t *testing.T) {
		g, f, id, c := start(t)
		park(t, g, c, args)
		f.Tools(testkit.ToolDef("work", "Works otherwise."))
		scan(t, g, id)
		refused(t, c.Call("work", args), notAdmitted, "TOOL_CHANGED")
		// Admitting the new state does not revive an approval of the old one.
		g.Admit(id, "work", "REQUIRE_APPROVAL")
		refused(t, c.Call("work", args), held, "")
		calls(t, f, 0)
	})
	t.Run("agent stopped", func(t *testing.T) {
		g, f, _, _ := start(t)
		agent, key := g.Agent("second", "*")
		c := testkit.NewClient(t, g.URL+"/mcp/fake", key, testkit.Legacy)
		c.Connect()
		park(t, g, c, args)
		g.EmergencyStop("agent", agent)
		refused(t, c.Call("work", args), blocked, "AGENT_EMERGENCY_STOP")
		calls(t, f, 0)
	})
	t.Run("server stopped", func(t *testing.T) {
		g, f, id, c := start(t)
		park(t, g, c, args)
		g.EmergencyStop("server", id)
		refused(t, c.Call("work", args), blocked, "SERVER_BLOCKED")
		calls(t, f, 0)
	})
	t.Run("other arguments", func(t *testing.T) {
		g, f, _, c := start(t)
		first := park(t, g, c, args)
		for _, other := range []string{`{"a":2,"b":{"x":"y","z":[1,2]}}`, `{"a":1,"b":{"x":"y","z":[2,1]}}`, `{"a":1}`, `{"a":"1","b":{"x":"y","z":[1,2]}}`, `{}`} {
			r := c.Call("work", other)
			refused(t, r, held, "")
			if r.Error != nil && r.Error.Data.ApprovalID == first {
				t.Errorf("%s has the approval of %s", other, args)
			}
		}
		calls(t, f, 0)
	})
	t.Run("large integers are not the same", func(t *testing.T) {
		g, f, _, c := start(t)
		park(t, g, c, `{"n":9007199254740993}`)
		refused(t, c.Call("work", `{"n":9007199254740992}`), held, "")
		ok(t, c.Call("work", `{"n":9007199254740993}`), "9007199254740993")
		calls(t, f, 1)
	})
	t.Run("single use", func(t *testing.T) {
		g, f, _, c := start(t)
		first := park(t, g, c, args)
		ok(t, c.Call("work", args), "work")
		r := c.Call("work", args)
		refused(t, r, held, "")
		if r.Error != nil && r.Error.Data.ApprovalID == first {
			t.Error("a used approval is offered again")
		}
		calls(t, f, 1)
	})
	t.Run("single use, side by side", func(t *testing.T) {
		g, f, _, c := start(t)
		park(t, g, c, args)
		ran := make(chan bool, 16)
		for range cap(ran) {
			go func() {
				r, err := c.Try(t.Context(), "tools/call", testkit.CallParams("work", args))
				ran <- err == nil && r.Error == nil && r.Result != nil
			}()
		}
		n := 0
		for range cap(ran) {
			if <-ran {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d calls ran on one approval", n)
		}
		calls(t, f, 1)
	})
	t.Run("keys in another order", func(t *testing.T) {
		g, f, _, c := start(t)
		park(t, g, c, args)
		ok(t, c.Call("work", `{"b":{"z":[1,2],"x":"\u0079"} , "a":1}`), "work")
		calls(t, f, 1)
	})
	t.Run("denied", func(t *testing.T) {
		g, f, _, c := start(t)
		r := c.Call("work", args)
		refused(t, r, held, "")
		g.Decide(r.Error.Data.ApprovalID, "deny")
		refused(t, c.Call("work", args), denied, "APPROVAL_DENIED")
		calls(t, f, 0)
	})
	t.Run("the same call waits for the same approval", func(t *testing.T) {
		_, _, _, c := start(t)
		a, b := c.Call("work", args), c.Call("work", args)
		if a.Error == nil || b.Error == nil || a.Error.Data.ApprovalID != b.Error.Data.ApprovalID {
			t.Errorf("%v\n%v", a, b)
		}
	})
	t.Run("another agent cannot use it", func(t *testing.T) {
		g, f, _, c := start(t)
		_, key := g.Agent("second", "*")
		other := testkit.NewClient(t, g.URL+"/mcp/fake", key, testkit.Legacy)
		other.Connect()
		park(t, g, c, args)
		refused(t, other.Call("work", args), held, "")
		calls(t, f, 0)
	})
	t.Run("agents do not decide", func(t *testing.T) {
		g, f, _, c := start(t)
		r := c.Call("work", args)
		if status, body := g.REST(testkit.AgentKey, "POST", "/api/v1/mcp/approvals/"+r.Error.Data.ApprovalID+"/approve", map[string]string{"decided_by": "owner"}); status != 403 && status != 400 {
			t.Errorf("status %d: %s", status, body)
		}
		refused(t, c.Call("work", args), held, "")
		calls(t, f, 0)
	})
	t.Run("after kill -9", func(t *testing.T) {
		g, f, _, c := start(t)
		park(t, g, c, args)
		g.Kill()
		g.Restart()
		c = g.Client("/mcp/fake", testkit.Legacy)
		ok(t, c.Call("work", args), "work")
		refused(t, c.Call("work", args), held, "")
		calls(t, f, 1)
	})
}

// Case 8, a caller that waits: it is kept on the line and runs as soon as a person approves.
func TestCase08WaitingCaller(t *testing.T) {
	g, f, _, c := one(t, "REQUIRE_APPROVAL", testkit.ToolDef("work", "Works."))
	type answer struct {
		r   testkit.Reply
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := c.Try(t.Context(), "tools/call", `{"_meta":{"progressToken":7},"name":"work","arguments":{}}`)
		done <- answer{r, err}
	}()
	var pending struct {
		Approvals []struct{ ID, Status string }
	}
	testkit.Eventually(t, 10*time.Second, "the call is held", func() bool {
		g.Admin("GET", "/api/v1/mcp/approvals?status=PENDING", nil, &pending)
		return len(pending.Approvals) == 1
	})
	g.Decide(pending.Approvals[0].ID, "approve")
	select {
	case a := <-done:
		if a.err != nil {
			t.Fatal(a.err)
		}
		ok(t, a.r, "work")
	case <-time.After(10 * time.Second):
		t.Error("the waiting call did not run")
	}
	calls(t, f, 1)
}

func calls(t *testing.T, f *testkit.Fake, want int) {
	t.Helper()
	if n := f.Calls(); n != want {
		t.Errorf("%d calls reached the server, want %d", n, want)
	}
}
