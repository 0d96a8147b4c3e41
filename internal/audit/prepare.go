package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

const (
	defaultMaxBody = 32 << 10
	excerpt        = 1 << 10 // bytes kept of a body that is too large
	maxField       = 2 << 10 // bytes kept of any other text: names come from callers
)

// Truncated ends a body of which only the beginning is stored.
const Truncated = "…[truncated]"

// prepare fills everything of the row that does not depend on the rows before
// it. It runs in the caller's goroutine, so that the one writer does not have to.
func (l *Log) prepare(e *Event) {
	if e.At == 0 {
		e.At = l.o.Now().UnixMicro()
	}
	e.ID = newID()
	e.Slots = slotNames(e.Reserve)
	e.ArgsDigest, e.ArgsSize, e.ArgsBody = l.body(e.Arguments)
	e.ResultDigest, e.ResultSize, e.ResultBody = l.body(e.Result)
	// A reason may quote what an upstream said.
	e.Reason = l.o.Redactor.RedactString(e.Reason)
	for _, field := range [...]*string{
		(*string)(&e.Kind), &e.TraceID, &e.WorkspaceID, &e.AgentID, &e.PersonID, &e.TaskID, &e.KeyID, &e.Door, &e.Method,
		&e.ServerID, &e.Server, &e.ToolID, &e.Tool, &e.Fingerprint, &e.Decision, &e.Stage, &e.RuleID, &e.Reason,
		&e.ApprovalID, (*string)(&e.Status), &e.ErrorClass,
	} {
		*field = clean(*field)
		if len(*field) > maxField {
			*field = cut(*field, maxField) + Truncated
		}
	}
}

// body gives digest and size of the bytes as they passed, and what is stored of them.
func (l *Log) body(b []byte) (digest string, size int64, stored string) {
	if len(b) == 0 {
		return "", 0, ""
	}
	sum := sha256.Sum256(b)
	digest, size = hex.EncodeToString(sum[:]), int64(len(b))
	if len(b) <= l.o.MaxBody {
		return digest, size, clean(string(l.o.Redactor.Redact(b)))
	}
	// Redact more than is kept: what may be the first half of a secret stands
	// in the last Longest bytes of the redacted text, and those are dropped.
	spare := l.o.Redactor.Longest()
	part := l.o.Redactor.Redact(b[:min(len(b), excerpt+spare)])
	keep := max(0, min(excerpt, len(part)-spare))
	return digest, size, clean(cut(string(part[:min(len(part), keep+utf8.UTFMax)]), keep)) + Truncated
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := n; i > n-utf8.UTFMax && i > 0; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n]
}

// clean makes text that every database and every JSON reader takes: valid UTF-8 without NUL.
func clean(s string) string {
	if strings.IndexByte(s, 0) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
