package gate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

// StatePrefix begins every request state of ours, so that those of servers behind Doorward are told apart and pass untouched.
const StatePrefix = "doorward-approval.1."

const (
	reasonStateInvalid = "REQUEST_STATE_INVALID"
	reasonStateExpired = "REQUEST_STATE_EXPIRED"
	reasonApprovalUsed = "APPROVAL_USED"
)

const (
	stateMAC = 16
	maxState = 256 // bytes of a state that can be ours
)

// state is what a caller comes back with after it was told to have a person decide. It names the approval and its end; the
// signature binds it to caller, tool, definition and arguments. It proves nothing but which call is meant: the approval itself
// is found, and consumed, as for any other call.
func (a *attempt) state(ap *Approval) string {
	if len(a.g.StateKey) == 0 {
		return ""
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(ap.ExpiresAt))
	b = append(b, ap.ID...)
	return StatePrefix + base64.RawURLEncoding.EncodeToString(append(b, a.stateMAC(b)...))
}

// stateMAC signs what a state says together with the call that it is of.
func (a *attempt) stateMAC(said []byte) []byte {
	m := hmac.New(sha256.New, a.g.StateKey)
	var size [8]byte
	for _, s := range [...]string{
		string(said), a.caller.WorkspaceID, a.caller.AgentID, a.requester(), a.tool.ID, a.tool.Fingerprint, a.digest,
	} {
		binary.BigEndian.PutUint64(size[:], uint64(len(s)))
		m.Write(size[:])
		m.Write([]byte(s))
	}
	return m.Sum(nil)[:stateMAC]
}

// readState gives the approval and the end that a state names, false when it is not of this call, or was changed.
func (a *attempt) readState(text string) (id string, until time.Time, ok bool) {
	body, ours := strings.CutPrefix(text, StatePrefix)
	if !ours || len(a.g.StateKey) == 0 || len(text) > maxState {
		return "", until, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) <= 8+stateMAC {
		return "", until, false
	}
	said := b[:len(b)-stateMAC]
	if !hmac.Equal(b[len(said):], a.stateMAC(said)) {
		return "", until, false
	}
	return string(said[8:]), time.UnixMicro(int64(binary.BigEndian.Uint64(said))), true
}

// resumed checks the state that a caller came back with. One approval lets one call run: a state whose
// approval is used, or over, does not ask the person once more.
func (a *attempt) resumed(ctx context.Context) error {
	if err := a.digestArguments(); err != nil {
		return err
	}
	id, until, ok := a.readState(a.call.State)
	switch {
	case !ok:
		a.decided(policy.Deny, policy.StageApproval, "", reasonStateInvalid)
		return a.refusal(fault.InvalidParams, reasonStateInvalid,
			"the request state was changed or is of another call: repeat the first call with the same tool and arguments, or make a new one without requestState")
	case !until.After(a.g.Now()):
		a.decided(policy.Deny, policy.StageApproval, "", reasonStateExpired)
		return a.refusal(fault.InvalidParams, reasonStateExpired, "the request state has expired: make the call without requestState to ask again")
	case a.verdict.Action != policy.RequireApproval:
		return nil
	}
	ap, err := a.g.Approval(ctx, a.caller.WorkspaceID, id)
	switch {
	case err != nil && !fault.Is(err, fault.NotFound):
		return a.storeFault(ctx, err)
	case err != nil || ap.Status == expired:
		return a.expiredMeanwhile(&Approval{ID: id, PolicyID: ap.PolicyID})
	case ap.Status == consumed:
		a.event.ApprovalID = id
		a.decided(policy.Deny, policy.StageApproval, ap.PolicyID, reasonApprovalUsed)
		return a.refusal(fault.Denied, reasonApprovalUsed, "the approval has been used for a call: make the call without requestState to ask again").
			With("approval_id", id).With("origin", string(policy.StageApproval))
	}
	return nil
}
