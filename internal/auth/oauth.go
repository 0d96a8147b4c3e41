package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"doorward.dev/doorward/internal/fault"
)

// The reasons of refused access tokens.
const (
	ReasonAccessToken   = "INVALID_TOKEN"
	ReasonScope         = "INSUFFICIENT_SCOPE"
	ReasonUnknownClient = "OAUTH_CLIENT_UNKNOWN"
)

// OAuthConfig says whose access tokens are accepted, and for what.
type OAuthConfig struct {
	Issuers              []string
	Audience             string // of the aggregate door; with /SERVER behind it that of the door of one server
	ReadScope, CallScope string // for tools of class read; for all
}

const (
	maxToken = 16 << 10 // bytes of an access token
	// A verified token is believed for verifiedLife, and a key set for keysLife, so that a key which the server withdrew does not stay good for long.
	verifiedLife = 5 * time.Minute
	keysLife     = 15 * time.Minute
	// keysEvery is how often a server is asked for its keys at most: anybody can send tokens of unknown keys.
	keysEvery = 10 * time.Second
	clockSkew = time.Minute // of nbf
	maxCached = 10_000
)

// OAuth accepts access tokens of authorization servers: Doorward as a protected resource. Safe for concurrent use.
type OAuth struct {
	a       *Auth
	c       OAuthConfig
	servers map[string]*tokenIssuer

	mu    sync.RWMutex
	known map[[sha256.Size]byte]*accessToken
}

// NewOAuth makes the check of tokens. The servers are asked at the first one.
func NewOAuth(a *Auth, c OAuthConfig) *OAuth {
	o := &OAuth{a: a, c: c, servers: make(map[string]*tokenIssuer), known: make(map[[sha256.Size]byte]*accessToken)}
	for _, url := range c.Issuers {
		t := &throttle{rt: providerTransport(), now: a.now}
		o.servers[url] = &tokenIssuer{issuer: issuer{url: url, client: providerClient(providerTransport()), now: a.now}, client: providerClient(t)}
	}
	return o
}

// Config is what it was made with.
func (o *OAuth) Config() OAuthConfig { return o.c }

// IsAccessToken reports whether a bearer looks like an access token that can be verified: a JWT.
func IsAccessToken(bearer string) bool {
	return strings.HasPrefix(bearer, "eyJ") && strings.Count(bearer, ".") == 2
}

// accessToken is a token that was verified.
type accessToken struct {
	issuer, client, subject string
	audience                []string
	read, call              bool  // scopes
	expires                 int64 // unix microseconds, as all times here
	until                   int64 // when it is verified anew
	bound                   atomic.Pointer[boundCaller]
}

// boundCaller is who a token stands for as of a snapshot.
type boundCaller struct {
	snap   *snapshot
	caller Caller
	err    error
}

// Authenticate finds the caller of an access token at the door of a server, or ("") at any other. Errors are fault.Unauthenticated,
// fault.Forbidden (unknown client, no scope), or fault.Unavailable when the authorization server does not answer.
func (o *OAuth) Authenticate(ctx context.Context, bearer, server string) (*Caller, error) {
	if len(bearer) > maxToken {
		return nil, invalidAccess(errors.New("too long"))
	}
	sum, now := sha256.Sum256([]byte(bearer)), o.a.now().UnixMicro()
	o.mu.RLock()
	t := o.known[sum]
	o.mu.RUnlock()
	if t == nil || now >= t.until {
		var err error
		if t, err = o.verify(ctx, bearer); err != nil {
			return nil, err
		}
		o.keep(sum, t)
	}
	switch {
	case now >= t.expires:
		return nil, invalidAccess(errors.New("expired"))
	case !slices.Contains(t.audience, o.c.Audience) && (server == "" || !slices.Contains(t.audience, o.c.Audience+"/"+server)):
		return nil, invalidAccess(errors.New("it is for another resource"))
	case !t.read && !t.call:
		return nil, InsufficientScope(o.c.ReadScope + " " + o.c.CallScope)
	}
	snap := o.a.current.Load()
	b := t.bound.Load()
	if b == nil || b.snap != snap {
		b = o.bind(snap, t)
		t.bound.Store(b)
	}
	if b.err != nil {
		return nil, b.err
	}
	return &b.caller, nil
}

// InsufficientScope is the refusal of a token that lacks a scope; the door makes a challenge of it.
func InsufficientScope(scope string) *fault.Error {
	return fault.New(fault.Forbidden, "the access token lacks the scope %s", scope).Why(ReasonScope).With("scope", scope)
}

func invalidAccess(err error) error {
	return fault.Wrap(fault.Unauthenticated, err, "the access token is not valid here; get a new one for this resource").Why(ReasonAccessToken)
}

// keep remembers a verified token. When there are too many all are forgotten: they are verified again when they come.
func (o *OAuth) keep(sum [sha256.Size]byte, t *accessToken) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) >= maxCached {
		clear(o.known)
	}
	o.known[sum] = t
}

// bind finds the agent of a token's client, and the person of its subject when that one is linked.
func (o *OAuth) bind(s *snapshot, t *accessToken) *boundCaller {
	b := &boundCaller{snap: s}
	k, ok := s.clients[identity{t.issuer, t.client}]
	if !ok {
		b.err = fault.New(fault.Forbidden, "this OAuth client is not bound to an agent; an admin binds it (doorward agent oauth add)").Why(ReasonUnknownClient)
		return b
	}
	c := &b.caller
	sub := sha256.Sum256([]byte(t.subject))
	c.WorkspaceID, c.AgentID = k.WorkspaceID, k.AgentID
	c.KeyID = k.ID + "." + hex.EncodeToString(sub[:4]) // what hangs on it, such as a session, is of one subject
	if g := s.agents[c.AgentID]; g != nil && g.WorkspaceID == c.WorkspaceID {
		c.Agent = g
	}
	if !t.call {
		c.LacksScope = o.c.CallScope
	}
	if id := s.linked[identity{t.issuer, t.subject}]; id != "" && t.subject != t.client {
		p, ok := s.people[id]
		switch {
		case !ok:
			b.err = fault.New(fault.Forbidden, "the person on whose behalf the token acts may not act any more").Why(ReasonDisabled)
		case p.workspace == c.WorkspaceID:
			c.ActorPersonID, c.ActorName, c.ActorRole = id, p.name, p.role
		}
	}
	return b
}

