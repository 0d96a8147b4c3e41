package door

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
)

// legacyVersions are the revisions with sessions, newest first.
var legacyVersions = []string{mcp.V20251125, mcp.V20250618, mcp.V20250326, mcp.V20241105}

func (p *peer) owner() bridge.Owner {
	c := p.caller
	return bridge.Owner{WorkspaceID: c.WorkspaceID, KeyID: c.KeyID, AgentID: c.AgentID, PersonID: c.PersonID, ServerID: p.sc.serverID()}
}

// session finds the session a request names, and checks the revision it names. Status 0: found.
func (p *peer) session(header string) (s *bridge.Session, err error) {
	id := p.r.Header.Get(mcp.HeaderSession)
	if id == "" {
		return nil, fault.New(fault.InvalidRequest, "header Mcp-Session-Id is missing: send initialize first")
	}
	if s, err = p.d.sessions.Find(id, p.owner()); err != nil {
		return nil, err
	}
	if header != "" && header != s.Version {
		return nil, wrongVersion(header, s.Version)
	}
	return s, nil
}

func wrongVersion(header, want string) error {
	if !slices.Contains(legacyVersions, header) {
		return fault.New(fault.InvalidRequest, "MCP-Protocol-Version %q is not supported (supported: 2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05)", clip(header, 40))
	}
	return fault.New(fault.InvalidRequest, "MCP-Protocol-Version %q is not the revision %s of this session", header, want)
}

// postLegacy handles one message of the eras with sessions. It reports whether nothing of the message is in use any more.
func (p *peer) postLegacy(m *mcp.Message, header string, acc accept) (clean bool) {
	if m.Method == "initialize" {
		p.initialize(m, header)
		return true
	}
	s, err := p.session(header)
	if err != nil {
		p.refuse(m.ID, err)
		return true
	}
	if m.IsRequest() {
		if err := p.d.unable(); err != nil {
			p.refuse(m.ID, err)
			return true
		}
		return p.legacyRequest(s, m, acc)
	}
	p.legacyNotice(s, m)
	accepted(p.w)
	return true
}

func errDraining() error {
	return fault.New(fault.Unavailable, "doorward is shutting down: try again in a moment").Why("DRAINING")
}

// legacyRequest answers one request of a session. The call goes on when the
// connection is lost, since only notifications/cancelled cancels here: the
// record then says truly how it ended, though nobody reads the answer.
func (p *peer) legacyRequest(s *bridge.Session, m *mcp.Message, acc accept) (clean bool) {
	ctx, call := s.Begin(m.ID)
	defer s.Done(call)
	x := p.legacyExchange(s, m, p.d.newReply(p.w, acc, s.Version))
	defer x.out.finish()
	result, err := x.request(ctx)
	x.respond(result, err)
	return err == nil
}

func (p *peer) legacyExchange(s *bridge.Session, m *mcp.Message, out *reply) *exchange {
	x := &exchange{peer: p, m: m, era: mcp.Legacy, version: s.Version, sess: s, caps: s.Capabilities, level: s.Level(), out: out}
	x.client.Era = mcp.Legacy
	x.client.Version = s.Version
	x.client.Session = s.ID
	x.client.Capabilities = s.Capabilities
	x.client.Notify = x.notify
	if out.canStream {
		x.client.Ask = x.ask
	}
	return x
}

// ask passes a server's question to the client on the stream of the call that caused it.
func (x *exchange) ask(ctx context.Context, method string, params json.RawMessage) (result, rpcErr json.RawMessage, err error) {
	return x.sess.Ask(ctx, method, params, x.out.send)
}

// legacyNotice takes in a notification or a response.
func (p *peer) legacyNotice(s *bridge.Session, m *mcp.Message) {
	if m.IsResponse() {
		s.Answer(m)
		return
	}
	if m.Method == "notifications/cancelled" {
		if id := mcp.Get(m.Params, "requestId"); id != nil {
			s.Cancel(id)
		}
	}
	// initialized needs no answer; roots/list_changed reaches servers when they ask for roots the next time.
}

// initialize opens a session.
func (p *peer) initialize(m *mcp.Message, header string) {
	if !m.IsRequest() {
		p.refuse(nil, fault.New(fault.InvalidRequest, "initialize must have an id"))
		return
	}
	if header != "" && !slices.Contains(legacyVersions, header) {
		p.refuse(m.ID, wrongVersion(header, ""))
		return
	}
	if err := p.d.unable(); err != nil {
		p.refuse(m.ID, err)
		return
	}
	asked, ok := mcp.String(mcp.Get(m.Params, "protocolVersion"))
	if !ok {
		p.fail(http.StatusBadRequest, m.ID, fault.New(fault.InvalidParams, "params.protocolVersion is missing"))
		return
	}
	version := mcp.V20251125
	if slices.Contains(legacyVersions, asked) {
		version = asked
	}
	s := p.d.sessions.New(p.owner(), version, mcp.Get(m.Params, "capabilities"))
	p.w.Header().Set(mcp.HeaderSession, s.ID)
	writeJSON(p.w, http.StatusOK, mcp.AppendResult(nil, m.ID, p.initializeResult(version)))
}

