package testkit

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// NPM is the path of a program of test/peers. The test fails with the command to run when it is not installed.
func NPM(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(), "test", "peers", "node_modules", ".bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not installed: run make setup", name)
	}
	return path
}

// reference is the official Go SDK's server for the conformance suite.
const reference = "github.com/modelcontextprotocol/go-sdk/conformance/everything-server@v1.8.0"

var referenceBuilt struct {
	once sync.Once
	err  error
}

// ReferenceServer builds and starts the reference server of the official Go SDK and returns its URL.
func ReferenceServer(t testing.TB, stateless bool) string {
	t.Helper()
	dir := filepath.Join(Root(), ".cache")
	referenceBuilt.once.Do(func() {
		cmd := exec.Command("go", "install", reference)
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
		cmd.Dir = os.TempDir()
		if out, err := cmd.CombinedOutput(); err != nil {
			referenceBuilt.err = fmt.Errorf("go install %s: %w\n%s", reference, err, out)
		}
	})
	if referenceBuilt.err != nil {
		t.Fatal(referenceBuilt.err)
	}
	addr := FreeAddr(t)
	Run(t, exec.Command(filepath.Join(dir, "everything-server"), "-http="+addr, fmt.Sprintf("-stateless=%v", stateless)), addr)
	return "http://" + addr
}

// Run starts a server program in a group of its own, waits until it listens on addr, and kills the group when the test ends.
func Run(t testing.TB, cmd *exec.Cmd, addr string) {
	t.Helper()
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := startBound(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", cmd.Path, log)
		}
	})
	Eventually(t, 30*time.Second, strings.Join(cmd.Args, " ")+" listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}
