package app

import (
	"context"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/notify"
	"doorward.dev/doorward/internal/webhook"
)

// channels are the ways out for what happens to approvals. Each receiver is one, so that none gets a message
// again because another did not get it.
func channels(c config.Approvals) []notify.Channel {
	var list []notify.Channel
	post := func(name, url string, kinds []string) {
		if url == "" {
			return
		}
		hook := webhook.Hook{URL: url, Secret: []byte(c.Webhook.Secret)}
		list = append(list, notify.Channel{Name: name, Kinds: kinds, Arguments: c.Webhook.Arguments, Send: func(ctx context.Context, body []byte) error {
			_, _, err := hook.Post(ctx, body)
			return err
		}})
	}
	post("webhook", c.Webhook.URL, c.Webhook.Events)
	escalations := []string{notify.Escalated}
	post("webhook:escalation", c.Webhook.EscalationURL, escalations)
	if c.Email.SMTP == "" {
		return list
	}
	mail := func(prefix string, to, kinds []string) {
		for _, address := range to {
			m := notify.Email{
				Server: c.Email.SMTP, StartTLS: c.Email.StartTLS, Username: c.Email.Username, Password: c.Email.Password,
				From: c.Email.From, To: address,
			}
			list = append(list, notify.Channel{Name: prefix + address, Kinds: kinds, Send: m.Send})
		}
	}
	mail("email:", c.Email.To, c.Email.Events)
	mail("email:escalation:", c.Email.EscalationTo, escalations)
	return list
}

// role reads a role that the configuration has checked.
func role(word string) auth.Role {
	r, _ := auth.ParseRole(word)
	return r
}
