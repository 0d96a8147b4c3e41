package db

import (
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"doorward.dev/doorward/internal/fault"
)

const (
	sqliteFile = "doorward.db"
	lockFile   = "doorward.lock"
	readers    = 8
)

func openSQLite(dir string, readOnly bool) (*DB, error) {
	if dir == "" {
		return nil, fault.New(fault.Config, "no data folder: give --data DIR")
	}
	path, err := filepath.Abs(filepath.Join(dir, sqliteFile))
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "data folder %s cannot be used", dir)
	}
	if readOnly {
		if _, err := os.Stat(path); err != nil {
			return nil, fault.Wrap(fault.NotFound, err, "no database in %s: give the data folder of doorward serve with --data", dir)
		}
		read, err := sqlitePool(path, readers, readerPragmas)
		if err != nil {
			return nil, err
		}
		return &DB{Write: read, Read: read}, nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	d, err := openLocked(path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	d.lock = lock
	return d, nil
}

// readerPragmas are the settings of a reader. Small page caches (KiB): the path of a call does not read, the
// system caches the file as well, and nine connections of SQLite's default would hold 18 MiB.
const readerPragmas = "&_query_only=1&_pragma=cache_size(-256)"

func openLocked(path string) (*DB, error) {
	if err := private(path); err != nil {
		return nil, err
	}
	// One writer connection: SQLite has one writer anyway, and waiting in the
	// pool is fair and free, where waiting for SQLITE_BUSY is neither.
	write, err := sqlitePool(path, 1, "")
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, readers, readerPragmas)
	if err != nil {
		write.Close()
		return nil, err
	}
	return &DB{Write: write, Read: read}, nil
}

// sqlitePool never creates the file (mode=rw): private has done that with the
// right mode, and SQLite gives -wal and -shm the mode of the database.
func sqlitePool(path string, n int, more string) (*sql.DB, error) {
	dsn := (&url.URL{Scheme: "file", Path: path}).String() + "?mode=rw&_txlock=immediate" +
		"&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)" +
		"&_pragma=foreign_keys(1)&_pragma=temp_store(MEMORY)&_pragma=wal_autocheckpoint(4000)&_pragma=cache_size(-1000)" + more
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, unavailable(err)
	}
	pool.SetMaxOpenConns(n)
	pool.SetMaxIdleConns(n)
	return pool, nil
}

// private creates the file with mode 0600, or takes the rights of others from an existing one.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fault.Wrap(fault.Config, err, "database %s cannot be opened", path)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return fault.Wrap(fault.Config, err, "database %s cannot be made private (mode 0600)", path)
	}
	return nil
}

// lockDir makes the data folder and holds its lock file until the returned
// file is closed. The kernel lets go of it when the process dies, however it dies.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(fault.Config, err, "data folder %s cannot be created", dir)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fault.Wrap(fault.Config, err, "data folder %s cannot be written by this user", dir)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "data folder %s cannot be used", dir)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fault.New(fault.Conflict, "data folder %s is in use by another doorward: stop it, or give another --data", dir)
		}
		return nil, fault.Wrap(fault.Config, err, "data folder %s cannot be locked", dir)
	}
	return f, nil
}