// postBatch handles an array of messages, which only 2025-03-26 knows.
func (p *peer) postBatch(body []byte, header string, acc accept) {
	noBatch := fault.New(fault.InvalidRequest, "batches exist in revision 2025-03-26 only: send one message")
	if isModern(header) {
		p.fail(http.StatusBadRequest, nil, noBatch)
		return
	}
	s, err := p.session(header)
	if err != nil {
		p.refuse(nil, err)
		return
	}
	if s.Version != mcp.V20250326 {
		p.fail(http.StatusBadRequest, nil, noBatch)
		return
	}
	msgs, _, err := mcp.ParseAny(body, mcp.Limits{})
	if err != nil {
		p.refuse(nil, err)
		return
	}
	if err := p.d.unable(); err != nil {
		p.refuse(nil, err)
		return
	}
	p.runBatch(s, msgs, acc)
}

// runBatch answers the requests of a batch side by side, in one array or one event each.
func (p *peer) runBatch(s *bridge.Session, msgs []mcp.Message, acc accept) {
	out := p.d.newReply(p.w, acc, s.Version)
	defer out.finish()
	answers := make([][]byte, len(msgs))
	var wg sync.WaitGroup
	for i := range msgs {
		m := &msgs[i]
		if !m.IsRequest() {
			p.legacyNotice(s, m)
			continue
		}
		wg.Go(func() {
			ctx, call := s.Begin(m.ID)
			defer s.Done(call)
			x := p.legacyExchange(s, m, out)
			var result json.RawMessage
			err := error(fault.New(fault.InvalidRequest, "initialize cannot be part of a batch"))
			if m.Method != "initialize" {
				result, err = x.request(ctx)
			}
			if err != nil {
				answers[i] = mcp.AppendError(nil, m.ID, errorObject(err, x.traceID))
			} else {
				answers[i] = mcp.AppendResult(nil, m.ID, result)
			}
		})
	}
	wg.Wait()
	all := []byte{'['}
	for _, a := range answers {
		if a == nil {
			continue
		}
		if len(all) > 1 {
			all = append(all, ',')
		}
		all = append(all, a...)
	}
	if len(all) == 1 { // notifications and responses only
		out.finish()
		accepted(p.w)
		return
	}
	out.message(http.StatusOK, append(all, ']'))
}

// get opens the session's standing event stream.
func (p *peer) get() {
	header := p.r.Header.Get(mcp.HeaderVersion)
	if isModern(header) {
		p.notAllowed()
		return
	}
	if acc := accepts(p.r); !acc.stream && !acc.any {
		p.fail(http.StatusNotAcceptable, nil, fault.New(fault.InvalidRequest, "accept must name text/event-stream"))
		return
	}
	s, err := p.session(header)
	if err != nil {
		p.refuse(nil, err)
		return
	}
	if err := p.d.unable(); err != nil {
		p.refuse(nil, err)
		return
	}
	st := bridge.NewStream()
	if !s.Attach(st) {
		p.refuse(nil, fault.New(fault.SessionNotFound, "no such session: send initialize to open a new one"))
		return
	}
	defer s.Detach(st)
	leave := p.d.watchSession(p, s, st)
	defer leave()
	p.serveStream(st, true)
}

// serveStream writes what comes to a standing stream until either side ends it.
func (p *peer) serveStream(st *bridge.Stream, retry bool) *mcp.EventWriter {
	ev := mcp.NewEventWriter(p.w)
	// A first line at once, for those in between that hold headers back until something follows them.
	if ev.Start() != nil || ev.Comment("open") != nil {
		return ev
	}
	if retry {
		ev.Retry(reconnectAfter)
	}
	tick := time.NewTicker(p.d.d.KeepAlive)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-p.r.Context().Done():
			return ev
		case <-p.d.drained:
			return ev
		case <-st.Done():
			return ev
		case msg := <-st.Messages():
			err = ev.Event(mcp.Event{Data: msg})
		case <-tick.C:
			if _, revoked := p.who(p.r); revoked != nil {
				return ev
			}
			err = ev.Comment(keepAliveText)
		}
		if err != nil {
			return ev
		}
	}
}

func (p *peer) notAllowed() {
	p.w.Header().Set("Allow", "POST")
	p.fail(http.StatusMethodNotAllowed, nil, fault.New(fault.InvalidRequest, "revision 2026-07-28 knows POST only"))
}

// delete ends a session.
func (p *peer) delete() {
	header := p.r.Header.Get(mcp.HeaderVersion)
	if isModern(header) {
		p.notAllowed()
		return
	}
	s, err := p.session(header)
	if err != nil {
		p.refuse(nil, err)
		return
	}
	p.d.sessions.End(s)
	p.d.d.Upstream.EndSession(s.ID)
	p.w.WriteHeader(http.StatusNoContent)
}
