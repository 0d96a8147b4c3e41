// Package filesystem is the built-in server that reads one folder tree:
// read_file and list_directory (WM-13, WM-14). It has no tool that writes. The
// border of the tree is kept by os.Root, which resolves every step of a path inside
// the opened folder, so that neither "..", nor a symbolic link, nor a
// rename between check and use leads out of it (WM-22).
package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/op"
)

// Limits of one answer. A larger one would fill the caller's context, not help it.
const (
	MaxFile    = 1 << 20 // bytes of a file that is read
	MaxEntries = 10_000  // entries of a directory that is listed
)

// Tree is one registration of the two tools over a folder (WM-23).
type Tree struct {
	Server string // name in the catalogue, such as "filesystem"
	Title  string
	Root   string // folder that is read; it must exist
	Tools  string // put before the tools' names, such as "workspace_"
	Prefix string // put before the paths in answers, such as "/workspace:"
	Where  string // names the folder in the tools' descriptions, such as "the workspace mount at /workspaces"
}

// New is the server "filesystem" over root.
func New(root string) (*op.Server, error) {
	return Tree{Server: "filesystem", Title: "Files", Root: root, Where: "the documents folder"}.Open()
}

// Open opens the root and makes the server. The error is fault.Config when the
// root is not a folder that can be opened.
func (t Tree) Open() (*op.Server, error) {
	abs, err := filepath.Abs(t.Root)
	if err != nil || t.Root == "" {
		return nil, fault.Wrap(fault.Config, err, "root %q of server %s is not a path", t.Root, t.Server)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "root %s of server %s cannot be opened: create the folder or change the setting", t.Root, t.Server)
	}
	tree := &tree{root: root, prefix: t.Prefix, names: []string{abs}}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		tree.names = append(tree.names, real)
	}
	return op.NewServer(t.Server, t.Title, nil,
		op.Define(t.Tools+"read_file", "Read a file from "+t.Where+". Returns file content as a string.", op.Read, tree.readFile),
		op.Define(t.Tools+"list_directory", "List a directory of "+t.Where+": name, type and size of each entry, sorted by name.", op.Read, tree.listDirectory),
	)
}

// tree is an open root.
type tree struct {
	root   *os.Root
	names  []string // absolute paths that name the root
	prefix string
}

type readInput struct {
	Path string `json:"path" jsonschema:"path of the file, relative to the root"`
}

type listInput struct {
	Path string `json:"path,omitempty" jsonschema:"path of the directory, relative to the root; default is the root"`
}

// Entry is one entry of a directory.
type Entry struct {
	Name string `json:"name"`
	Type string `json:"type"` // file, dir, symlink, other
	Size int64  `json:"size"` // bytes of a file, else 0
}

// Listing is the result of list_directory.
type Listing struct {
	Path    string  `json:"path"`
	Entries []Entry `json:"entries"`
}

// readFile answers with the file's text.
func (t *tree) readFile(_ context.Context, in readInput) (any, error) {
	name, err := t.inside(in.Path)
	if err != nil {
		return nil, err
	}
	f, info, err := t.open(name, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.IsDir() {
		return nil, op.Fail("is_directory", "%s is a directory: use list_directory", t.shown(in.Path))
	}
	if info.Size() > MaxFile {
		return nil, tooLarge(t.shown(in.Path))
	}
	// The size is what it was a moment ago; the limit holds for what is read.
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, t.failure(err, in.Path)
	}
	if len(text) > MaxFile {
		return nil, tooLarge(t.shown(in.Path))
	}
	if !utf8.Valid(text) || slices.Contains(text, 0) {
		return nil, op.Fail("binary_file", "%s is not a text file (UTF-8)", t.shown(in.Path))
	}
	return string(text), nil
}

// listDirectory answers with a Listing.
func (t *tree) listDirectory(_ context.Context, in listInput) (any, error) {
	name, err := t.inside(in.Path)
	if err != nil {
		return nil, err
	}
	f, info, err := t.open(name, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !info.IsDir() {
		return nil, op.Fail("not_directory", "%s is not a directory: use read_file", t.shown(in.Path))
	}
	found, err := f.ReadDir(MaxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, t.failure(err, in.Path)
	}
	if len(found) > MaxEntries {
		return nil, op.Fail("too_large", "%s has more than %d entries", t.shown(in.Path), MaxEntries)
	}
	entries := make([]Entry, 0, len(found))
	for _, e := range found {
		entries = append(entries, entry(e))
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return Listing{Path: t.shown(in.Path), Entries: entries}, nil
}

func entry(e fs.DirEntry) Entry {
	out := Entry{Name: strings.ToValidUTF8(e.Name(), "\uFFFD"), Type: "other"}
	switch {
	case e.IsDir():
		out.Type = "dir"
	case e.Type()&fs.ModeSymlink != 0:
		out.Type = "symlink"
	case e.Type().IsRegular():
		out.Type = "file"
		if info, err := e.Info(); err == nil { // else: removed since the listing
			out.Size = info.Size()
		}
	}
	return out
}

// inside turns a caller's path into one relative to the root. It only brings the path
// into os.Root's form and is no check of the border: that is os.Root's work.
func (t *tree) inside(path string) (string, error) {
	switch {
	case strings.ContainsRune(path, 0) || !utf8.ValidString(path):
		return "", op.Fail("path_not_allowed", "the path holds a character that no path has")
	case path == "":
		return ".", nil
	case !filepath.IsAbs(path):
		return path, nil
	}
	for _, root := range t.names {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel, nil
		}
	}
	return "", notAllowed(t.shown(path))
}

// open opens a regular file or a directory. Anything else is refused before it is opened, since opening
// a device can do things and opening a pipe can wait, and again after, since it may have been replaced.
func (t *tree) open(name, path string) (*os.File, fs.FileInfo, error) {
	before, err := t.root.Stat(name)
	if err != nil {
		return nil, nil, t.failure(err, path)
	}
	if !before.Mode().IsRegular() && !before.IsDir() {
		return nil, nil, op.Fail("path_not_allowed", "%s is neither a file nor a directory", t.shown(path))
	}
	f, err := t.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, t.failure(err, path)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, t.failure(err, path)
	}
	if (!info.Mode().IsRegular() && !info.IsDir()) || virtual(f) {
		f.Close()
		return nil, nil, op.Fail("path_not_allowed", "%s is neither a file nor a directory", t.shown(path))
	}
	return f, info, nil
}

// failure turns an error of the file system into one the caller understands. What
// os.Root refuses is no errno, and everything that is not known is refused.
func (t *tree) failure(err error, path string) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return op.Fail("not_found", "%s does not exist", t.shown(path))
	case errors.Is(err, syscall.EISDIR):
		return op.Fail("is_directory", "%s is a directory: use list_directory", t.shown(path))
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ESTALE):
		return fault.Wrap(fault.Internal, err, "%s cannot be read now", t.shown(path)).Why("read_failed")
	case errors.As(err, &errno):
		return op.Fail("path_not_allowed", "%s cannot be opened", t.shown(path))
	default:
		return notAllowed(t.shown(path))
	}
}

func notAllowed(path string) error {
	return op.Fail("path_not_allowed", "%s is outside of the folder that may be read", path)
}

func tooLarge(path string) error {
	return op.Fail("too_large", "%s is larger than %d bytes", path, MaxFile)
}

// shown is a path as answers name it, bounded because the caller chose it.
func (t *tree) shown(path string) string {
	if path == "" {
		path = "."
	}
	if len(path) > 512 {
		path = strings.ToValidUTF8(path[:512], "") + "…"
	}
	return t.prefix + path
}
