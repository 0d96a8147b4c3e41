package door

import (
	"net/http"
	"time"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesTasks are the operations on tasks. Who may start one gives away an agent's powers for a time, so a viewer may not.
func routesTasks() []route {
	const p = "/api/v1/tasks"
	return []route{
		operation("GET", p, auth.Viewer, "task.list", (*Door).listTasks, "List tasks, newest first (?before=)"),
		operation("POST", p, auth.Editor, "task.create", (*Door).createTask, "Start a task; its token is shown once"),
		operation("GET", p+"/{id}", auth.Viewer, "task.show", (*Door).showTask, "Show a task"),
		operation("POST", p+"/{id}/finish", auth.Editor, "task.finish", (*Door).finishTask, "End a task; its token stops working"),
	}
}

func (d *Door) listTasks(c *restCall) (any, error) {
	q := c.URL.Query()
	limit, err := c.number("limit", maxPage)
	if err != nil {
		return nil, err
	}
	before := q.Get("cursor")
	if before == "" {
		before = q.Get("before")
	}
	list, err := d.d.Auth.Tasks(c.Context(), c.caller.WorkspaceID, before)
	if err != nil {
		return nil, err
	}
	out := taskList{Tasks: orEmpty(list)}
	if limit = min(max(limit, 1), maxPage); (q.Has("limit") || q.Has("cursor")) && int64(len(list)) > limit {
		out.Tasks, out.Next = list[:limit], list[limit-1].ID
	}
	return out, nil
}

func (d *Door) showTask(c *restCall) (any, error) {
	t, err := d.d.Auth.Task(c.Context(), c.caller.WorkspaceID, c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return t, nil
}

type taskInput struct {
	Title     string   `json:"title"`
	AgentID   string   `json:"agent_id"`
	ProjectID string   `json:"project_id"`
	Labels    []string `json:"labels"`
	TTL       string   `json:"ttl"` // a duration such as 30m
}

// createTask starts a task on behalf of the caller. Without an agent it may only read.
func (d *Door) createTask(c *restCall) (any, error) {
	var in taskInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	var ttl time.Duration
	if in.TTL != "" {
		var err error
		if ttl, err = time.ParseDuration(in.TTL); err != nil || ttl <= 0 {
			return nil, fault.New(fault.InvalidParams, "ttl must be a duration such as 30m, at most %s", auth.MaxTaskTTL)
		}
	}
	if in.AgentID != "" {
		a := d.agentNamed(c.caller.WorkspaceID, in.AgentID)
		if a == nil {
			return nil, fault.New(fault.NotFound, "no such agent in this workspace")
		}
		in.AgentID = a.ID
	}
	token, t, err := d.d.Auth.CreateTask(c.Context(), c.caller, auth.Task{Title: in.Title, AgentID: in.AgentID, ProjectID: in.ProjectID, Labels: in.Labels}, ttl)
	if err != nil {
		return nil, err
	}
	c.row.TaskID, c.row.AgentID = t.ID, t.AgentID
	c.status = http.StatusCreated
	return taskCreated{t, token}, nil
}

func (d *Door) finishTask(c *restCall) (any, error) {
	t, err := d.d.Auth.FinishTask(c.Context(), c.caller.WorkspaceID, c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	c.row.TaskID, c.row.AgentID = t.ID, t.AgentID
	return t, nil
}
