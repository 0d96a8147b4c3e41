package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/sandbox"
)

// The test binary is its own child: role says what it plays.
const role = "SANDBOX_TEST_ROLE"

func TestMain(m *testing.M) {
	if r := os.Getenv(role); r != "" {
		play(r)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func play(r string) {
	switch r {
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "env":
		for _, kv := range os.Environ() {
			fmt.Println(kv)
		}
	case "stubborn": // ignores SIGTERM and the end of stdin
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		select {}
	case "noisy": // 10 MB of stderr before a word on stdout
		line := strings.Repeat("x", 1023) + "\n"
		for range 10 << 10 {
			fmt.Fprint(os.Stderr, line)
		}
		fmt.Fprint(os.Stderr, "the \x1b[31mlast\x00 words")
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "family", "orphans": // grandchildren that ignore SIGTERM and hold stdout
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), role+"=stubborn")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Println(c.Process.Pid)
		if r == "family" {
			select {}
		}
		time.Sleep(100 * time.Millisecond) // the grandchild must be up to ignore the signal
	case "middle": // a parent that dies, to see its child die
		c, err := sandbox.Start(context.Background(), sandbox.Command{Path: os.Args[0], Env: map[string]string{role: "stubborn"}})
		if err != nil {
			panic(err)
		}
		_, _ = bufio.NewReader(c.Stdout).ReadString('\n')
		fmt.Println(c.PID())
		select {}
	case "status3":
		os.Exit(3)
	}
}

func start(t *testing.T, r string, grace time.Duration) *sandbox.Child {
	t.Helper()
	c, err := sandbox.Start(context.Background(), sandbox.Command{Path: os.Args[0], Env: map[string]string{role: r}, Grace: grace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	s, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("reading from the child: %v", err)
	}
	return strings.TrimSpace(s)
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func stopWithin(t *testing.T, c *sandbox.Child, limit time.Duration) {
	t.Helper()
	begin := time.Now()
	c.Stop()
	if d := time.Since(begin); d > limit {
		t.Errorf("stop took %v, want at most %v", d, limit)
	}
	if alive(c.PID()) {
		t.Error("the child lives on")
	}
}

func TestChildEndsWithItsStdin(t *testing.T) {
	c := start(t, "cat", 0)
	if _, err := io.WriteString(c.Stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got := readLine(t, c.Stdout); got != "hello" {
		t.Errorf("echo = %q", got)
	}
	if err := c.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := c.Err(); err != nil {
		t.Errorf("it ended with %v, want status 0", err)
	}
	c.Stop() // of what has ended
}

func TestStubbornChildIsKilled(t *testing.T) {
	c := start(t, "stubborn", 100*time.Millisecond)
	readLine(t, c.Stdout)
	stopWithin(t, c, 3*time.Second)
}

func TestWholeGroupIsGone(t *testing.T) {
	c := start(t, "family", 100*time.Millisecond)
	pid, err := strconv.Atoi(readLine(t, c.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	stopWithin(t, c, 5*time.Second)
	if alive(pid) {
		t.Error("the grandchild lives on")
	}
}

func TestOrphansDieWithTheChild(t *testing.T) {
	c := start(t, "orphans", 100*time.Millisecond)
	pid, err := strconv.Atoi(readLine(t, c.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("a grandchild that holds stdout keeps the child from being done")
	}
	if alive(pid) {
		t.Error("the grandchild lives on")
	}
}

func TestStderrIsDrainedAndKept(t *testing.T) {
	c := start(t, "noisy", 0)
	readLine(t, c.Stdout)
	c.Stop()
	got := c.Stderr()
	if len(got) > 8000 || !strings.HasSuffix(got, "the [31mlast words") {
		t.Errorf("tail has %d bytes and ends in %q", len(got), got[max(0, len(got)-30):])
	}
}

func TestEnvironmentIsAnAllowlist(t *testing.T) {
	t.Setenv("OTHER_SECRET", "leak")
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("HTTPS_PROXY", "http://user:pw@proxy:1")
	t.Setenv("http_proxy", "user:pw@proxy:1")
	t.Setenv("HTTP_PROXY", "http://proxy:1")
	t.Setenv("HOME", "/inherited")
	t.Setenv("LANG", "inherited")
	c, err := sandbox.Start(context.Background(), sandbox.Command{
		Path: os.Args[0], Env: map[string]string{role: "env", "TOKEN": "given", "LANG": "given"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	b, err := io.ReadAll(c.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[k] = v
	}
	for k, want := range map[string]string{"TOKEN": "given", "LANG": "given", "HOME": "/inherited", "HTTP_PROXY": "http://proxy:1"} {
		if got[k] != want {
			t.Errorf("%s = %q, want %q", k, got[k], want)
		}
	}
	for _, k := range []string{"OTHER_SECRET", "LD_PRELOAD", "HTTPS_PROXY", "http_proxy"} {
		if v, ok := got[k]; ok {
			t.Errorf("%s=%q was inherited", k, v)
		}
	}
}

func TestStartErrors(t *testing.T) {
	for name, c := range map[string]sandbox.Command{
		"no such command":   {Path: "no-such-command-anywhere"},
		"not in given path": {Path: "sh", Env: map[string]string{"PATH": t.TempDir()}},
		"no such file":      {Path: "/no/such/file"},
		"no such folder":    {Path: os.Args[0], Dir: "/no/such/dir"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := sandbox.Start(context.Background(), c); !fault.Is(err, fault.Unreachable) {
				t.Errorf("error = %v, want unreachable", err)
			}
		})
	}
}

func TestErrTellsTheStatus(t *testing.T) {
	c := start(t, "status3", 0)
	<-c.Done()
	var exit *exec.ExitError
	if !errors.As(c.Err(), &exit) || exit.ExitCode() != 3 {
		t.Errorf("err = %v, want exit status 3", c.Err())
	}
}

func TestChildDiesWithItsParent(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=middle")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(5 * time.Second); alive(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the child survived its parent")
		}
	}
}

func TestStopOfManyAtOnce(t *testing.T) {
	before, _ := os.ReadDir("/proc/self/fd")
	for range 20 {
		c := start(t, "cat", 0)
		go c.Stop()
		c.Stop()
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after, _ := os.ReadDir("/proc/self/fd")
		if len(after) <= len(before)+1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files open, before %d", len(after), len(before))
		}
	}
}
