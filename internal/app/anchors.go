package app

import (
	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/webhook"
)

// collector gets the record, if there is one.
func collector(c config.OTLP) *audit.OTLP {
	if c.Endpoint == "" {
		return nil
	}
	headers, _ := c.HeaderMap() // checked when the configuration was read
	return &audit.OTLP{URL: c.URL(), Headers: headers, Version: Version}
}

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
