package mcp

import (
	"encoding/json"
	"unicode/utf8"
)

// maxBatch bounds the messages of one batch.
const maxBatch = 100

// Limits of parsing.
type Limits struct {
	Depth int // nesting, default 128
}

// Message is one JSON-RPC message, split but not decoded. All fields are slices of the input.
type Message struct {
	ID     json.RawMessage // nil: a notification, or an error that belongs to no request
	Method string          // empty: a response
	Params json.RawMessage // nil or an object
	Result json.RawMessage
	Error  json.RawMessage // nil or an object with code and message
}

// IsRequest, IsNotification and IsResponse tell the three kinds apart.
func (m *Message) IsRequest() bool      { return m.Method != "" && m.ID != nil }
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID == nil }
func (m *Message) IsResponse() bool     { return m.Method == "" }

// Parse checks that b is one valid JSON-RPC message (strict JSON, UTF-8, no duplicate or case-variant
// envelope members, no lone surrogates, bounded depth) and splits it. Errors are *fault.Error (Parse, InvalidRequest);
// when the id could be read, it is in Message all the same, so that the error can be answered to it.
//
// Members of params that decide what is called are held to the same rule as
// the envelope: no reader behind the gateway may see another call than the
// gateway saw. A good message with a standard method costs no allocation.
func Parse(b []byte, lim Limits) (Message, error) {
	p := parser{scanner: newScanner(b, lim)}
	i := p.message(p.space(0))
	if i < 0 || p.end(i) < 0 {
		return p.readable(), p.err()
	}
	return p.finish()
}

// ParseAny is Parse for revisions with batches: one message or a non-empty
// array of at most 100. On an error msgs holds the messages before it and the
// one at fault, with its id when that could be read.
func ParseAny(b []byte, lim Limits) (msgs []Message, batch bool, err error) {
	s := newScanner(b, lim)
	i := s.space(0)
	if i >= len(b) || b[i] != '[' {
		m, err := Parse(b, lim)
		return []Message{m}, false, err
	}
	i, more := s.first(i, ']')
	if !more {
		if s.end(i) < 0 {
			return nil, true, s.err()
		}
		return nil, true, invalid("a batch must hold at least one message")
	}
	for more {
		if len(msgs) == maxBatch {
			return msgs, true, invalid("a batch may hold at most %d messages", maxBatch)
		}
		p := parser{scanner: s}
		if i = p.message(i); i < 0 {
			return append(msgs, p.readable()), true, p.err()
		}
		m, err := p.finish()
		msgs = append(msgs, m)
		if err != nil {
			return msgs, true, err
		}
		i, more = s.next(i, ']')
	}
	if i < 0 || s.end(i) < 0 {
		return msgs, true, s.err()
	}
	return msgs, true, nil
}

// parser splits one message while it is scanned. The first fault of meaning is
// kept and the scan goes on, because the id may stand behind it.
type parser struct {
	scanner
	msg    Message
	seen   uint // bit per member of envelope
	id     json.RawMessage
	twoIDs bool
	bad    string // first fault of meaning
}

func (p *parser) refuse(what string) {
	if p.bad == "" {
		p.bad = what
	}
}

// The members of the envelope, of params and of _meta that a second reader
// could take for another call. The index is the bit in seen.
var (
	envelopeNames = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	paramsNames   = []string{"name", "uri", "arguments", "_meta", "cursor", "requestState", "inputResponses", "task",
		"taskId", "requestId", "protocolVersion", "capabilities", "ref", "level"}
	metaNames = []string{"progressToken", MetaProtocolVersion, MetaClientCapabilities, MetaClientInfo, MetaLogLevel,
		MetaSubscriptionID}
	errorNames = []string{"code", "message", "data"}
)

const (
	mJSONRPC = iota
	mID
	mMethod
	mParams
	mResult
	mError
)

