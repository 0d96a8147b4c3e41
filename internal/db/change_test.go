package db_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/testkit"
)

// watch runs Watch until the test ends; told gets a value for each call of fn, which returns what fail holds.
func watch(t *testing.T, d *db.DB) (told chan struct{}, fail *atomic.Bool) {
	t.Helper()
	told, fail = make(chan struct{}, 1000), new(atomic.Bool)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.Watch(ctx, func(context.Context) error {
			told <- struct{}{}
			if fail.Load() {
				return errors.New("cannot load")
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return told, fail
}

func await(t *testing.T, told chan struct{}, what string) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s was not told", what)
	}
}

func TestReplicasTellEachOther(t *testing.T) {
	url := testkit.PostgresURL(t)
	a, b := open(t, url, ""), open(t, url, "")
	told, _ := watch(t, b)
	const changes = 20
	begin := time.Now()
	for range changes {
		if err := a.TxChange(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		await(t, told, "a change of another replica")
	}
	// Polling alone would take half of 500 ms for each on average.
	if took := time.Since(begin); took > changes*200*time.Millisecond {
		t.Errorf("%d changes took %v: they were polled, not told", changes, took)
	}
	// Without a notification (somebody at the database, a pooler that loses it) polling finds it.
	if _, err := a.Write.ExecContext(t.Context(), `UPDATE revision SET n = n + 1`); err != nil {
		t.Fatal(err)
	}
	await(t, told, "a change without a notification")
}

// clock is a clock that the test moves.
type clock struct{ now atomic.Int64 }

func (c *clock) time() time.Time       { return time.Unix(1_790_000_000, c.now.Load()) }
func (c *clock) step(by time.Duration) { c.now.Add(int64(by)) }

func refused(d *db.DB) bool {
	var f *fault.Error
	return errors.As(d.Current(), &f) && f.Class == fault.Unavailable && f.Reason == "DATABASE_UNAVAILABLE"
}

func TestLostDatabaseIsNotGuessedAt(t *testing.T) {
	for name, lose := range map[string]func(*testkit.Line){"cut": (*testkit.Line).Cut, "quiet": (*testkit.Line).Quiet} {
		t.Run(name, func(t *testing.T) {
			line, url := testkit.NewLine(t, testkit.PostgresURL(t))
			d, c := open(t, url, ""), new(clock)
			d.SetClock(c.time)
			told, _ := watch(t, d)
			if err := d.TxChange(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			await(t, told, "a change")
			c.step(db.StaleAfter / 2)
			lose(line)
			if err := d.Current(); err != nil {
				t.Fatalf("refused after half the time: %v", err)
			}
			c.step(db.StaleAfter + time.Millisecond)
			if !refused(d) {
				t.Fatalf("the state is old, got %v", d.Current())
			}
			line.Mend()
			testkit.Eventually(t, 20*time.Second, "it recovers", func() bool { return d.Current() == nil })
			// A broken connection that was used in the last second is found out by the one who uses it next.
			testkit.Eventually(t, 20*time.Second, "a change afterwards", func() bool {
				return d.TxChange(t.Context(), func(*sql.Tx) error { return nil }) == nil
			})
			await(t, told, "a change afterwards")
		})
	}
}

func TestChangeThatCannotBeLoadedIsNotGuessedAt(t *testing.T) {
	d, c := open(t, testkit.PostgresURL(t), ""), new(clock)
	d.SetClock(c.time)
	told, fail := watch(t, d)
	fail.Store(true)
	if err := d.TxChange(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	await(t, told, "a change")
	c.step(db.StaleAfter + time.Millisecond)
	if !refused(d) {
		t.Errorf("the change is not known, got %v", d.Current())
	}
	fail.Store(false)
	await(t, told, "the change again")
	testkit.Eventually(t, 10*time.Second, "it recovers", func() bool { return d.Current() == nil })
}

func TestSQLiteHasNoOthers(t *testing.T) {
	d, c := open(t, "", t.TempDir()), new(clock)
	d.SetClock(c.time)
	watch(t, d)
	c.step(time.Hour)
	if err := d.Current(); err != nil {
		t.Error(err)
	}
}
