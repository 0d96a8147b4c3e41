package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestShortRun keeps the benchmark working: one quick pass over every row, without a look at the figures.
func TestShortRun(t *testing.T) {
	t.Chdir("../../..")
	file := t.TempDir() + "/bench.json"
	if err := run(options{d: 100 * time.Millisecond, reps: 1, json: file}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"echo 32 B, C=16", "stdio echo", "tools/list of 500", "stream_kb"} {
		if !strings.Contains(string(raw), part) {
			t.Errorf("no %q in %s", part, raw)
		}
	}
	if strings.Contains(string(raw), "first_error") {
		t.Errorf("errors: %s", raw)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		m    Median
		want string
	}{
		{Median{Value: 100, Must: 130, Aim: 90}, "must"}, {Median{Value: 90, Must: 130, Aim: 90}, "aim"}, {Median{Value: 131, Must: 130, Aim: 90}, "**missed**"},
		{Median{Value: 0.3, Must: 0.2, Aim: 0.28, More: true}, "aim"}, {Median{Value: 0.19, Must: 0.2, Aim: 0.28, More: true}, "**missed**"}, {Median{Value: 1}, ""},
	} {
		if got := c.m.verdict(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.m, got, c.want)
		}
	}
}
