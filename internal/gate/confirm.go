package gate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/policy"
)

// The two-step confirmation (SC-82 to SC-86): it protects against accidents and stale retries and authorizes nothing. The first
// call of a tool that asks for it gives a token, the second one with the same arguments and the token runs.

// confirmFor is how long a token holds (SC-83).
const confirmFor = 5 * time.Minute

// MinConfirmationSecret is the least length of a secret in bytes (SC-86).
const MinConfirmationSecret = 32

// The reasons of refusals of this stage.
const (
	reasonConfirm            = "confirmation_required"
	reasonConfirmUnavailable = "confirmation_unavailable"
	reasonTokenInvalid       = "confirmation_token_invalid"
	reasonTokenExpired       = "confirmation_token_expired"
	reasonTokenMismatch      = "confirmation_token_mismatch"
	reasonKeyRequired        = "idempotency_key_required"
)

// The members of the arguments, or of _meta for clients that keep to the tool's schema, that belong to the
// confirmation and not to the tool.
const (
	tokenMember = "confirmation_token"
	keyMember   = "idempotency_key"
)

// control is what the caller says about the confirmation, taken out of the call.
type control struct {
	asked      bool // the tool asks for confirmation
	token, key string
	malformed  string // the member that is not a text
	claimed    bool   // the row of the key is this call's own
}

// takeControl takes the members of the confirmation out of the call, so that schema, approval, record and tool see the arguments
// alone. Calls of other tools stay as they are. What stands twice is left: the arguments are refused for it.
func (a *attempt) takeControl() {
	if !a.tool.Confirm {
		return
	}
	a.control.asked = true
	args := a.call.arguments()
	if _, twice := mcp.Repeated(args); twice {
		return
	}
	meta := mcp.Get(a.call.Params, "_meta")
	for _, m := range []struct {
		name string
		into *string
	}{{tokenMember, &a.control.token}, {keyMember, &a.control.key}} {
		raw := mcp.Get(args, m.name)
		if raw == nil {
			raw = mcp.Get(meta, m.name)
		}
		if raw == nil || mcp.IsNull(raw) {
			args, meta = mcp.Delete(args, m.name), mcp.Delete(meta, m.name)
			continue
		}
		var ok bool
		if *m.into, ok = mcp.String(raw); !ok || *m.into == "" {
			a.control.malformed = m.name
		}
		args, meta = mcp.Delete(args, m.name), mcp.Delete(meta, m.name)
	}
	call := *a.call // the door keeps its own
	call.Arguments = args
	if len(call.Params) > 0 {
		call.Params = mcp.Set(call.Params, "arguments", args)
		if meta != nil {
			call.Params = mcp.Set(call.Params, "_meta", meta)
		}
	}
	a.call, a.event.Arguments = &call, args
}

// confirm answers the first step, or lets the second one pass. A key that is known answers with the stored result.
func (a *attempt) confirm(ctx context.Context) error {
	if !a.control.asked {
		return nil
	}
	switch {
	case a.control.malformed != "":
		return a.unconfirmed(fault.InvalidParams, "confirmation_invalid", "%s must be a text that is not empty", a.control.malformed)
	case len(a.g.confirming.secrets) == 0:
		return a.unconfirmed(fault.Unavailable, reasonConfirmUnavailable,
			"the call needs confirmation, and Doorward has no secret of at least %d bytes to sign one with (SUPACLOUD_MCP_CONFIRMATION_SECRET)", MinConfirmationSecret)
	case a.control.token != "" && a.control.key == "":
		return a.unconfirmed(fault.InvalidParams, reasonKeyRequired, "idempotency_key is required with confirmation_token")
	case len(a.control.key) > maxIdempotencyKey:
		return a.unconfirmed(fault.InvalidParams, "idempotency_key_invalid", "idempotency_key is longer than %d bytes", maxIdempotencyKey)
	}
	if err := a.digestArguments(); err != nil {
		return err
	}
	if a.control.token == "" {
		return a.ask()
	}
	expired, err := a.checkToken()
	if err != nil {
		return err
	}
	return a.claimKey(ctx, expired)
}

func (a *attempt) unconfirmed(class fault.Class, reason, format string, args ...any) error {
	a.decided(policy.Deny, policy.StageConfirm, a.verdict.RuleID, reason)
	return a.refusal(class, reason, format, args...).With("origin", string(policy.StageConfirm))
}

