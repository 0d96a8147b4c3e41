// Package secret owns what must not be seen: sealing of values at rest, the
// key they are sealed with, and redaction of known secrets from text. It
// knows neither servers nor keys of callers, only bytes.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// Box seals and opens values with a key kept in a file of mode 0600.
// It is safe for concurrent use.
type Box struct {
	key  []byte
	id   string // names the key in what it sealed
	aead cipher.AEAD
}

const (
	keySize = 32
	version = "v1"
)

// OpenBox reads the key file at path, creating it when missing. A file that
// others may read is refused with fault.Config, as is a damaged one.
func OpenBox(path string) (*Box, error) {
	text, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createKey(path); err != nil {
			return nil, err
		}
		text, err = readKey(path)
	}
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return nil, f
		}
		return nil, fault.Wrap(fault.Config, err, "key file %s cannot be read", path)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keySize {
		return nil, fault.New(fault.Config, "key file %s is damaged: expected %d bytes in hex; restore it from a backup", path, keySize)
	}
	return newBox(key)
}

// ID names the key without showing it.
func (b *Box) ID() string { return b.id }

func newBox(key []byte) (*Box, error) {
	b := &Box{key: key}
	b.id = hex.EncodeToString(b.Key("key id")[:4])
	block, err := aes.NewCipher(b.Key("seal"))
	if err == nil {
		b.aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the sealing key cannot be used")
	}
	return b, nil
}

func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fault.New(fault.Config, "key file %s may be read by others (mode %04o): run chmod 600 on it", path, perm)
	}
	text := make([]byte, 256)
	n, err := f.Read(text)
	if n == 0 && err != nil {
		return nil, err
	}
	return text[:n], nil
}

// createKey writes a new key beside path and links it there: the file is
// never seen half-written, and of two processes one key wins.
func createKey(path string) error {
	fail := func(err error) error {
		return fault.Wrap(fault.Config, err, "key file %s cannot be created", path)
	}
	key := make([]byte, keySize)
	rand.Read(key) //nolint:errcheck // it never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // CreateTemp makes mode 0600
	if err != nil {
		return fail(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteString(hex.EncodeToString(key) + "\n"); err != nil {
		return fail(err)
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(err)
	}
	return nil
}

// Seal encrypts plain for the row named by bind (as additional data): a sealed
// value copied to another row does not open there.
func (b *Box) Seal(bind string, plain []byte) (string, error) {
	prefix := version + "." + b.id + "."
	return prefix + base64.RawURLEncoding.EncodeToString(b.aead.Seal(nil, nil, plain, []byte(prefix+bind))), nil
}

// Open reverses Seal. The error says whether another key sealed the value or
// whether the value was changed or belongs to another row.
func (b *Box) Open(bind, sealed string) ([]byte, error) {
	v, rest, ok := strings.Cut(sealed, ".")
	id, body, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || v != version {
		return nil, fault.New(fault.Config, "a stored secret is not in a form this doorward knows; enter it again")
	}
	if id != b.id {
		return nil, fault.New(fault.Config, "a stored secret was sealed with key %q, the key file holds %q: restore the key file or enter the secret again", id, b.id)
	}
	data, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		data, err = b.aead.Open(nil, nil, data, []byte(v+"."+id+"."+bind))
	}
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "a stored secret does not open: it was changed or copied from another row; enter it again")
	}
	return data, nil
}

// Key derives a 32-byte key for a purpose, such as "session".
func (b *Box) Key(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, b.key, nil, "doorward "+purpose, keySize)
	if err != nil {
		panic(err) // only a wrong length can fail
	}
	return key
}
