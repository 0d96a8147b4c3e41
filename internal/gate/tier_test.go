package gate_test

import (
	"slices"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// setTool sets the tier of a tool of the world's server.
func (w *world) setTool(tool string, in catalog.ToolSettings) {
	w.t.Helper()
	in.ConfirmLoosening = true
	must[catalog.ToolInfo](w.t)(w.catalog.SetTool(w.ctx, w.owner.WorkspaceID, w.server.ID, w.tools["notes/"+tool], in))
	w.reload()
}

// The tier of a tool decides with the allowlist who may know it, on lists as on calls (SC-2 to SC-9).
func TestTiersGrant(t *testing.T) {
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	task, _ := w.newTask("")
	for _, c := range []struct {
		tier, allow string
		agent, task bool // may call write_note
	}{
		{"", "supacloud.ops.*", true, false},
		{"", "supacloud.read.*", false, false},
		{"", "supacloud.*", false, false},
		{"deploy", "supacloud.ops.*", false, false},
		{"deploy", "supacloud.deploy.*", true, false},
		{"script_run", "supacloud.ops.*", false, false},
		{"script_run", "supacloud.script.run", true, false},
		{"read", "supacloud.read.*", true, true},
		{"baseline", "other/*", true, true},
		{"scaffold_task", "supacloud.scaffold.*", true, false},
	} {
		w.setTool("write_note", catalog.ToolSettings{Tier: &c.tier})
		agent := w.newAgent(c.tier+c.allow, c.allow)
		for _, who := range []struct {
			caller *auth.Caller
			may    bool
		}{{agent, c.agent}, {task, c.task}} {
			_, f := w.call(who.caller, "write_note", `{"text":"x"}`)
			if (f == nil) != who.may || f != nil && f.Class != fault.UnknownTool {
				t.Errorf("tier %q, allowlist %s, task %v: %v", c.tier, c.allow, who.caller.TaskID != "", f)
			}
			shown := slices.ContainsFunc(w.gate.Visible(who.caller, ""), func(t *catalog.Tool) bool { return t.Name == "write_note" })
			if shown != who.may {
				t.Errorf("tier %q, allowlist %s: the list shows it: %v", c.tier, c.allow, shown)
			}
		}
	}
}

// A tier that a later version stored is no tier: nobody may call, whatever the allowlist says.
func TestUnknownTierDenies(t *testing.T) {
	w := newWorld(t)
	w.exec(`UPDATE tool SET tier = 'orbit' WHERE name = 'read_note'`)
	w.exec(`UPDATE revision SET n = n + 1`)
	w.reload()
	r, f := w.call(w.owner, "read_note", `{"id":"1"}`)
	w.refused(r, f, fault.Denied, policy.ReasonTierUnknown, "grant", policy.ReasonTierUnknown)
}

// SC-62: an agent runs the scripts of its profile and no others; no list means every script, an empty one none.
func TestScriptAllowlist(t *testing.T) {
	w := newWorld(t)
	w.rule("write_note", "ALLOW")
	tier := "script_run"
	w.setTool("write_note", catalog.ToolSettings{Tier: &tier})
	for _, c := range []struct {
		list []string
		args string
		runs bool
	}{
		{nil, `{"text":"x","slug":"any"}`, true},
		{[]string{"nightly"}, `{"text":"x","slug":"nightly"}`, true},
		{[]string{"nightly"}, `{"text":"x","slug":"Nightly"}`, false},
		{[]string{"nightly"}, `{"text":"x"}`, false},
		{[]string{}, `{"text":"x","slug":""}`, false},
	} {
		agent := *w.agent.Agent
		agent.ScriptAllowlist = c.list
		must[*auth.Agent](t)(w.auth.UpdateAgent(w.ctx, w.owner.WorkspaceID, agent))
		r, f := w.call(w.agent, "write_note", c.args)
		if c.runs {
			if f != nil {
				t.Errorf("%v %s: %v", c.list, c.args, f)
			}
			continue
		}
		w.refused(r, f, fault.Denied, "SCRIPT_NOT_GRANTED", "grant", "SCRIPT_NOT_GRANTED")
	}
}
