package catalog

import (
	"context"
	"database/sql"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// Choice is a person's decision about one tool in the approval of a server.
type Choice struct {
	ToolID string `json:"tool_id"`
	Action string `json:"action"`
}

// Approve makes a server ACTIVE and admits the chosen tools as of its last successful scan (PV-3…PV-5).
// Tools that are not chosen stay as they are. scanID names the scan the person looked at; empty is the newest.
func (c *Catalog) Approve(ctx context.Context, ws, id, scanID string, tools []Choice, by string) (Server, error) {
	actions, err := choices(tools)
	if err != nil {
		return Server{}, err
	}
	return c.changeServer(ctx, ws, id, func(tx *sql.Tx, s Server) error {
		if err := approvable(s, scanID); err != nil {
			return err
		}
		ids := make([]string, len(tools))
		for i, choice := range tools {
			ids[i] = choice.ToolID
		}
		chosen, err := chosenTools(ctx, tx, s, ids)
		if err != nil {
			return err
		}
		for i, t := range chosen {
			if !t.Present {
				return fault.New(fault.Conflict, "the server does not offer tool %s any more; scan again", t.ID).Why("mcp_tool_gone")
			}
			if err := c.admitTx(ctx, tx, ws, t, actions[i], "", by); err != nil {
				return err
			}
		}
		return setState(ctx, tx, s.ID, StateActive, "")
	})
}

// chosenTools reads the tools of a server once and gives those of ids, in their order; no ids, no tools.
func chosenTools(ctx context.Context, tx *sql.Tx, s Server, ids []string) ([]ToolInfo, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	tools, err := toolInfos(ctx, tx, s, "")
	if err != nil {
		return nil, err
	}
	return pick(tools, ids)
}

func choices(tools []Choice) ([]policy.Action, error) {
	seen := map[string]bool{}
	var out []policy.Action
	for _, t := range tools {
		if t.ToolID == "" || seen[t.ToolID] {
			return nil, fault.New(fault.InvalidParams, "tools: each entry needs a tool_id of its own").Why("mcp_tool_invalid")
		}
		seen[t.ToolID] = true
		a, err := parseAction(t.Action)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func parseAction(word string) (policy.Action, error) {
	a, ok := policy.ParseAction(word)
	if !ok {
		return a, fault.New(fault.InvalidParams, "action must be ALLOW, LOG_ONLY, REQUIRE_APPROVAL or DENY").Why("mcp_action_invalid")
	}
	return a, nil
}

func approvable(s Server, scanID string) error {
	switch {
	case s.State == StateActive:
		return fault.New(fault.Conflict, "the server is approved already; admit its tools one by one").Why("mcp_server_active")
	case s.State != StatePending:
		// PV-8: what was approved once comes back by resume, which admits nothing.
		return fault.New(fault.Conflict, "the server is %s; resume it", s.State).Why("mcp_server_not_pending")
	case s.ScanID == "":
		return fault.New(fault.Conflict, "the server has no successful scan yet; scan it first").Why("mcp_scan_required")
	case scanID != "" && scanID != s.ScanID:
		return fault.New(fault.Conflict, "the server was scanned again meanwhile; look at the new list").Why("mcp_scan_outdated").With("scan_id", s.ScanID)
	}
	return nil
}

// admitTx admits the definition that t shows and makes action the tool's
// server-wide rule. It fails when the tool moved meanwhile.
func (c *Catalog) admitTx(ctx context.Context, tx *sql.Tx, ws string, t ToolInfo, action policy.Action, reason, by string) error {
	r, err := tx.ExecContext(ctx, `UPDATE tool SET admitted_fingerprint = fingerprint, admitted_definition = definition, admitted_at = $3, admitted_by = $4
		WHERE id = $1 AND fingerprint = $2`, t.ID, t.Fingerprint, c.now(), by)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return toolChanged(t)
	}
	return c.setRule(ctx, tx, ws, t.ID, action, reason, by)
}

func toolChanged(t ToolInfo) error {
	return fault.New(fault.Conflict, "the tool has changed meanwhile; look at its new definition").Why("mcp_tool_changed").With("fingerprint", t.Fingerprint)
}

// setRule replaces the server-wide rules of a tool by one that a person confirmed (PV-28).
func (c *Catalog) setRule(ctx context.Context, tx *sql.Tx, ws, toolID string, action policy.Action, reason, by string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM policy WHERE mcp_tool_id = $1 AND agent_id IS NULL`, toolID); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO policy (id, workspace_id, mcp_tool_id, agent_id, action, reason, is_auto_generated, created_by, created_at)
		VALUES ($1, $2, $3, NULL, $4, $5, $6, $7, $8)`, db.NewID(), ws, toolID, action.String(), reason, false, by, c.now())
	return err
}

// Admit admits one waiting tool of an ACTIVE server (PV-6). fingerprint is the one the person was
// shown; when the tool has moved since, nothing is admitted.
func (c *Catalog) Admit(ctx context.Context, ws, serverID, toolID, action, fingerprint, by string) (ToolInfo, error) {
	a, err := parseAction(action)
	if err != nil {
		return ToolInfo{}, err
	}
	if fingerprint == "" {
		return ToolInfo{}, fault.New(fault.InvalidParams, "fingerprint is missing: give the one of the definition you looked at").Why("mcp_fingerprint_required")
	}
	return c.changeTool(ctx, ws, serverID, toolID, func(tx *sql.Tx, s Server, t ToolInfo) error {
		if t.Fingerprint != fingerprint {
			return toolChanged(t)
		}
		if t.Admission == string(policy.Admitted) {
			return fault.New(fault.Conflict, "the tool is admitted already; change its rule with verdict").Why("mcp_tool_admitted")
		}
		if err := admissible(s, t); err != nil {
			return err
		}
		return c.admitTx(ctx, tx, ws, t, a, "", by)
	})
}

func admissible(s Server, t ToolInfo) error {
	if s.State != StateActive {
		return fault.New(fault.Conflict, "the server is %s; tools are admitted singly on an ACTIVE server", s.State).Why("mcp_server_not_active")
	}
	if !t.Present {
		return fault.New(fault.Conflict, "the server does not offer the tool any more").Why("mcp_tool_gone")
	}
	return nil
}

// AdmitSuggestions admits waiting tools (all, or the given ones) with the suggested rule and says how many. A
// changed tool that has a stricter rule keeps that: a suggestion never loosens what a person decided.
func (c *Catalog) AdmitSuggestions(ctx context.Context, ws, serverID string, toolIDs []string, by string) (int, error) {
	n := 0
	_, err := c.changeServer(ctx, ws, serverID, func(tx *sql.Tx, s Server) error {
		n = 0
		tools, err := toolInfos(ctx, tx, s, "")
		if err != nil {
			return err
		}
		if tools, err = pick(tools, toolIDs); err != nil {
			return err
		}
		for _, t := range tools {
			if t.Suggestion == nil {
				continue
			}
			if err := admissible(s, t); err != nil {
				return err
			}
			action, _ := policy.ParseAction(t.Suggestion.Action)
			if t.PolicyAction != nil {
				had, _ := policy.ParseAction(*t.PolicyAction)
				action = max(action, had)
			}
			if err := c.admitTx(ctx, tx, ws, t, action, "", by); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

func pick(tools []ToolInfo, ids []string) ([]ToolInfo, error) {
	if len(ids) == 0 {
		return tools, nil
	}
	byID := map[string]ToolInfo{}
	for _, t := range tools {
		byID[t.ID] = t
	}
	var out []ToolInfo
	for _, id := range ids {
		t, ok := byID[id]
		if !ok {
			return nil, noTool()
		}
		delete(byID, id) // named twice: not found the second time
		out = append(out, t)
	}
	return out, nil
}

// Verdict sets the server-wide rule of a tool, replacing all it has (PV-28). On a waiting tool it also admits. A
// looser rule than the one in force needs confirmLoosening (PV-22); without a rule the tool is only called with approval.
func (c *Catalog) Verdict(ctx context.Context, ws, serverID, toolID, action, reason string, confirmLoosening bool, by string) (ToolInfo, error) {
	a, err := parseAction(action)
	if err != nil {
		return ToolInfo{}, err
	}
	return c.changeTool(ctx, ws, serverID, toolID, func(tx *sql.Tx, s Server, t ToolInfo) error {
		if had, has := inForce(t); has && a < had && !confirmLoosening {
			return fault.New(fault.Conflict, "%s is looser than %s and reduces protection; confirm it with confirm_loosening", a, had).
				Why("mcp_loosening_confirmation_required").With("current", had.String())
		}
		if t.Admission == string(policy.Admitted) {
			return c.setRule(ctx, tx, ws, t.ID, a, reason, by)
		}
		if err := admissible(s, t); err != nil {
			return err
		}
		return c.admitTx(ctx, tx, ws, t, a, reason, by)
	})
}

// inForce is what a tool's rules do now; a tool that was never decided on has nothing to loosen.
func inForce(t ToolInfo) (policy.Action, bool) {
	if t.PolicyAction != nil {
		a, _ := policy.ParseAction(*t.PolicyAction)
		return a, true
	}
	return policy.RequireApproval, t.Admission == string(policy.Admitted)
}

// Pause takes an ACTIVE server out of use.
func (c *Catalog) Pause(ctx context.Context, ws, id, by string) (Server, error) {
	return c.changeServer(ctx, ws, id, func(tx *sql.Tx, s Server) error {
		switch s.State {
		case StatePaused:
			return nil
		case StateActive:
			return setState(ctx, tx, s.ID, StatePaused, "")
		}
		return fault.New(fault.Conflict, "the server is %s; only an ACTIVE server can be paused", s.State).Why("mcp_server_not_active")
	})
}

// Resume makes a PAUSED or (after an emergency stop) BLOCKED server ACTIVE again. It admits nothing (PV-8).
func (c *Catalog) Resume(ctx context.Context, ws, id, by string) (Server, error) {
	return c.changeServer(ctx, ws, id, func(tx *sql.Tx, s Server) error {
		switch s.State {
		case StateActive:
			return nil
		case StatePaused, StateBlocked:
			return setState(ctx, tx, s.ID, StateActive, "")
		}
		return fault.New(fault.Conflict, "the server is %s; approve it", s.State).Why("mcp_server_not_approved")
	})
}

// BlockTx blocks an ACTIVE server within tx (PV-31); false when it was not ACTIVE and stays as it is.
func BlockTx(ctx context.Context, tx *sql.Tx, ws, serverID, reason string, _ int64) (bool, error) {
	s, err := lockServer(ctx, tx, ws, serverID)
	if err != nil || s.State != StateActive {
		return false, err
	}
	return true, stored(setState(ctx, tx, s.ID, StateBlocked, reason))
}

func setState(ctx context.Context, tx *sql.Tx, id, state, reason string) error {
	_, err := tx.ExecContext(ctx, `UPDATE server SET state = $2, state_reason = $3 WHERE id = $1`, id, state, reason)
	return err
}

// changeServer runs fn on a locked server, if it is as the caller saw it, and gives the server as it is after.
func (c *Catalog) changeServer(ctx context.Context, ws, id string, fn func(tx *sql.Tx, s Server) error) (Server, error) {
	return c.withServer(ctx, ws, id, func(tx *sql.Tx, s Server) error {
		if err := db.Match(ctx, s.Tag()); err != nil {
			return err
		}
		return fn(tx, s)
	})
}

func (c *Catalog) withServer(ctx context.Context, ws, id string, fn func(tx *sql.Tx, s Server) error) (Server, error) {
	var s Server
	err := c.change(ctx, func(tx *sql.Tx) error {
		before, err := lockServer(ctx, tx, ws, id)
		if err != nil {
			return err
		}
		if err := fn(tx, before); err != nil {
			return err
		}
		s, err = getServer(ctx, tx, ws, before.ID)
		return err
	})
	return s, err
}

// changeTool is changeServer for one of its tools.
func (c *Catalog) changeTool(ctx context.Context, ws, serverID, toolID string, fn func(tx *sql.Tx, s Server, t ToolInfo) error) (ToolInfo, error) {
	var after ToolInfo
	_, err := c.withServer(ctx, ws, serverID, func(tx *sql.Tx, s Server) error {
		t, err := oneTool(ctx, tx, s, toolID)
		if err != nil {
			return err
		}
		if err := db.Match(ctx, t.ETag); err != nil {
			return err
		}
		if err := fn(tx, s, t); err != nil {
			return err
		}
		after, err = oneTool(ctx, tx, s, toolID)
		return err
	})
	return after, err
}
