package mcp

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// choose takes the way to the server: our own client, or that of net/http when a proxy applies.
func (h *HTTP) choose() error {
	config := &tls.Config{}
	if h.opt.TLS != nil {
		config = h.opt.TLS.Clone()
	}
	proxy := h.opt.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	if via, err := proxy(&http.Request{URL: h.url}); err != nil {
		return fault.Wrap(fault.Config, err, "the proxy setting of the environment is not valid")
	} else if via != nil {
		h.std = &http.Transport{
			Proxy: http.ProxyURL(via), TLSClientConfig: config, DisableCompression: true, MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHead, TLSHandshakeTimeout: dialTimeout,
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		}
		return nil
	}
	port := h.url.Port()
	if h.url.Scheme == "https" {
		config.NextProtos = []string{"http/1.1"}
		if config.ServerName == "" {
			config.ServerName = h.url.Hostname()
		}
		h.own.tls = config
		port = cmp.Or(port, "443")
	}
	h.own.addr = net.JoinHostPort(h.url.Hostname(), cmp.Or(port, "80"))
	return nil
}

// ofHop are headers that only this package sets: framing, and what MCP defines per hop.
var ofHop = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Expect", "Keep-Alive", "Last-Event-Id", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Accept-Encoding", "Proxy-Connection", HeaderVersion, HeaderSession, HeaderMethod, HeaderName,
}

// setHeaders prepares the part of the heads that is the same for every request.
func (h *HTTP) setHeaders() error {
	h.fixed = http.Header{"User-Agent": {h.opt.UserAgent}}
	host := h.url.Host
	if u := h.url.User; u != nil {
		pw, _ := u.Password()
		h.fixed.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+pw)))
	}
	for name, value := range h.opt.Headers {
		key := http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name) || !fieldValue(value):
			return fault.New(fault.Config, "header %q of the server is not valid", excerpt([]byte(name)))
		case slices.Contains(ofHop, key) || strings.HasPrefix(key, HeaderParamPrefix):
			return fault.New(fault.Config, "header %s cannot be configured: it is made anew for every request", key)
		case key == "Host":
			host = value
		default:
			h.fixed.Set(key, value)
		}
	}
	h.heads = map[string][]byte{}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		head := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, h.url.RequestURI(), host)
		for _, key := range slices.Sorted(maps.Keys(h.fixed)) {
			head = appendField(head, key, h.fixed.Get(key))
		}
		h.heads[method] = head
	}
	if host != h.url.Host {
		h.fixed.Set("Host", host)
	}
	return nil
}

// fieldValue reports whether a value can stand in a header.
func fieldValue(v string) bool {
	for i := range len(v) {
		if v[i] < 0x20 && v[i] != '\t' || v[i] == 0x7f {
			return false
		}
	}
	return true
}

func appendField(dst []byte, key, value string) []byte {
	if !fieldValue(value) {
		return dst
	}
	return append(append(append(append(dst, key...), ": "...), value...), "\r\n"...)
}
