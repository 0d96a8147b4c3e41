package policy_test

import (
	"testing"

	"doorward.dev/doorward/internal/policy"
)

func TestTierWords(t *testing.T) {
	for _, word := range policy.Tiers() {
		tier, ok := policy.ParseTier(word)
		if !ok || tier.String() != word || tier == policy.TierUnknown {
			t.Errorf("%q reads as %v", word, tier)
		}
		if !policy.SetOf(tier).Has(tier) || policy.SetOf().Has(tier) {
			t.Errorf("the set of %v", tier)
		}
	}
	for _, word := range []string{"", "unknown", "OPS", "scaffold", "read ", "admin"} {
		if tier, ok := policy.ParseTier(word); ok || tier != policy.TierUnknown {
			t.Errorf("%q reads as %v", word, tier)
		}
	}
	if policy.SetOf(policy.TierUnknown) != 0 || policy.TierSet(0xFF).Has(policy.TierUnknown) || policy.TierSet(0xFF).Has(200) || policy.Tier(200).String() != "unknown" {
		t.Error("the unknown tier is a member")
	}
}

func TestTierOfClass(t *testing.T) {
	for class, want := range map[policy.Class]policy.Tier{
		policy.Read: policy.TierRead, policy.Write: policy.TierOps, policy.Delete: policy.TierOps, policy.Send: policy.TierOps,
		policy.Execute: policy.TierOps, policy.Unknown: policy.TierOps, "": policy.TierOps, "new": policy.TierOps,
	} {
		if got := policy.TierOf(class); got != want {
			t.Errorf("%s: %v", class, got)
		}
	}
}

// SC-10 to SC-76: 8 baseline, 25 read, 13 ops, script.run, 6 scaffold, 5 deploy: 58 tools, each in one tier.
func TestPlatformTiers(t *testing.T) {
	want := map[policy.Tier]int{
		policy.TierBaseline: 8, policy.TierRead: 25, policy.TierOps: 13, policy.TierScriptRun: 1,
		policy.TierScaffoldProposal: 4, policy.TierScaffoldTask: 2, policy.TierDeploy: 5,
	}
	got := policy.PlatformCounts()
	total := 0
	for tier, n := range want {
		total += n
		if got[tier] != n {
			t.Errorf("%v: %d tools, want %d", tier, got[tier], n)
		}
	}
	if total != 58 {
		t.Errorf("%d tools", total)
	}
	for name, want := range map[string]policy.Tier{
		"script.run": policy.TierScriptRun, "app.deploy": policy.TierDeploy, "conversation.reply": policy.TierOps, "conversation.get": policy.TierRead,
		"memory.propose_review": policy.TierBaseline, "task.create_for_app_scaffold": policy.TierScaffoldTask,
	} {
		if tier, ok := policy.PlatformTier(name); !ok || tier != want {
			t.Errorf("%s: %v", name, tier)
		}
	}
	if _, ok := policy.PlatformTier("memory_search"); ok {
		t.Error("a look-alike has a tier")
	}
}
