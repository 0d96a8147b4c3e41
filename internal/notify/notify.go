// Package notify owns what is told to the outside about approvals: messages in the table notification, which are added in the
// transaction of what they tell, and their way through the channels that the operator configured. A message gets through at
// least once, also when the process dies in between; receivers know a repeated one by the id of its event.
package notify

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// The kinds of events.
const (
	Created   = "approval.created"
	Decided   = "approval.decided"
	Escalated = "approval.escalated"
	Expired   = "approval.expired"
)

// Event is one thing that happened to an approval, as channels get it.
type Event struct {
	ID          string          `json:"id"` // the same in every attempt and channel
	Kind        string          `json:"type"`
	CreatedAt   int64           `json:"created_at"`
	WorkspaceID string          `json:"workspace_id"`
	URL         string          `json:"approval_url,omitempty"`
	Role        string          `json:"decide_role,omitempty"` // least role of who should decide now
	Approval    json.RawMessage `json:"approval"`
	Arguments   json.RawMessage `json:"arguments,omitempty"` // redacted

	ApprovalID string `json:"-"`
}

// Channel is one way out.
type Channel struct {
	Name      string
	Kinds     []string // that it is told; empty: all
	Arguments bool     // whether it is told the redacted arguments
	Send      func(ctx context.Context, body []byte) error
}

// Options of a Queue.
type Options struct {
	DB       *db.DB
	Channels []Channel
	Now      func() time.Time
	Log      *slog.Logger
	Redact   func([]byte) []byte // of errors, before they are stored
}

// Queue holds messages until they came through. A nil Queue has no channels. Safe for concurrent use.
type Queue struct {
	o     Options
	wake  []chan struct{} // of each channel, capacity 1
	every time.Duration
}

// pollEvery is how often a channel looks for messages of other processes and for those whose next attempt is due.
const pollEvery = time.Second

// New makes a queue. Run must run for messages to leave.
func New(o Options) (*Queue, error) {
	if o.DB == nil {
		return nil, fault.New(fault.Internal, "notify: the database is missing")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Redact == nil {
		o.Redact = func(b []byte) []byte { return b }
	}
	q := &Queue{o: o, every: pollEvery}
	for range o.Channels {
		q.wake = append(q.wake, make(chan struct{}, 1))
	}
	return q, nil
}

// Wants reports whether any channel is told of a kind.
func (q *Queue) Wants(kind string) bool {
	return q != nil && slices.ContainsFunc(q.o.Channels, func(c Channel) bool { return c.wants(kind) })
}

func (c *Channel) wants(kind string) bool { return len(c.Kinds) == 0 || slices.Contains(c.Kinds, kind) }

// Add adds the messages of an event: with the transaction they come to be, or not. Wake is for after it.
func (q *Queue) Add(ctx context.Context, tx *sql.Tx, e Event) error {
	if q == nil {
		return nil
	}
	now := q.o.Now().UnixMicro()
	e.ID, e.CreatedAt = db.NewID(), now
	for _, c := range q.o.Channels {
		if !c.wants(e.Kind) {
			continue
		}
		told := e
		if !c.Arguments {
			told.Arguments = nil
		}
		body, err := json.Marshal(told)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "a notification cannot be written")
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO notification (id, kind, approval_id, channel, body, next_at, status, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'PENDING', $7)`, db.NewID(), e.Kind, e.ApprovalID, c.Name, string(body), now, now)
		if err != nil {
			return err
		}
	}
	return nil
}

// Wake has every channel look for messages now.
func (q *Queue) Wake() {
	if q == nil {
		return
	}
	for _, ch := range q.wake {
		select {
		case ch <- struct{}{}:
		default: // it has not looked yet since the last time
		}
	}
}

// Message is the state of one message, for people.
type Message struct {
	Kind      string `json:"kind"`
	Channel   string `json:"channel"`
	Status    string `json:"status"` // PENDING, SENT, FAILED
	Attempts  int    `json:"attempts"`
	NextAt    int64  `json:"next_at,omitempty"` // of a message that is not through
	Error     string `json:"error,omitempty"`
	CreatedAt int64  `json:"created_at"`
}

// Messages lists what was told, or is to be told, about an approval, oldest first.
func Messages(ctx context.Context, d *db.DB, approvalID string) ([]Message, error) {
	rows, err := d.Read.QueryContext(ctx, `SELECT kind, channel, status, attempts, next_at, error, created_at
		FROM notification WHERE approval_id = $1 ORDER BY created_at, id LIMIT 200`, approvalID)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	list := []Message{}
	for rows.Next() {
		var m Message
		if err := rows.Scan(&m.Kind, &m.Channel, &m.Status, &m.Attempts, &m.NextAt, &m.Error, &m.CreatedAt); err != nil {
			return nil, unreadable(err)
		}
		if m.Status != "PENDING" {
			m.NextAt = 0
		}
		list = append(list, m)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return list, nil
}

func unreadable(err error) error {
	return fault.Wrap(fault.Unavailable, err, "notifications cannot be read now; try again later")
}
