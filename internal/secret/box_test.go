package secret_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/secret"
)

func openBox(t *testing.T, path string) *secret.Box {
	t.Helper()
	b, err := secret.OpenBox(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSealedOpensOnlyWhereItBelongs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	box := openBox(t, path)
	sealed, err := box.Seal("server/7", []byte("hunter2hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(sealed, "hunter2") {
		t.Fatal("not sealed")
	}
	again, _ := box.Seal("server/7", []byte("hunter2hunter2"))
	if again == sealed {
		t.Error("equal values seal to equal texts")
	}
	if got, err := openBox(t, path).Open("server/7", sealed); err != nil || string(got) != "hunter2hunter2" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	if empty, err := box.Seal("x", nil); err != nil {
		t.Error(err)
	} else if got, err := box.Open("x", empty); err != nil || len(got) != 0 {
		t.Errorf("empty value: %q, %v", got, err)
	}
	other := openBox(t, filepath.Join(t.TempDir(), "key"))
	if _, err := other.Open("server/7", sealed); !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), "key") {
		t.Errorf("another key: %v", err)
	}
	if _, err := box.Open("server/8", sealed); !fault.Is(err, fault.Config) {
		t.Errorf("another row: %v", err)
	}
	for i := range sealed {
		bad := []byte(sealed)
		bad[i] ^= 1
		if _, err := box.Open("server/7", string(bad)); err == nil {
			t.Errorf("opens with byte %d changed", i)
		}
	}
	for _, bad := range []string{"", "v1", "v1.x", "v1..", "plain text", sealed[:len(sealed)-4]} {
		if _, err := box.Open("server/7", bad); !fault.Is(err, fault.Config) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestKeysDifferByPurposeAndStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	a, b := openBox(t, path), openBox(t, path)
	if len(a.Key("session")) != 32 || !bytes.Equal(a.Key("session"), b.Key("session")) {
		t.Error("a purpose has no steady key")
	}
	if bytes.Equal(a.Key("session"), a.Key("seal")) {
		t.Error("two purposes share a key")
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "key")
	openBox(t, path)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("made with mode %o", info.Mode().Perm())
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := secret.OpenBox(path); !fault.Is(err, fault.Config) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	for _, text := range []string{"", "zz", strings.Repeat("ab", 31), strings.Repeat("ab", 33), strings.Repeat("ab", 500)} {
		bad := filepath.Join(dir, "bad")
		if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := secret.OpenBox(bad); !fault.Is(err, fault.Config) {
			t.Errorf("key %q: %v", text, err)
		}
	}
}

func TestStartingTogetherMakesOneKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	keys := make([][]byte, 8)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			if b, err := secret.OpenBox(path); err == nil {
				keys[i] = b.Key("x")
			}
		})
	}
	all.Wait()
	for _, k := range keys {
		if k == nil || !bytes.Equal(k, keys[0]) {
			t.Fatal("two keys")
		}
	}
}
