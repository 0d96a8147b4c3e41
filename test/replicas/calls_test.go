package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/testkit"
)

const write = `{"name":"create","description":"Creates.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}}`

// at runs fn n times at the same moment.
func at(n int, fn func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			fn(i)
		})
	}
	close(begin)
	wg.Wait()
}

func done(r testkit.Reply, id int64) bool {
	return r.Error == nil && !r.IsError() && r.Text() == fmt.Sprint("done ", id)
}

// shows waits until every replica lists a tool for a key.
func (c *cluster) shows(t *testing.T, key, tool string) {
	t.Helper()
	for _, r := range c.replicas {
		direct := testkit.NewClient(t, r.URL+"/mcp/fake", key, testkit.Modern)
		testkit.Eventually(t, 10*time.Second, "every replica shows "+tool, func() bool {
			return strings.Contains(string(direct.Request("tools/list", "{}").Result), fmt.Sprintf(`"name":%q`, tool))
		})
	}
}

// TestApprovals: a call that one replica held and another approved runs on a third exactly once, however many repeat it at once.
func TestApprovals(t *testing.T) {
	c := start(t, 3)
	f, l := upstream(t, testkit.ToolDef("ask", "Asks first."))
	g := c.replicas[0]
	g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "REQUIRE_APPROVAL")
	c.shows(t, testkit.AgentKey, "ask")
	b := c.balancer(t)
	client := b.client(t, testkit.Modern)
	for id := range int64(10) {
		args := fmt.Sprintf(`{"id":%d}`, id)
		r := client.Call("ask", args)
		if r.Error == nil || r.Error.Data.ApprovalID == "" {
			t.Fatalf("not held: %v", r)
		}
		c.replicas[(id+1)%3].Decide(r.Error.Data.ApprovalID, "approve")
		var ran atomic.Int64
		at(12, func(int) {
			if r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("ask", args)); err != nil {
				t.Error(err)
			} else if done(r, id) {
				ran.Add(1)
			} else if r.Error == nil || r.Error.Code != -32004 {
				t.Errorf("call %d: %v", id, r)
			}
		})
		if n := l.times("ask", id); n != 1 || ran.Load() != 1 {
			t.Errorf("call %d ran %d times and was answered %d times", id, n, ran.Load())
		}
	}
	// A caller that is kept on the line by one replica hears of the decision at another one.
	waiting := b.client(t, testkit.Legacy)
	began := make(chan struct{})
	go func() {
		defer close(began)
		testkit.Eventually(t, 20*time.Second, "the call is held", func() bool {
			return c.query(t, `SELECT COUNT(*) FROM approval WHERE status = 'PENDING' AND arguments LIKE '%777%'`) == 1
		})
		var list struct {
			Approvals []struct {
				ID        string          `json:"id"`
				Arguments json.RawMessage `json:"arguments"`
			} `json:"approvals"`
		}
		c.replicas[1].Admin("GET", "/api/v1/mcp/approvals?status=PENDING", nil, &list)
		for _, a := range list.Approvals {
			if string(a.Arguments) == `{"id":777}` {
				c.replicas[1].Decide(a.ID, "approve")
			}
		}
	}()
	r := waiting.Request("tools/call", `{"_meta":{"progressToken":"p"},"name":"ask","arguments":{"id":777}}`)
	<-began
	if !done(r, 777) || l.times("ask", 777) != 1 {
		t.Errorf("%v, ran %d times", r, l.times("ask", 777))
	}
	c.verify(t)
}

