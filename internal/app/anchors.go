package app

import (
	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/webhook"
)

// anchors are the places outside of the database that keep checkpoints of the record.
func anchors(c config.Audit) []audit.Anchor {
	var list []audit.Anchor
	if c.AnchorFile != "" {
		list = append(list, audit.FileAnchor{Path: c.AnchorFile})
	}
	if c.AnchorURL != "" {
		list = append(list, audit.WebhookAnchor{Hook: webhook.Hook{URL: c.AnchorURL, Secret: []byte(c.AnchorSecret)}})
	}
	return list
}
