//go:build unix

package app

import (
	"os"
	"path/filepath"
	"syscall"

	"doorward.dev/doorward/internal/fault"
)

// lockFolder makes this process the only one that serves a data folder: the record has one writer. The
// lock ends with the process, so that a killed one leaves nothing behind to clean up.
func lockFolder(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "cannot write to the data folder %s", dir)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.Wrap(fault.Config, err, "another doorward serves the data folder %s; stop it or choose another folder with --data", dir)
	}
	return f.Close, nil
}
