package cli

import (
	"io"
	"net/url"
	"strings"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/fault"
)

type personSetCmd struct {
	Name    string  `arg:"" help:"Name or id."`
	Role    string  `help:"viewer, editor, admin or owner." enum:",viewer,editor,admin,owner" default:"" placeholder:"ROLE"`
	Disable bool    `help:"Nothing of that person works any more: keys, sessions, tasks." xor:"able"`
	Enable  bool    `help:"Lift that." xor:"able"`
	OIDC    *string `name:"oidc-email" help:"Invite with this verified e-mail address; empty takes the invitation back." placeholder:"ADDRESS"`
}

func (c *personSetCmd) Run(e *env) error {
	in := map[string]any{}
	if c.Role != "" {
		in["role"] = c.Role
	}
	if c.Disable || c.Enable {
		in["disabled"] = c.Disable
	}
	if c.OIDC != nil {
		in["oidc_email"] = *c.OIDC
	}
	return ask(e, "PATCH", peoplePath+"/"+url.PathEscape(c.Name), in, func(p auth.Person) {
		e.print("person_set", p.Name, p.Role)
		if p.DisabledAt != 0 {
			e.print("person_disabled", p.Name)
		}
	})
}

// maxPasswordInput bounds what is read for a password, in bytes.
const maxPasswordInput = 4 << 10

type personPasswdCmd struct {
	Name string `arg:"" help:"Name or id."`
	File string `arg:"" optional:"" help:"File that holds the password. Without one it is read from standard input."`
}

func (c *personPasswdCmd) Run(e *env) error {
	var password string
	if c.File != "" {
		text, err := config.ReadSecret(c.File)
		if err != nil {
			return fault.New(fault.Config, "%v", err)
		}
		password = text
	} else {
		b, err := io.ReadAll(io.LimitReader(e.stdin, maxPasswordInput))
		if err != nil {
			return fault.Wrap(fault.Config, err, "standard input cannot be read")
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	in := map[string]string{"password": password}
	return ask(e, "POST", peoplePath+"/"+url.PathEscape(c.Name)+"/password", in, func(p auth.Person) { e.print("passwd_set", p.Name) })
}