// message reads the envelope at i.
func (p *parser) message(i int) int {
	if i < len(p.b) && p.b[i] != '{' {
		p.refuse("a message must be a JSON object")
		return p.value(i)
	}
	if i >= len(p.b) {
		return p.fail(i, "unexpected end")
	}
	if !p.open(i) {
		return -1
	}
	i, more := p.first(i, '}')
	for more {
		end, at := p.key(i)
		if at < 0 {
			return -1
		}
		which, ok := p.member(p.b[i+1:end-1], envelopeNames, &p.seen)
		if !ok {
			p.twoIDs = p.twoIDs || which == mID
			which = -1
		}
		if i = p.envelope(which, at); i < 0 {
			return -1
		}
		i, more = p.next(i, '}')
	}
	p.depth++
	return i
}

// member finds a name in names; -1 is none of them. A name that is there twice
// or in another case is refused: ok is false.
func (p *parser) member(raw []byte, names []string, seen *uint) (which int, ok bool) {
	which, exact := lookup(raw, names)
	switch {
	case which < 0:
		return -1, true
	case !exact:
		p.refuse("member names are case-sensitive: write " + names[which])
		return which, false
	case *seen&(1<<which) != 0:
		p.refuse("duplicate member " + names[which])
		return which, false
	}
	*seen |= 1 << which
	return which, true
}

// envelope reads the value of one member of the envelope.
func (p *parser) envelope(which, at int) int {
	var end int
	switch which {
	case mParams:
		if at < len(p.b) && p.b[at] == '{' {
			end = p.named(at, paramsNames)
		} else {
			p.refuse("params must be an object")
			end = p.value(at)
		}
	case mError:
		end = p.rpcError(at)
	default:
		end = p.value(at)
	}
	if end < 0 {
		return -1
	}
	raw := json.RawMessage(p.b[at:end:end])
	switch which {
	case mJSONRPC:
		if string(raw) != `"2.0"` {
			p.refuse(`jsonrpc must be "2.0"`)
		}
	case mID:
		p.readID(raw)
	case mMethod:
		if raw[0] != '"' {
			p.refuse("method must be a string")
			break
		}
		if p.msg.Method = methodName(raw); p.msg.Method == "" {
			p.refuse("method must not be empty")
		}
	case mParams:
		p.msg.Params = raw
	case mResult:
		p.msg.Result = raw
	case mError:
		p.msg.Error = raw
	}
	return end
}

// readID keeps an id that is a string or an integer.
func (p *parser) readID(raw json.RawMessage) {
	switch c := raw[0]; {
	case c == '"':
		p.id = raw
	case c == '-' || c-'0' <= 9:
		if i := digits(raw, 1); i != len(raw) {
			p.refuse("id must be a string or an integer")
			return
		}
		p.id = raw
	case c == 'n':
		p.id = nil // allowed in an error only; finish looks
	default:
		p.refuse("id must be a string or an integer")
	}
}

// named reads an object and holds its members to names.
func (p *parser) named(i int, names []string) int {
	if !p.open(i) {
		return -1
	}
	var seen uint
	i, more := p.first(i, '}')
	for more {
		end, at := p.key(i)
		if at < 0 {
			return -1
		}
		which, _ := p.member(p.b[i+1:end-1], names, &seen)
		meta := which >= 0 && names[which] == "_meta"
		switch {
		case meta && at < len(p.b) && p.b[at] == '{':
			i = p.named(at, metaNames)
		case meta:
			p.refuse("_meta must be an object")
			i = p.value(at)
		default:
			i = p.value(at)
		}
		if i < 0 {
			return -1
		}
		i, more = p.next(i, '}')
	}
	p.depth++
	return i
}

// rpcError reads the error of a response: an object with an integer code and a message.
func (p *parser) rpcError(at int) int {
	if at >= len(p.b) || p.b[at] != '{' {
		p.refuse("error must be an object")
		return p.value(at)
	}
	end := p.named(at, errorNames)
	if end < 0 {
		return -1
	}
	obj := p.b[at:end]
	if _, ok := Int(Get(obj, "code")); !ok {
		p.refuse("error.code must be an integer")
	}
	if m := Get(obj, "message"); len(m) == 0 || m[0] != '"' {
		p.refuse("error.message must be a string")
	}
	return end
}

func (p *parser) has(which int) bool { return p.seen&(1<<which) != 0 }

