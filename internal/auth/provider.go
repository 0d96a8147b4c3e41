package auth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"doorward.dev/doorward/internal/fault"
)

// What a provider may take, and how often it is asked.
const (
	providerTimeout = 10 * time.Second
	providerBody    = 1 << 20 // bytes of an answer
	providerRetry   = 5 * time.Second
)

// algorithms are the signatures that are believed: those with a public key. With HS* whoever knows the client's secret could sign, with none anybody.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// providerClient talks to providers: no redirects, which could lead a secret elsewhere, and bounded answers.
func providerClient(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: boundedTransport{rt}, Timeout: providerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a provider must not redirect") },
	}
}

// providerTransport keeps no idle connections: sign-ins are rare, and nothing has to end them.
func providerTransport() http.RoundTripper {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: providerTimeout, MaxResponseHeaderBytes: 64 << 10}
}

type boundedTransport struct{ http.RoundTripper }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, providerBody), res.Body}
	}
	return res, err
}

// issuer is a provider whose metadata is fetched when it is first needed: that it is down must not keep Doorward from starting.
type issuer struct {
	url    string
	client *http.Client
	now    func() time.Time

	mu    sync.Mutex
	known *oidc.Provider
	tried time.Time // last failure
	err   error
}

// provider gives the provider's metadata. After a failure it does not ask again for a while, so that callers cannot make Doorward hammer it.
func (i *issuer) provider(ctx context.Context) (*oidc.Provider, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known != nil {
		return i.known, nil
	}
	if i.err != nil && i.now().Sub(i.tried) < providerRetry {
		return nil, i.err
	}
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), i.client), i.url)
	if err != nil {
		i.tried, i.err = i.now(), providerDown(err)
		return nil, i.err
	}
	i.known, i.err = p, nil
	return p, nil
}

func providerDown(err error) error {
	return fault.Wrap(fault.Unavailable, err, "the identity provider does not answer as it should; try again later").Why("PROVIDER_UNAVAILABLE")
}
