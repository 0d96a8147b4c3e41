package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// validate checks what depends on more than one value. It returns one line a problem.
func (c *Config) validate() []string {
	var out []string
	bad := func(key, format string, args ...any) {
		where := c.origins[key]
		if where == "" {
			where = key
		}
		out = append(out, where+": "+fmt.Sprintf(format, args...))
	}
	if c.Data == "" {
		bad("data", "must name a folder")
	}
	if c.Database != "" && !strings.HasPrefix(c.Database, "postgres://") && !strings.HasPrefix(c.Database, "postgresql://") {
		bad("database", "must be a postgres:// URL or empty for SQLite")
	}
	if u := c.Audit.AnchorURL; u != "" {
		if !strings.HasPrefix(u, "https://") && !strings.HasPrefix(u, "http://") {
			bad("audit.anchor_url", "must be an http:// or https:// URL")
		}
		if len(c.Audit.AnchorSecret) < 32 {
			bad("audit.anchor_secret", "must have at least 32 characters where audit.anchor_url is set")
		}
	}
	if d := c.Audit.KeepDays; d == 1 || d > 36500 {
		bad("audit.keep_days", "must be 0 (never) or 2 to 36500: limits are counted from the rows of the last 48 hours")
	}
	if c.OTLP.Endpoint != "" && !webURL(c.OTLP.Endpoint, true) {
		bad("otlp.endpoint", "must be an http or https URL without user, query and fragment")
	}
	if _, err := c.OTLP.HeaderMap(); err != nil {
		bad("otlp.headers", "%v", err)
	}
	c.Approvals.validate(bad)
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		bad("tls.cert", "tls.cert and tls.key go together")
	}
	if loop, err := loopback(c.Listen); err != nil {
		bad("listen", "%v", err)
	} else if !loop && c.TLS.Cert == "" && !c.InsecureListen {
		bad("listen", "%s is reachable from other machines: set tls.cert and tls.key, or --insecure-listen (insecure_listen: true) when something in front does TLS", c.Listen)
	}
	if c.OpenListen != "" {
		if loop, err := loopback(c.OpenListen); err != nil {
			bad("open_listen", "%v", err)
		} else if !loop {
			bad("open_listen", "%s is reachable from other machines; a listener without keys must stay on loopback (127.0.0.1, ::1, localhost)", c.OpenListen)
		}
		if c.OpenAgent == "" {
			bad("open_agent", "must name an agent when open_listen is set")
		}
	}
	if c.PublicURL != "" && !webURL(c.PublicURL, true) {
		bad("public_url", "must be an http or https URL without user, query and fragment")
	}
	for _, o := range c.AllowedOrigins {
		if !webURL(o, false) {
			bad("allowed_origins", "%q is not an origin such as https://app.example", o)
		}
	}
	for _, h := range c.AllowedHosts {
		if strings.ContainsAny(h, "/ \t@") {
			bad("allowed_hosts", "%q is not a host name", h)
		}
	}
	c.identity(bad)
	c.oauth(bad)
	return out
}

// loopback reports whether an address can only be reached from this machine.
func loopback(addr string) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return false, fmt.Errorf("%q is not an address such as 127.0.0.1:8420", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return false, fmt.Errorf("%q is not a port", port)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}

func webURL(s string, path bool) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return false
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return path || u.Path == ""
}
