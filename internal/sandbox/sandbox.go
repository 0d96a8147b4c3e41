// Package sandbox owns child processes: their group, environment, pipes, stderr tail and end.
// It knows nothing of the protocol that is spoken with a child.
package sandbox

import (
	"context"
	"io"
	"time"
)

// Command says what to start. No shell is ever involved.
type Command struct {
	Path  string
	Args  []string
	Env   map[string]string // added to the inherited allowlist (spec/iac-code 2.2.5)
	Dir   string
	Grace time.Duration // SIGTERM to SIGKILL, default 3 s
}

// Child is a running process in its own group.
type Child struct {
	Stdin  io.WriteCloser
	Stdout io.Reader
}

// Start starts a child. Its whole process group dies with it, and with Doorward (Pdeathsig on Linux).
func Start(ctx context.Context, c Command) (*Child, error) { panic("pending") }

// PID of the child.
func (c *Child) PID() int { panic("pending") }

// Stderr is the tail of what the child printed, at most 8,000 characters, control characters removed.
func (c *Child) Stderr() string { panic("pending") }

// Done is closed when the child has ended; Err then says how.
func (c *Child) Done() <-chan struct{} { panic("pending") }

// Err says how the child ended.
func (c *Child) Err() error { panic("pending") }

// Stop closes stdin, then sends SIGTERM, then SIGKILL to the group; it returns when the group is gone.
func (c *Child) Stop() { panic("pending") }
