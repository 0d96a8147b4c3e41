package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Bodies of some size are stored once by content, in audit_body, and rows hold the reference. The hash of a row is over the
// body itself, so a body that was changed or is missing shows as a changed row. Small ones stand in the row: a
// reference would take more room than it saves.

const (
	inlineBody = 2 << 10 // bytes from which on a body has a row of its own; above an excerpt
	bodyPrefix = "@sha256:"

	// bodyLag is how many rows may refer to a body before its own row says so: a body that comes again and again
	// is not written again and again.
	bodyLag = 1 << 16
)

// reference gives the reference to a body that is stored by content, empty for one that stands in the row. What looks like
// a reference is stored by content whatever its size, so that no row holds a false one.
func reference(body string) string {
	if len(body) < inlineBody && !strings.HasPrefix(body, bodyPrefix) {
		return ""
	}
	sum := sha256.Sum256([]byte(body))
	return bodyPrefix + hex.EncodeToString(sum[:])
}

// storeBodySQL stores a body, or says that a later row has it as well.
var storeBodySQL = `INSERT INTO audit_body (digest, body, seq) VALUES ($1, $2, $3)
 ON CONFLICT (digest) DO UPDATE SET seq = excluded.seq WHERE audit_body.seq <= excluded.seq - ` + itoa(bodyLag)

// forgetBodiesSQL removes the bodies that only rows up to $1 have.
var forgetBodiesSQL = `DELETE FROM audit_body WHERE seq <= $1 - ` + itoa(bodyLag)

// bodyOf is the expression that reads a body, wherever it is stored.
func bodyOf(column string) string {
	return `CASE WHEN substr(` + column + `, 1, 8) = '` + bodyPrefix + `' THEN COALESCE((SELECT body FROM audit_body WHERE digest = ` + column + `), ` + column + `) ELSE ` + column + ` END`
}

// selected are columns for reading, in the same order.
var selected = strings.NewReplacer(
	"args_body", bodyOf("args_body"), "result_body", bodyOf("result_body"),
).Replace(columns)

// bodies gives each body of the row that is stored by content to store.
func (en *entry) bodies(store func(args ...any) error) error {
	for _, b := range [...]struct{ ref, body string }{{en.argsRef, en.event.ArgsBody}, {en.resultRef, en.event.ResultBody}} {
		if b.ref == "" {
			continue
		}
		if err := store(b.ref, b.body, en.event.Seq); err != nil {
			return err
		}
	}
	return nil
}
