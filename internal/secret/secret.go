// Package secret owns what must not be seen: sealing of values at rest, the
// key they are sealed with, and redaction of known secrets from text. It
// knows neither servers nor keys of callers, only bytes.
package secret

// Box seals and opens values with a key kept in a file of mode 0600.
// It is safe for concurrent use.
type Box struct{ key []byte }

// OpenBox reads the key file at path, creating it when missing.
func OpenBox(path string) (*Box, error) { panic("pending") }

// Seal encrypts plain for the row named by bind (as additional data): a sealed
// value copied to another row does not open there.
func (b *Box) Seal(bind string, plain []byte) (string, error) { panic("pending") }

// Open reverses Seal.
func (b *Box) Open(bind, sealed string) ([]byte, error) { panic("pending") }

// Key derives a 32-byte key for a purpose, such as "session".
func (b *Box) Key(purpose string) []byte { panic("pending") }

// Masked is what is shown instead of a secret. Saving it back keeps the stored value.
const Masked = "[redacted]"

// Redactor replaces known secret values in text. The zero value is ready; it
// is safe for concurrent use and lock-free for readers.
type Redactor struct{}

// Set replaces the secrets of one owner (a server id, a config section). Values
// shorter than 6 bytes are ignored: they would redact ordinary text.
func (r *Redactor) Set(owner string, values []string) { panic("pending") }

// Redact returns text with every known secret (also in its JSON-escaped,
// base64 and percent-encoded form) replaced by Masked. It returns text itself when there is none.
func (r *Redactor) Redact(text []byte) []byte { panic("pending") }

// SensitiveKey reports whether a header, environment or argument name holds a secret by its name
// (authorization, token, password, …; list in spec/iac-code 2.2.1).
func SensitiveKey(name string) bool { panic("pending") }
