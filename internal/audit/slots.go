package audit

import (
	"fmt"
	"strings"
	"time"
)

// Window is the time over which a counter counts.
type Window string

// The windows. They are part of what rows hold.
const (
	Task Window = "task" // as long as the task that the subject names
	Day  Window = "day"  // a calendar day, UTC
	Hour Window = "hour" // the last 60 minutes, rolling
)

// Slot is one use of a counter. A row that is written with slots gets all of them or is not written (Event.Reserve).
type Slot struct {
	Window  Window
	Subject string // what is counted, without spaces: ids and words
	Limit   int64  // how many slots the counter has
}

// name is the counter's name, in rows and in limit_counter.
func (s Slot) name() string { return string(s.Window) + ":" + s.Subject }

// Exhausted is the error of Write for a row that did not get its slots: it is not in the record and has used nothing.
type Exhausted struct {
	Slot Slot
	Used int64
}

func (e *Exhausted) Error() string {
	return fmt.Sprintf("the limit %s is used up (%d/%d)", e.Slot.name(), e.Used, e.Slot.Limit)
}

// slotNames is the text of the slots that a row holds.
func slotNames(slots []Slot) string {
	if len(slots) == 0 {
		return ""
	}
	var b strings.Builder
	for i, s := range slots {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(string(s.Window))
		b.WriteByte(':')
		b.WriteString(s.Subject)
	}
	return b.String()
}

const (
	second = int64(time.Second / time.Microsecond)
	hour   = 3600 * second
	day    = 24 * hour
)

// windowOf is the window of a counter by its name, empty for a name that no version of Doorward wrote.
func windowOf(name string) Window {
	word, _, _ := strings.Cut(name, ":")
	switch w := Window(word); w {
	case Task, Day, Hour:
		return w
	}
	return ""
}

// place is where a row of time at is counted. An hour is kept in seconds, rounded up, so that a slot is never free too early and at
// most a second late, and a counter has at most 3600 places, however large its limit.
func (w Window) place(at int64) int64 {
	switch w {
	case Day:
		return at - mod(at, day)
	case Hour:
		return at + mod(-at, second)
	}
	return 0
}

// since and until are the first and the last place that count for a row of time at. Replicas may have clocks that differ a
// little: what another one counted a moment ahead counts. Rows of one second have the same, so that a batch asks once for them.
func (w Window) since(at int64) int64 {
	if w == Hour { // places are whole seconds, so this one is the first after at - hour
		return at - hour + second - mod(at, second)
	}
	return w.place(at)
}

func (w Window) until(at int64) int64 {
	if w == Hour {
		return w.since(at) + day
	}
	return w.place(at)
}

// stale is the place before which places of a counter are forgotten when a row of time at makes a new place: later than
// they stop counting, because of clocks that differ or step back.
func (w Window) stale(at int64) int64 {
	switch w {
	case Day:
		return w.place(at) - 2*day
	case Hour:
		return at - 2*hour
	}
	return 0
}

// counts reports whether a counter's place still says something at a time.
func (w Window) counts(place, seen, at int64) bool {
	if w == Task {
		return seen > at-int64(KeepAtLeast/time.Microsecond)/2 // no task lives longer than that
	}
	return place >= w.since(at)
}

func mod(a, b int64) int64 { return (a%b + b) % b }

// tallied is one place of a counter.
type tallied struct{ n, seen int64 }

// tally is counters by name and place.
type tally map[string]map[int64]tallied

// use counts one use of a counter by a row of time at, and forgets the counter's stale places when it makes a new one.
func (t tally) use(name string, w Window, at int64) {
	places := t[name]
	if places == nil {
		places = map[int64]tallied{}
		t[name] = places
	}
	p := w.place(at)
	old, found := places[p]
	places[p] = tallied{old.n + 1, max(old.seen, at)}
	if found || w == Task {
		return
	}
	for place := range places {
		if place < w.stale(at) {
			delete(places, place)
		}
	}
}

// row counts what a row of the record used.
func (t tally) row(slots string, at int64) {
	for slots != "" {
		var name string
		name, slots, _ = strings.Cut(slots, " ")
		if w := windowOf(name); w != "" {
			t.use(name, w, at)
		}
	}
}

// used is how many slots of a counter are in use for a row of time at.
func (t tally) used(name string, w Window, at int64) (n int64) {
	for place, c := range t[name] {
		if place >= w.since(at) && place <= w.until(at) {
			n += c.n
		}
	}
	return n
}

// differs names a counter that is kept with another number than the one made from the rows, of those that still count at
// a time; empty when there is none.
func (t tally) differs(made tally, at int64) string {
	check := func(a, b tally) string {
		for name, places := range a {
			w := windowOf(name)
			for place, c := range places {
				other := b[name][place]
				if c.n != other.n && w.counts(place, max(c.seen, other.seen), at) {
					return name
				}
			}
		}
		return ""
	}
	if name := check(t, made); name != "" {
		return name
	}
	return check(made, t)
}
