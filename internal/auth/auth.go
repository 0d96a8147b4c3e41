// Package auth owns who is calling: workspaces, people, agents, their keys and tasks.
// Keys are stored hashed, shown once and looked up in an immutable snapshot,
// so that authenticating touches neither a lock nor the database.
package auth

import (
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Caller is who makes a request. What Authenticate returns is shared by all
// requests with that key: never change it.
type Caller struct {
	WorkspaceID string
	KeyID       string // of the key, of the task whose token it is, or of the session
	AgentID     string // set when an agent calls, even if the agent does not exist any more
	Agent       *Agent // nil: the key names no existing agent
	PersonID    string
	PersonName  string
	Role        Role
	Shutdown    bool // the workspace is shut down, as of when the gate looked

	// Set when a task calls. PersonID is empty then: a task is not the person, it acts on that one's behalf.
	TaskID        string
	ProjectID     string // of the task
	TaskLabels    []string
	TaskOver      string // why it may not go on, as of when the gate looked
	ActorPersonID string // on whose behalf; also of an access token whose subject is linked with a person
	ActorName     string
	ActorRole     Role

	LacksScope string // the scope that an access token would need for tools that do more than read; empty: it lacks none
}

// Behalf is the person who calls, or on whose behalf a task or token does; empty for an agent with a key of its own.
func (c *Caller) Behalf() string {
	if c.PersonID != "" {
		return c.PersonID
	}
	return c.ActorPersonID
}

// Auth answers who is calling. Safe for concurrent use.
type Auth struct {
	db      *db.DB
	now     func() time.Time
	current atomic.Pointer[snapshot]
	hashing chan struct{} // bounds the memory of checking passwords
	reload  sync.Mutex    // one load at a time, so that an older state never replaces a newer one
}

// New loads the snapshot. now is the clock.
func New(ctx context.Context, d *db.DB, now func() time.Time) (*Auth, error) {
	a := &Auth{db: d, now: now, hashing: make(chan struct{}, parallelHashes)}
	if err := a.Reload(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// maxKey bounds the bytes of a key that is worth hashing.
const maxKey = 256

// Authenticate finds the caller of a bearer key. Errors are fault.Unauthenticated with the reasons
// MISSING_API_KEY, INVALID_API_KEY (also revoked: the answer does not tell), EXPIRED_API_KEY and, for the
// token of a task that is over, TASK_ENDED, TASK_EXPIRED, TASK_PERSON_GONE.
// It looks a digest up, never compares the key itself, so its time tells nothing about keys.
func (a *Auth) Authenticate(key string) (*Caller, error) {
	if key == "" {
		return nil, fault.New(fault.Unauthenticated, "no API key: send it as Authorization: Bearer KEY").Why("MISSING_API_KEY")
	}
	var buf [maxKey]byte
	if len(key) > maxKey {
		return nil, invalidKey()
	}
	k := a.current.Load().keys[sha256.Sum256(buf[:copy(buf[:], key)])]
	if k == nil {
		return nil, invalidKey()
	}
	if k.expiresAt != 0 {
		if reason := k.over(a.now().UnixMicro()); reason != "" {
			return nil, fault.New(fault.Unauthenticated, "%s", refusals[reason]).Why(reason)
		}
	}
	return &k.caller, nil
}

const reasonExpiredKey = "EXPIRED_API_KEY"

func invalidKey() error {
	return fault.New(fault.Unauthenticated, "the API key is not valid; check it or ask an admin for a new one").Why("INVALID_API_KEY")
}

// AgentByID gives an agent of the snapshot, nil when there is none.
func (a *Auth) AgentByID(id string) *Agent { return a.current.Load().agents[id] }

// AnonymousAgent makes the caller of a listener without keys: the agent of that
// name, which must be the only one. The caller is shared, as of Authenticate.
func (a *Auth) AnonymousAgent(name string) (*Caller, error) {
	switch named := a.current.Load().named[name]; len(named) {
	case 0:
		return nil, fault.New(fault.Config, "the listener without keys is for the agent %q, which does not exist", name)
	case 1:
		return named[0], nil
	default:
		return nil, fault.New(fault.Config, "the listener without keys is for the agent %q, and %d workspaces have one", name, len(named))
	}
}
