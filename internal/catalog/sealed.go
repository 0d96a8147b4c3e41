package catalog

import (
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

// sealedParts is the part of a spec that is encrypted at rest, bound to the server's id.
type sealedParts struct {
	Env     map[string]string `json:"env,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Args    []string          `json:"args,omitempty"`
	URL     string            `json:"server_url,omitempty"`
}

// seal gives what is stored of a spec: the sealed parts, and args and URL as they are shown.
func (c *Catalog) seal(id string, s Spec) (sealed, args string, err error) {
	plain, err := json.Marshal(sealedParts{Env: s.Env, Headers: s.Headers, Args: s.Args, URL: s.URL})
	if err != nil {
		return "", "", err
	}
	if sealed, err = c.d.Box.Seal(id, plain); err != nil {
		return "", "", fault.Wrap(fault.Internal, err, "the secrets of the server could not be sealed")
	}
	shown, err := json.Marshal(maskArgs(s.Args))
	return sealed, string(shown), err
}

func (c *Catalog) open(id, sealed string) (sealedParts, error) {
	var p sealedParts
	if sealed == "" {
		return p, nil
	}
	plain, err := c.d.Box.Open(id, sealed)
	if err == nil {
		err = json.Unmarshal(plain, &p)
	}
	if err != nil {
		return p, fault.Wrap(fault.Internal, err, "the secrets of server %s cannot be opened: is the key file the one they were sealed with?", id)
	}
	return p, nil
}

// redact tells the redactor the secrets of each server that changed. Those of
// a removed server stay known: the record of its last calls is still written.
func (c *Catalog) redact(sealed map[string]string) {
	for id, text := range sealed {
		if known, ok := c.redacted[id]; ok && known == text {
			continue
		}
		p, err := c.open(id, text)
		if err != nil {
			// One unreadable server must not keep the others from being served; Config says what is wrong.
			continue
		}
		c.d.Redactor.Set(id, p.secrets())
		c.redacted[id] = text
	}
}

// plainNames are variables and headers whose values are words of everyday;
// redacting those would make the record unreadable.
var plainNames = map[string]bool{
	"PATH": true, "HOME": true, "LANG": true, "LC_ALL": true, "TZ": true, "NODE_ENV": true, "LOG_LEVEL": true, "DEBUG": true, "NO_COLOR": true,
	"Accept": true, "Content-Type": true, "User-Agent": true, "Accept-Language": true,
}

// secrets gives every value that must not be seen, as it is stored and as it
// is after the references in it are replaced.
func (p sealedParts) secrets() []string {
	var out []string
	add := func(v string) {
		if v == "" || bareReference.MatchString(v) {
			return // a bare reference is no secret, what it stands for is added below
		}
		out = append(out, v)
		out = append(out, leaves(v)...)
	}
	both := func(v string) {
		add(v)
		if expanded, err := expand(v); err == nil && expanded != v {
			out = append(out, expanded)
			out = append(out, leaves(expanded)...)
		}
	}
	for _, values := range []map[string]string{p.Env, p.Headers} {
		for k, v := range values {
			if !plainNames[k] {
				both(v)
			}
		}
	}
	for i := range p.Args {
		for _, v := range texts(p.Args[i], argSecrets(p.Args, i)) {
			both(v)
		}
	}
	for _, v := range texts(p.URL, urlSecrets(p.URL)) {
		both(v)
	}
	return out
}

// leaves gives the strings of a JSON value, such as the headers in Notion's
// OPENAPI_MCP_HEADERS: the token in there is seen alone, too.
func leaves(v string) []string {
	if !strings.HasPrefix(strings.TrimSpace(v), "{") || !json.Valid([]byte(v)) {
		return nil
	}
	var values map[string]any
	if json.Unmarshal([]byte(v), &values) != nil {
		return nil
	}
	var out []string
	for key, value := range values {
		if s, ok := value.(string); ok && (secret.SensitiveKey(key) || looksSecret(s)) {
			out = append(out, s)
		}
	}
	return out
}

var (
	// reference is ${NAME} or ${NAME:-default}.
	reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)
	// bareReference is a reference without a default, which could be a secret itself.
	bareReference = regexp.MustCompile(`^\$\{[A-Za-z_][A-Za-z0-9_]*\}$`)
	// knownTokens are the forms of keys of well-known services.
	knownTokens = regexp.MustCompile(`^(sk-|sk_|pk_|rk_|ghp_|gho_|ghs_|ghu_|github_pat_|glpat-|xox[abprs]-|ntn_|secret_|fc-|AKIA|AIza|ya29\.|eyJ[A-Za-z0-9_-]+\.eyJ|pv_live_|pv_test_|agent_|dw_|Bearer |Basic )\S{8,}`)
)

func looksSecret(s string) bool { return knownTokens.MatchString(s) }

// expand replaces references by the environment of this process.
func expand(v string) (string, error) {
	var missing error
	out := reference.ReplaceAllStringFunc(v, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		name := m[1]
		// Doorward's own settings hold its keys and its database's password.
		if strings.HasPrefix(name, "DOORWARD_") {
			missing = fault.New(fault.Config, "${%s} is a setting of Doorward itself and is not given to servers", name)
			return ""
		}
		if value, ok := os.LookupEnv(name); ok && (value != "" || m[2] == "") {
			return value
		}
		if m[2] != "" {
			return m[3]
		}
		missing = fault.New(fault.Config, "the environment has no variable %s; set it, or write ${%s:-default}", name, name)
		return ""
	})
	return out, missing
}

// expandAll replaces the references of a whole spec.
func (s *Spec) expandAll() error {
	one := func(field string, v *string) error {
		out, err := expand(*v)
		if err != nil {
			return fault.New(fault.Config, "server %s, %s: %s", s.Name, field, fault.From(err).Message).Why("mcp_variable_missing")
		}
		*v = out
		return nil
	}
	for _, f := range []struct {
		name string
		v    *string
	}{{"command", &s.Command}, {"cwd", &s.Cwd}, {"server_url", &s.URL}} {
		if err := one(f.name, f.v); err != nil {
			return err
		}
	}
	for i := range s.Args {
		if err := one("args", &s.Args[i]); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		name   string
		values map[string]string
	}{{"env", s.Env}, {"headers", s.Headers}} {
		for _, k := range slices.Sorted(maps.Keys(m.values)) {
			v := m.values[k]
			if err := one(m.name+" "+k, &v); err != nil {
				return err
			}
			m.values[k] = v
		}
	}
	return nil
}

// span is a part of a text: text[from:to].
type span struct{ from, to int }

// argSecrets gives the secret parts of an argument: --token X, --token=X,
// TOKEN=X, "Authorization: X", the secrets of a URL, or a value that has the form of a known key.
func argSecrets(args []string, i int) []span {
	arg := args[i]
	if i > 0 && strings.HasPrefix(args[i-1], "-") && !strings.ContainsAny(args[i-1], "=:") && secret.SensitiveKey(args[i-1]) && !strings.HasPrefix(arg, "--") {
		return []span{{0, len(arg)}}
	}
	if looksSecret(arg) {
		return []span{{0, len(arg)}}
	}
	if strings.Contains(arg, "://") {
		if s := urlSecrets(arg); s != nil {
			return s
		}
	}
	if at := strings.IndexAny(arg, "=:"); at > 0 {
		value := strings.TrimLeft(arg[at+1:], " \t")
		if value != "" && !strings.HasPrefix(value, "//") && (secret.SensitiveKey(arg[:at]) || looksSecret(value)) {
			return []span{{len(arg) - len(value), len(arg)}}
		}
	}
	return nil
}

// urlSecrets gives the password (or the user, when there is none) and the
// values of query parameters with a telling name. It does not parse: what is no proper URL may hold secrets, too.
func urlSecrets(text string) []span {
	var out []span
	scheme := strings.Index(text, "://")
	if scheme < 0 {
		return nil
	}
	start := scheme + 3
	end := len(text)
	if n := strings.IndexAny(text[start:], "/?#"); n >= 0 {
		end = start + n
	}
	if n := strings.LastIndexByte(text[start:end], '@'); n > 0 {
		from := start
		if colon := strings.IndexByte(text[start:start+n], ':'); colon >= 0 {
			from = start + colon + 1
		}
		if from < start+n {
			out = append(out, span{from, start + n})
		}
	}
	mark := strings.IndexByte(text[end:], '?')
	if mark < 0 {
		return out
	}
	at := end + mark + 1
	for pair := range strings.SplitAfterSeq(text[at:], "&") {
		key, value, _ := strings.Cut(strings.TrimSuffix(pair, "&"), "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		if value != "" && (secret.SensitiveKey(key) || looksSecret(value)) {
			from := at + strings.IndexByte(pair, '=') + 1
			out = append(out, span{from, from + len(value)})
		}
		at += len(pair)
	}
	return out
}

// texts gives the parts as written and, where that differs, percent-decoded.
func texts(text string, spans []span) []string {
	var out []string
	for _, s := range spans {
		v := text[s.from:s.to]
		out = append(out, v)
		if plain, err := url.QueryUnescape(v); err == nil && plain != v && plain != "" {
			out = append(out, plain)
		}
	}
	return out
}

func maskArgs(args []string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = maskParts(arg, argSecrets(args, i))
	}
	return out
}

func maskURL(text string) string { return maskParts(text, urlSecrets(text)) }

// maskParts replaces the parts, which are in order. A bare reference is shown: it holds no secret.
func maskParts(text string, parts []span) string {
	var out strings.Builder
	at := 0
	for _, p := range parts {
		if bareReference.MatchString(text[p.from:p.to]) {
			continue
		}
		out.WriteString(text[at:p.from])
		out.WriteString(secret.Masked)
		at = p.to
	}
	out.WriteString(text[at:])
	return out.String()
}

// maskMap masks all values: what a name tells about its value is a guess, and
// a wrong one would show a secret. A bare reference holds none.
func maskMap(in map[string]string) map[string]string {
	if in == nil {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		if v != "" && !bareReference.MatchString(v) {
			v = secret.Masked
		}
		out[k] = v
	}
	return out
}

// Masked is the spec with every secret value replaced by secret.Masked, for showing.
func (s Spec) Masked() Spec {
	s.Args, s.URL, s.Env, s.Headers = maskArgs(s.Args), maskURL(s.URL), maskMap(s.Env), maskMap(s.Headers)
	return s
}
