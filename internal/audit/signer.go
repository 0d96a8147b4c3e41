package audit

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

// The keys of checkpoints are setting audit_keys: a line for each, the public key and the sealed private one. There is one
// line unless the sealing key was lost or replicas have different ones. Whoever can write the setting can add a line,
// so who wants certainty keeps the public key elsewhere and gives it to Verify.
const (
	keysSetting = "audit_keys"
	keyBind     = "setting:audit_keys"
)

// openSigner opens the newest key that the box opens, or makes one.
func openSigner(ctx context.Context, d *db.DB, box *secret.Box) (note.Signer, error) {
	text, err := d.Setting(ctx, keysSetting, func() (string, error) { return newKey(box) })
	if err != nil {
		return nil, err
	}
	if s := openKey(text, box); s != nil {
		return s, nil
	}
	line, err := newKey(box)
	if err != nil {
		return nil, err
	}
	err = d.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE setting SET value = value || $1 WHERE name = $2`, "\n"+line, keysSetting)
		if err != nil {
			return unwritable(err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return openKey(line, box), nil
}

func newKey(box *secret.Box) (string, error) {
	id := make([]byte, 4)
	rand.Read(id) //nolint:errcheck // it never fails
	private, public, err := note.GenerateKey(rand.Reader, "doorward-audit-"+hex.EncodeToString(id))
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "the key of the record cannot be made")
	}
	sealed, err := box.Seal(keyBind, []byte(private))
	return public + " " + sealed, err
}

func openKey(text string, box *secret.Box) note.Signer {
	var newest note.Signer
	for line := range strings.Lines(text) {
		_, sealed, _ := strings.Cut(strings.TrimSpace(line), " ")
		plain, err := box.Open(keyBind, sealed)
		if err != nil {
			continue
		}
		if s, err := note.NewSigner(string(plain)); err == nil {
			newest = s
		}
	}
	return newest
}

// Keys are the public keys of checkpoints, in the form of package note; none before the first start with a sealing key.
func Keys(ctx context.Context, d *db.DB) ([]string, error) {
	var text string
	err := d.Read.QueryRowContext(ctx, `SELECT value FROM setting WHERE name = $1`, keysSetting).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return []string{}, nil
	}
	if err != nil {
		return nil, unreadable(err)
	}
	keys := []string{}
	for line := range strings.Lines(text) {
		public, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		keys = append(keys, public)
	}
	return keys, nil
}

// verifiers are the keys that checkpoints are accepted from. A damaged one is left out: what it signed is not accepted then.
func verifiers(keys []string) note.Verifiers {
	var list []note.Verifier
	for _, k := range keys {
		if v, err := note.NewVerifier(k); err == nil {
			list = append(list, v)
		}
	}
	return note.VerifierList(list...)
}
