package auth

import (
	"context"
	"database/sql"
	"regexp"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Workspace is what everything belongs to; nothing of one is seen in another.
type Workspace struct {
	ID        string `json:"id"`
	Slug      string `json:"slug"`
	Name      string `json:"name"`
	CreatedAt int64  `json:"created_at"`
}

// FirstWorkspace is the one of the first start. Its owners run the installation: they make workspaces, and what is one for all, such as
// the record, is theirs.
func (a *Auth) FirstWorkspace(ctx context.Context) (id string, err error) {
	if err := a.db.Read.QueryRowContext(ctx, `SELECT id FROM workspace ORDER BY created_at, id LIMIT 1`).Scan(&id); err != nil {
		return "", unreadable(err)
	}
	return id, nil
}

// Workspaces lists all workspaces, oldest first.
func (a *Auth) Workspaces(ctx context.Context) ([]Workspace, error) {
	rows, err := a.db.Read.QueryContext(ctx, `SELECT id, slug, name, created_at FROM workspace ORDER BY created_at, id`)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	list := []Workspace{}
	for rows.Next() {
		var w Workspace
		if err := rows.Scan(&w.ID, &w.Slug, &w.Name, &w.CreatedAt); err != nil {
			return nil, unreadable(err)
		}
		list = append(list, w)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return list, nil
}

var workspaceSlug = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// CreateWorkspace makes a workspace with one owner and that one's key, which is shown this once.
func (a *Auth) CreateWorkspace(ctx context.Context, slug, name, owner string) (w Workspace, p Person, key string, err error) {
	if !workspaceSlug.MatchString(slug) {
		return w, p, "", fault.New(fault.InvalidParams, "a slug is 1 to 63 characters of a-z, 0-9 and -, and does not begin with -")
	}
	if name == "" {
		name = slug
	}
	if owner == "" {
		owner = "owner"
	}
	if err := checkName("workspace", name); err != nil {
		return w, p, "", err
	}
	if err := checkName("person", owner); err != nil {
		return w, p, "", err
	}
	w = Workspace{ID: db.NewID(), Slug: slug, Name: name, CreatedAt: a.now().UnixMicro()}
	p = Person{ID: db.NewID(), Name: owner, Role: Owner.String(), CreatedAt: w.CreatedAt}
	key = newKey(personPrefix)
	err = a.change(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO workspace (id, slug, name, created_at) VALUES ($1, $2, $3, $4)`, w.ID, w.Slug, w.Name, w.CreatedAt); err != nil {
			return written(err, "a workspace of this slug exists already")
		}
		if err := insertPerson(ctx, tx, w.ID, p); err != nil {
			return err
		}
		return insertKey(ctx, tx, w.ID, key, KeyInfo{ID: db.NewID(), Name: "first key", Prefix: key[:shownPrefix], PersonID: p.ID, CreatedAt: w.CreatedAt})
	})
	return w, p, key, err
}
