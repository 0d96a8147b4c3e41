package db

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// Tag is a strong entity tag of what is stored of a thing: equal parts give equal tags.
func Tag(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		return "" // matches nothing
	}
	sum := sha256.Sum256(b)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

type matchKey struct{}

// WithMatch makes changes within ctx conditional: Match lets them through only for a thing that has one of the tags, as
// a request's If-Match header lists them.
func WithMatch(ctx context.Context, tags string) context.Context {
	return context.WithValue(ctx, matchKey{}, tags)
}

// Match refuses the change of a thing that is not as the caller saw it. Call it within the transaction of the change, on what that has locked.
func Match(ctx context.Context, tag string) error {
	want, conditional := ctx.Value(matchKey{}).(string)
	if !conditional || strings.TrimSpace(want) == "*" {
		return nil
	}
	for t := range strings.SplitSeq(want, ",") {
		if tag != "" && strings.TrimSpace(t) == tag {
			return nil
		}
	}
	return fault.New(fault.Precondition, "somebody changed it since you read it; read it again, look at what changed, and send the request with the new ETag as If-Match")
}