// verify checks issuer, signature, times and form of a token.
func (o *OAuth) verify(ctx context.Context, bearer string) (*accessToken, error) {
	var unverified struct {
		Issuer string `json:"iss"`
	}
	_, rest, _ := strings.Cut(bearer, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(text, &unverified) != nil {
		return nil, invalidAccess(errors.New("not a JWT"))
	}
	server := o.servers[unverified.Issuer]
	if server == nil {
		return nil, invalidAccess(errors.New("its issuer is not one of oauth.issuers"))
	}
	id, err := server.verify(ctx, bearer)
	if err != nil {
		return nil, err
	}
	var c struct {
		ClientID string          `json:"client_id"`
		Party    string          `json:"azp"`
		Scope    json.RawMessage `json:"scope"`
		Scp      json.RawMessage `json:"scp"`
		From     json.Number     `json:"nbf"`
		Proof    json.RawMessage `json:"cnf"`
	}
	if err := id.Claims(&c); err != nil {
		return nil, invalidAccess(errors.New("its claims cannot be read"))
	}
	if c.ClientID == "" {
		c.ClientID = c.Party
	}
	from, _ := c.From.Float64()
	now := o.a.now()
	switch {
	case c.Proof != nil: // it is bound to a key that its holder would have to prove; as a mere bearer it may be stolen
		return nil, invalidAccess(errors.New("it is bound to a key (cnf), which is not checked here"))
	case c.ClientID == "" || len(c.ClientID) > maxSubject || len(id.Subject) > maxSubject:
		return nil, invalidAccess(errors.New("it names no client"))
	case from > float64(now.Add(clockSkew).Unix()):
		return nil, invalidAccess(errors.New("it is not valid yet"))
	case !id.Expiry.After(now):
		return nil, invalidAccess(errors.New("expired"))
	}
	scopes := append(words(c.Scope), words(c.Scp)...)
	t := &accessToken{
		issuer: id.Issuer, client: c.ClientID, subject: id.Subject, audience: id.Audience, expires: id.Expiry.UnixMicro(),
		until: min(id.Expiry.UnixMicro(), now.Add(verifiedLife).UnixMicro()),
		read:  slices.Contains(scopes, o.c.ReadScope), call: slices.Contains(scopes, o.c.CallScope),
	}
	return t, nil
}

// words reads the scopes of a claim: one text, or a list of them.
func words(raw json.RawMessage) []string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.Fields(text)
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// tokenIssuer is an authorization server with its keys.
type tokenIssuer struct {
	issuer
	client *http.Client // for the keys, throttled

	keysMu sync.Mutex
	keys   oidc.KeySet
	since  time.Time
}

func (i *tokenIssuer) verify(ctx context.Context, bearer string) (*oidc.IDToken, error) {
	keys, err := i.keySet(ctx)
	if err != nil {
		return nil, err
	}
	noted := &notedKeys{KeySet: keys}
	id, err := oidc.NewVerifier(i.url, noted, &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms, Now: i.now}).Verify(ctx, bearer)
	switch {
	case err == nil:
		return id, nil
	case noted.down:
		return nil, providerDown(err)
	}
	return nil, invalidAccess(err)
}

// keySet gives the keys, which are fetched when a token first needs them and when one is of an unknown key.
func (i *tokenIssuer) keySet(ctx context.Context) (oidc.KeySet, error) {
	i.keysMu.Lock()
	defer i.keysMu.Unlock()
	if i.keys != nil && i.now().Sub(i.since) < keysLife {
		return i.keys, nil
	}
	p, err := i.provider(ctx)
	if err != nil {
		return nil, err
	}
	var meta struct {
		Keys string `json:"jwks_uri"`
	}
	if err := p.Claims(&meta); err != nil || meta.Keys == "" {
		return nil, providerDown(errors.New("its metadata has no jwks_uri"))
	}
	i.keys, i.since = oidc.NewRemoteKeySet(oidc.ClientContext(context.WithoutCancel(ctx), i.client), meta.Keys), i.now()
	return i.keys, nil
}

// notedKeys notes that a signature could not be checked because the keys could not be fetched, which go-oidc does not tell apart.
type notedKeys struct {
	oidc.KeySet
	down bool
}

func (k *notedKeys) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, jwt)
	k.down = err != nil && !errors.Is(err, errThrottled) && strings.HasPrefix(err.Error(), "fetching keys")
	return payload, err
}

var errThrottled = errors.New("the keys were fetched a moment ago")

// throttle lets one request through each keysEvery.
type throttle struct {
	rt  http.RoundTripper
	now func() time.Time

	mu   sync.Mutex
	last time.Time
	err  error // of the last one
}

func (t *throttle) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock() // also while it is under way: one at a time
	defer t.mu.Unlock()
	if !t.last.IsZero() && t.now().Sub(t.last) < keysEvery {
		if t.err != nil {
			return nil, t.err
		}
		return nil, errThrottled
	}
	res, err := t.rt.RoundTrip(r)
	if t.last, t.err = t.now(), err; err == nil && res.StatusCode != http.StatusOK {
		t.err = errors.New("the server has no keys to give")
	}
	return res, err
}
