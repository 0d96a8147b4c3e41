// Package testkit starts the built binary, its fake upstreams and raw protocol clients, so that tests can stand
// outside and look at what a caller sees. It is imported by tests only and uses no
// package of the product: what it asserts must not be computed by what it tests.
package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

var built struct {
	once sync.Once
	path string
	err  error
}

// Binary builds cmd/doorward once per test process and returns its path.
// DOORWARD_TEST_BINARY names one to use instead; DOORWARD_TEST_RACE=1 builds with the race detector.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("DOORWARD_TEST_BINARY"); path != "" {
		return path
	}
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "doorward-test-bin-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "doorward")
		args := []string{"build", "-o", built.path}
		if os.Getenv("DOORWARD_TEST_RACE") != "" {
			args = append(args, "-race")
		}
		cmd := exec.Command("go", append(args, "./cmd/doorward")...)
		cmd.Dir = Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// Root is the root of the source tree.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Main runs the tests of a package, or one of its fake stdio servers when the process was
// started as one, and removes the binary that was built.
func Main(m *testing.M) {
	if name := os.Getenv(fakeVariable); name != "" {
		os.Exit(runFake(name))
	}
	code := m.Run()
	if built.path != "" {
		os.RemoveAll(filepath.Dir(built.path))
	}
	os.Exit(code)
}