// TestStopHoldsEverywhere: a stop, a rule and a revoked key hold on every replica within a second.
func TestStopHoldsEverywhere(t *testing.T) {
	c := start(t, 3)
	f, _ := upstream(t, testkit.ToolDef("work", "Works."))
	g := c.replicas[0]
	server := g.AddHTTP("fake", f.URL, nil).ID
	g.Approve(server, "ALLOW")
	agents, keys := make([]string, 3), make([]string, 3)
	for i := range agents {
		agents[i], keys[i] = c.replicas[i].Agent(fmt.Sprint("agent", i), "*")
	}
	try := func(replica, agent int) testkit.Reply {
		return testkit.NewClient(t, c.replicas[replica].URL+"/mcp/fake", keys[agent], testkit.Modern).Call("work", `{"id":1}`)
	}
	for replica := range c.replicas {
		for agent := range agents {
			testkit.Eventually(t, 5*time.Second, "every replica knows the agents", func() bool { return done(try(replica, agent), 1) })
		}
	}
	// holds measures until all replicas refuse with a reason.
	holds := func(what, reason string, agent int, since time.Time) {
		t.Helper()
		at(len(c.replicas), func(replica int) {
			for {
				began, r := time.Now(), try(replica, agent)
				if r.Error != nil && r.Error.Data.Reason == reason {
					return
				}
				// Only a call that began more than a second after the change counts against it.
				if late := began.Sub(since); late > time.Second {
					t.Errorf("%s does not hold on replica %d after %v: %v", what, replica, late, r)
					return
				}
			}
		})
	}
	c.replicas[1].EmergencyStop("agent", agents[0])
	holds("the stop of an agent", "AGENT_EMERGENCY_STOP", 0, time.Now())
	var list struct {
		Keys []struct {
			ID      string `json:"id"`
			AgentID string `json:"agent_id"`
		} `json:"keys"`
	}
	c.replicas[2].Admin("GET", "/api/v1/keys", nil, &list)
	for _, k := range list.Keys {
		if k.AgentID == agents[1] {
			c.replicas[2].Admin("DELETE", "/api/v1/keys/"+k.ID, nil, nil)
		}
	}
	holds("a revoked key", "INVALID_API_KEY", 1, time.Now())
	c.replicas[0].Verdict(server, "work", "DENY")
	holds("a rule", "RULE_DENY", 2, time.Now())
	c.replicas[1].EmergencyStop("server", server)
	holds("the stop of a server", "SERVER_BLOCKED", 2, time.Now())
	c.verify(t)
}

// TestStopEndsRunningCalls: a stop at one replica cancels what its target runs at the others.
func TestStopEndsRunningCalls(t *testing.T) {
	c := start(t, 3)
	f, release := testkit.NewFake(t, testkit.ToolDef("work", "Works.")), make(chan struct{})
	defer close(release)
	running := make(chan struct{}, 3)
	f.OnCall(func(string, json.RawMessage) (string, string) {
		running <- struct{}{}
		<-release // it never ends by itself
		return testkit.TextResult("late"), ""
	})
	g := c.replicas[0]
	g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "ALLOW")
	agent, key := g.Agent("busy", "*")
	c.shows(t, key, "work")
	ended := make(chan string, 3)
	for i, r := range c.replicas {
		client := testkit.NewClient(t, r.URL+"/mcp/fake", key, testkit.Modern)
		go func() {
			r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("work", `{}`))
			if err != nil || r.Error == nil || r.Error.Data.Reason != "AGENT_EMERGENCY_STOP" {
				ended <- fmt.Sprintf("replica %d: %v %v", i, r, err)
				return
			}
			ended <- ""
		}()
	}
	for range c.replicas {
		<-running
	}
	c.replicas[1].EmergencyStop("agent", agent)
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	for range c.replicas {
		select {
		case why := <-ended:
			if why != "" {
				t.Error(why)
			}
		case <-limit.C:
			t.Fatal("calls go on five seconds after the stop")
		}
	}
	c.verify(t)
}

// token is the token of the first step of a confirmation, empty when there is none.
func token(r testkit.Reply) string {
	var first struct {
		StructuredContent struct {
			Token string `json:"confirmation_token"`
		} `json:"structuredContent"`
	}
	_ = json.Unmarshal(r.Result, &first)
	return first.StructuredContent.Token
}

// asksEverywhere waits until every replica knows that the tool asks for confirmation.
func (c *cluster) asksEverywhere(t *testing.T) {
	t.Helper()
	for _, r := range c.replicas {
		direct := testkit.NewClient(t, r.URL+"/mcp/fake", testkit.AgentKey, testkit.Modern)
		testkit.Eventually(t, 5*time.Second, "every replica asks for confirmation", func() bool { return token(direct.Call("deploy", `{"id":-1}`)) != "" })
	}
}

// TestConfirmedOnce: a confirmed call runs once under its key, also when it is sent to all replicas at once, and every one gets
// the result of that one run in the end.
func TestConfirmedOnce(t *testing.T) {
	c := start(t, 3)
	f, l := upstream(t, testkit.ToolDef("deploy", "Deploys."))
	g := c.replicas[0]
	server := g.AddHTTP("fake", f.URL, nil).ID
	g.Approve(server, "ALLOW")
	g.Admin("PATCH", "/api/v1/mcp/servers/"+server+"/tools/"+g.Tool(server, "deploy").ID, map[string]any{"confirm": true}, nil)
	c.asksEverywhere(t)
	client := c.balancer(t).client(t, testkit.Modern)
	for id := range int64(20) {
		given := token(client.Call("deploy", fmt.Sprintf(`{"id":%d}`, id)))
		args := fmt.Sprintf(`{"id":%d,"confirmation_token":%q,"idempotency_key":"key %d"}`, id, given, id)
		var ended atomic.Int64
		at(9, func(int) {
			r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("deploy", args))
			switch {
			case err != nil:
				t.Error(err)
			case done(r, id):
				ended.Add(1)
			case r.Error == nil || r.Error.Data.Reason != "idempotency_in_progress":
				t.Errorf("call %d: %v", id, r)
			}
		})
		if n := l.times("deploy", id); n != 1 || ended.Load() == 0 {
			t.Errorf("call %d ran %d times, %d callers got its result", id, n, ended.Load())
		}
		if r := client.Call("deploy", args); !done(r, id) {
			t.Errorf("call %d afterwards: %v", id, r)
		}
	}
	c.verify(t)
}

