package bridge

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"time"

	"doorward.dev/doorward/internal/mcp"
)

// Owner is who a session belongs to and where: a session id is worth nothing to
// another key, another agent or on the door of another server.
type Owner struct {
	WorkspaceID, KeyID, AgentID, PersonID string
	ServerID                              string // empty: the aggregate door
}

// digest names an owner in 16 bytes, so that ids stay short.
func (o *Owner) digest() (d [16]byte) {
	buf := make([]byte, 0, 256)
	for _, s := range [...]string{o.WorkspaceID, o.KeyID, o.AgentID, o.PersonID, o.ServerID} {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	sum := sha256.Sum256(buf)
	copy(d[:], sum[:])
	return d
}

// MaxAge is how long a session id is accepted after its initialize. A client whose
// id is older is told 404 and initializes again, as the protocol asks of it.
const MaxAge = 7 * 24 * time.Hour

const (
	ticketFormat = 1
	nonceLen     = 12
	macLen       = 16
	headLen      = 1 + 1 + 4 + nonceLen + 16 // format, revision, issued, nonce, owner
	maxCaps      = 1024
)

// revisions that have sessions; the index stands in the id.
var revisions = [...]string{mcp.V20241105, mcp.V20250326, mcp.V20250618, mcp.V20251125}

// ticket is what a session id says.
type ticket struct {
	version string
	issued  int64 // unix seconds
	nonce   [nonceLen]byte
	owner   [16]byte
	caps    json.RawMessage
}

// signer signs and verifies session ids.
type signer struct{ key []byte }

func (s signer) sign(t *ticket) string {
	buf := make([]byte, 0, headLen+len(t.caps)+macLen)
	rev := 0
	for i, v := range revisions {
		if v == t.version {
			rev = i
		}
	}
	buf = append(buf, ticketFormat, byte(rev))
	buf = binary.BigEndian.AppendUint32(buf, uint32(t.issued))
	buf = append(buf, t.nonce[:]...)
	buf = append(buf, t.owner[:]...)
	buf = append(buf, t.caps...)
	buf = append(buf, s.mac(buf)...)
	return base64.RawURLEncoding.EncodeToString(buf)
}

func (s signer) mac(b []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(b)
	return m.Sum(nil)[:macLen]
}

// verify reads a session id of ours; false for anything else.
func (s signer) verify(id string) (t ticket, ok bool) {
	if len(id) > base64.RawURLEncoding.EncodedLen(headLen+maxCaps+macLen) {
		return t, false
	}
	// Strict: an id has exactly one spelling, so that an ended session cannot come back as a variant of its id.
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(b) < headLen+macLen || b[0] != ticketFormat || int(b[1]) >= len(revisions) {
		return t, false
	}
	body, mac := b[:len(b)-macLen], b[len(b)-macLen:]
	if !hmac.Equal(mac, s.mac(body)) {
		return t, false
	}
	t.version = revisions[body[1]]
	t.issued = int64(binary.BigEndian.Uint32(body[2:6]))
	copy(t.nonce[:], body[6:])
	copy(t.owner[:], body[6+nonceLen:])
	t.caps = json.RawMessage(body[headLen:])
	return t, true
}

func newNonce() (n [nonceLen]byte) {
	rand.Read(n[:])
	return n
}

// compactCaps keeps of a client's capabilities what a server may act on, without
// white space and at most maxCaps bytes: they travel in the session id.
func compactCaps(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' {
		return json.RawMessage("{}")
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err == nil && out.Len() <= maxCaps {
		return out.Bytes()
	}
	short := json.RawMessage("{}")
	for _, name := range [...]string{"roots", "sampling", "elicitation"} {
		v := mcp.Get(raw, name)
		if v == nil {
			continue
		}
		out.Reset()
		if json.Compact(&out, v) != nil || out.Len() > maxCaps/4 {
			out.Reset()
			out.WriteString("{}")
		}
		short = mcp.Set(short, name, bytes.Clone(out.Bytes()))
	}
	return short
}
