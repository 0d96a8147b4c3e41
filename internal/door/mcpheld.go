package door

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/gate"
	"doorward.dev/doorward/internal/mcp"
)

// The ways in which a client lets its person be asked. No answer to either is a decision: whoever
// drives the client may be an agent, and only a person who is known to Doorward decides.
const (
	modeURL  = "url"
	modeForm = "form"
)

// elicitMode says how a client can tell its person something, "" when it declared no way.
func elicitMode(caps json.RawMessage, version string) string {
	e, f := mcp.Get(caps, "elicitation"), mcp.FeaturesOf(version)
	switch {
	case !f.Elicitation || !mcp.IsObject(e):
		return ""
	case f.URLElicitation && mcp.IsObject(mcp.Get(e, modeURL)):
		return modeURL
	}
	return modeForm
}

var statePrefix = []byte(`"` + gate.StatePrefix)

// tellsPeople lets a call of an older client wait while its person is told, on the stream of the call, where it is decided.
func (x *exchange) tellsPeople(call *gate.Call) {
	mode := elicitMode(x.caps, x.version)
	if x.era == mcp.Modern || mode == "" || x.client.Ask == nil {
		return
	}
	call.CanWait = true
	call.Tell = func(ctx context.Context, about *fault.Error) (stay bool) {
		p := elicitation(mode, x.version, about)
		if id, ok := about.Data["approval_id"].(string); ok && mcp.Get(p, "url") != nil {
			p = mcp.Set(p, "elicitationId", mcp.Quote(id))
			x.told = id
		}
		result, _, err := x.ask(ctx, "elicitation/create", p)
		return err != nil || !turnedDown(result)
	}
}

// toldAll closes what was opened at an older client for a call that waits no more.
func (x *exchange) toldAll(err error) {
	if x.told != "" && !fault.Is(err, fault.Held) {
		x.out.send(mcp.AppendNotification(nil, "notifications/elicitation/complete", mcp.Set(nil, "elicitationId", mcp.Quote(x.told))))
	}
}

// asksPeople prepares a call of 2026-07-28 for the case that it is held: a request state of ours goes to the gate, and the server
// behind gets the params as they were at first. mode says how the client's person is told where to decide; "" it is not:
// a call that answers the questions of the server behind keeps that server's request state, which ours would replace.
func (x *exchange) asksPeople(call *gate.Call) (mode string) {
	if x.era != mcp.Modern {
		return ""
	}
	mode = elicitMode(x.caps, x.version)
	if bytes.Contains(x.m.Params, statePrefix) {
		if s, ok := mcp.String(mcp.Get(x.m.Params, "requestState")); ok && strings.HasPrefix(s, gate.StatePrefix) {
			call.Params = mcp.Delete(mcp.Delete(call.Params, "requestState"), "inputResponses")
			if turnedDown(mcp.GetPath(x.m.Params, "inputResponses", approvalInput)) {
				call.CanWait = false
				return "" // it is told so at once, and asked no more; the approval stays open
			}
			call.State = s
			return mode
		}
	}
	if mode == "" || mcp.Get(x.m.Params, "requestState") != nil || mcp.Get(x.m.Params, "inputResponses") != nil {
		return ""
	}
	call.CanWait = false // first the person must hear of it; the call that comes back may wait
	return mode
}

// turnedDown reports whether the person at the client does not want to be sent to where it is decided.
func turnedDown(answer json.RawMessage) bool {
	action, _ := mcp.String(mcp.Get(answer, "action"))
	return action == "decline" || action == "cancel"
}

// approvalInput names our one question in inputRequests.
const approvalInput = "doorward_approval"

// inputRequired makes of a held call the result that has the client tell its person where to decide, and come back.
// Every other error stays.
func (x *exchange) inputRequired(mode, state string, err error) (json.RawMessage, error) {
	e := fault.From(err)
	if e.Class != fault.Held || mode == "" || state == "" {
		return nil, err
	}
	about, merr := json.Marshal(e.Data)
	if merr != nil {
		return nil, err
	}
	ask := mcp.Set(json.RawMessage(`{"method":"elicitation/create"}`), "params", elicitation(mode, x.version, e))
	meta := mcp.Set(json.RawMessage(`{}`), mcp.MetaServerInfo, x.d.ownInfo())
	out := mcp.Set(json.RawMessage(`{"resultType":"input_required"}`), "inputRequests", mcp.Set(json.RawMessage(`{}`), approvalInput, ask))
	out = mcp.Set(out, "requestState", mcp.Quote(state))
	return mcp.Set(out, "_meta", mcp.Set(meta, metaApproval, about)), nil
}

// metaApproval is the member of _meta that says of a held call what data of the error −32004 says.
const metaApproval = "doorward.dev/approval"

// elicitation makes the params of elicitation/create for a held call: the address where a person
// decides, or a message that names it, without anything to fill in.
func elicitation(mode, version string, held *fault.Error) json.RawMessage {
	id, _ := held.Data["approval_id"].(string)
	url, _ := held.Data["approval_url"].(string)
	text := held.Message + "; a person with an account at doorward decides"
	if url != "" {
		text += " at " + url
	}
	text += " or with: doorward approvals approve " + id
	p := mcp.Set(json.RawMessage(`{}`), "message", mcp.Quote(text))
	switch {
	case mode == modeURL && url != "":
		p = mcp.Set(p, "mode", mcp.Quote(modeURL))
		return mcp.Set(p, "url", mcp.Quote(url))
	case mcp.FeaturesOf(version).URLElicitation: // the revisions that know modes
		p = mcp.Set(p, "mode", mcp.Quote(modeForm))
	}
	return mcp.Set(p, "requestedSchema", json.RawMessage(`{"type":"object","properties":{}}`))
}