// TestLimits: of 200 calls at once against a limit of 50 exactly 50 run, whichever replicas they meet; a killed replica and a restored
// backup count the same.
func TestLimits(t *testing.T) {
	c := start(t, 3)
	f, l := upstream(t, `{"name":"get","description":"Gets.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`)
	g := c.replicas[0]
	g.Approve(g.AddHTTP("fake", f.URL, nil).ID, "ALLOW")
	agent, _ := g.Agent("worker", "*")
	var task struct{ Token string }
	g.Admin("POST", "/api/v1/tasks", map[string]any{"title": "many calls", "agent_id": agent}, &task)
	b := c.balancer(t)
	client := b.client(t, testkit.Modern)
	client.Key = task.Token
	c.shows(t, task.Token, "get")
	// limited is how many of n calls at once are refused by the limit; all others must have run.
	limited := func(n int) int64 {
		t.Helper()
		var refused atomic.Int64
		at(n, func(int) {
			r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("get", `{"id":1}`))
			switch {
			case err != nil:
				t.Error(err)
			case r.Error != nil && r.Error.Code == -32005 && r.Error.Data.Reason == "RATE_LIMITED":
				refused.Add(1)
			case !done(r, 1):
				t.Errorf("%v", r)
			}
		})
		return refused.Load()
	}
	if refused, ran := limited(200), l.times("get", 1); refused != 150 || ran != 50 {
		t.Errorf("%d ran and %d were refused of 200 with a limit of 50", ran, refused)
	}
	c.replicas[1].Kill()
	c.replicas[1].Restart()
	b.point(t, 1, c.replicas[1].URL)
	if refused := limited(6); refused != 6 {
		t.Errorf("after a restart %d of 6 were refused", refused)
	}
	c.verify(t)

	file, data := filepath.Join(t.TempDir(), "backup"), dataFolder(t, c.key)
	if out, code := g.CLI("backup", file, "--database", c.url); code != 0 {
		t.Fatalf("backup: exit %d\n%s", code, out)
	}
	if out, code := g.CLI("restore", file, "--data", data); code != 0 {
		t.Fatalf("restore: exit %d\n%s", code, out)
	}
	restored := testkit.Start(t, testkit.Options{Data: data})
	client.URL = restored.URL + "/mcp/fake"
	if refused := limited(3); refused != 3 || l.times("get", 1) != 50 {
		t.Errorf("after a restore %d of 3 were refused, %d ran in all", refused, l.times("get", 1))
	}
}

