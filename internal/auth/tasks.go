package auth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Task is one piece of work that an agent does on behalf of a person. Its token ("task_…") is bound to the workspace,
// the task, the agent and the person, and lives at most MaxTaskTTL.
type Task struct {
	ID        string   `json:"id"`
	Title     string   `json:"title"`
	Status    string   `json:"status"` // running, finished, expired
	AgentID   string   `json:"agent_id,omitempty"`
	ProjectID string   `json:"project_id,omitempty"`
	PersonID  string   `json:"person_id"`
	Labels    []string `json:"labels,omitempty"` // conditions of rules may ask for them
	CreatedAt int64    `json:"created_at"`       // unix microseconds, as all times here
	ExpiresAt int64    `json:"expires_at"`
	EndedAt   int64    `json:"ended_at,omitempty"`
}

// How long a task's token lives.
const (
	DefaultTaskTTL = time.Hour
	MaxTaskTTL     = 24 * time.Hour
)

const (
	taskPrefix = "task_"
	maxTitle   = 500 // bytes
	maxProject = 200 // bytes
	maxLabels  = 16
	maxLabel   = 64 // bytes

	// taskMemory is how long the snapshot still knows a task that is over, to say so.
	taskMemory = 24 * time.Hour
	maxTasks   = 1000 // in one list
)

// The reasons why the token of a task does not work any more.
const (
	ReasonTaskEnded   = "TASK_ENDED"
	ReasonTaskExpired = "TASK_EXPIRED"
	ReasonTaskPerson  = "TASK_PERSON_GONE"
)

// ReadOnly: a task without an agent may use tools that only read, and nothing else.
func (c *Caller) ReadOnly() bool { return c.TaskID != "" && c.AgentID == "" }

// CreateTask makes a task of in's title, agent and project on behalf of the person by, and its token, which is shown this once.
// ttl 0 is DefaultTaskTTL.
func (a *Auth) CreateTask(ctx context.Context, by *Caller, in Task, ttl time.Duration) (token string, t Task, err error) {
	if ttl == 0 {
		ttl = DefaultTaskTTL
	}
	switch {
	case by.PersonID == "" || by.AgentID != "" || by.TaskID != "":
		return "", t, fault.New(fault.Forbidden, "a person starts a task; agents and tasks cannot")
	case ttl < time.Second || ttl > MaxTaskTTL:
		return "", t, fault.New(fault.InvalidParams, "a task lives from 1s to %s", MaxTaskTTL)
	case len(in.ProjectID) > maxProject || !printable(in.ProjectID):
		return "", t, fault.New(fault.InvalidParams, "project_id must be at most %d bytes of UTF-8 without control characters", maxProject)
	case in.Title == "" || len(in.Title) > maxTitle || !printable(in.Title):
		return "", t, fault.New(fault.InvalidParams, "a task needs a title of at most %d bytes of UTF-8 without control characters", maxTitle)
	}
	labels, err := labelText(in.Labels)
	if err != nil {
		return "", t, err
	}
	now := a.now()
	t = Task{
		ID: db.NewID(), Title: in.Title, Status: taskRunning, AgentID: in.AgentID, ProjectID: in.ProjectID, PersonID: by.PersonID, Labels: in.Labels,
		CreatedAt: now.UnixMicro(), ExpiresAt: now.Add(ttl).UnixMicro(),
	}
	token = newKey(taskPrefix)
	err = a.change(ctx, func(tx *sql.Tx) error {
		if t.AgentID != "" {
			if err := checkOwner(ctx, tx, by.WorkspaceID, t.AgentID, ""); err != nil {
				return err
			}
		}
		return insertTask(ctx, tx, by.WorkspaceID, token, t, labels)
	})
	if err != nil {
		return "", Task{}, err
	}
	return token, t, nil
}

// labelText checks the labels of a task and gives them as stored.
func labelText(labels []string) (string, error) {
	if len(labels) > maxLabels {
		return "", fault.New(fault.InvalidParams, "a task has at most %d labels", maxLabels)
	}
	for _, l := range labels {
		if l == "" || len(l) > maxLabel || !printable(l) {
			return "", fault.New(fault.InvalidParams, "a label is 1 to %d bytes of UTF-8 without control characters", maxLabel)
		}
	}
	if labels == nil {
		labels = []string{}
	}
	text, err := json.Marshal(labels)
	return string(text), err
}

// storedLabels reads stored labels. What cannot be read is an error of the load: rules that ask for a label must not miss it.
func storedLabels(text string) (labels []string, err error) {
	if text == "[]" { // nearly every task
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &labels); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the labels of a task cannot be read")
	}
	return labels, nil
}

