package policy

// Tier is the one tier of a tool (SC-2). It says which allowlist entry grants the tool and which budget its calls use.
// The zero Tier is an unknown word: no entry that names a tier grants it, and Decide denies it.
type Tier uint8

// The tiers. Scaffold has two kinds, because their budgets differ (SC-80); one allowlist entry grants both.
const (
	TierUnknown Tier = iota
	TierBaseline
	TierRead
	TierOps
	TierScriptRun
	TierScaffoldProposal
	TierScaffoldTask
	TierDeploy
)

var tierWords = [...]string{
	TierUnknown: "unknown", TierBaseline: "baseline", TierRead: "read", TierOps: "ops", TierScriptRun: "script_run",
	TierScaffoldProposal: "scaffold_proposal", TierScaffoldTask: "scaffold_task", TierDeploy: "deploy",
}

// ParseTier reads a stored or given word. An unknown word is TierUnknown and false.
func ParseTier(word string) (Tier, bool) {
	for t := TierBaseline; t <= TierDeploy; t++ {
		if tierWords[t] == word {
			return t, true
		}
	}
	return TierUnknown, false
}

// String gives the word that ParseTier reads; TierUnknown is "unknown".
func (t Tier) String() string {
	if int(t) < len(tierWords) {
		return tierWords[t]
	}
	return tierWords[TierUnknown]
}

// Tiers lists the words that ParseTier reads, in order.
func Tiers() []string { return append([]string(nil), tierWords[TierBaseline:]...) }

// TierOf is the tier of a tool to which nobody gave one: what only reads is read, all else is ops. So a tool
// that cannot be classified is never among those that a task without an agent may use.
func TierOf(c Class) Tier {
	if c == Read {
		return TierRead
	}
	return TierOps
}

// TierSet is a set of tiers; the zero set is empty.
type TierSet uint8

// SetOf makes a set. TierUnknown is in no set.
func SetOf(tiers ...Tier) (s TierSet) {
	for _, t := range tiers {
		if t != TierUnknown && int(t) < len(tierWords) {
			s |= 1 << t
		}
	}
	return s
}

// Has reports whether t is in the set; TierUnknown never is.
func (s TierSet) Has(t Tier) bool {
	return t != TierUnknown && int(t) < len(tierWords) && s&(1<<t) != 0
}

// platform holds the tier of every tool of the work platform (SC-10 to SC-76). It is fixed: nobody assigns another.
var platform = map[string]Tier{}

func init() {
	for tier, names := range map[Tier][]string{
		TierBaseline: {
			"delegate_subtask", "get_subtask_result", "cancel_subtask",
			"memory.search", "memory.get", "memory.list_recent", "memory.propose_review", "outcome.recent_for_profile",
		},
		TierRead: {
			"workspace.info", "projects.list", "project.get", "tasks.list_active", "tasks.get", "runners.status", "schedules.list",
			"resources.list", "apps.list", "app.get", "workflows.list", "workflow.get", "app.migration.list",
			"run.list", "run.get", "run.events",
			"app.files.list", "app.files.get", "script.get", "script.list", "app.builds.list",
			"issue.get", "issue.list", "conversation.get", "conversation.list",
		},
		TierOps: {
			"workflow.trigger", "schedule.create", "schedule.update", "schedule.pause", "schedule.resume", "repo_sync.trigger",
			"issue.comment", "issue.transition", "pr.create",
			"conversation.reply", "conversation.assign", "conversation.resolve", "conversation.handoff",
		},
		TierScriptRun: {"script.run"},
		TierScaffoldProposal: {
			"scaffold.script.propose", "scaffold.app.propose", "scaffold.app.file_upsert.propose", "scaffold.workflow.propose",
		},
		TierScaffoldTask: {"task.create_for_app_scaffold", "task.create_for_script_scaffold"},
		TierDeploy:       {"app.deploy", "app.undeploy", "app.pause", "app.resume", "app.migration.apply"},
	} {
		for _, name := range names {
			platform[name] = tier
		}
	}
}

// PlatformTier is the tier of a tool of the work platform by its name; false when the platform has no such tool. Ask it
// only about tools of built-in servers: a foreign server may call its tools what it likes.
func PlatformTier(name string) (Tier, bool) {
	t, ok := platform[name]
	return t, ok
}

// PlatformConfirms reports whether calls of a tool of the work platform need the two-step confirmation (SC-71).
func PlatformConfirms(name string) bool { return name == "app.deploy" || name == "app.migration.apply" }
