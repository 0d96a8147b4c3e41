package sandbox

import (
	"net/url"
	"slices"
	"strings"
)

// inherited are the variables a child gets from Doorward's own environment (spec/iac-code 2.2.5).
// Everything else, keys of other servers above all, it does not see.
var inherited = []string{
	"APPDATA", "ALL_PROXY", "CURL_CA_BUNDLE", "COMSPEC", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL",
	"LOCALAPPDATA", "NODE_EXTRA_CA_CERTS", "NO_PROXY", "PATH", "PATHEXT", "REQUESTS_CA_BUNDLE", "SHELL",
	"SSL_CERT_DIR", "SSL_CERT_FILE", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR",
	"UV_TOOL_DIR", "USER", "USERPROFILE", "USERNAME", "WINDIR", "XDG_CACHE_HOME",
	"all_proxy", "https_proxy", "http_proxy", "no_proxy",
}

// environment is the environment of a child: the allowlist out of own, then added, which wins. Sorted.
func environment(own []string, added map[string]string) []string {
	var env []string
	for _, kv := range own {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || !slices.Contains(inherited, k) || isProxy(k) && holdsCredentials(v) {
			continue
		}
		if _, set := added[k]; !set {
			env = append(env, kv)
		}
	}
	for k, v := range added {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

func isProxy(key string) bool {
	k := strings.ToLower(key)
	return strings.HasSuffix(k, "_proxy") && k != "no_proxy"
}

// holdsCredentials reports whether a proxy URL has a user or password, also where it has no scheme.
func holdsCredentials(v string) bool {
	if u, err := url.Parse(v); err == nil && u.Host != "" {
		return u.User != nil
	}
	return strings.Contains(v, "@")
}
