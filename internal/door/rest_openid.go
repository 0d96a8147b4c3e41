package door

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// routesOpenID are the sign-in with an OpenID Connect provider.
func routesOpenID() []route {
	open := func(path, name string, serve func(*Door, *restCall) (any, error), summary string) route {
		r := operation("GET", path, auth.NoRole, name, serve, summary)
		r.open = true
		return r
	}
	return []route{
		open(pathOpenID, "auth.oidc", (*Door).openIDStart, "Send the browser to the OpenID Connect provider (?return= a local path)"),
		open(pathOpenID+"/callback", methodOpenID, (*Door).openIDFinish, "Where the provider sends the browser back; sets a cookie"),
	}
}

const (
	pathOpenID   = "/api/v1/signin/oidc"
	methodOpenID = "auth.login_oidc"
	maxReturn    = 2000 // bytes of a path to return to
	maxAnswer    = 8000 // bytes of a provider's answer
)

// openIDCookie holds a sign-in that is under way. It is Lax, not Strict: the provider's redirect has to bring it back.
func (d *Door) openIDCookie(r *http.Request, value string) *http.Cookie {
	c := d.sessionCookie(r, value, auth.SignInLife)
	c.Name += "_oidc"
	return c
}

func (d *Door) openID() (*auth.OpenID, error) {
	if d.d.OpenID == nil {
		return nil, fault.New(fault.NotFound, "sign-in with a provider is not set up here; set oidc.issuer, or sign in with a password").Why("OIDC_OFF")
	}
	return d.d.OpenID, nil
}

func (d *Door) openIDStart(c *restCall) (any, error) {
	o, err := d.openID()
	if err != nil {
		return nil, err
	}
	back := c.URL.Query().Get("return")
	if back != "" && !localPath(back) {
		return nil, fault.New(fault.InvalidParams, "return must be a path on this host, such as /console")
	}
	location, sealed, err := o.Start(c.Context(), d.d.PublicURL+pathOpenID+"/callback", back)
	if err != nil {
		return nil, err
	}
	c.header.Add("Set-Cookie", d.openIDCookie(c.Request, sealed).String())
	return redirect(location), nil
}

// openIDFinish ends the sign-in. What stands in the record and what does not is as for signIn.
func (d *Door) openIDFinish(c *restCall) (any, error) {
	o, err := d.openID()
	if err != nil {
		return nil, err
	}
	under := d.openIDCookie(c.Request, "") // a sign-in has one answer, good or bad
	c.header.Add("Set-Cookie", under.String())
	cookie, err := c.Cookie(under.Name)
	if err != nil || len(c.URL.RawQuery) > maxAnswer {
		cookie = under
	}
	start := d.d.Now()
	out, back, err := o.Finish(c.Context(), cookie.Value, c.URL.Query(), d.d.PublicURL+pathOpenID+"/callback", remoteIP(c.Request))
	c.waits(err)
	c.row = audit.Event{
		Kind: audit.Admin, TraceID: c.id, WorkspaceID: out.WorkspaceID, PersonID: out.Person.ID, KeyID: out.Session.ID, Door: doorREST, Method: methodOpenID,
		Reason: out.Note,
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
		if out.WorkspaceID != "" { // the cause, which the answer does not have
			d.d.Log.Warn("sign-in with the provider refused", "request_id", c.id, "error", clip(err.Error(), 500))
		}
		return nil, err
	}
	c.header.Add("Set-Cookie", d.sessionCookie(c.Request, out.Cookie, auth.SessionLife).String())
	if back != "" {
		return redirect(back), nil
	}
	return signedIn{out.Person, out.WorkspaceID, out.Session}, nil
}

// redirect is an answer that sends the browser on.
func redirect(location string) streamed {
	return func(w http.ResponseWriter) {
		w.Header().Set("Location", location)
		w.Header().Set("Referrer-Policy", "no-referrer") // the address holds the code
		w.WriteHeader(http.StatusSeeOther)
	}
}

// localPath: a browser reads "//host", "/\host" and a path with a tab in it as another host.
func localPath(s string) bool {
	u, err := url.Parse(s)
	return err == nil && len(s) <= maxReturn && u.Scheme == "" && u.Host == "" && u.User == nil && strings.HasPrefix(s, "/") &&
		!strings.HasPrefix(s, "//") && !strings.ContainsFunc(s, func(r rune) bool { return r == '\\' || r <= ' ' || r == 0x7f })
}