// ask makes the answer of the first step (SC-83).
func (a *attempt) ask() error {
	expires := a.g.Now().Add(confirmFor)
	summary, err := json.Marshal(struct {
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
	}{a.tool.ServerName + "/" + a.tool.Name, a.g.shown(a.call.arguments())})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "internal error")
	}
	step, err := json.Marshal(struct {
		Required bool            `json:"confirmation_required"`
		Summary  json.RawMessage `json:"changes_summary"`
		Token    string          `json:"confirmation_token"`
		Expires  string          `json:"expires_at"`
		Next     string          `json:"next"`
	}{true, summary, a.g.confirming.sign(a.tool.ServerName+"/"+a.tool.Name, a.inputHash(), expires), expires.UTC().Format(time.RFC3339),
		"nothing has run; to run it, repeat the call with the same arguments, confirmation_token and a new idempotency_key"})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "internal error")
	}
	a.decided(a.verdict.Action, policy.StageConfirm, a.verdict.RuleID, reasonConfirm)
	a.event.Status = audit.ConfirmationRequired
	a.answer = a.ownResult(step)
	return nil
}

// ownResult makes a tool result of a JSON object. A tool with an output schema promises another object, and its clients check: they
// get the text, as a failure, which is exempt.
func (a *attempt) ownResult(object json.RawMessage) json.RawMessage {
	out := append([]byte(`{"content":[{"type":"text","text":`), mcp.Quote(string(object))...)
	out = append(out, `}]`...)
	if mcp.Get(a.tool.Definition, "outputSchema") != nil {
		out = append(out, `,"isError":true`...)
	} else {
		out = append(append(out, `,"structuredContent":`...), object...)
	}
	if c := a.call.Client; c != nil && c.Era == mcp.Modern {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}

// inputHash binds a token: to the tool and its definition, to who calls, and to what is asked for.
func (a *attempt) inputHash() string {
	h := sha256.New()
	for _, part := range []string{a.tool.ServerName + "/" + a.tool.Name, a.tool.Fingerprint, a.caller.WorkspaceID, a.keyOwner(), a.digest} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// checkToken checks signature, then input, then whether the token holds still (SC-84).
func (a *attempt) checkToken() (expired bool, err error) {
	p, ok := a.g.confirming.open(a.control.token)
	switch {
	case !ok || p.V != 1:
		return false, a.unconfirmed(fault.InvalidParams, reasonTokenInvalid,
			"the confirmation_token is not one of Doorward's; call without it for a new one")
	case !hmac.Equal([]byte(p.Hash), []byte(a.inputHash())):
		return false, a.unconfirmed(fault.InvalidParams, reasonTokenMismatch,
			"the confirmation_token is for another call: tool, arguments and task must be those of the first step; call without it for a new one")
	}
	return a.g.Now().Unix() >= p.Expires, nil
}

func (a *attempt) tokenExpired() error {
	return a.unconfirmed(fault.InvalidParams, reasonTokenExpired, "the confirmation_token has expired; call without it for a new one")
}

// confirmations signs and opens tokens. The first secret signs, all are accepted, so that a secret can be replaced.
type confirmations struct{ secrets [][]byte }

// newConfirmations takes only secrets that are long enough: a short one is as none, and the calls fail closed.
func newConfirmations(secrets []string) (c confirmations) {
	for _, s := range secrets {
		if len(s) >= MinConfirmationSecret {
			c.secrets = append(c.secrets, []byte(s))
		} else if len(c.secrets) == 0 && s != "" {
			return confirmations{} // the one that signs is too short: none takes its place
		}
	}
	return c
}

// payload is what a token says.
type payload struct {
	V       int    `json:"v"`
	Tool    string `json:"tool"`
	Hash    string `json:"h"`
	Expires int64  `json:"exp"` // unix seconds
}

func (c confirmations) sign(tool, hash string, expires time.Time) string {
	body, err := json.Marshal(payload{1, tool, hash, expires.Unix()})
	if err != nil {
		panic(err) // of texts and numbers
	}
	text := base64.RawURLEncoding.EncodeToString(body)
	return text + "." + base64.RawURLEncoding.EncodeToString(mac(c.secrets[0], text))
}

func (c confirmations) open(token string) (p payload, ok bool) {
	text, sum, found := strings.Cut(token, ".")
	given, err := base64.RawURLEncoding.DecodeString(sum)
	if !found || err != nil || len(token) > 4096 {
		return p, false
	}
	for _, secret := range c.secrets {
		if hmac.Equal(given, mac(secret, text)) {
			ok = true
		}
	}
	if !ok {
		return p, false
	}
	body, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(body, &p) != nil {
		return payload{}, false
	}
	return p, true
}

func mac(secret []byte, text string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}
