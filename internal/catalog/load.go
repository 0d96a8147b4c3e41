package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// Reload loads the snapshot anew; call it when the database changed. It does
// nothing when the revision is the one it has. What did not change since the
// last snapshot (definitions, compiled schemas) is taken from there.
func (c *Catalog) Reload(ctx context.Context) error {
	if err := c.load(ctx); err != nil {
		return stored(err)
	}
	c.tell()
	return nil
}

func (c *Catalog) load(ctx context.Context) error {
	c.loading.Lock()
	defer c.loading.Unlock()
	// One transaction, so that servers, tools, rules and the revision belong together.
	tx, err := c.d.DB.Read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // only reads
	l := loader{tx: tx, old: c.current.Load(), s: &Snapshot{
		Servers: map[string]*ServerView{}, AgentRules: map[string]map[string][]policy.Rule{},
		workspaces: map[string]*names{}, byID: map[string]*Tool{}, conditions: map[string]*policy.Condition{},
	}}
	if err := tx.QueryRowContext(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&l.s.Revision); err != nil {
		return err
	}
	if l.old != nil && l.old.Revision == l.s.Revision {
		return nil
	}
	if l.old == nil {
		l.old = &Snapshot{}
	}
	for _, step := range []func(context.Context) error{l.servers, l.tools, l.definitions, l.rules, l.limits} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.names()
	// Secrets are known to the redactor before anybody can use them.
	c.redact(l.sealed)
	c.current.Store(l.s)
	return nil
}

// loader builds one snapshot from one transaction and the snapshot before.
type loader struct {
	tx     *sql.Tx
	old, s *Snapshot
	sealed map[string]string // server id -> sealed secrets
	stale  map[string]bool   // servers with a definition that old does not have
}

func (l *loader) servers(ctx context.Context) error {
	rows, err := l.tx.QueryContext(ctx, `SELECT `+serverColumns+`, secrets FROM server`)
	if err != nil {
		return err
	}
	defer rows.Close()
	l.sealed = map[string]string{}
	for rows.Next() {
		var sealed string
		s, err := scanServer(rows, &sealed)
		if err != nil {
			return err
		}
		l.sealed[s.ID] = sealed
		l.s.Servers[s.ID] = &ServerView{Server: s, byName: map[string]*Tool{}}
	}
	return rows.Err()
}

// tools reads all but the definitions, which are by far the most bytes.
func (l *loader) tools(ctx context.Context) error {
	rows, err := l.tx.QueryContext(ctx, `SELECT id, server_id, name, fingerprint, action, tier, confirm, present, admitted_fingerprint, last_seen_at, position
		FROM tool`)
	if err != nil {
		return err
	}
	defer rows.Close()
	l.stale = map[string]bool{}
	for rows.Next() {
		t := &Tool{}
		var class, tier string
		if err := rows.Scan(&t.ID, &t.ServerID, &t.Name, &t.Fingerprint, &class, &tier, &t.Confirm, &t.Present, &t.AdmittedFingerprint, &t.seenAt, &t.position); err != nil {
			return err
		}
		server := l.s.Servers[t.ServerID]
		if server == nil {
			continue
		}
		t.ServerName, t.Class, t.Admission = server.Name, policy.Class(class), admission(t.Fingerprint, t.AdmittedFingerprint)
		t.Tier, _ = tierOf(server.Transport, t.Name, tier, t.Class)
		t.Confirm = t.Confirm || confirmFixed(server.Transport, t.Name)
		if old := l.old.byID[t.ID]; old != nil && old.seenAt == t.seenAt {
			t.Definition = old.Definition
			if old.Schema != nil && t.Admission == policy.Admitted {
				t.Schema = old.Schema
			}
		} else {
			l.stale[t.ServerID] = true
		}
		l.s.byID[t.ID] = t
		if t.Present {
			server.Tools = append(server.Tools, t)
			server.byName[t.Name] = t
		}
	}
	for _, server := range l.s.Servers { // faster here than in SQLite
		slices.SortFunc(server.Tools, func(a, b *Tool) int {
			return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.Name, b.Name))
		})
	}
	return rows.Err()
}

