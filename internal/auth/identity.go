package auth

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// workspace gives the id of a workspace by its slug.
func (a *Auth) workspace(ctx context.Context, slug string) (id string, err error) {
	err = a.db.Read.QueryRowContext(ctx, `SELECT id FROM workspace WHERE slug = $1`, slug).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fault.New(fault.Config, "the workspace of oidc.workspace does not exist")
	}
	if err != nil {
		return "", unreadable(err)
	}
	return id, nil
}

// account is a person with what beginSession needs.
type account struct {
	Person
	workspace, password string
}

const accountColumns = `p.id, p.name, p.role, p.created_at, p.disabled_at, p.workspace_id, p.password`

// readAccount reads one row of accountColumns; without one the account is empty.
func readAccount(row *sql.Row) (k account, err error) {
	err = row.Scan(&k.ID, &k.Name, &k.Role, &k.CreatedAt, &k.DisabledAt, &k.workspace, &k.password)
	if errors.Is(err, sql.ErrNoRows) {
		return account{}, nil
	}
	if err != nil {
		return account{}, unreadable(err)
	}
	return k, nil
}

const byIdentity = `SELECT ` + accountColumns + ` FROM person_identity i JOIN person p ON p.id = i.person_id WHERE i.issuer = $1 AND i.subject = $2`

// person finds the person of an identity; the first time it links an invited one or makes a new one. The provider's role, if it decides about roles, is applied.
// note says what changed. Of a person who is refused it gives what is known.
func (o *OpenID) person(ctx context.Context, ws string, who vouched) (k account, note string, err error) {
	if len(o.c.Domains) > 0 {
		_, domain, _ := strings.Cut(who.email, "@")
		if domain == "" {
			return k, "", unverified(who)
		}
		if !slices.ContainsFunc(o.c.Domains, func(d string) bool { return strings.EqualFold(d, domain) }) {
			return k, "", fault.New(fault.Forbidden, "addresses of your e-mail domain may not sign in here").Why(ReasonDomain)
		}
	}
	if k, err = readAccount(o.a.db.Read.QueryRowContext(ctx, byIdentity, o.c.Issuer, who.subject)); err != nil {
		return k, "", err
	}
	if k.ID == "" || k.DisabledAt == 0 && who.hasRoles && k.Role != who.role.String() {
		err = o.a.change(ctx, func(tx *sql.Tx) error {
			// Whoever changes people of a workspace waits here for others who do, as in UpdatePerson.
			if _, err := tx.ExecContext(ctx, `UPDATE workspace SET name = name WHERE id = $1`, ws); err != nil {
				return written(err, "")
			}
			k, note, err = o.settle(ctx, tx, ws, who)
			return err
		})
	}
	switch {
	case err != nil:
		return k, "", err
	case k.workspace != ws:
		return account{}, "", unknownPerson()
	case k.DisabledAt != 0:
		return k, "", disabledPerson()
	}
	if _, ok := ParseRole(k.Role); !ok {
		return k, "", disabledPerson()
	}
	return k, note, nil
}

// settle makes the database agree with what the provider vouches for.
func (o *OpenID) settle(ctx context.Context, tx *sql.Tx, ws string, who vouched) (k account, note string, err error) {
	if k, err = readAccount(tx.QueryRowContext(ctx, byIdentity, o.c.Issuer, who.subject)); err != nil {
		return k, "", err
	}
	if k.ID == "" {
		if k, note, err = o.admit(ctx, tx, ws, who); err != nil {
			return k, "", err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO person_identity (issuer, subject, person_id, created_at) VALUES ($1, $2, $3, $4)`,
			o.c.Issuer, who.subject, k.ID, o.a.now().UnixMicro()); err != nil {
			return k, "", written(err, "another sign-in was faster; sign in again")
		}
	}
	if !who.hasRoles || k.Role == who.role.String() || k.workspace != ws || k.DisabledAt != 0 {
		return k, note, nil
	}
	err = o.a.changePerson(ctx, tx, &Caller{WorkspaceID: ws, Role: Owner}, &k.Person, PersonChange{Role: &who.role})
	if f := fault.From(err); f != nil && f.Reason == reasonLastOwner {
		k.Role = Owner.String() // the provider cannot leave a workspace without an owner
		return k, note, nil
	}
	if err == nil {
		note = strings.TrimSpace(note + " role by the identity provider: " + k.Role)
	}
	return k, note, err
}

// admit finds the person whom an admin invited by the verified address, or makes one. The invitation is used up. Names are never compared: who
// calls himself like a person of ours is not that person.
func (o *OpenID) admit(ctx context.Context, tx *sql.Tx, ws string, who vouched) (k account, note string, err error) {
	if who.email == "" {
		return k, "", unverified(who)
	}
	k, err = readAccount(tx.QueryRowContext(ctx, `SELECT `+accountColumns+` FROM person p WHERE p.workspace_id = $1 AND p.oidc_email = $2`, ws, who.email))
	switch {
	case err != nil:
		return k, "", err
	case k.DisabledAt != 0:
		return k, "", disabledPerson()
	case k.ID != "":
		_, err := tx.ExecContext(ctx, `UPDATE person SET oidc_email = '' WHERE id = $1`, k.ID)
		return k, "linked by invitation", written(err, "")
	case !o.c.Create:
		return k, "", unknownPerson()
	}
	name := who.email // an address is of one person; a name that one may choose can look like another's
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(o.c.Issuer + " " + who.subject))
		name = "oidc-" + hex.EncodeToString(sum[:8])
	}
	role := o.c.DefaultRole
	if who.hasRoles {
		role = who.role
	}
	k = account{Person: Person{ID: db.NewID(), Name: name, Role: role.String(), CreatedAt: o.a.now().UnixMicro()}, workspace: ws}
	err = insertPerson(ctx, tx, ws, k.Person)
	if fault.Is(err, fault.Conflict) {
		return account{}, "", fault.New(fault.Forbidden, "there is a person of your name who is not linked with this sign-in; ask an admin for an invitation").Why(ReasonUnknownPerson)
	}
	return k, "created with the role " + k.Role, err
}

func unverified(who vouched) error {
	if !who.given {
		return fault.New(fault.Forbidden, "the identity provider gave no e-mail address; the scope email is needed").Why(ReasonEmail)
	}
	return fault.New(fault.Forbidden, "the identity provider has not verified your e-mail address").Why(ReasonEmail)
}

func unknownPerson() error {
	return fault.New(fault.Forbidden, "you are not known here; ask an admin to invite your e-mail address").Why(ReasonUnknownPerson)
}

func disabledPerson() error {
	return fault.New(fault.Forbidden, "your account is disabled; ask an admin").Why(ReasonDisabled)
}
