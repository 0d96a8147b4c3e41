package cli

import (
	"fmt"
	"net/url"
	"strings"

	"doorward.dev/doorward/internal/auth"
)

const tasksPath = "/api/v1/tasks"

type taskCmd struct {
	Add    taskAddCmd    `cmd:"" help:"Start a task; its token is shown once."`
	List   taskListCmd   `cmd:"" help:"List tasks, newest first."`
	Show   taskShowCmd   `cmd:"" help:"Show a task."`
	Finish taskFinishCmd `cmd:"" help:"End a task; its token stops working."`
}

type taskAddCmd struct {
	Title   string   `arg:"" help:"What is to be done."`
	Agent   string   `help:"Agent that does it. Without one the task may only read." placeholder:"NAME"`
	Project string   `help:"Project that it belongs to." placeholder:"ID"`
	Label   []string `help:"A word that conditions of rules may ask for." placeholder:"WORD"`
	TTL     string   `name:"ttl" help:"Life of the token, at most 24h." default:"1h" placeholder:"DURATION"`
}

func (c *taskAddCmd) Run(e *env) error {
	in := map[string]any{"title": c.Title, "agent_id": c.Agent, "project_id": c.Project, "labels": c.Label, "ttl": c.TTL}
	type made struct {
		auth.Task
		Token string
	}
	return ask(e, "POST", tasksPath, in, func(t made) {
		e.print("task_added", t.ID, moment(t.ExpiresAt))
		fmt.Fprintln(e.stdout, e.say("token_once", t.Token))
	})
}

type taskListCmd struct {
	Before string `help:"Continue behind the task of this id." placeholder:"ID"`
}

func (c *taskListCmd) Run(e *env) error {
	type list struct{ Tasks []auth.Task }
	return ask(e, "GET", tasksPath+"?before="+url.QueryEscape(c.Before), nil, func(l list) {
		rows := [][]string{{"ID", "STATUS", "TITLE", "AGENT", "EXPIRES"}}
		for _, t := range l.Tasks {
			rows = append(rows, []string{t.ID, t.Status, oneLine(t.Title, 60), t.AgentID, moment(t.ExpiresAt)})
		}
		e.table(rows)
	})
}

type taskShowCmd struct {
	ID string `arg:"" help:"Id of the task."`
}

func (c *taskShowCmd) Run(e *env) error {
	return ask(e, "GET", tasksPath+"/"+url.PathEscape(c.ID), nil, func(t auth.Task) {
		e.columns([][]string{
			{"ID", t.ID}, {"TITLE", oneLine(t.Title, 200)}, {"STATUS", t.Status}, {"AGENT", t.AgentID}, {"PROJECT", t.ProjectID}, {"LABELS", oneLine(strings.Join(t.Labels, " "), 200)},
			{"PERSON", t.PersonID}, {"CREATED", moment(t.CreatedAt)}, {"EXPIRES", moment(t.ExpiresAt)}, {"ENDED", moment(t.EndedAt)},
		})
	})
}

type taskFinishCmd struct {
	ID string `arg:"" help:"Id of the task."`
}

func (c *taskFinishCmd) Run(e *env) error {
	return ask(e, "POST", tasksPath+"/"+url.PathEscape(c.ID)+"/finish", nil, func(t auth.Task) { e.print("state", t.ID, t.Status) })
}
