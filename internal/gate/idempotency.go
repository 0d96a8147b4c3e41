package gate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// A confirmed call runs once under its key (SC-85, SC-87): the row of the key is claimed before anybody is asked, turns to running
// before the intent is recorded, and keeps the result. A process that dies leaves a claim, which another call takes over, or a
// running row, which nobody ever runs again.

const (
	maxIdempotencyKey = 255            // bytes
	maxStoredResult   = 1 << 20        // bytes
	keyMemory         = 24 * time.Hour // after the end of the task (SC-87)

	// claimStale is when a claim counts as left behind: longer than a caller is kept waiting for a person.
	claimStale = 3 * time.Minute
	// runStale is when a running call counts as lost: longer than a call may take.
	runStale = 15 * time.Minute
)

const (
	keyClaimed = "claimed"
	keyRunning = "running"
	keyDone    = "done"
	keyUnknown = "unknown"
)

const (
	reasonKeyConflict = "idempotency_key_conflict"
	reasonKeyBusy     = "idempotency_in_progress"
	reasonKeyUnknown  = "idempotency_outcome_unknown"
	reasonReplay      = "IDEMPOTENT_REPLAY"
)

// keyOwner is whose key it is: of the task, else of the agent or person who calls.
func (a *attempt) keyOwner() string {
	switch {
	case a.caller.TaskID != "":
		return a.caller.TaskID
	case a.caller.AgentID != "":
		return "agent:" + a.caller.AgentID
	}
	return "person:" + a.caller.PersonID
}

// keyArgs are the arguments of a statement that names the row of the key in $1 to $4.
func (a *attempt) keyArgs(more ...any) []any {
	return append([]any{a.caller.WorkspaceID, a.keyOwner(), a.tool.ServerName + "/" + a.tool.Name, a.control.key}, more...)
}

const keyRow = ` WHERE workspace_id = $1 AND task_id = $2 AND tool_name = $3 AND key = $4`

// claimKey makes the key this call's own, or answers with what is stored under it. A token that has expired still
// gets the stored result: the first answer may have been lost.
func (a *attempt) claimKey(ctx context.Context, expired bool) error {
	var known storedKey
	now := a.g.Now()
	err := a.g.DB.Tx(ctx, func(tx *sql.Tx) error {
		read := func() error {
			return known.read(tx.QueryRowContext(ctx, `SELECT input_hash, status, trace_id, failed, result, changed_at FROM mcp_idempotency_keys`+keyRow, a.keyArgs()...))
		}
		err := read()
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case known.status != keyClaimed || known.hash != a.digest || now.Sub(time.UnixMicro(known.changedAt)) < claimStale:
			return nil
		}
		if expired {
			return nil
		}
		seen := known.changedAt // 0: no row
		known = storedKey{}
		made, err := tx.ExecContext(ctx, `INSERT INTO mcp_idempotency_keys (workspace_id, task_id, tool_name, key, input_hash, status, trace_id, created_at, changed_at)
			VALUES ($1, $2, $3, $4, $5, 'claimed', $6, $7, $8)
			ON CONFLICT (workspace_id, task_id, tool_name, key) DO UPDATE SET trace_id = excluded.trace_id, changed_at = excluded.changed_at
			WHERE mcp_idempotency_keys.status = 'claimed' AND mcp_idempotency_keys.changed_at = $9`,
			a.keyArgs(a.digest, a.call.TraceID, now.UnixMicro(), now.UnixMicro(), seen)...)
		if err != nil {
			return err
		}
		if n, err := made.RowsAffected(); err != nil || n == 1 {
			return err
		}
		// Another replica was faster since the look at the row: it is its key, and the result must find its way to it.
		if err := read(); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		known = storedKey{hash: a.digest, status: keyClaimed, changedAt: now.UnixMicro()} // and given back already
		return nil
	})
	if err != nil {
		return a.keyFault(ctx, err)
	}
	if known.status == "" {
		if expired {
			return a.tokenExpired()
		}
		a.control.claimed = true
		return nil
	}
	return a.known(known, now)
}

// storedKey is the row of a key.
type storedKey struct {
	hash, status, trace, result string
	failed                      bool
	changedAt                   int64
}

func (k *storedKey) read(row *sql.Row) error {
	return row.Scan(&k.hash, &k.status, &k.trace, &k.failed, &k.result, &k.changedAt)
}

// known answers a call whose key was used before.
func (a *attempt) known(k storedKey, now time.Time) error {
	age := now.Sub(time.UnixMicro(k.changedAt))
	switch {
	case k.hash != a.digest:
		return a.keyRefused(k, reasonKeyConflict, "the idempotency_key was used for other arguments; use a new key for another call")
	case k.status == keyDone:
		a.replay(k)
		return nil
	case k.status == keyUnknown, k.status == keyRunning && age >= runStale:
		return a.keyRefused(k, reasonKeyUnknown, "the first call under this idempotency_key may have run, and its result is not known; check before you call under a new key")
	}
	return a.keyRefused(k, reasonKeyBusy, "the first call under this idempotency_key has not ended; repeat this call later")
}