// readable is what can be told of a message that is refused.
func (p *parser) readable() Message {
	if p.twoIDs { // which of them is meant cannot be known
		p.id = nil
	}
	return Message{ID: p.id, Method: p.msg.Method}
}

// finish checks the message as a whole.
func (p *parser) finish() (Message, error) {
	p.msg.ID = p.id
	answer := p.has(mResult) || p.has(mError)
	switch {
	case p.bad != "": // the first fault says it
	case !p.has(mJSONRPC):
		p.refuse(`jsonrpc must be "2.0"`)
	case p.has(mMethod) && answer:
		p.refuse("a message is a request or a response, not both")
	case p.has(mMethod) && p.has(mID) && p.id == nil:
		p.refuse("id must not be null")
	case p.has(mMethod): // a request or a notification
	case p.has(mResult) && p.has(mError):
		p.refuse("a response has a result or an error, not both")
	case !answer:
		p.refuse("method is missing")
	case p.has(mResult) && p.id == nil:
		p.refuse("a result needs the id of its request")
	case p.has(mParams):
		p.refuse("a response has no params")
	}
	if p.bad != "" {
		return p.readable(), invalid("%s", p.bad)
	}
	return p.msg, nil
}

// lookup finds the raw text of a member name (between its quotes) in names as
// any common reader would: escapes decoded, case folded as encoding/json does.
// exact tells whether the decoded name is equal byte for byte.
func lookup(raw []byte, names []string) (which int, exact bool) {
	for i, n := range names {
		if string(raw) == n {
			return i, true
		}
	}
	var buf [48]byte
	folded, changed, ok := foldName(raw, buf[:0])
	if !ok {
		return -1, false
	}
	for i, n := range names {
		if equalFold(folded, n) {
			return i, !changed && string(folded) == n
		}
	}
	return -1, false
}

// foldName decodes the escapes of a raw name into buf; characters outside
// ASCII that fold into ASCII (the long s, the Kelvin sign) are folded and set
// changed. ok is false when the name cannot be one we know: too long, or not ASCII after folding.
func foldName(raw, buf []byte) (_ []byte, changed, ok bool) {
	for len(raw) > 0 {
		if len(buf) == cap(buf) {
			return nil, false, false
		}
		var r rune
		n := 1
		switch c := raw[0]; {
		case c == '\\' && len(raw) > 1 && raw[1] == 'u':
			if r, n = unicodeEscape(raw); n == 0 {
				return nil, false, false
			}
		case c == '\\' && len(raw) > 1 && raw[1] == '/':
			r, n = '/', 2
		case c == '\\':
			return nil, false, false // decodes to no letter of a name we know
		case c < utf8.RuneSelf:
			r = rune(c)
		default:
			r, n = utf8.DecodeRune(raw)
		}
		switch {
		case r == 'ſ':
			r, changed = 's', true
		case r == '\u212a':
			r, changed = 'k', true
		case r >= utf8.RuneSelf:
			return nil, false, false
		}
		buf = append(buf, byte(r))
		raw = raw[n:]
	}
	return buf, changed, true
}

// equalFold compares ASCII without case.
func equalFold(a []byte, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c-'A' < 26 {
		return c + 'a' - 'A'
	}
	return c
}

// methods are the standard methods: their names cost no allocation.
var methods = func() map[string]string {
	m := map[string]string{}
	for _, n := range []string{
		"initialize", "notifications/initialized", "ping", "server/discover", "subscriptions/listen",
		"tools/list", "tools/call", "prompts/list", "prompts/get", "completion/complete",
		"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
		"logging/setLevel", "roots/list", "sampling/createMessage", "elicitation/create",
		"tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list",
		"notifications/cancelled", "notifications/progress", "notifications/message", "notifications/tasks",
		"notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
		"notifications/resources/updated", "notifications/roots/list_changed", "notifications/elicitation/complete",
		"notifications/subscriptions/acknowledged", "notifications/tasks/status",
	} {
		m[n] = n
	}
	return m
}()

func methodName(raw []byte) string {
	if m, ok := methods[string(raw[1:len(raw)-1])]; ok {
		return m
	}
	m, _ := String(raw)
	return m
}
