package door

import (
	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/gate"
)

// The answers of operations that are not the thing itself.
type (
	serverList struct {
		Servers []serverInfo `json:"servers"`
		Next    string       `json:"next_cursor,omitempty"`
	}
	serverImport struct {
		Servers []serverInfo    `json:"servers"`
		Skipped []skippedServer `json:"skipped"`
	}
	skippedServer struct {
		Name   string `json:"name"`
		Reason string `json:"reason"`
	}
	serverRemoved struct {
		Removed string `json:"removed"`
		Expired int    `json:"expired_approvals"`
	}
	serverApproved struct {
		serverInfo
		Tools []catalog.ToolInfo `json:"tools"`
	}
	toolList struct {
		Tools []catalog.ToolInfo `json:"tools"`
	}
	admitted struct {
		Admitted int `json:"admitted"`
	}
	policyList struct {
		Policies []catalog.Policy `json:"policies"`
		Next     string           `json:"next_cursor,omitempty"`
	}
	deleted struct {
		Deleted string `json:"deleted"`
	}
	approvalList struct {
		Approvals  []gate.Approval `json:"approvals"`
		NextCursor string          `json:"next_cursor,omitempty"`
	}
	agentList struct {
		Agents []agentInfo `json:"agents"`
		Next   string      `json:"next_cursor,omitempty"`
	}
	keyList struct {
		Keys []auth.KeyInfo `json:"keys"`
		Next string         `json:"next_cursor,omitempty"`
	}
	keyCreated struct {
		auth.KeyInfo
		Key string `json:"key"` // shown this once
	}
	revoked struct {
		Revoked string `json:"revoked"`
	}
	clientList struct {
		Clients []auth.OAuthClient `json:"clients"`
	}
	personList struct {
		People []auth.Person `json:"people"`
		Next   string        `json:"next_cursor,omitempty"`
	}
	passwordSet struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	eventList struct {
		Events []audit.Event `json:"events"`
		Next   int64         `json:"next_cursor,omitempty"`
	}
	checkpointAnswer struct {
		Keys       []string          `json:"keys"`
		Checkpoint *audit.Checkpoint `json:"checkpoint,omitempty"`
	}
	attestationList struct {
		Attestations []audit.Attestation `json:"attestations"`
		Next         int64               `json:"next_cursor,omitempty"`
	}
	traceList struct {
		Traces []audit.Trace `json:"traces"`
		Next   *int64        `json:"next_cursor"` // null: there are no more
	}
	traceAnswer struct {
		Trace  audit.Trace   `json:"trace"`
		Events []audit.Event `json:"events"`
	}
	taskList struct {
		Tasks []auth.Task `json:"tasks"`
		Next  string      `json:"next_cursor,omitempty"`
	}
	taskCreated struct {
		auth.Task
		Token string `json:"token"` // shown this once
	}
	signedIn struct {
		Person      auth.Person  `json:"person"`
		WorkspaceID string       `json:"workspace_id"`
		Session     auth.Session `json:"session"`
	}
	signedOut struct {
		SignedOut bool `json:"signed_out"`
	}
	identity struct {
		WorkspaceID string        `json:"workspace_id"`
		Person      *personInfo   `json:"person,omitempty"`
		Agent       *agentBrief   `json:"agent,omitempty"`
		Task        *taskBrief    `json:"task,omitempty"`
		Session     *auth.Session `json:"session,omitempty"`
	}
	personInfo struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		Role string `json:"role"`
	}
	agentBrief struct {
		ID    string `json:"id"`
		Name  string `json:"name"`
		State string `json:"status"`
	}
	taskBrief struct {
		ID       string `json:"id"`
		PersonID string `json:"person_id"`
	}
)
