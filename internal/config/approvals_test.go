package config_test

import (
	"strings"
	"testing"

	"doorward.dev/doorward/internal/config"
)

// What would leave nobody told, or the wrong ones, is refused at the start.
func TestApprovalSettings(t *testing.T) {
	key := "APPROVALS_WEBHOOK_SECRET=" + strings.Repeat("k", 32)
	for settings, problem := range map[string]string{
		"APPROVALS_DECIDE_ROLE=viewer":                                                                  "not one of",
		"APPROVALS_DECIDE_ROLE=owner APPROVALS_ESCALATE_ROLE=admin":                                     "must not be lower",
		"APPROVALS_DECIDE_ROLE=editor APPROVALS_ESCALATE_ROLE=editor":                                   "",
		"APPROVALS_ESCALATE_AFTER=30m":                                                                  "must be shorter",
		"APPROVALS_ESCALATE_AFTER=29m":                                                                  "",
		"APPROVALS_WEBHOOK_URL=https://a.example":                                                       "at least 32 characters",
		"APPROVALS_WEBHOOK_ESCALATION_URL=ftp://a.example " + key:                                       "must be an http",
		"APPROVALS_WEBHOOK_URL=https://a.example " + key:                                                "",
		"APPROVALS_WEBHOOK_EVENTS=approval.made":                                                        "is no event",
		"APPROVALS_EMAIL_SMTP=mail.example":                                                             "is not an address such as",
		"APPROVALS_EMAIL_SMTP=mail.example:25 APPROVALS_EMAIL_FROM=a@b":                                 "must name a receiver",
		"APPROVALS_EMAIL_SMTP=mail.example:25 APPROVALS_EMAIL_FROM=a@b\r\nBcc:x APPROVALS_EMAIL_TO=c@d": "must be an address",
		"APPROVALS_EMAIL_SMTP=mail.example:25 APPROVALS_EMAIL_FROM=a@b APPROVALS_EMAIL_TO=c@d,nobody":   "is not an address",
		"APPROVALS_EMAIL_SMTP=mail.example:25 APPROVALS_EMAIL_FROM=a@b APPROVALS_EMAIL_TO=c@d":          "",
	} {
		environ := []string{"HOME=/tmp"}
		for s := range strings.SplitSeq(settings, " ") {
			environ = append(environ, "DOORWARD_"+s)
		}
		_, err := config.Load(config.Source{Environ: environ})
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v", settings, err)
		}
	}
}
