package auth

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

// The reasons of refused sign-ins with a provider.
const (
	ReasonState         = "SIGN_IN_STATE"
	ReasonProvider      = "PROVIDER_REFUSED"
	ReasonToken         = "PROVIDER_TOKEN_INVALID"
	ReasonUnknownPerson = "PERSON_UNKNOWN"
	ReasonDisabled      = "PERSON_DISABLED"
	ReasonEmail         = "EMAIL_NOT_VERIFIED"
	ReasonDomain        = "EMAIL_DOMAIN"
)

// SignInLife is how long a person may take at the provider.
const SignInLife = 10 * time.Minute

// OpenIDConfig says which provider is believed, and whom it may let in.
type OpenIDConfig struct {
	Issuer, ClientID, ClientSecret string
	Scopes                         []string
	Workspace                      string          // slug
	RoleClaim                      string          // empty: roles are set here, not by the provider
	Roles                          map[string]Role // by value of the claim
	DefaultRole                    Role            // of people that are created, and where no value of the claim has a role
	Domains                        []string        // of e-mail addresses that are let in; empty: all
	Create                         bool            // make a person at the first sign-in
}

// OpenID lets people sign in with an OpenID Connect provider. Safe for concurrent use.
type OpenID struct {
	a      *Auth
	box    *secret.Box
	c      OpenIDConfig
	issuer *issuer
}

// NewOpenID makes the sign-in. The provider is asked at the first one.
func NewOpenID(a *Auth, box *secret.Box, c OpenIDConfig) *OpenID {
	return &OpenID{a: a, box: box, c: c, issuer: &issuer{url: c.Issuer, client: providerClient(providerTransport()), now: a.now}}
}

// attempt is what the browser carries, sealed, from the start of a sign-in to its end.
type attempt struct {
	State, Nonce, Verifier, Return string
	Until                          int64
}

// sealedAttempt binds the sealed value to its use.
const sealedAttempt = "oidc sign-in"

// Start begins a sign-in: where to send the browser, and what it has to bring back beside the provider's answer.
func (o *OpenID) Start(ctx context.Context, redirect, returnTo string) (location, sealed string, err error) {
	p, err := o.issuer.provider(ctx)
	if err != nil {
		return "", "", err
	}
	at := attempt{State: newKey(""), Nonce: newKey(""), Verifier: oauth2.GenerateVerifier(), Return: returnTo, Until: o.a.now().Add(SignInLife).UnixMicro()}
	text, err := json.Marshal(at)
	if err != nil {
		return "", "", err
	}
	if sealed, err = o.box.Seal(sealedAttempt, text); err != nil {
		return "", "", err
	}
	return o.oauth(p, redirect).AuthCodeURL(at.State, oidc.Nonce(at.Nonce), oauth2.S256ChallengeOption(at.Verifier)), sealed, nil
}

func (o *OpenID) oauth(p *oidc.Provider, redirect string) *oauth2.Config {
	return &oauth2.Config{ClientID: o.c.ClientID, ClientSecret: o.c.ClientSecret, Endpoint: p.Endpoint(), RedirectURL: redirect, Scopes: o.c.Scopes}
}

// Finish ends a sign-in with what the provider sent through the browser, and begins a session. Of one that was refused SignedIn holds what is known for the
// record; that is nothing when the answer belongs to no sign-in of this browser, or when a lock refused it unchecked.
func (o *OpenID) Finish(ctx context.Context, sealed string, answer url.Values, redirect, address string) (in SignedIn, returnTo string, err error) {
	at, err := o.attempt(sealed, answer.Get("state"))
	if err != nil {
		return in, "", err
	}
	from := network(address)
	limits := []signInLimit{{"address " + from, maxPerAddress}}
	if err := o.a.reserve(ctx, limits); err != nil {
		return in, "", err
	}
	if in.WorkspaceID, err = o.a.workspace(ctx, o.c.Workspace); err != nil {
		return in, "", err
	}
	who, err := o.identify(ctx, at, answer, redirect)
	if err != nil {
		return in, "", err
	}
	k, note, err := o.person(ctx, in.WorkspaceID, who)
	if in.Person, in.Note = k.Person, note; err != nil {
		return in, "", err
	}
	// The lock of an account holds for every way in, or it would tell which way is left.
	account := o.c.Workspace + "/" + strings.ToLower(in.Person.Name)
	more := []signInLimit{{"pair " + account + " " + from, maxPerPair}, {"account " + account, maxPerAccount}}
	if err := o.a.reserve(ctx, more); err != nil {
		return in, "", err
	}
	if in.Cookie, in.Session, err = o.a.beginSession(ctx, k.ID, k.password); err != nil {
		return in, "", err
	}
	return in, at.Return, o.a.giveBack(ctx, append(limits, more...))
}

// attempt opens what the browser brought back. It must be of this sign-in, or somebody could be made to sign in as another.
func (o *OpenID) attempt(sealed, state string) (at attempt, err error) {
	text, err := o.box.Open(sealedAttempt, sealed)
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	if err != nil || subtle.ConstantTimeCompare([]byte(at.State), []byte(state)) != 1 || o.a.now().UnixMicro() >= at.Until {
		return at, fault.New(fault.InvalidRequest, "this answer belongs to no sign-in that this browser began in the last %s; sign in again", SignInLife).Why(ReasonState)
	}
	return at, nil
}