// admission always compares with the fingerprint that a person admitted,
// never with the one seen before: a changed tool cannot let itself back in.
func admission(fingerprint, admitted string) policy.Admission {
	switch admitted {
	case "":
		return policy.NotAdmitted
	case fingerprint:
		return policy.Admitted
	}
	return policy.Changed
}

func (l *loader) definitions(ctx context.Context) error {
	for id := range l.stale {
		if err := l.definitionsOf(ctx, id); err != nil {
			return err
		}
	}
	for _, t := range l.s.byID {
		// The definition of an admitted tool has the admitted fingerprint, so its schema is the admitted one.
		if t.Schema == nil && t.Admission == policy.Admitted {
			t.Schema = newArgsSchema(mcp.Get(t.Definition, "inputSchema"))
		}
	}
	return nil
}

func (l *loader) definitionsOf(ctx context.Context, serverID string) error {
	rows, err := l.tx.QueryContext(ctx, `SELECT id, definition FROM tool WHERE server_id = $1`, serverID)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var definition []byte
		if err := rows.Scan(&id, &definition); err != nil {
			return err
		}
		if t := l.s.byID[id]; t != nil && t.Definition == nil {
			t.Definition = json.RawMessage(definition)
		}
	}
	return rows.Err()
}

func (l *loader) rules(ctx context.Context) error {
	rows, err := l.tx.QueryContext(ctx, `SELECT id, COALESCE(mcp_tool_id, ''), COALESCE(agent_id, ''), action, reason, condition FROM policy ORDER BY created_at, id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r policy.Rule
		var toolID, agentID, condition string
		if err := rows.Scan(&r.ID, &toolID, &agentID, &r.Word, &r.Reason, &condition); err != nil {
			return err
		}
		r.If = l.condition(condition)
		l.s.addRule(r, toolID, agentID)
	}
	l.s.joinRules()
	return rows.Err()
}

// addRule puts a rule where Facts finds it. It is for a snapshot that nobody else has yet.
func (s *Snapshot) addRule(r policy.Rule, toolID, agentID string) {
	if agentID == "" {
		if t := s.byID[toolID]; t != nil {
			t.ServerRules = append(t.ServerRules, r)
		}
		return
	}
	if s.AgentRules[agentID] == nil {
		s.AgentRules[agentID] = map[string][]policy.Rule{}
	}
	s.AgentRules[agentID][toolID] = append(s.AgentRules[agentID][toolID], r)
}

// joinRules ends the rules of an agent for one tool with those it has for all tools.
func (s *Snapshot) joinRules() {
	for _, byTool := range s.AgentRules {
		for toolID, own := range byTool {
			if toolID != "" {
				byTool[toolID] = append(own, byTool[""]...)
			}
		}
	}
}

// names builds the tables of each workspace, and the public names.
func (l *loader) names() {
	for _, v := range l.s.Servers {
		n := l.s.workspaces[v.WorkspaceID]
		if n == nil {
			n = &names{servers: map[string]*ServerView{}, public: map[string][]*Tool{}, own: map[string][]*Tool{}}
			l.s.workspaces[v.WorkspaceID] = n
		}
		n.servers[v.Name] = v
		for _, t := range v.Tools {
			t.Public = mcp.PublicName(t.ServerName, t.Name)
			n.public[t.Public] = append(n.public[t.Public], t)
			n.own[t.Name] = append(n.own[t.Name], t)
		}
	}
	for _, n := range l.s.workspaces {
		n.separate()
	}
}

// separate gives tools whose public names meet (memory.search and
// memory_search) a digest. A tool whose name needed no change keeps it, so
// that another server cannot rename it by listing a look-alike.
func (n *names) separate() {
	for public, ts := range n.public {
		if len(ts) < 2 {
			continue
		}
		refs := make([]mcp.ToolRef, len(ts))
		for i, t := range ts {
			refs[i] = mcp.ToolRef{Server: t.ServerName, Tool: t.Name}
		}
		delete(n.public, public)
		for i, apart := range mcp.PublicNames(refs) {
			if ts[i].ServerName+"__"+ts[i].Name != public {
				ts[i].Public = apart
			}
			n.public[ts[i].Public] = append(n.public[ts[i].Public], ts[i])
		}
	}
}
