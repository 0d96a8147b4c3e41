package door

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesSignIn are sign-in, sign-out and the management of people.
func routesSignIn() []route {
	const p, a = "/api/v1/people/{id}", "/api/v1/auth"
	login := operation("POST", a+"/login", auth.NoRole, "auth.login", (*Door).signIn, "Sign in with name and password; the answer sets a cookie")
	login.open = true
	me := operation("GET", a+"/me", auth.Viewer, "auth.me", (*Door).whoAmI, "Say who is asking")
	me.agents = true
	return []route{
		login,
		operation("POST", a+"/logout", auth.Viewer, "auth.logout", (*Door).signOut, "End the session"),
		me,
		operation("PATCH", p, auth.Admin, "person.update", (*Door).updatePerson, "Change a person's role, disable or enable, which ends the sessions; invite (oidc_email)"),
		operation("POST", p+"/password", auth.Viewer, "person.password", (*Door).setPassword, "Set a password, one's own or as an admin; ends the sessions"),
	}
}

// Names of the session cookie. A browser takes the first one only over TLS and from this host itself.
const (
	cookieTLS   = "__Host-doorward"
	cookiePlain = "doorward_session"
)

func (d *Door) sessionCookie(r *http.Request, value string, life time.Duration) *http.Cookie {
	c := &http.Cookie{Name: cookiePlain, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(life / time.Second)}
	if r.TLS != nil || strings.HasPrefix(d.d.PublicURL, "https://") {
		c.Name, c.Secure = cookieTLS, true
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// restCaller finds who asks: by bearer key, else by the cookie of a session. A browser sends the cookie whoever made it ask, so what
// changes something must come from our own pages or an allowed origin.
func (d *Door) restCaller(c *restCall) (*auth.Caller, error) {
	cookie, err := c.Cookie(d.sessionCookie(c.Request, "", 0).Name)
	if c.Header.Get("Authorization") != "" || err != nil {
		return d.authenticate(c.Request)
	}
	if err := d.sameSite(c.Request); err != nil {
		return nil, err
	}
	caller, s, err := d.d.Auth.AuthenticateSession(c.Context(), cookie.Value)
	if err != nil {
		return nil, err
	}
	c.session = &s
	return caller, nil
}

// sameSite refuses what a page of another site makes a browser send.
func (d *Door) sameSite(r *http.Request) error {
	protection := http.NewCrossOriginProtection()
	for _, o := range d.d.AllowedOrigins {
		if err := protection.AddTrustedOrigin(strings.TrimSuffix(o, "/")); err != nil {
			return fault.Wrap(fault.Config, err, "allowed_origins holds something that is no origin")
		}
	}
	if err := protection.Check(r); err != nil {
		return fault.Wrap(fault.Forbidden, err, "requests with a session must come from our own pages").Why("CROSS_ORIGIN")
	}
	return nil
}

type loginInput struct {
	Name      string `json:"name"`
	Password  string `json:"password"`
	Workspace string `json:"workspace"`
}

// signIn begins a session. Attempts that were checked stand in the record; those that a lock refused unchecked do not, or
// a stranger could fill it.
func (d *Door) signIn(c *restCall) (any, error) {
	if err := d.sameSite(c.Request); err != nil {
		return nil, err
	}
	var in loginInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if in.Workspace == "" {
		in.Workspace = "default"
	}
	start := d.d.Now()
	out, err := d.d.Auth.SignIn(c.Context(), in.Workspace, in.Name, in.Password, remoteIP(c.Request))
	c.waits(err)
	c.row = audit.Event{
		Kind: audit.Admin, TraceID: c.id, WorkspaceID: out.WorkspaceID, PersonID: out.Person.ID, KeyID: out.Session.ID, Door: doorREST, Method: "auth.login",
	}
	if out.WorkspaceID != "" {
		if nerr := d.note(c, start, err); nerr != nil {
			if err == nil {
				err = d.d.Auth.EndSession(context.WithoutCancel(c.Context()), out.Session.ID)
			}
			return nil, errors.Join(nerr, err)
		}
	}
	if err != nil {
		return nil, err
	}
	c.header.Add("Set-Cookie", d.sessionCookie(c.Request, out.Cookie, auth.SessionLife).String())
	return signedIn{out.Person, out.WorkspaceID, out.Session}, nil
}

// waits tells a caller that tried too often when to try again.
func (c *restCall) waits(err error) {
	if e := fault.From(err); e != nil && e.Class == fault.TooMany {
		if wait, ok := e.Data["retry_after"].(int64); ok {
			c.header.Set("Retry-After", strconv.FormatInt(wait, 10))
		}
	}
}

// remoteIP is the address of the connection. What a proxy says in a header is not believed: anybody can send it.
func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

func (d *Door) signOut(c *restCall) (any, error) {
	if c.session == nil {
		return nil, fault.New(fault.InvalidRequest, "there is no session to end: the request came with a key")
	}
	c.header.Add("Set-Cookie", d.sessionCookie(c.Request, "", 0).String())
	return signedOut{true}, d.d.Auth.EndSession(c.Context(), c.session.ID)
}

func (d *Door) whoAmI(c *restCall) (any, error) {
	by := c.caller
	out := identity{WorkspaceID: by.WorkspaceID, Session: c.session}
	if by.PersonID != "" {
		out.Person = &personInfo{by.PersonID, by.PersonName, by.Role.String()}
	}
	if by.Agent != nil {
		out.Agent = &agentBrief{by.AgentID, by.Agent.Name, by.Agent.State}
	}
	if by.TaskID != "" {
		out.Task = &taskBrief{by.TaskID, by.ActorPersonID}
	}
	return out, nil
}

type personChange struct {
	Role      *string `json:"role"`
	Disabled  *bool   `json:"disabled"`
	OIDCEmail *string `json:"oidc_email"`
}

func (d *Door) updatePerson(c *restCall) (any, error) {
	var in personChange
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	p, err := d.personNamed(c, c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	c.target("person", p.ID, p.Name)
	change := auth.PersonChange{Disabled: in.Disabled, OIDCEmail: in.OIDCEmail}
	if in.Role != nil {
		role, ok := auth.ParseRole(*in.Role)
		if !ok {
			return nil, fault.New(fault.InvalidParams, "role must be viewer, editor, admin or owner")
		}
		change.Role = &role
	}
	if p, err = d.d.Auth.UpdatePerson(c.Context(), c.caller, p.ID, change); err != nil {
		return nil, err
	}
	return p, nil
}

type passwordInput struct {
	Password string `json:"password"`
	Current  string `json:"current"`
}

// setPassword sets a password. With a session one's own needs the current one, so that a browser left open does not give the account away;
// that of others needs an admin whose role is not below theirs.
func (d *Door) setPassword(c *restCall) (any, error) {
	var in passwordInput
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	p, err := d.personNamed(c, c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	c.target("person", p.ID, p.Name)
	switch {
	case p.ID != c.caller.PersonID && c.caller.Role < auth.Admin:
		return nil, fault.New(fault.Forbidden, "the password of another person needs the role admin").Why("INSUFFICIENT_PERMISSIONS")
	case p.ID == c.caller.PersonID && c.session != nil:
		if err := d.d.Auth.HasPassword(c.Context(), p.ID, in.Current, remoteIP(c.Request)); err != nil {
			c.waits(err)
			return nil, err
		}
	}
	if err := d.d.Auth.SetPassword(c.Context(), c.caller.WorkspaceID, p.ID, in.Password); err != nil {
		return nil, err
	}
	return passwordSet{p.ID, p.Name}, nil
}
