package config

import (
	"net"
	"net/mail"
	"slices"
	"strings"
)

// The words of approvals.webhook.events and approvals.email.events.
var approvalEvents = []string{"approval.created", "approval.decided", "approval.escalated", "approval.expired"}

// validate checks what depends on more than one value of the section.
func (a *Approvals) validate(bad func(key, format string, args ...any)) {
	roles := []string{"editor", "admin", "owner"}
	if slices.Index(roles, a.EscalateRole) < slices.Index(roles, a.DecideRole) {
		bad("approvals.escalate_role", "must not be lower than approvals.decide_role (%s)", a.DecideRole)
	}
	if a.EscalateAfter >= a.TTL {
		bad("approvals.escalate_after", "must be shorter than approvals.ttl (%s), when a held call has expired", duration(a.TTL))
	}
	w := &a.Webhook
	for key, u := range map[string]string{"approvals.webhook.url": w.URL, "approvals.webhook.escalation_url": w.EscalationURL} {
		if u != "" && !strings.HasPrefix(u, "https://") && !strings.HasPrefix(u, "http://") {
			bad(key, "must be an http:// or https:// URL")
		}
	}
	if (w.URL != "" || w.EscalationURL != "") && len(w.Secret) < 32 {
		bad("approvals.webhook.secret", "must have at least 32 characters where an address is set")
	}
	for _, word := range slices.Concat(w.Events, a.Email.Events) {
		if !slices.Contains(approvalEvents, word) {
			bad("approvals", "%q is no event: one of %s", word, strings.Join(approvalEvents, ", "))
		}
	}
	a.Email.validate(bad)
}

func (m *ApprovalEmail) validate(bad func(key, format string, args ...any)) {
	if m.SMTP == "" {
		return
	}
	if host, port, err := net.SplitHostPort(m.SMTP); err != nil || host == "" || port == "" {
		bad("approvals.email.smtp", "%q is not an address such as mail.example:587", m.SMTP)
	}
	if _, err := mail.ParseAddress(m.From); err != nil {
		bad("approvals.email.from", "must be an address such as doorward@example.com where approvals.email.smtp is set")
	}
	if len(m.To)+len(m.EscalationTo) == 0 {
		bad("approvals.email.to", "must name a receiver where approvals.email.smtp is set")
	}
	for _, to := range slices.Concat(m.To, m.EscalationTo) {
		if _, err := mail.ParseAddress(to); err != nil {
			bad("approvals.email.to", "%q is not an address", to)
		}
	}
}