// rows is what the record has of the calls of a tool: id → statuses of intents and outcomes.
func (c *cluster) rows(t *testing.T, tool string) (intents, outcomes map[int64][]string) {
	t.Helper()
	d := c.open(t)
	defer d.Close()
	found, err := d.QueryContext(t.Context(), `SELECT kind, status, args_body FROM audit_events WHERE method = 'tools/call' AND tool_name = $1 ORDER BY seq`, tool)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	intents, outcomes = map[int64][]string{}, map[int64][]string{}
	for found.Next() {
		var kind, status, args string
		if err := found.Scan(&kind, &status, &args); err != nil {
			t.Fatal(err)
		}
		var in struct{ ID int64 }
		testkit.Decode(t, []byte(args), &in)
		into := outcomes
		if kind == "intent" {
			into = intents
		}
		into[in.ID] = append(into[in.ID], status)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return intents, outcomes
}

// TestKillNine: replicas are killed at random moments while callers work through the balancer. Every call that was answered is in the
// record with its outcome, every call that ran had its intent, no call and no approval runs twice, and the chain is whole.
func TestKillNine(t *testing.T) {
	c := start(t, 3)
	f, l := upstream(t, write, testkit.ToolDef("ask", "Asks first."), testkit.ToolDef("deploy", "Deploys."))
	g := c.replicas[0]
	server := g.AddHTTP("fake", f.URL, nil).ID
	g.ApproveWith(server, func(tool testkit.Tool) string {
		return map[string]string{"create": "ALLOW", "ask": "REQUIRE_APPROVAL", "deploy": "ALLOW"}[tool.Name]
	})
	g.Admin("PATCH", "/api/v1/mcp/servers/"+server+"/tools/"+g.Tool(server, "deploy").ID, map[string]any{"confirm": true}, nil)
	b := c.balancer(t)
	c.asksEverywhere(t)
	client := b.client(t, testkit.Modern)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var next, asked, deployed atomic.Int64
	var mu sync.Mutex
	acked := map[string][]int64{}
	ack := func(tool string, id int64) {
		mu.Lock()
		acked[tool] = append(acked[tool], id)
		mu.Unlock()
	}
	for range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				id := next.Add(1)
				r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("create", fmt.Sprintf(`{"id":%d}`, id)))
				switch {
				case err == nil && done(r, id):
					ack("create", id)
				case err == nil && r.Status == http.StatusOK && r.Error == nil:
					t.Errorf("call %d: %v", id, r)
				}
			}
		})
	}
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if id := asked.Add(1); askUntil(t, b, client, id) {
					ack("ask", id)
				}
			}
		})
	}
	for range 3 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if id := deployed.Add(1); deployUntil(t, client, id) {
					ack("deploy", id)
				}
			}
		})
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 6 {
		pause := time.NewTimer(time.Duration(200+random.IntN(500)) * time.Millisecond)
		<-pause.C
		i := random.IntN(3)
		c.replicas[i].Kill()
		c.replicas[i].Restart()
		b.point(t, i, c.replicas[i].URL)
	}
	stop()
	callers.Wait()

	lost := 0
	for tool, last := range map[string]int64{"create": next.Load(), "ask": asked.Load(), "deploy": deployed.Load()} {
		intents, outcomes := c.rows(t, tool)
		for _, id := range acked[tool] {
			if n := len(outcomes[id]); n == 0 || outcomes[id][n-1] != "ok" {
				t.Errorf("%s %d was answered, but the record says %v", tool, id, outcomes[id])
			}
		}
		for id := int64(1); id <= last; id++ {
			n := l.times(tool, id)
			if n > 1 {
				t.Errorf("%s %d ran %d times", tool, id, n)
			}
			if n > 0 && len(intents[id]) == 0 {
				t.Errorf("%s %d ran without an intent in the record", tool, id)
			}
			if n > 0 && len(outcomes[id]) == 0 {
				lost++
			}
		}
	}
	t.Logf("%d calls, %d approved and %d confirmed ones answered, %d in flight at a kill", len(acked["create"]), len(acked["ask"]), len(acked["deploy"]), lost)
	if len(acked["create"]) < 100 || len(acked["ask"]) < 5 || len(acked["deploy"]) < 5 {
		t.Error("too few calls got through, so the test shows nothing")
	}
	c.verify(t)
}

// deployUntil confirms a call and repeats it under its key, as a careful client does that got no answer, until it hears how the call
// ended or that nobody can know: the replica that ran it was killed.
func deployUntil(t *testing.T, client *testkit.Client, id int64) bool {
	given := ""
	for tries := 0; given == ""; tries++ {
		if r, err := client.Try(t.Context(), "tools/call", testkit.CallParams("deploy", fmt.Sprintf(`{"id":%d}`, id))); err == nil {
			given = token(r)
		}
		if tries > 200 {
			return false
		}
	}
	params := testkit.CallParams("deploy", fmt.Sprintf(`{"id":%d,"confirmation_token":%q,"idempotency_key":"key %d"}`, id, given, id))
	for range 30 {
		if r, err := client.Try(t.Context(), "tools/call", params); err == nil && done(r, id) {
			return true
		}
	}
	return false
}

// askUntil makes a call that needs approval, approves it and repeats it until it has run, or until it is held anew, which says that
// a replica that was killed has used the approval. Nobody approves it twice.
func askUntil(t *testing.T, b *balancer, client *testkit.Client, id int64) bool {
	params := testkit.CallParams("ask", fmt.Sprintf(`{"id":%d}`, id))
	approval, decided := "", false
	for range 200 {
		r, err := client.Try(t.Context(), "tools/call", params)
		switch {
		case err != nil || r.Error == nil && !done(r, id):
			continue // killed
		case r.Error == nil:
			return true
		case r.Error.Data.ApprovalID == "":
			continue
		case approval == "":
			approval = r.Error.Data.ApprovalID
		case r.Error.Data.ApprovalID != approval:
			return false
		}
		if !decided {
			decided = approve(t, b, approval)
		}
	}
	return false
}

// approve approves through the balancer. A second attempt after one that was lost is refused as decided already, which is as good.
func approve(t *testing.T, b *balancer, id string) bool {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/api/v1/mcp/approvals/"+id+"/approve", nil)
	if err != nil {
		t.Error(err)
		return false
	}
	req.Header.Set("Authorization", "Bearer "+testkit.AdminKey)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer r.Body.Close()
	return r.StatusCode == http.StatusOK || r.StatusCode == http.StatusConflict
}