func insertTask(ctx context.Context, tx *sql.Tx, ws, token string, t Task, labels string) error {
	sum := sha256.Sum256([]byte(token))
	_, err := tx.ExecContext(ctx, `INSERT INTO task (id, workspace_id, title, agent_id, project_id, person_id, hash, created_at, expires_at, labels)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		t.ID, ws, t.Title, t.AgentID, t.ProjectID, t.PersonID, hex.EncodeToString(sum[:]), t.CreatedAt, t.ExpiresAt, labels)
	return written(err, "")
}

const (
	taskRunning  = "running"
	taskFinished = "finished"
	taskExpired  = "expired"
)

const taskColumns = `id, title, agent_id, project_id, person_id, labels, created_at, expires_at, ended_at`

func (a *Auth) scanTask(scan func(...any) error) (t Task, err error) {
	var labels string
	if err := scan(&t.ID, &t.Title, &t.AgentID, &t.ProjectID, &t.PersonID, &labels, &t.CreatedAt, &t.ExpiresAt, &t.EndedAt); err != nil {
		return t, err
	}
	if t.Labels, err = storedLabels(labels); err != nil {
		return t, err
	}
	switch {
	case t.EndedAt != 0:
		t.Status = taskFinished
	case t.ExpiresAt <= a.now().UnixMicro():
		t.Status = taskExpired
	default:
		t.Status = taskRunning
	}
	return t, nil
}

// Tasks lists the tasks of a workspace, newest first, at most 1,000; before continues behind the task of that id.
func (a *Auth) Tasks(ctx context.Context, ws, before string) ([]Task, error) {
	rows, err := a.db.Read.QueryContext(ctx, `SELECT `+taskColumns+` FROM task
		WHERE workspace_id = $1 AND ($2 = '' OR id < $2) ORDER BY id DESC LIMIT $3`, ws, before, maxTasks)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	tasks := []Task{}
	for rows.Next() {
		t, err := a.scanTask(rows.Scan)
		if err != nil {
			return nil, unreadable(err)
		}
		tasks = append(tasks, t)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return tasks, nil
}

// Task gives one task of a workspace.
func (a *Auth) Task(ctx context.Context, ws, id string) (Task, error) {
	t, err := a.scanTask(a.db.Read.QueryRowContext(ctx, `SELECT `+taskColumns+` FROM task WHERE id = $1 AND workspace_id = $2`, id, ws).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return t, fault.New(fault.NotFound, "no such task in this workspace")
	}
	if err != nil {
		return t, unreadable(err)
	}
	return t, nil
}

// FinishTask ends a task: its token does not work from here on. Finishing it again changes nothing.
func (a *Auth) FinishTask(ctx context.Context, ws, id string) (Task, error) {
	err := a.change(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `UPDATE task SET ended_at = CASE WHEN ended_at = 0 THEN $1 ELSE ended_at END
			WHERE id = $2 AND workspace_id = $3`, a.now().UnixMicro(), id, ws)
		if err != nil {
			return written(err, "")
		}
		n, err := done.RowsAffected()
		if err == nil && n == 0 {
			return fault.New(fault.NotFound, "no such task in this workspace")
		}
		return written(err, "")
	})
	if err != nil {
		return Task{}, err
	}
	return a.Task(ctx, ws, id)
}

// TaskOver says why a task that Authenticate let in may not go on, "" when it may: doors keep a caller for
// long (a held call, a stream), and the end of a task must hold at once.
func (a *Auth) TaskOver(id string) string {
	k := a.current.Load().tasks[id]
	if k == nil {
		return ReasonTaskEnded
	}
	return k.over(a.now().UnixMicro())
}

// over says why the key does not work at a time, "" when it does.
func (k *key) over(now int64) string {
	if k.caller.TaskID == "" {
		if k.expiresAt != 0 && now >= k.expiresAt {
			return reasonExpiredKey
		}
		return ""
	}
	switch {
	case k.endedAt != 0:
		return ReasonTaskEnded
	case now >= k.expiresAt:
		return ReasonTaskExpired
	case k.caller.ActorRole < Viewer:
		return ReasonTaskPerson
	}
	return ""
}

// refusals are the answers to a key or token that was good once.
var refusals = map[string]string{
	reasonExpiredKey:  "the API key has expired; ask an admin for a new one",
	ReasonTaskEnded:   "the task has ended; start a new task for more work",
	ReasonTaskExpired: "the task's token has expired; start a new task",
	ReasonTaskPerson:  "the person on whose behalf the task acts may not act any more; another person must start a new task",
}

// loadTasks loads the tasks whose tokens work, and those that ended lately so that they are told so.
func (s *snapshot) loadTasks(ctx context.Context, tx *sql.Tx, people map[string]person, now time.Time) error {
	rows, err := tx.QueryContext(ctx, `SELECT id, workspace_id, hash, agent_id, project_id, person_id, labels, expires_at, ended_at FROM task WHERE expires_at > $1`,
		now.Add(-taskMemory).UnixMicro())
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	for rows.Next() {
		k := new(key)
		c := &k.caller
		var hash, labels string
		if err := rows.Scan(&c.TaskID, &c.WorkspaceID, &hash, &c.AgentID, &c.ProjectID, &c.ActorPersonID, &labels, &k.expiresAt, &k.endedAt); err != nil {
			return unreadable(err)
		}
		sum, ok := digest(hash)
		if !ok {
			continue
		}
		if c.TaskLabels, err = storedLabels(labels); err != nil {
			return err
		}
		c.KeyID = c.TaskID
		if g := s.agents[c.AgentID]; g != nil && g.WorkspaceID == c.WorkspaceID {
			c.Agent = g
		}
		if p, ok := people[c.ActorPersonID]; ok && p.workspace == c.WorkspaceID {
			c.ActorName, c.ActorRole = p.name, p.role
		}
		s.keys[sum], s.tasks[c.TaskID] = k, k
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}
