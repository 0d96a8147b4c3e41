package audit_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/db"
)

// crashingWriter is the child of the test below: it writes rows from many
// goroutines and says each trace id on stdout after Write has returned, until it is killed.
func crashingWriter(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	d, err := db.Open(context.Background(), "", dir)
	fail(err)
	l, err := audit.New(context.Background(), audit.Options{DB: d})
	fail(err)
	go l.Run(context.Background()) //nolint:errcheck // it ends with the process
	var say sync.Mutex
	for i := range 8 {
		go func() {
			for {
				e := event()
				d := audit.Durability(i % 2)
				fail(l.Write(context.Background(), e, d))
				say.Lock()
				_, err := fmt.Println(e.TraceID)
				say.Unlock()
				fail(err)
			}
		}()
	}
	select {}
}

func TestKilledWriterLosesNothingItAcknowledged(t *testing.T) {
	dir := t.TempDir()
	want := make(map[string]bool)
	for round := range 3 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "AUDIT_TEST_CRASH_DIR="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		watchdog := time.AfterFunc(time.Minute, func() { child.Process.Kill() }) //nolint:errcheck
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if len(lines.Text()) == 36 { // the last line may be half
				want[lines.Text()] = true
			}
			if n == 300+100*round {
				child.Process.Kill() //nolint:errcheck // what is still in the pipe is acknowledged too
			}
		}
		if err := child.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child ended with %v", err)
		}
		watchdog.Stop()
	}
	d, err := db.OpenExisting(t.Context(), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	v, err := audit.Verify(t.Context(), d, audit.Known{})
	if err != nil || !v.Whole || v.Rows < int64(len(want)) || len(want) < 900 {
		t.Errorf("%d acknowledged, verdict %+v, %v", len(want), v, err)
	}
	rows, err := d.Read.QueryContext(t.Context(), `SELECT trace_id FROM audit_events`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		delete(want, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(want) != 0 {
		t.Errorf("%d acknowledged rows are gone", len(want))
	}
}
