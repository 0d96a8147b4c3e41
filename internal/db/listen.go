package db

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

// channel is where replicas tell each other of a change. A notification belongs to one database.
const channel = "doorward"

// listener is a connection to PostgreSQL of its own, to hear of changes and to ask for the revision: a pool that calls
// have used up must not look like a lost database. It is opened when it is needed and given up at the first error.
type listener struct {
	config *pgx.ConnConfig // nil on SQLite
	conn   *pgx.Conn
}

// revision reads the revision; from here on notifications are heard.
func (l *listener) revision(ctx context.Context) (n int64, err error) {
	defer func() {
		if err != nil {
			l.close()
			err = unavailable(err)
		}
	}()
	if l.conn == nil {
		if l.conn, err = pgx.ConnectConfig(ctx, l.config); err != nil {
			l.conn = nil
			return 0, err
		}
		// Where it cannot listen (a pooler between that forbids it) polling has to do.
		_, _ = l.conn.Exec(ctx, `LISTEN `+channel)
	}
	err = l.conn.QueryRow(ctx, `SELECT n FROM revision WHERE id = 1`).Scan(&n)
	return n, err
}

// wait waits for a notification or the end of ctx; false: it cannot, there is no connection.
func (l *listener) wait(ctx context.Context) bool {
	if l.conn == nil {
		return false
	}
	// An end of ctx leaves the connection good; anything else is found out by the next question.
	if _, err := l.conn.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
		l.close()
		return false
	}
	return true
}

func (l *listener) close() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	_ = l.conn.Close(ctx) // it may be gone already
	l.conn = nil
}

// dialer finds out in seconds that the other end is gone, where the system would take hours.
var dialer = &net.Dialer{Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
