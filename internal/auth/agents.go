package auth

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Admin operations; ws is the workspace, what is not in it is fault.NotFound.

const maxDescription = 4 << 10

// Agents lists the agents of a workspace, oldest first, from the snapshot.
func (a *Auth) Agents(ws string) []*Agent {
	agents := []*Agent{}
	for _, g := range a.current.Load().order {
		if g.WorkspaceID == ws {
			agents = append(agents, g)
		}
	}
	return agents
}

// CreateAgent makes an agent of in's name, description, allowlist and
// capability model. Its state is PENDING_APPROVAL, or ACTIVE when in says so.
func (a *Auth) CreateAgent(ctx context.Context, ws string, in Agent) (*Agent, error) {
	switch in.State {
	case "":
		in.State = StatePending
	case StatePending, StateActive:
	default:
		return nil, fault.New(fault.InvalidParams, "a new agent is %s or %s, not %q", StatePending, StateActive, in.State)
	}
	in.ID, in.WorkspaceID, in.CreatedAt = db.NewID(), ws, a.now().UnixMicro()
	err := a.change(ctx, func(tx *sql.Tx) error { return insertAgent(ctx, tx, in) })
	return a.changed(in.ID, err)
}

func insertAgent(ctx context.Context, tx *sql.Tx, in Agent) error {
	p, err := profile(in)
	if err != nil {
		return err
	}
	if err := distinct(ctx, tx, "agent", in.WorkspaceID, in.ID, in.Name); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO agent (id, workspace_id, name, description, state, allowlist, capability, script_allowlist, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, in.ID, in.WorkspaceID, in.Name, in.Description, in.State, p.allowlist, p.capability, p.scripts, in.CreatedAt)
	return written(err, "an agent of this name exists already")
}

// stored are the parts of a profile that are stored as JSON.
type stored struct{ allowlist, capability, scripts string }

// profile checks what an admin may set.
func profile(in Agent) (p stored, err error) {
	if err := checkName("agent", in.Name); err != nil {
		return p, err
	}
	if len(in.Description) > maxDescription {
		return p, fault.New(fault.InvalidParams, "the description is longer than %d bytes", maxDescription)
	}
	if p.allowlist, err = allowlistText(in.Allowlist); err != nil {
		return p, err
	}
	if p.scripts, err = scriptText(in.ScriptAllowlist); err != nil {
		return p, err
	}
	if err := checkCapability(in.Capability); err != nil {
		return p, err
	}
	if in.Capability == nil {
		in.Capability = map[string]string{}
	}
	text, err := json.Marshal(in.Capability)
	p.capability = string(text)
	return p, err
}

// UpdateAgent replaces name, description, both allowlists and capability model of
// the agent in.ID; state and stop stay as they are.
func (a *Auth) UpdateAgent(ctx context.Context, ws string, in Agent) (*Agent, error) {
	return a.ChangeAgent(ctx, ws, in.ID, func(g Agent) (Agent, error) {
		in.State = g.State
		return in, nil
	})
}

// ChangeAgent replaces what UpdateAgent does, and the state along the allowed transitions, by what fn makes of the agent as it is now.
func (a *Auth) ChangeAgent(ctx context.Context, ws, id string, fn func(Agent) (Agent, error)) (*Agent, error) {
	err := a.change(ctx, func(tx *sql.Tx) error {
		g, err := lockAgent(ctx, tx, ws, id)
		if err != nil {
			return err
		}
		in, err := fn(*g)
		if err != nil {
			return err
		}
		p, err := profile(in)
		if err != nil {
			return err
		}
		if in.Name != g.Name {
			if err := distinct(ctx, tx, "agent", ws, id, in.Name); err != nil {
				return err
			}
		}
		if in.State != g.State {
			if err := checkTransition(g.State, in.State); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `UPDATE agent SET name = $1, description = $2, allowlist = $3, capability = $4, script_allowlist = $5, state = $6 WHERE id = $7`,
			in.Name, in.Description, p.allowlist, p.capability, p.scripts, in.State, id)
		return written(err, "an agent of this name exists already")
	})
	return a.changed(id, err)
}

// Tag is the entity tag of what an admin changes of an agent.
func (g *Agent) Tag() string {
	texts := []string{}
	for _, p := range g.Allowlist {
		texts = append(texts, p.Text)
	}
	return db.Tag(g.ID, g.Name, g.Description, g.State, texts, g.Capability, g.ScriptAllowlist, g.StoppedAt, g.StopReason)
}

// lockAgent reads an agent that the transaction is about to change, if it is as the caller saw it. No other transaction changes it meanwhile.
func lockAgent(ctx context.Context, tx *sql.Tx, ws, id string) (*Agent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE agent SET state = state WHERE id = $1 AND workspace_id = $2`, id, ws); err != nil {
		return nil, written(err, "")
	}
	g, err := agentTx(ctx, tx, ws, id)
	if err != nil {
		return nil, err
	}
	return g, db.Match(ctx, g.Tag())
}

// SetAgentState moves an agent along the allowed transitions (spec/palveron 4.2.4).
func (a *Auth) SetAgentState(ctx context.Context, ws, id, state string) (*Agent, error) {
	err := a.change(ctx, func(tx *sql.Tx) error {
		g, err := lockAgent(ctx, tx, ws, id)
		if err != nil {
			return err
		}
		if err := checkTransition(g.State, state); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE agent SET state = $1 WHERE id = $2`, state, id)
		return written(err, "")
	})
	return a.changed(id, err)
}

// ReleaseAgent lifts an emergency stop; the state the agent had before counts again.
func (a *Auth) ReleaseAgent(ctx context.Context, ws, id string) (*Agent, error) {
	err := a.change(ctx, func(tx *sql.Tx) error {
		g, err := lockAgent(ctx, tx, ws, id)
		if err != nil {
			return err
		}
		if g.StoppedAt == 0 {
			return fault.New(fault.Conflict, "the agent is not stopped")
		}
		_, err = tx.ExecContext(ctx, `UPDATE agent SET stopped_at = 0, stop_reason = '' WHERE id = $1`, id)
		return written(err, "")
	})
	return a.changed(id, err)
}

// StopAgentTx marks an agent as stopped within tx; false when it was stopped already.
// The caller commits with db.TxChange and reloads.
func StopAgentTx(ctx context.Context, tx *sql.Tx, ws, agentID, reason string, now int64) (bool, error) {
	if _, err := agentTx(ctx, tx, ws, agentID); err != nil {
		return false, err
	}
	done, err := tx.ExecContext(ctx, `UPDATE agent SET stopped_at = $1, stop_reason = $2 WHERE id = $3 AND stopped_at = 0`, now, reason, agentID)
	if err != nil {
		return false, written(err, "")
	}
	n, err := done.RowsAffected()
	return n == 1, written(err, "")
}

func agentTx(ctx context.Context, tx *sql.Tx, ws, id string) (*Agent, error) {
	row := tx.QueryRowContext(ctx, `SELECT `+agentColumns+` FROM agent WHERE id = $1 AND workspace_id = $2`, id, ws)
	g, err := scanAgent(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fault.New(fault.NotFound, "no such agent in this workspace")
	}
	if err != nil {
		return nil, unreadable(err)
	}
	return g, nil
}

// changed gives the agent as the snapshot has it after a change.
func (a *Auth) changed(id string, err error) (*Agent, error) {
	if err != nil {
		return nil, err
	}
	if g := a.AgentByID(id); g != nil {
		return g, nil
	}
	return nil, fault.New(fault.NotFound, "the agent was removed meanwhile")
}
