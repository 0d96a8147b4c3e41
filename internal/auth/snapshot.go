package auth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"

	"doorward.dev/doorward/internal/fault"
)

// snapshot is one state of the database, never changed after it was loaded.
type snapshot struct {
	keys   map[[sha256.Size]byte]*key // also the tokens of tasks
	tasks  map[string]*key            // by task
	agents map[string]*Agent
	order  []*Agent             // by creation
	named  map[string][]*Caller // anonymous callers by agent name
	shut   map[string]*Shutdown // by workspace; nil as long as there is none

	people  map[string]person        // who are not disabled
	clients map[identity]OAuthClient // of authorization servers
	linked  map[identity]string      // people of providers
}

// key is a key that may still be used; revoked ones are not loaded.
type key struct {
	caller    Caller
	expiresAt int64 // 0: never
	endedAt   int64 // of a task
}

// Reload loads the snapshot anew; call it when the database changed. When it
// fails the snapshot stays as it was, and the caller must try again.
func (a *Auth) Reload(ctx context.Context) error {
	a.reload.Lock()
	defer a.reload.Unlock()
	s := &snapshot{keys: make(map[[sha256.Size]byte]*key), tasks: make(map[string]*key), agents: make(map[string]*Agent), named: make(map[string][]*Caller),
		clients: make(map[identity]OAuthClient), linked: make(map[identity]string)}
	err := a.db.View(ctx, func(tx *sql.Tx) error {
		if err := s.loadAgents(ctx, tx); err != nil {
			return err
		}
		if err := s.loadShutdowns(ctx, tx); err != nil {
			return err
		}
		people, err := loadPeople(ctx, tx)
		if err != nil {
			return err
		}
		s.people = people
		if err := s.loadIdentities(ctx, tx); err != nil {
			return err
		}
		if err := s.loadKeys(ctx, tx, people); err != nil {
			return err
		}
		return s.loadTasks(ctx, tx, people, a.now())
	})
	if err != nil {
		return err
	}
	a.current.Store(s)
	return nil
}

func unreadable(err error) error {
	return fault.Wrap(fault.Unavailable, err, "agents and keys cannot be read; try again")
}

const agentColumns = `id, workspace_id, name, description, state, allowlist, capability, script_allowlist, stopped_at, stop_reason, created_at`

func scanAgent(scan func(...any) error) (*Agent, error) {
	var g Agent
	var allowlist, capability, scripts string
	if err := scan(&g.ID, &g.WorkspaceID, &g.Name, &g.Description, &g.State, &allowlist, &capability, &scripts, &g.StoppedAt, &g.StopReason, &g.CreatedAt); err != nil {
		return nil, err
	}
	model, ok := storedCapability(capability)
	g.Capability, g.ScriptAllowlist = model, storedScripts(scripts)
	if ok { // of a model that nobody can read only one thing is sure: it was meant to tighten
		g.Allowlist = storedAllowlist(allowlist)
	}
	return &g, nil
}

func (s *snapshot) loadAgents(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, `SELECT `+agentColumns+` FROM agent ORDER BY created_at, id`)
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		g, err := scanAgent(rows.Scan)
		if err != nil {
			return unreadable(err)
		}
		s.agents[g.ID] = g
		s.order = append(s.order, g)
		s.named[g.Name] = append(s.named[g.Name], &Caller{WorkspaceID: g.WorkspaceID, AgentID: g.ID, Agent: g})
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

type person struct {
	workspace, name string
	role            Role
}

func loadPeople(ctx context.Context, tx *sql.Tx) (map[string]person, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, workspace_id, name, role FROM person WHERE disabled_at = 0`)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	people := make(map[string]person)
	for rows.Next() {
		var id, role string
		var p person
		if err := rows.Scan(&id, &p.workspace, &p.name, &role); err != nil {
			return nil, unreadable(err)
		}
		p.role, _ = ParseRole(role) // an unknown word may do nothing
		people[id] = p
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return people, nil
}

func (s *snapshot) loadKeys(ctx context.Context, tx *sql.Tx, people map[string]person) error {
	rows, err := tx.QueryContext(ctx, `SELECT id, workspace_id, hash, COALESCE(agent_id, ''), COALESCE(person_id, ''), expires_at FROM api_key WHERE revoked_at = 0`)
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		k := new(key)
		c := &k.caller
		var hash string
		if err := rows.Scan(&c.KeyID, &c.WorkspaceID, &hash, &c.AgentID, &c.PersonID, &k.expiresAt); err != nil {
			return unreadable(err)
		}
		sum, ok := digest(hash)
		if ok && s.bind(c, people) {
			s.keys[sum] = k
		}
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}

// digest reads a stored digest; what is none belongs to no key.
func digest(hash string) (sum [sha256.Size]byte, ok bool) {
	n, err := hex.Decode(sum[:], []byte(hash[:min(len(hash), 2*len(sum))]))
	return sum, err == nil && n == len(sum) && len(hash) == 2*n
}

// bind finds the agent or person of a key within its workspace. A key of an
// agent that is gone stays a key of that agent, which grants nothing and names
// it; a key that names no person of the workspace, both or neither is no key.
func (s *snapshot) bind(c *Caller, people map[string]person) bool {
	if (c.AgentID == "") == (c.PersonID == "") {
		return false
	}
	if c.AgentID != "" {
		if g := s.agents[c.AgentID]; g != nil && g.WorkspaceID == c.WorkspaceID {
			c.Agent = g
		}
		return true
	}
	p, ok := people[c.PersonID]
	if !ok || p.workspace != c.WorkspaceID {
		return false
	}
	c.PersonName, c.Role = p.name, p.role
	return true
}
