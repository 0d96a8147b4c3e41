package auth

import (
	"context"
	"database/sql"
	"errors"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Person of a workspace.
type Person struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Role      string `json:"role"`
	CreatedAt int64  `json:"created_at"`

	DisabledAt int64  `json:"disabled_at,omitempty"` // nothing of that person works any more
	OIDCEmail  string `json:"oidc_email,omitempty"`  // an invitation that is not used yet
}

// People lists the people of a workspace, oldest first.
func (a *Auth) People(ctx context.Context, ws string) ([]Person, error) {
	rows, err := a.db.Read.QueryContext(ctx, `SELECT id, name, role, created_at, disabled_at, oidc_email FROM person WHERE workspace_id = $1 ORDER BY created_at, id`, ws)
	if err != nil {
		return nil, unreadable(err)
	}
	defer rows.Close()
	people := []Person{}
	for rows.Next() {
		var p Person
		if err := rows.Scan(&p.ID, &p.Name, &p.Role, &p.CreatedAt, &p.DisabledAt, &p.OIDCEmail); err != nil {
			return nil, unreadable(err)
		}
		people = append(people, p)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return people, nil
}

// PersonName is the name of a person, empty when there is none, or when it cannot be read now: it is for show only.
func (a *Auth) PersonName(ctx context.Context, ws, id string) (name string) {
	if id == "" {
		return ""
	}
	if err := a.db.Read.QueryRowContext(ctx, `SELECT name FROM person WHERE workspace_id = $1 AND id = $2`, ws, id).Scan(&name); err != nil {
		return ""
	}
	return name
}

// CreatePerson makes a person with a role; without a key nobody can call as that person.
func (a *Auth) CreatePerson(ctx context.Context, ws, name string, role Role) (Person, error) {
	return a.InvitePerson(ctx, ws, name, role, "")
}

// InvitePerson makes a person who is whoever first signs in with a provider and this verified e-mail address.
func (a *Auth) InvitePerson(ctx context.Context, ws, name string, role Role, email string) (Person, error) {
	if err := checkName("person", name); err != nil {
		return Person{}, err
	}
	if role < Viewer || role > Owner {
		return Person{}, fault.New(fault.InvalidParams, "no such role; possible: viewer, editor, admin, owner")
	}
	email, err := invitation(email)
	if err != nil {
		return Person{}, err
	}
	p := Person{ID: db.NewID(), Name: name, Role: role.String(), CreatedAt: a.now().UnixMicro(), OIDCEmail: email}
	err = a.change(ctx, func(tx *sql.Tx) error {
		var id string
		err := tx.QueryRowContext(ctx, `SELECT id FROM workspace WHERE id = $1`, ws).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return fault.New(fault.NotFound, "no such workspace")
		}
		if err != nil {
			return unreadable(err)
		}
		return insertPerson(ctx, tx, ws, p)
	})
	if err != nil {
		return Person{}, err
	}
	return p, nil
}

func insertPerson(ctx context.Context, tx *sql.Tx, ws string, p Person) error {
	if err := distinct(ctx, tx, "person", ws, p.ID, p.Name); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO person (id, workspace_id, name, role, created_at, oidc_email) VALUES ($1, $2, $3, $4, $5, $6)`,
		p.ID, ws, p.Name, p.Role, p.CreatedAt, p.OIDCEmail)
	return written(err, "a person of this name, or invited with this address, exists already")
}

// invitation checks the address of an invitation; empty is none.
func invitation(email string) (string, error) {
	if email == "" {
		return "", nil
	}
	clean, ok := mailAddress(email)
	if !ok {
		return "", fault.New(fault.InvalidParams, "oidc_email must be an e-mail address of ASCII characters, at most %d bytes", maxMail)
	}
	return clean, nil
}
