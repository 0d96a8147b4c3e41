package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// retainEvery is how often rows that are too old are looked for, by one replica.
const retainEvery = time.Hour

// retainedSetting holds when that was last done.
const retainedSetting = "audit_retained_at"

// keepRetaining removes rows older than the retention until ctx ends.
func (k *keeper) keepRetaining(ctx context.Context) {
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	var next time.Time
	for {
		if now := k.l.o.Now(); !now.Before(next) {
			if err := k.retain(ctx, now); err == nil {
				next = now.Add(retainEvery)
			} else if ctx.Err() == nil {
				k.log.Error("old rows of the record could not be removed; trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// retain prunes when it is time and no other replica does. That it does stands in the record before and after.
func (k *keeper) retain(ctx context.Context, now time.Time) error {
	before := now.Add(-k.l.o.Keep)
	due, err := k.prunable(ctx, before)
	if err != nil || !due {
		return err
	}
	mine, err := k.claimRetention(ctx, now)
	if err != nil || !mine {
		return err
	}
	row := Event{Kind: Admin, Method: "audit.prune", TraceID: db.NewID()}
	row.Reason = fmt.Sprintf("retention: rows before %s", before.UTC().Format(time.RFC3339))
	err = k.l.o.DB.Read.QueryRowContext(ctx, `SELECT id FROM workspace ORDER BY created_at, id LIMIT 1`).Scan(&row.WorkspaceID) // whose owners may prune
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return unreadable(err)
	}
	if err := k.note(ctx, row, Started); err != nil {
		return err
	}
	p, err := k.l.Prune(ctx, before)
	if err != nil {
		row.ErrorClass = string(fault.From(err).Class)
		return errors.Join(err, k.note(context.WithoutCancel(ctx), row, UnknownStatus))
	}
	row.Reason += fmt.Sprintf("; %d removed, the record begins at %d", p.Removed, p.FirstSeq)
	return k.note(context.WithoutCancel(ctx), row, OK)
}

func (k *keeper) note(ctx context.Context, row Event, s Status) error {
	row.Status, row.At = s, k.l.o.Now().UnixMicro()
	return k.l.Write(ctx, &row, Process)
}

// prunable: Prune would find something.
func (k *keeper) prunable(ctx context.Context, before time.Time) (bool, error) {
	newest, err := k.checkpoint(ctx)
	if err != nil {
		return false, err
	}
	keys, err := Keys(ctx, k.l.o.DB)
	if err != nil {
		return false, err
	}
	c, err := start(ctx, k.l.o.DB.Read, keys)
	if err != nil {
		return false, err
	}
	to, err := k.l.pruneTo(ctx, c.Size+1, min(newest.Size, c.Size+pruneStep), before)
	return to > c.Size, err
}

// claimRetention makes this process the one that prunes this time: of several, the one that moves the setting.
func (k *keeper) claimRetention(ctx context.Context, now time.Time) (bool, error) {
	d := k.l.o.DB
	last, err := d.Setting(ctx, retainedSetting, func() (string, error) { return "0", nil })
	if err != nil {
		return false, err
	}
	if at, _ := strconv.ParseInt(last, 10, 64); now.UnixMicro()-at < retainEvery.Microseconds() && now.UnixMicro() >= at {
		return false, nil
	}
	done, err := d.Write.ExecContext(ctx, `UPDATE setting SET value = $1 WHERE name = $2 AND value = $3`, strconv.FormatInt(now.UnixMicro(), 10), retainedSetting, last)
	if err != nil {
		return false, unwritable(err)
	}
	n, err := done.RowsAffected()
	return n == 1, err
}
