package audit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// sqliteWriter writes batches on the SQLite driver itself, every statement prepared once for the
// connection. database/sql would parse BEGIN and COMMIT anew for each transaction and start a goroutine for it, a
// third of the cost of a row that has a transaction of its own.
type sqliteWriter struct {
	conn                                           driver.Conn // what the statements belong to
	begin, commit, rollback, insert, many, setHead driver.StmtExecContext
	used, store, drop                              driver.StmtExecContext // counters of limits
	body                                           driver.StmtExecContext
	values                                         []driver.NamedValue
}

// writeSQLite writes one batch in one transaction and returns the new head.
func (l *Log) writeSQLite(ctx context.Context, batch []*entry) (at head, err error) {
	conn, err := l.o.DB.Write.Conn(ctx)
	if err != nil {
		return at, err
	}
	defer conn.Close()
	if err := l.synchronous(ctx, conn, batch); err != nil {
		return at, err
	}
	at = l.head
	if !l.headKnown { // nobody else writes: the data folder is locked
		if at, err = readHead(ctx, conn, false); err != nil {
			return at, err
		}
	}
	err = conn.Raw(func(c any) error {
		at, err = l.sqlite.write(ctx, c.(driver.Conn), l, at, batch)
		return err
	})
	return at, err
}

func (s *sqliteWriter) write(ctx context.Context, c driver.Conn, l *Log, at head, batch []*entry) (head, error) {
	if s.conn != c { // the first batch, or the pool opened another connection
		if err := s.prepare(ctx, c); err != nil {
			return at, err
		}
	}
	if err := s.exec(ctx, s.begin, nil); err != nil {
		return at, err
	}
	batch, err := l.reserve(batch, counters{
		used:  func(args ...any) (int64, error) { return s.number(ctx, s.used, args) },
		store: func(args ...any) (int64, error) { return s.number(ctx, s.store, args) },
		drop:  func(args ...any) error { return s.exec(ctx, s.drop, args) },
	})
	if err == nil {
		at, err = l.insertAll(at, batch, func(args ...any) error { return s.exec(ctx, s.body, args) }, func(many bool, args []any) error {
			if many {
				return s.exec(ctx, s.many, args)
			}
			return s.exec(ctx, s.insert, args)
		})
	}
	if err == nil {
		err = s.exec(ctx, s.setHead, []any{at.String()})
	}
	if err == nil {
		err = s.exec(ctx, s.commit, nil)
	}
	if err == nil {
		return at, nil
	}
	// SQLite may have rolled back by itself, and then says that there is nothing to roll back. Either way
	// the connection is given up: the next batch starts on a clean one.
	_ = s.exec(ctx, s.rollback, nil)
	s.conn = nil
	return at, errors.Join(err, driver.ErrBadConn)
}

func (s *sqliteWriter) prepare(ctx context.Context, c driver.Conn) error {
	s.conn = nil
	for _, p := range []struct {
		stmt *driver.StmtExecContext
		text string
	}{
		{&s.begin, "BEGIN IMMEDIATE"}, {&s.commit, "COMMIT"}, {&s.rollback, "ROLLBACK"},
		{&s.insert, insertSQL(1, false)}, {&s.many, insertSQL(wide, false)}, {&s.setHead, setHeadSQL},
		{&s.body, storeBodySQL}, {&s.used, usedSlotSQL}, {&s.store, storeSlotSQL}, {&s.drop, dropSlotSQL},
	} {
		stmt, err := c.(driver.ConnPrepareContext).PrepareContext(ctx, p.text)
		if err != nil {
			return err
		}
		*p.stmt = stmt.(driver.StmtExecContext)
	}
	s.conn = c
	return nil
}

func (s *sqliteWriter) exec(ctx context.Context, stmt driver.StmtExecContext, args []any) error {
	_, err := stmt.ExecContext(ctx, s.bound(args))
	clear(s.values) // keep no bodies alive
	return err
}

func (s *sqliteWriter) bound(args []any) []driver.NamedValue {
	s.values = s.values[:0]
	for i, a := range args {
		s.values = append(s.values, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s.values
}

// number runs a statement whose result is one number.
func (s *sqliteWriter) number(ctx context.Context, stmt driver.StmtExecContext, args []any) (n int64, err error) {
	found, err := stmt.(driver.StmtQueryContext).QueryContext(ctx, s.bound(args))
	if err != nil {
		return 0, err
	}
	row := make([]driver.Value, 1)
	if err = found.Next(row); err == nil {
		var ok bool
		if n, ok = row[0].(int64); !ok {
			err = errors.New("limit_counter holds what is no number")
		}
	}
	return n, errors.Join(err, found.Close())
}

// close frees the statements while their connection lives.
func (s *sqliteWriter) close(d *sql.DB) error {
	if s.conn == nil {
		return nil
	}
	conn, err := d.Conn(context.Background())
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(c any) error {
		if c != any(s.conn) {
			return nil // they went with it
		}
		var errs []error
		for _, stmt := range []driver.StmtExecContext{s.begin, s.commit, s.rollback, s.insert, s.many, s.setHead, s.body, s.used, s.store, s.drop} {
			errs = append(errs, stmt.(driver.Stmt).Close())
		}
		s.conn = nil
		return errors.Join(errs...)
	})
}
