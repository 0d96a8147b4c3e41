package auth_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		text    string
		ok      bool
		grants  []string // server/tool
		refuses []string
	}{
		{"*", true, []string{"s/x", "t/y"}, nil},
		{"s/*", true, []string{"s/x", "s/a/b"}, []string{"t/x", "ss/x", "S/x"}},
		{"s/x", true, []string{"s/x"}, []string{"s/y", "t/x", "s/xx", "s/X"}},
		{"s/a/b", true, []string{"s/a/b"}, []string{"s/a", "s/b"}},
		{"x", true, []string{"s/x", "t/x"}, []string{"s/y"}},
		{"memory.search", true, []string{"m/memory.search"}, []string{"m/memory_search"}},
		{"", false, nil, nil}, {" x", false, nil, nil}, {"x\n", false, nil, nil}, {"a\x00b", false, nil, nil},
		{"s/", false, nil, nil}, {"/x", false, nil, nil}, {"*/x", false, nil, nil}, {"*/*", false, nil, nil},
		{"read_*", false, nil, nil}, {"s/read_*", false, nil, nil}, {"s*/x", false, nil, nil}, {"my server/x", false, nil, nil},
		{"**", false, nil, nil}, {strings.Repeat("x", 513), false, nil, nil},
	} {
		p, err := auth.ParsePattern(c.text)
		if (err == nil) != c.ok {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if !c.ok && !fault.Is(err, fault.InvalidParams) {
			t.Errorf("%q: %v", c.text, err)
		}
		for _, name := range c.grants {
			if s, tool, _ := strings.Cut(name, "/"); !p.Match(s, tool) {
				t.Errorf("%q does not grant %s", c.text, name)
			}
		}
		for _, name := range c.refuses {
			if s, tool, _ := strings.Cut(name, "/"); p.Match(s, tool) {
				t.Errorf("%q grants %s", c.text, name)
			}
		}
	}
	if (auth.Pattern{}).Match("", "") || (auth.Pattern{Server: "*"}).Match("s", "") {
		t.Error("the zero pattern grants")
	}
}

// What parses grants exactly what it says, and never panics on hostile text.
func FuzzParsePattern(f *testing.F) {
	for _, s := range []string{"*", "s/*", "s/x", "x", "", "*/x", "a/b/c", "\x00", "ü/ö", "s/x*", "supacloud.*", "supacloud.x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := auth.ParsePattern(s)
		if err != nil {
			if p != (auth.Pattern{}) {
				t.Errorf("%q is refused and gives %+v", s, p)
			}
			return
		}
		server, tool, ok := strings.Cut(s, "/")
		switch {
		case s == "*", !ok && strings.HasPrefix(s, "supacloud."): // the latter is TestAllowlistTiers
		case !ok && !p.Match("any", s), ok && tool != "*" && !p.Match(server, tool), ok && p.Match(server+"x", tool):
			t.Errorf("%q gave %+v", s, p)
		case tool != "*" && p.Match(server, "some other tool") && s != "some other tool":
			t.Errorf("%q grants too much", s)
		}
	})
}

func TestAgentTransitions(t *testing.T) {
	states := []string{auth.StatePending, auth.StateActive, auth.StatePaused, auth.StateSuspended, auth.StateRevoked, auth.StateRejected}
	allowed := map[string]string{
		auth.StatePending:   "ACTIVE REJECTED",
		auth.StateActive:    "PAUSED SUSPENDED REVOKED",
		auth.StatePaused:    "ACTIVE SUSPENDED REVOKED",
		auth.StateSuspended: "ACTIVE REVOKED",
	}
	w := newWorld(t)
	id := w.caller(w.agent).AgentID
	for _, from := range states {
		for _, to := range append(states, "NONSENSE", "") {
			w.exec(`UPDATE agent SET state = $1 WHERE id = $2`, from, id)
			g, err := w.SetAgentState(t.Context(), w.ws, id, to)
			if want := slices.Contains(strings.Fields(allowed[from]), to); want != (err == nil) {
				t.Errorf("%s to %q: %v", from, to, err)
			}
			want := from
			if err == nil {
				want = g.State
			}
			if got := w.caller(w.agent).Agent.State; got != want {
				t.Errorf("%s to %q left the agent %s", from, to, got)
			}
		}
	}
	if _, err := w.SetAgentState(t.Context(), "other", id, auth.StateActive); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another workspace: %v", err)
	}
}

