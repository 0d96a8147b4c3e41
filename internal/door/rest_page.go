package door

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// maxPage is the largest page of a list.
const maxPage = 200

// pageQuery are the parameters of lists that come in pages where the caller wants it.
var pageQuery = []string{"limit", "cursor"}

// pageOf cuts the page that the query asks for out of a whole list, and gives the cursor of the next one. Without limit and cursor the list
// stays whole. The order is that of the keys, each of which one item has, so that what comes and goes between two pages neither repeats
// nor hides the others.
func pageOf[T any](c *restCall, list []T, key func(T) string) (page []T, next string, err error) {
	limit, err := c.number("limit", 0)
	if err != nil {
		return nil, "", err
	}
	q := c.URL.Query()
	if !q.Has("limit") && q.Get("cursor") == "" {
		return list, "", nil
	}
	if !q.Has("limit") {
		limit = maxPage
	}
	limit = min(max(limit, 1), maxPage)
	after, err := base64.RawURLEncoding.DecodeString(q.Get("cursor"))
	if err != nil {
		return nil, "", fault.New(fault.InvalidParams, "cursor must be the next_cursor of the page before")
	}
	byKey := func(a, b T) int { return strings.Compare(key(a), key(b)) }
	if !slices.IsSortedFunc(list, byKey) {
		list = slices.Clone(list)
		slices.SortFunc(list, byKey)
	}
	at := 0
	if len(after) > 0 {
		var found bool
		if at, found = slices.BinarySearchFunc(list, string(after), func(x T, k string) int { return strings.Compare(key(x), k) }); found {
			at++
		}
	}
	list = list[at:]
	if int64(len(list)) > limit {
		list = list[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte(key(list[limit-1])))
	}
	return list, next, nil
}

// ageKey orders what has a time of its making.
func ageKey(createdAt int64, id string) string { return fmt.Sprintf("%020d %s", createdAt, id) }
