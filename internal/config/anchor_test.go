package config_test

import (
	"strings"
	"testing"

	"doorward.dev/doorward/internal/config"
)

// A webhook without a key would be one that anybody can speak for.
func TestAnchorNeedsASecret(t *testing.T) {
	for secret, want := range map[string]string{"": "audit.anchor_secret", "short": "audit.anchor_secret", strings.Repeat("k", 32): ""} {
		_, err := config.Load(config.Source{Environ: []string{"HOME=/tmp", "DOORWARD_AUDIT_ANCHOR_URL=https://anchor.example/in", "DOORWARD_AUDIT_ANCHOR_SECRET=" + secret}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(strings.ToLower(strings.ReplaceAll(err.Error(), "_", ".")), "audit.anchor.secret") {
			t.Errorf("secret of %d characters: %v", len(secret), err)
		}
	}
}
