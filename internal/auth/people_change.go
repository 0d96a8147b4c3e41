package auth

import (
	"context"
	"database/sql"
	"errors"

	"doorward.dev/doorward/internal/fault"
)

// PersonChange is what an admin may change of a person; nil leaves a thing as it is.
type PersonChange struct {
	Role      *Role
	Disabled  *bool
	OIDCEmail *string // an invitation; empty takes it back
}

const reasonLastOwner = "LAST_OWNER"

// UpdatePerson changes a person of by's workspace, and ends that person's sessions when role or state changed. Nobody changes a person of a higher
// role or gives one; the last owner stays what it is (fault.Conflict, LAST_OWNER).
func (a *Auth) UpdatePerson(ctx context.Context, by *Caller, id string, in PersonChange) (Person, error) {
	var p Person
	if in.Role != nil && (*in.Role < Viewer || *in.Role > Owner) {
		return p, fault.New(fault.InvalidParams, "no such role; possible: viewer, editor, admin, owner")
	}
	err := a.change(ctx, func(tx *sql.Tx) error {
		// Whoever changes people of a workspace waits here for others who do: two owners must not demote each other at once.
		if _, err := tx.ExecContext(ctx, `UPDATE workspace SET name = name WHERE id = $1`, by.WorkspaceID); err != nil {
			return written(err, "")
		}
		err := tx.QueryRowContext(ctx, `SELECT id, name, role, created_at, disabled_at, oidc_email FROM person WHERE id = $1 AND workspace_id = $2`, id, by.WorkspaceID).
			Scan(&p.ID, &p.Name, &p.Role, &p.CreatedAt, &p.DisabledAt, &p.OIDCEmail)
		if errors.Is(err, sql.ErrNoRows) {
			return fault.New(fault.NotFound, "no such person in this workspace")
		}
		if err != nil {
			return unreadable(err)
		}
		return a.changePerson(ctx, tx, by, &p, in)
	})
	return p, err
}

func (a *Auth) changePerson(ctx context.Context, tx *sql.Tx, by *Caller, p *Person, in PersonChange) error {
	was := *p
	if role, _ := ParseRole(p.Role); role > by.Role {
		return fault.New(fault.Forbidden, "%s has the role %s, which is above yours", p.Name, p.Role).Why("INSUFFICIENT_PERMISSIONS")
	}
	if in.Role != nil {
		if *in.Role > by.Role {
			return fault.New(fault.Forbidden, "the role %s is above yours", *in.Role).Why("INSUFFICIENT_PERMISSIONS")
		}
		p.Role = in.Role.String()
	}
	switch {
	case in.Disabled != nil && !*in.Disabled:
		p.DisabledAt = 0
	case in.Disabled != nil && p.DisabledAt == 0:
		p.DisabledAt = a.now().UnixMicro()
	}
	if in.OIDCEmail != nil {
		email, err := invitation(*in.OIDCEmail)
		if err != nil {
			return err
		}
		p.OIDCEmail = email
	}
	if *p == was {
		return nil
	}
	owner := Owner.String()
	if was.Role == owner && was.DisabledAt == 0 && (p.Role != owner || p.DisabledAt != 0) {
		var others int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM person WHERE workspace_id = $1 AND role = $2 AND disabled_at = 0 AND id <> $3`,
			by.WorkspaceID, owner, p.ID).Scan(&others); err != nil {
			return unreadable(err)
		}
		if others == 0 {
			return fault.New(fault.Conflict, "%s is the last owner; make another owner first", p.Name).Why(reasonLastOwner)
		}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE person SET role = $1, disabled_at = $2, oidc_email = $3 WHERE id = $4`, p.Role, p.DisabledAt, p.OIDCEmail, p.ID); err != nil {
		return written(err, "another person is invited with this address")
	}
	if p.Role == was.Role && p.DisabledAt == was.DisabledAt {
		return nil
	}
	return endSessions(ctx, tx, p.ID)
}
