package notify

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	sendTimeout = 20 * time.Second // of one attempt
	// lease is how long a message counts as on its way: longer than an attempt may take, so that two replicas send it at the
	// same time only when their clocks differ by more than the rest.
	lease       = 90 * time.Second
	maxAttempts = 12 // with the pauses between them, over three hours
	firstPause  = 5 * time.Second
	longPause   = time.Hour
	batch       = 20
	keepFor     = 7 * 24 * time.Hour // what came through, or never will
	tidyEvery   = time.Hour
	errorLimit  = 300 // bytes of an error that are kept
)

// Run sends messages until ctx ends. Channels do not wait for each other.
func (q *Queue) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for i := range q.o.Channels {
		all.Go(func() { q.deliver(ctx, &q.o.Channels[i], q.wake[i]) })
	}
	all.Go(func() { q.tidy(ctx) })
	all.Wait()
	return nil
}

func (q *Queue) deliver(ctx context.Context, c *Channel, wake <-chan struct{}) {
	tick := time.NewTicker(q.every)
	defer tick.Stop()
	for {
		more, err := q.pass(ctx, c)
		if err != nil && ctx.Err() == nil {
			q.o.Log.Error("notifications cannot be read or written", "channel", c.Name, "error", err)
		}
		if more && err == nil && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-wake:
		}
	}
}

// due is a message whose next attempt may be made.
type due struct {
	id, kind, body   string
	attempts, nextAt int64
}

// pass makes one attempt with each message that is due; more: there may be others.
func (q *Queue) pass(ctx context.Context, c *Channel) (more bool, err error) {
	list, err := q.due(ctx, c.Name)
	if err != nil {
		return false, err
	}
	for i := range list {
		if ctx.Err() != nil {
			return false, nil
		}
		if err := q.attempt(ctx, c, &list[i]); err != nil {
			return false, err
		}
	}
	return len(list) == batch, nil
}

func (q *Queue) due(ctx context.Context, channel string) ([]due, error) {
	rows, err := q.o.DB.Read.QueryContext(ctx, `SELECT id, kind, body, attempts, next_at FROM notification
		WHERE channel = $1 AND status = 'PENDING' AND next_at <= $2 ORDER BY next_at, id LIMIT $3`, channel, q.o.Now().UnixMicro(), batch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []due
	for rows.Next() {
		var m due
		if err := rows.Scan(&m.id, &m.kind, &m.body, &m.attempts, &m.nextAt); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, rows.Err()
}

// attempt takes a message for this process alone, sends it, and stores how that went.
func (q *Queue) attempt(ctx context.Context, c *Channel, m *due) error {
	until := q.o.Now().Add(lease).UnixMicro()
	// Of several replicas that saw the message, the first that moves its next attempt has it.
	n, err := q.exec(ctx, `UPDATE notification SET attempts = attempts + 1, next_at = $1 WHERE id = $2 AND status = 'PENDING' AND next_at = $3`,
		until, m.id, m.nextAt)
	if err != nil || n == 0 {
		return err
	}
	m.attempts++
	send, cancel := context.WithTimeout(ctx, sendTimeout)
	failure := c.Send(send, []byte(m.body))
	cancel()
	status, next, text := "SENT", until, ""
	if failure != nil {
		status, next, text = "PENDING", q.o.Now().Add(pause(m.attempts)).UnixMicro(), q.errorText(failure)
		if m.attempts >= maxAttempts {
			status = "FAILED"
		}
		q.o.Log.Warn("a notification did not get through", "channel", c.Name, "kind", m.kind, "attempt", m.attempts, "given_up", status == "FAILED", "error", text)
	}
	// Also when the process ends meanwhile: what was sent should not be sent again.
	_, err = q.exec(context.WithoutCancel(ctx), `UPDATE notification SET status = $1, next_at = $2, error = $3 WHERE id = $4 AND status = 'PENDING' AND next_at = $5`,
		status, next, text, m.id, until)
	return err
}

// pause is the time after an attempt that failed.
func pause(attempts int64) time.Duration {
	if attempts > 10 {
		return longPause
	}
	return min(firstPause<<(attempts-1), longPause)
}

func (q *Queue) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := q.o.DB.Write.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// errorText is a failure as it is stored: without known secrets, on one line, bounded.
func (q *Queue) errorText(err error) string {
	return oneLine(string(q.o.Redact([]byte(err.Error()))), errorLimit)
}

// oneLine makes one short, visible line of text that others wrote.
func oneLine(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)), " ")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit] + "…"
}

// tidy removes messages that are long through, or given up.
func (q *Queue) tidy(ctx context.Context) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		_, err := q.exec(ctx, `DELETE FROM notification WHERE status <> 'PENDING' AND created_at < $1`, q.o.Now().Add(-keepFor).UnixMicro())
		if err != nil && ctx.Err() == nil {
			q.o.Log.Error("old notifications cannot be removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
