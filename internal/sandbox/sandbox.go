// Package sandbox owns child processes: their group, environment, pipes, stderr tail and end.
// It knows nothing of the protocol that is spoken with a child.
package sandbox

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"doorward.dev/doorward/internal/fault"
)

// The times of an end.
const (
	stdinGrace   = 500 * time.Millisecond // a child that reads its stdin ends by itself
	defaultGrace = 3 * time.Second        // SIGTERM to SIGKILL
	leftover     = time.Second            // to read what a dead child left in its stdout
	killWait     = 2 * time.Second        // for the kernel to end a killed group
)

// Command says what to start. No shell is ever involved.
type Command struct {
	Path  string
	Args  []string
	Env   map[string]string // added to the inherited allowlist (spec/iac-code 2.2.5)
	Dir   string
	Grace time.Duration // SIGTERM to SIGKILL, default 3 s
}

// Child is a running process in its own group. Methods are safe for concurrent use.
type Child struct {
	Stdin  io.WriteCloser // an *os.File: write deadlines work
	Stdout io.Reader      // ends soon after the child does, whoever else holds it

	cmd    *exec.Cmd
	grace  time.Duration
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	tail   tail
	exited chan struct{} // the child itself has ended; the group may not
	done   chan struct{}
	stop   sync.Once
	err    error // valid after done
}

// Start starts a child. Its whole process group dies with it, and the child dies with Doorward (Pdeathsig on Linux).
// ctx bounds the start only. Errors are *fault.Error of class Unreachable.
func Start(ctx context.Context, c Command) (*Child, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(fault.Cancelled, err, "the start of %s was cancelled", c.Path)
	}
	env := environment(os.Environ(), c.Env)
	path, err := lookPath(c.Path, c.Dir, env)
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "command %q cannot be started: it was not found or may not be executed", c.Path)
	}
	if c.Dir != "" {
		if st, err := os.Stat(c.Dir); err != nil || !st.IsDir() {
			return nil, fault.Wrap(fault.Unreachable, err, "working directory %q does not exist", c.Dir)
		}
	}
	ch := &Child{
		grace: c.Grace, exited: make(chan struct{}), done: make(chan struct{}),
		cmd: &exec.Cmd{Path: path, Args: append([]string{c.Path}, c.Args...), Env: env, Dir: c.Dir, SysProcAttr: ownGroup()},
	}
	if ch.grace <= 0 {
		ch.grace = defaultGrace
	}
	if err := ch.start(); err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "command %q cannot be started", c.Path)
	}
	return ch, nil
}

// start makes the pipes and the process. The pipes are our own: those of package exec would make Wait hang
// for as long as any grandchild holds one.
func (c *Child) start() (err error) {
	var pipes [3][2]*os.File
	defer func() {
		for i, p := range pipes {
			theirs, ours := p[0], p[1]
			if i > 0 {
				theirs, ours = ours, theirs
			}
			if theirs != nil {
				theirs.Close()
			}
			if err != nil && ours != nil {
				ours.Close()
			}
		}
	}()
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return err
		}
	}
	c.stdin, c.stdout, c.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
	c.Stdin, c.Stdout = c.stdin, c.stdout
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	started := make(chan error)
	go c.own(started)
	return <-started
}

// own is the life of the child. Pdeathsig follows the thread that forked, so that thread must live as long
// as the child: it is the one that waits for it.
func (c *Child) own(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(&c.tail, c.stderr)
	}()
	waitExit(c.cmd.Process.Pid) // a zombie keeps its group id, so nobody else can be hit below
	close(c.exited)
	c.endGroup()
	c.err = c.cmd.Wait()
	reapGroup(c.cmd.Process.Pid, killWait)
	_ = c.stdin.Close()
	deadline := time.Now().Add(leftover)
	_ = c.stdout.SetReadDeadline(deadline)
	_ = c.stderr.SetReadDeadline(deadline)
	<-drained
	_ = c.stderr.Close()
	close(c.done)
	// Stdout stays readable for its owner until the deadline; the finalizer closes the file.
	time.AfterFunc(leftover, func() { _ = c.stdout.Close() })
}

// endGroup ends what the child leaves behind in its group: asked once, then killed.
func (c *Child) endGroup() {
	pid := c.cmd.Process.Pid
	if othersIn(pid) {
		signalGroup(pid, sigTerm)
		for end := time.Now().Add(min(c.grace, time.Second)); othersIn(pid) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	signalGroup(pid, sigKill)
}

// PID of the child.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Stderr is the tail of what the child printed, at most 8,000 characters, control characters removed.
func (c *Child) Stderr() string { return c.tail.String() }

// Done is closed when the child and its group have ended; Err then says how.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err says how the child ended. It is nil while it runs and when it ended with status 0.
func (c *Child) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Stop closes stdin, then sends SIGTERM, then SIGKILL to the group; it returns when the group is gone.
func (c *Child) Stop() {
	c.stop.Do(func() {
		_ = c.stdin.Close()
		if c.ended(stdinGrace) {
			return
		}
		signalGroup(c.cmd.Process.Pid, sigTerm)
		if c.ended(c.grace) {
			return
		}
		signalGroup(c.cmd.Process.Pid, sigKill)
	})
	<-c.done
}

func (c *Child) ended(within time.Duration) bool {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-c.exited:
		return true
	case <-t.C:
		return false
	}
}

// lookPath finds a command in the PATH that the child will have, not in ours.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		if !filepath.IsAbs(name) && dir != "" {
			name = filepath.Join(dir, name)
		}
		return exec.LookPath(name)
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	if path == os.Getenv("PATH") {
		return exec.LookPath(name)
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) { // a relative entry would run what lies in some working directory
			continue
		}
		if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}
