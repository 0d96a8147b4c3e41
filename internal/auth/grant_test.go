package auth_test

import (
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/policy"
)

// surface is one tool of each tier, as server/tool.
var surface = []struct {
	tool string
	tier policy.Tier
}{
	{"memory.search", policy.TierBaseline},
	{"project.get", policy.TierRead},
	{"conversation.get", policy.TierRead},
	{"conversation.list", policy.TierRead},
	{"conversation.reply", policy.TierOps},
	{"issue.comment", policy.TierOps},
	{"script.run", policy.TierScriptRun},
	{"scaffold.app.propose", policy.TierScaffoldProposal},
	{"task.create_for_app_scaffold", policy.TierScaffoldTask},
	{"app.deploy", policy.TierDeploy},
	{"strange", policy.TierUnknown},
}

// granted lists what an agent of these entries may know.
func granted(t *testing.T, entries ...string) map[string]bool {
	t.Helper()
	agent := new(auth.Agent)
	for _, s := range entries {
		p, err := auth.ParsePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		agent.Allowlist = append(agent.Allowlist, p)
	}
	c := auth.Caller{AgentID: "a", Agent: agent}
	out := map[string]bool{}
	for _, s := range surface {
		if c.Granted("any", s.tool, s.tier) {
			out[s.tool] = true
		}
	}
	return out
}

// SC-3 to SC-9 with their traps. The baseline is there whatever the allowlist says.
func TestAllowlistTiers(t *testing.T) {
	for _, c := range []struct {
		entry string
		want  []string // besides the baseline
	}{
		{"supacloud.*", nil}, // SC-6: not everything
		{"supacloud.full", []string{"project.get", "conversation.get", "conversation.list", "conversation.reply", "issue.comment", "script.run", "scaffold.app.propose", "task.create_for_app_scaffold", "app.deploy", "strange"}},
		{"*", []string{"project.get", "conversation.get", "conversation.list", "conversation.reply", "issue.comment", "script.run", "scaffold.app.propose", "task.create_for_app_scaffold", "app.deploy", "strange"}},
		{"any/*", []string{"project.get", "conversation.get", "conversation.list", "conversation.reply", "issue.comment", "script.run", "scaffold.app.propose", "task.create_for_app_scaffold", "app.deploy", "strange"}},
		{"supacloud.read.*", []string{"project.get", "conversation.get", "conversation.list"}},
		{"supacloud.ops.*", []string{"conversation.reply", "issue.comment"}}, // SC-4, SC-5: no script.run, no deploy
		{"supacloud.script.run", []string{"script.run"}},
		{"supacloud.scaffold.*", []string{"scaffold.app.propose", "task.create_for_app_scaffold"}},
		{"supacloud.deploy.*", []string{"app.deploy"}},
		{"supacloud.conversation.*", []string{"conversation.get", "conversation.list"}}, // SC-44: only the two reads
		{"issue.comment", []string{"issue.comment"}},
		{"supacloud.issue.comment", []string{"issue.comment"}}, // SC-9
		{"supacloud.app.deploy", []string{"app.deploy"}},
		{"app.deploy", []string{"app.deploy"}},
		{"script.run", []string{"script.run"}},
		{"supacloud.read", nil}, // a tool of that name, which there is not
		{"other/*", nil},
	} {
		want := map[string]bool{"memory.search": true}
		for _, name := range c.want {
			want[name] = true
		}
		got := granted(t, c.entry)
		for _, s := range surface {
			if got[s.tool] != want[s.tool] {
				t.Errorf("%s grants %s: %v", c.entry, s.tool, got[s.tool])
			}
		}
	}
	if got := granted(t); len(got) != 1 || !got["memory.search"] {
		t.Errorf("an empty allowlist grants %v", got)
	}
}

// The two conversation reads are what the entry names, and only while they read: an operator who moves one to another tier,
// or a server that calls its tool so, is not granted by it.
func TestConversationEntryIsAboutReads(t *testing.T) {
	p, err := auth.ParsePattern("supacloud.conversation.*")
	if err != nil {
		t.Fatal(err)
	}
	if p.Grants("s", "conversation.get", policy.TierOps) || p.Grants("s", "conversation.resolve", policy.TierRead) {
		t.Error("granted")
	}
}

func TestUnknownTierEntriesAreRefused(t *testing.T) {
	for _, s := range []string{"supacloud.", "supacloud.**", "supacloud.write.*", "supacloud.memory.*", "supacloud.read*", "supacloud.script.*", "supacloud.baseline.*"} {
		if _, err := auth.ParsePattern(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// SC-7: a task without an agent has the read surface and the baseline, whatever its person may do.
func TestReadSurfaceOfATask(t *testing.T) {
	c := auth.Caller{TaskID: "t", ActorPersonID: "p", ActorRole: auth.Owner}
	for _, s := range surface {
		want := s.tier == policy.TierBaseline || s.tier == policy.TierRead
		if got := c.Granted("any", s.tool, s.tier); got != want {
			t.Errorf("%s: %v", s.tool, got)
		}
	}
	if gone := (&auth.Caller{TaskID: "t", AgentID: "gone"}); gone.Granted("any", "memory.search", policy.TierBaseline) {
		t.Error("a task of an agent that is gone has the baseline")
	}
}

func TestGrantedAllocatesNothing(t *testing.T) {
	p, _ := auth.ParsePattern("supacloud.read.*")
	c := auth.Caller{AgentID: "a", Agent: &auth.Agent{Allowlist: []auth.Pattern{p, p, p}}}
	if n := testing.AllocsPerRun(100, func() { c.Granted("server", "tool", policy.TierOps) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