// errorCode is what an error code of a provider looks like; anything else it says is not repeated.
var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`)

// vouched is whom the provider names.
type vouched struct {
	subject  string
	email    string // lower case; empty unless the provider has verified it
	given    bool   // it gave an address, verified or not
	role     Role   // NoRole: the provider does not say
	hasRoles bool   // the provider decides about roles
}

// identify turns the code into an identity.
func (o *OpenID) identify(ctx context.Context, at attempt, answer url.Values, redirect string) (who vouched, err error) {
	if code := answer.Get("error"); code != "" {
		if !errorCode.MatchString(code) {
			code = "an error it gave no proper name"
		}
		return who, fault.New(fault.Forbidden, "the identity provider refused the sign-in: %s", code).Why(ReasonProvider)
	}
	p, err := o.issuer.provider(ctx)
	if err != nil {
		return who, err
	}
	var meta struct {
		NamesIssuer bool `json:"authorization_response_iss_parameter_supported"`
	}
	if err := p.Claims(&meta); err != nil {
		return who, providerDown(err)
	}
	if iss := answer.Get("iss"); (iss != "" || meta.NamesIssuer) && iss != o.c.Issuer { // RFC 9207: an answer of another provider
		return who, invalidToken(errors.New("the answer is of another issuer"))
	}
	ctx = oidc.ClientContext(ctx, o.issuer.client)
	token, err := o.oauth(p, redirect).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(at.Verifier))
	if err != nil {
		var re *oauth2.RetrieveError
		if errors.As(err, &re) && re.Response != nil && re.Response.StatusCode < 500 {
			return who, fault.New(fault.Forbidden, "the identity provider does not accept its own code, or not the client secret; sign in again").Why(ReasonProvider)
		}
		return who, providerDown(errors.New("the token endpoint cannot be reached or failed")) // the cause may quote what was sent
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := p.Verifier(&oidc.Config{ClientID: o.c.ClientID, SupportedSigningAlgs: algorithms, Now: o.a.now}).Verify(ctx, raw)
	if err != nil {
		return who, invalidToken(err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(at.Nonce)) != 1 {
		return who, invalidToken(errors.New("the nonce is another one"))
	}
	return o.vouched(ctx, p, id, token)
}

// maxSubject bounds the subject, as OpenID Connect does.
const maxSubject = 255

// vouched reads the claims, from the ID token, else where the provider keeps them from it, from its user info.
func (o *OpenID) vouched(ctx context.Context, p *oidc.Provider, id *oidc.IDToken, token *oauth2.Token) (who vouched, err error) {
	var claims map[string]any
	if err := id.Claims(&claims); err != nil || id.Subject == "" || len(id.Subject) > maxSubject {
		return who, invalidToken(errors.New("claims cannot be read, or the subject is missing or too long"))
	}
	_, hasEmail := claims["email"]
	_, hasRole := claims[o.c.RoleClaim]
	if p.UserInfoEndpoint() != "" && (!hasEmail || o.c.RoleClaim != "" && !hasRole) {
		info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(token))
		if err != nil {
			return who, providerDown(errors.New("the user info cannot be read"))
		}
		more := map[string]any{}
		if err := info.Claims(&more); err != nil || info.Subject != id.Subject {
			return who, invalidToken(errors.New("the user info is of somebody else"))
		}
		for k, v := range more {
			if _, has := claims[k]; !has && !(hasEmail && k == "email_verified") { // that belongs to the address beside it
				claims[k] = v
			}
		}
	}
	who = vouched{subject: id.Subject, hasRoles: o.c.RoleClaim != ""}
	text, _ := claims["email"].(string)
	who.given = text != ""
	if verified, _ := claims["email_verified"].(bool); verified {
		who.email, _ = mailAddress(text)
	}
	if who.hasRoles {
		who.role = o.role(claims[o.c.RoleClaim])
	}
	return who, nil
}

// role is the highest one that the values of the claim have.
func (o *OpenID) role(claim any) Role {
	values, _ := claim.([]any)
	if one, ok := claim.(string); ok {
		values = []any{one}
	}
	best := NoRole
	for _, v := range values {
		if text, ok := v.(string); ok {
			best = max(best, o.c.Roles[text])
		}
	}
	if best == NoRole {
		return o.c.DefaultRole
	}
	return best
}

func invalidToken(err error) error {
	return fault.Wrap(fault.Forbidden, err, "what the identity provider sent does not prove who you are; sign in again").Why(ReasonToken)
}

const maxMail = 254

// mailAddress gives an address in the form that is compared: ASCII in lower case. Others never match, since look-alikes exist for every letter.
func mailAddress(text string) (string, bool) {
	name, domain, ok := strings.Cut(text, "@")
	if !ok || name == "" || domain == "" || strings.Contains(domain, "@") || len(text) > maxMail {
		return "", false
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return "", false
		}
	}
	return strings.ToLower(text), true
}
