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

	"doorward.dev/doorward/internal/bridge"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// listTools answers tools/list with stored bytes: the same tools, door and era are the same answer.
func (x *exchange) listTools() (json.RawMessage, error) {
	from, err := readCursor(mcp.Get(x.m.Params, "cursor"), x.d.d.PageSize)
	if err != nil {
		return nil, err
	}
	tools := x.d.d.Gate.Visible(x.caller, x.sc.serverID())
	if from > 0 && from >= len(tools) {
		return nil, badCursor()
	}
	look := x.d.look()
	key := listKey{
		n: len(tools), from: from, aggregate: x.sc.server == nil, era: x.era,
		tail: x.listTail(x.sick(look)), newer: x.newer(look, tools),
	}
	if len(tools) > 0 {
		key.first, key.last = uintptr(unsafe.Pointer(tools[0])), uintptr(unsafe.Pointer(tools[len(tools)-1]))
	}
	if have := x.d.lists.get(key, tools); have != nil {
		return have, nil
	}
	made := x.makeList(tools, from, key)
	x.d.lists.put(key, tools, made)
	return made, nil
}

// makeList splices the definitions byte for byte; on the aggregate the name is the public one.
func (x *exchange) makeList(tools []*catalog.Tool, from int, key listKey) json.RawMessage {
	end := min(from+x.d.d.PageSize, len(tools))
	page := tools[from:end]
	size := 64 + len(key.tail)
	for _, t := range page {
		size += len(t.Definition) + len(t.Public) + 1
	}
	out := append(make([]byte, 0, size), `{"tools":[`...)
	for i, t := range page {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, x.definition(t, key.newer)...)
	}
	out = append(out, ']')
	if end < len(tools) {
		out = append(append(append(out, `,"nextCursor":"`...), cursorAt(end)...), '"')
	}
	return append(append(out, key.tail...), '}')
}

// definition is a tool as this door and this client's era show it.
func (x *exchange) definition(t *catalog.Tool, newer string) json.RawMessage {
	def := t.Definition
	switch {
	case x.era == mcp.Modern:
		def = bridge.ModernTool(def)
	case strings.Contains(newer, t.ServerID):
		def = bridge.LegacyTool(def)
	}
	if x.sc.server == nil {
		def = mcp.Set(def, "name", mcp.Quote(t.Public))
	}
	return def
}

// listTail ends a list: what the era asks for, and which servers behind it are not well. Without either it is empty,
// so that the answer is nothing but the servers' own definitions.
func (x *exchange) listTail(sick []string) string {
	note := ""
	if len(sick) > 0 {
		note = `"doorward/degraded":` + string(quoteAll(sick))
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

// look is a look at all connections that lists are made by.
type look struct {
	at    time.Time
	sick  map[string]bool // by server id: the list may be out of date
	newer map[string]bool // the server speaks 2026-07-28
}

// lookAge is how old a look may be.
const lookAge = 250 * time.Millisecond

func (d *Door) look() *look {
	now := d.d.Now()
	l := d.looked.Load()
	if l != nil && now.Sub(l.at) <= lookAge && !now.Before(l.at) {
		return l
	}
	l = &look{at: now, sick: make(map[string]bool), newer: make(map[string]bool)}
	for _, st := range d.d.Upstream.Statuses() {
		if st.Health == upstream.Degraded || st.Health == upstream.Down {
			l.sick[st.ServerID] = true
		}
		if mcp.EraOf(st.ProtocolVersion) == mcp.Modern {
			l.newer[st.ServerID] = true
		}
	}
	d.looked.Store(l)
	return l
}

// sick names the servers in this scope that the caller can use and whose list may be out of date, in order.
func (x *exchange) sick(l *look) []string {
	if len(l.sick) == 0 {
		return nil
	}
	var out []string
	for _, s := range x.servers() {
		if l.sick[s.ID] {
			out = append(out, s.Name)
		}
	}
	return out
}

// newer lists the ids of servers among tools whose definitions an older client may not understand as they are.
func (x *exchange) newer(l *look, tools []*catalog.Tool) string {
	if x.era == mcp.Modern || len(l.newer) == 0 {
		return ""
	}
	var out []string
	for i, t := range tools { // tools of one server stand together
		if (i == 0 || t.ServerID != tools[i-1].ServerID) && l.newer[t.ServerID] {
			out = append(out, t.ServerID)
		}
	}
	return strings.Join(out, " ")
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
	newer       string // ids of servers whose definitions were changed for older clients
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
func readCursor(raw json.RawMessage, pageSize int) (int, error) {
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
