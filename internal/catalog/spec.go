package catalog

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// Spec is how a server is reached, secrets in the clear. It is never logged or shown.
type Spec struct {
	Name          string            `json:"name"`
	Description   string            `json:"description,omitempty"`
	ConnectorType string            `json:"connector_type,omitempty"`
	Transport     string            `json:"transport"`
	Command       string            `json:"command,omitempty"`
	Args          []string          `json:"args,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Cwd           string            `json:"cwd,omitempty"`
	URL           string            `json:"server_url,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Origin        string            `json:"-"`
	OriginPath    string            `json:"-"`
}

// The transports that work. sse and ws are known words that are not served yet.
const (
	TransportStdio   = "stdio"
	TransportHTTP    = "http"
	TransportBuiltin = "builtin"
)

// Limits of a spec.
const (
	maxDescription = 4000 // bytes
	maxValue       = 32 << 10
	maxItems       = 256 // args, env variables, headers
)

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	// idForm is the form of ids: a name of that form would make "name or id" ambiguous.
	idForm     = regexp.MustCompile(`^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	connectors = map[string]bool{"custom": true, "salesforce": true, "copilot": true, "servicenow": true, "cursor": true, "windsurf": true, "claude_code": true}
	// ownHeaders belong to the hop; the transport writes them.
	ownHeaders = map[string]bool{"Connection": true, "Content-Length": true, "Transfer-Encoding": true, "Upgrade": true, "Te": true, "Trailer": true, "Last-Event-Id": true}
)

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidParams, format, args...).Why("mcp_server_invalid")
}

// normalise fills in what follows from the rest.
func (s *Spec) normalise() {
	if s.Transport == "" {
		switch {
		case s.Command != "" && s.URL == "":
			s.Transport = TransportStdio
		case s.URL != "" && s.Command == "":
			s.Transport = TransportHTTP
		}
	}
	if s.ConnectorType == "" {
		s.ConnectorType = "custom"
	}
	if s.Origin == "" {
		s.Origin = OriginDatabase
	}
	// The caller keeps its own: stored secrets are put into these.
	s.Args, s.Env = slices.Clone(s.Args), maps.Clone(s.Env)
	headers := make(map[string]string, len(s.Headers))
	for k, v := range s.Headers {
		headers[http.CanonicalHeaderKey(k)] = v
	}
	s.Headers = headers
}

// check says what is wrong with a normalised spec, and what is possible.
func (s *Spec) check(reserved []string) error {
	if err := checkServerName(s.Name, s.Origin, reserved); err != nil {
		return err
	}
	if len(s.Description) > maxDescription {
		return invalid("description is longer than %d bytes", maxDescription)
	}
	if !connectors[s.ConnectorType] {
		return invalid("connector_type must be one of custom, salesforce, copilot, servicenow, cursor, windsurf, claude_code")
	}
	if len(s.Args) > maxItems || len(s.Env) > maxItems || len(s.Headers) > maxItems {
		return invalid("args, env and headers take at most %d entries each", maxItems)
	}
	switch s.Transport {
	case TransportStdio:
		return s.checkStdio()
	case TransportHTTP:
		return s.checkHTTP()
	case TransportBuiltin:
		if s.Origin != OriginBuiltin {
			return invalid("transport builtin is for the servers inside Doorward; use stdio or http")
		}
		return nil
	case "sse", "ws":
		return fault.New(fault.InvalidParams, "transport %s is not supported yet; use stdio or http", s.Transport).Why("mcp_transport_unsupported")
	}
	return invalid("transport must be stdio or http")
}

func checkServerName(name, origin string, reserved []string) error {
	switch {
	case !nameForm.MatchString(name):
		return invalid("name must be 1 to 64 characters of A-Z a-z 0-9 _ . -")
	case strings.HasPrefix(name, "mcp__"), strings.Contains(name, "__"):
		return invalid(`name must not contain "__": it separates server and tool in the names of tools`)
	case strings.Trim(name, ".") == "" || idForm.MatchString(name):
		return invalid("name must not be only dots or have the form of an id")
	}
	for _, r := range reserved {
		if strings.EqualFold(name, r) && origin != OriginBuiltin {
			return invalid("name %s is that of a built-in server; choose another", r)
		}
	}
	return nil
}

func (s *Spec) checkStdio() error {
	if s.Command == "" {
		return invalid("transport stdio needs a command")
	}
	if s.URL != "" || len(s.Headers) > 0 {
		return invalid("transport stdio takes no server_url and no headers")
	}
	for _, v := range append([]string{s.Command, s.Cwd}, s.Args...) {
		if len(v) > maxValue || strings.Contains(v, "\x00") {
			return invalid("command, cwd and args must be shorter than %d bytes and hold no NUL", maxValue)
		}
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || len(v) > maxValue || strings.Contains(v, "\x00") {
			return invalid("env: a name must not be empty or hold '=', a value must be shorter than %d bytes and hold no NUL", maxValue)
		}
	}
	return nil
}

func (s *Spec) checkHTTP() error {
	if s.Command != "" || len(s.Args) > 0 || len(s.Env) > 0 || s.Cwd != "" {
		return invalid("transport http takes no command, args, env and cwd")
	}
	// What a reference stands for is not known before the server is started.
	if !strings.Contains(s.URL, "${") {
		if err := checkURL(s.URL); err != nil {
			return err
		}
	}
	for k, v := range s.Headers {
		if !headerForm.MatchString(k) || len(v) > maxValue || strings.ContainsAny(v, "\r\n\x00") {
			return invalid("headers: a name must be an HTTP token, a value must be one line shorter than %d bytes", maxValue)
		}
		if ownHeaders[k] || strings.HasPrefix(k, "Mcp-") {
			return invalid("headers: %s belongs to the connection and is set by Doorward", k)
		}
	}
	return nil
}

func checkURL(text string) error {
	if len(text) > maxValue {
		return invalid("server_url is longer than %d bytes", maxValue)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" { // the error of Parse quotes the URL with its secrets
		return invalid("transport http needs a server_url such as https://host/mcp")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return invalid("server_url must begin with http:// or https://")
	}
	if u.Fragment != "" {
		return invalid("server_url must not have a fragment")
	}
	return nil
}
