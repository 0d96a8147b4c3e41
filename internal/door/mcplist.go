package door

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// pageSize is how many tools one answer of tools/list holds.
const pageSize = 1000

// listTools answers tools/list with stored bytes: the same tools, door and era are the same answer.
func (x *exchange) listTools() (json.RawMessage, error) {
	from, err := readCursor(mcp.Get(x.m.Params, "cursor"))
	if err != nil {
		return nil, err
	}
	tools := x.d.d.Gate.Visible(x.caller, x.sc.serverID())
	if from > 0 && from >= len(tools) {
		return nil, badCursor()
	}
	key := listKey{n: len(tools), from: from, aggregate: x.sc.server == nil, era: x.era, tail: x.listMeta()}
	if len(tools) > 0 {
		key.first, key.last = uintptr(unsafe.Pointer(tools[0])), uintptr(unsafe.Pointer(tools[len(tools)-1]))
	}
	if have := x.d.lists.get(key, tools); have != nil {
		return have, nil
	}
	made := x.makeList(tools, from, key.tail)
	x.d.lists.put(key, tools, made)
	return made, nil
}

// makeList splices the definitions byte for byte; on the aggregate the name is the public one.
func (x *exchange) makeList(tools []*catalog.Tool, from int, tail string) json.RawMessage {
	page := tools[from:min(from+pageSize, len(tools))]
	size := 64 + len(tail)
	for _, t := range page {
		size += len(t.Definition) + len(t.Public) + 1
	}
	out := append(make([]byte, 0, size), `{"tools":[`...)
	for i, t := range page {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, x.definition(t)...)
	}
	out = append(out, ']')
	if next := from + pageSize; next < len(tools) {
		out = append(append(append(out, `,"nextCursor":"`...), cursorAt(next)...), '"')
	}
	return append(append(out, tail...), '}')
}

// definition is a tool as this door and this client's era show it.
func (x *exchange) definition(t *catalog.Tool) json.RawMessage {
	def := t.Definition
	if x.sc.server == nil {
		def = mcp.Set(def, "name", mcp.Quote(t.Public))
	}
	return def
}

// listMeta ends a list: what the era asks for, and which servers behind it are not well. Without either it is empty,
// so that the answer is nothing but the servers' own definitions.
func (x *exchange) listMeta() string { return x.listTail(x.d.sick(x.peer)) }

func (x *exchange) listTail(sick []string) string {
	note := ""
	if len(sick) > 0 {
		b := []byte(`"doorward/degraded":[`)
		for i, name := range sick {
			if i > 0 {
				b = append(b, ',')
			}
			b = mcp.AppendQuote(b, name)
		}
		note = string(append(b, ']'))
	}
	if x.era == mcp.Modern {
		tail := modernTail + string(x.serverInfo())
		if note != "" {
			tail += "," + note
		}
		return tail + "}"
	}
	if note != "" {
		return `,"_meta":{` + note + `}`
	}
	return ""
}

// degradedNames is what was last heard of the health of connections; see sick.
type degradedNames struct {
	at   time.Time
	byID map[string]upstream.Health
}

// healthAge is how old the look at all connections may be that lists are marked by.
const healthAge = 250 * time.Millisecond

// sick names the servers in this scope that the caller can use and whose list may be out of date, in order.
func (d *Door) sick(p *peer) []string {
	now := d.d.Now()
	h := d.degraded.Load()
	if h == nil || now.Sub(h.at) > healthAge || now.Before(h.at) {
		h = &degradedNames{at: now, byID: make(map[string]upstream.Health)}
		for _, st := range d.d.Upstream.Statuses() {
			if st.Health == upstream.Degraded || st.Health == upstream.Down {
				h.byID[st.ServerID] = st.Health
			}
		}
		d.degraded.Store(h)
	}
	if len(h.byID) == 0 {
		return nil
	}
	var out []string
	for _, s := range p.servers() {
		if _, ok := h.byID[s.ID]; ok {
			out = append(out, s.Name)
		}
	}
	return out
}

// listCache keeps list answers. What is visible decides the bytes, not who asks:
// callers with the same grants share an answer.
type listCache struct {
	m    sync.Map // listKey -> listEntry
	mu   sync.Mutex
	size int
}

type listKey struct {
	first, last uintptr // of the tools, to tell lists apart quickly; the entry holds them alive and is compared whole
	n, from     int
	aggregate   bool
	era         mcp.Era
	tail        string
}

type listEntry struct {
	tools []*catalog.Tool
	bytes json.RawMessage
}

// listCacheBytes bounds the cache: a full one is emptied.
const listCacheBytes = 32 << 20

func (c *listCache) get(k listKey, tools []*catalog.Tool) json.RawMessage {
	v, ok := c.m.Load(k)
	if !ok {
		return nil
	}
	e := v.(*listEntry)
	if !sameTools(e.tools, tools) {
		return nil
	}
	return e.bytes
}

func (c *listCache) put(k listKey, tools []*catalog.Tool, b json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size += len(b) + 8*len(tools); c.size > listCacheBytes {
		c.m.Clear()
		c.size = len(b) + 8*len(tools)
	}
	c.m.Store(k, &listEntry{tools, b})
}

func (c *listCache) clear() {
	c.mu.Lock()
	c.m.Clear()
	c.size = 0
	c.mu.Unlock()
}

// sameTools: tools are immutable, so the same pointers are the same list.
func sameTools(a, b []*catalog.Tool) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	return slices.Equal(a, b)
}

const cursorMark = "tools:"

func cursorAt(n int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorMark + strconv.Itoa(n)))
}

// readCursor reads a cursor of ours; nil is the first page.
func readCursor(raw json.RawMessage) (int, error) {
	if raw == nil || mcp.IsNull(raw) {
		return 0, nil
	}
	s, ok := mcp.String(raw)
	if !ok {
		return 0, badCursor()
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return 0, badCursor()
	}
	text, ok := strings.CutPrefix(string(b), cursorMark)
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n <= 0 || n%pageSize != 0 || cursorAt(n) != s {
		return 0, badCursor()
	}
	return n, nil
}

func badCursor() error {
	return fault.New(fault.InvalidParams, "cursor is not one of tools/list: start again without a cursor")
}