func TestCreateAndUpdateAgent(t *testing.T) {
	w := newWorld(t)
	in := auth.Agent{Name: "reader", Description: "reads", Allowlist: patterns(t, "files/*", "search", "search"),
		Capability: map[string]string{"read": "LOG_ONLY", "files/write": "DENY"}}
	g, err := w.CreateAgent(t.Context(), w.ws, in)
	if err != nil {
		t.Fatal(err)
	}
	if g.State != auth.StatePending || len(g.Allowlist) != 2 || g.Capability["files/write"] != "DENY" || g.CreatedAt != w.now.UnixMicro() {
		t.Errorf("created %+v", g)
	}
	if _, err := w.CreateAgent(t.Context(), w.ws, in); !fault.Is(err, fault.Conflict) {
		t.Errorf("the same name: %v", err)
	}
	key, _, err := w.CreateKey(t.Context(), w.ws, g.ID, "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	c := w.caller(key)
	if !c.Granted("files", "any", policy.TierOps) || !c.Granted("web", "search", policy.TierOps) || c.Granted("web", "fetch", policy.TierOps) {
		t.Error("the allowlist does not hold")
	}
	up := *g
	up.Name, up.Allowlist, up.Capability, up.State = "none", nil, map[string]string{"*": "REQUIRE_APPROVAL", "read": "ALLOW"}, auth.StateActive
	if g, err = w.UpdateAgent(t.Context(), w.ws, up); err != nil {
		t.Fatal(err)
	}
	if g.State != auth.StatePending {
		t.Error("an update moved the state")
	}
	if w.caller(key).Granted("files", "any", policy.TierOps) {
		t.Error("an empty allowlist grants")
	}
	if !c.Granted("files", "any", policy.TierOps) {
		t.Error("the older snapshot was changed")
	}
	for class, want := range map[string]string{"read": "ALLOW", "write": "REQUIRE_APPROVAL", "unknown": "REQUIRE_APPROVAL"} {
		if got := g.Capability[class]; got != want {
			t.Errorf("class %s has the word %q, want %q", class, got, want)
		}
	}
	if _, err := w.UpdateAgent(t.Context(), "other", up); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another workspace: %v", err)
	}
	if agents := w.Agents(w.ws); len(agents) != 2 || agents[1].Name != "none" {
		t.Errorf("agents are %v", agents)
	}
	if agents := w.Agents("other"); len(agents) != 0 {
		t.Errorf("agents of another workspace: %v", agents)
	}
}

func TestBadAgentsAreRefusedWhenSaved(t *testing.T) {
	w := newWorld(t)
	for name, in := range map[string]auth.Agent{
		"no name":              {},
		"control characters":   {Name: "a\x1b[31m"},
		"long name":            {Name: strings.Repeat("x", 101)},
		"hand-made pattern":    {Name: "a", Allowlist: []auth.Pattern{{Text: "x*", Server: "*", Tool: "*"}}},
		"unknown word":         {Name: "a", Capability: map[string]string{"read": "allow"}},
		"unknown class":        {Name: "a", Capability: map[string]string{"reading": "DENY"}},
		"server without tool":  {Name: "a", Capability: map[string]string{"files/": "DENY"}},
		"pattern as tool":      {Name: "a", Capability: map[string]string{"files/*": "DENY"}},
		"state it cannot have": {Name: "a", State: auth.StateSuspended},
	} {
		if _, err := w.CreateAgent(t.Context(), w.ws, in); !fault.Is(err, fault.InvalidParams) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPeople(t *testing.T) {
	w := newWorld(t)
	p, err := w.CreatePerson(t.Context(), w.ws, "Erika Muster", auth.Editor)
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := w.CreateKey(t.Context(), w.ws, "", p.ID, "laptop", 0)
	if err != nil {
		t.Fatal(err)
	}
	if c := w.caller(key); c.Role != auth.Editor || c.PersonName != "Erika Muster" || c.PersonID != p.ID || !strings.HasPrefix(key, "dw_") {
		t.Errorf("caller is %+v", c)
	}
	if _, err := w.CreatePerson(t.Context(), w.ws, "Erika Muster", auth.Viewer); !fault.Is(err, fault.Conflict) {
		t.Errorf("the same name: %v", err)
	}
	if _, err := w.CreatePerson(t.Context(), "other", "x", auth.Viewer); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such workspace: %v", err)
	}
	for _, r := range []auth.Role{auth.NoRole, auth.Owner + 1} {
		if _, err := w.CreatePerson(t.Context(), w.ws, "x", r); !fault.Is(err, fault.InvalidParams) {
			t.Errorf("role %d: %v", r, err)
		}
	}
	people, err := w.People(t.Context(), w.ws)
	if err != nil || len(people) != 2 || people[1] != p {
		t.Errorf("people are %v, %v", people, err)
	}
}

func TestRoles(t *testing.T) {
	for r := auth.Viewer; r <= auth.Owner; r++ {
		if got, ok := auth.ParseRole(r.String()); got != r || !ok {
			t.Errorf("%v became %v", r, got)
		}
	}
	for _, word := range []string{"", "none", "Owner", "root"} {
		if r, ok := auth.ParseRole(word); r != auth.NoRole || ok {
			t.Errorf("%q is the role %v", word, r)
		}
	}
	if auth.NoRole.String() != "none" || auth.Role(99).String() != "none" {
		t.Error("a role that is none has a name")
	}
}

// Granted is what the patterns say, one by one, whatever the list.
func TestGrantedIsTheUnionOfPatterns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOf(rapid.SampledFrom([]string{"a/*", "a/x", "b/y", "x", "z", "*"})).Draw(t, "list")
		server := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "server")
		tool := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "tool")
		agent := new(auth.Agent)
		want := false
		for _, s := range texts {
			p, err := auth.ParsePattern(s)
			if err != nil {
				t.Fatal(err)
			}
			agent.Allowlist = append(agent.Allowlist, p)
			want = want || s == "*" || s == server+"/*" || s == server+"/"+tool || s == tool
		}
		c := auth.Caller{AgentID: "a", Agent: agent}
		if got := c.Granted(server, tool, policy.TierOps); got != want {
			t.Errorf("%v for %s/%s: %v", texts, server, tool, got)
		}
	})
}