func (a *attempt) keyRefused(k storedKey, reason, message string) error {
	a.decided(policy.Deny, policy.StageIdempotency, a.verdict.RuleID, reason)
	return a.refusal(fault.Conflict, reason, "%s", message).With("origin", string(policy.StageIdempotency)).With("first_trace_id", k.trace)
}

// replay answers with the stored result; nothing runs and no slot is used.
func (a *attempt) replay(k storedKey) {
	a.decided(a.verdict.Action, policy.StageIdempotency, a.verdict.RuleID, reasonReplay+" of "+k.trace)
	if k.failed {
		a.answerErr = mcp.ParseRPCError(json.RawMessage(k.result))
		return
	}
	a.event.Status = audit.OK
	result := json.RawMessage(k.result)
	result = mcp.Set(result, "_meta", mcp.Set(mcp.Get(result, "_meta"), "idempotent_replay", []byte("true")))
	if sc := mcp.Get(result, "structuredContent"); mcp.IsObject(sc) && mcp.Get(a.tool.Definition, "outputSchema") == nil {
		result = mcp.Set(result, "structuredContent", mcp.Set(sc, "idempotent_replay", []byte("true")))
	}
	a.answer = result
}

// runKey turns the claim to running: from here on nobody takes it over. It fails when somebody did, because this call waited too long.
func (a *attempt) runKey(ctx context.Context) error {
	if !a.control.claimed {
		return nil
	}
	n, err := a.changeKey(ctx, `UPDATE mcp_idempotency_keys SET status = 'running', changed_at = $5`+keyRow+` AND trace_id = $6 AND status = 'claimed'`,
		a.g.Now().UnixMicro(), a.call.TraceID)
	if err != nil {
		return a.keyFault(ctx, err)
	}
	if n == 0 {
		a.control.claimed = false
		return a.keyRefused(storedKey{}, reasonKeyBusy, "another call took over this idempotency_key while this one waited; repeat this call")
	}
	return nil
}

func (a *attempt) changeKey(ctx context.Context, query string, more ...any) (n int64, err error) {
	err = a.g.DB.Tx(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, query, a.keyArgs(more...)...)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	return n, err
}

// releaseKey gives the key of a call that did not run back. One that cannot be given back is taken over when it is stale, or stays unknown.
func (a *attempt) releaseKey(ctx context.Context) {
	if !a.control.claimed {
		return
	}
	a.control.claimed = false
	a.changeKey(context.WithoutCancel(ctx), `DELETE FROM mcp_idempotency_keys`+keyRow+` AND trace_id = $5 AND status <> 'done'`, a.call.TraceID) //nolint:errcheck // see above
}

// keepResult stores how the call ended, for the next one under its key. When that fails the key stays running: what is
// told then is that the outcome is not known.
func (a *attempt) keepResult(ctx context.Context, raw json.RawMessage, err error) {
	if !a.control.claimed {
		return
	}
	if fault.Is(err, fault.Unreachable) { // it was never sent
		a.releaseKey(ctx)
		return
	}
	status, failed := keyDone, false
	var rpc *mcp.RPCError
	switch {
	case errors.As(err, &rpc):
		raw, failed = rpc.Raw, true
	case err != nil:
		status, raw = keyUnknown, nil
	case len(raw) > maxStoredResult:
		raw = a.ownText("the call ran; its result is too large to be kept; doorward audit show " + a.call.TraceID)
	}
	a.changeKey(context.WithoutCancel(ctx), `UPDATE mcp_idempotency_keys SET status = $5, failed = $6, result = $7, changed_at = $8`+keyRow+` AND trace_id = $9`,
		status, failed, string(raw), a.g.Now().UnixMicro(), a.call.TraceID) //nolint:errcheck // see above
}

func (a *attempt) ownText(text string) json.RawMessage {
	return json.RawMessage(`{"content":[{"type":"text","text":` + string(mcp.Quote(text)) + `}]}`)
}

// keyFault fails closed when keys cannot be read or written.
func (a *attempt) keyFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return a.cancelled(err)
	}
	a.decided(policy.Deny, policy.StageIdempotency, "", "IDEMPOTENCY_UNAVAILABLE")
	f := a.refusal(fault.Unavailable, "IDEMPOTENCY_UNAVAILABLE", "idempotency keys cannot be read or written now; try again later")
	f.Err = err
	return f
}

// ForgetKeys removes the keys of tasks that ended a day ago, and keys without a task a day after they were made (SC-87).
func (g *Gate) ForgetKeys(ctx context.Context) error {
	before := g.Now().Add(-keyMemory).UnixMicro()
	var any bool
	if err := g.DB.Read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM mcp_idempotency_keys WHERE created_at < $1)`, before).Scan(&any); err != nil || !any {
		return err
	}
	return g.DB.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM mcp_idempotency_keys WHERE created_at < $1 AND NOT EXISTS (
			SELECT 1 FROM task WHERE task.id = mcp_idempotency_keys.task_id AND
			CASE WHEN task.ended_at > 0 THEN task.ended_at ELSE task.expires_at END >= $2)`, before, before)
		return err
	})
}
