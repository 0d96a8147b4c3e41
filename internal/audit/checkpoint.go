package audit

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// Checkpoint says, signed, what the first Size rows are. It is a note of the usual form of transparency logs: origin, size, root,
// then two lines of ours (hash of the last row, time). A copy kept elsewhere proves a later rewriting of the record.
type Checkpoint struct {
	Size  int64  `json:"size"`
	Root  string `json:"root"`  // base64 root of the tree
	Chain string `json:"chain"` // hash of row Size
	At    int64  `json:"at"`    // unix microseconds
	Note  string `json:"note"`  // all of it as signed text
}

func signCheckpoint(s note.Signer, size int64, root tlog.Hash, chain string, at int64) (Checkpoint, error) {
	c := Checkpoint{Size: size, Root: base64.StdEncoding.EncodeToString(root[:]), Chain: chain, At: at}
	text := fmt.Sprintf("%s\n%d\n%s\nchain %s\ntime %d\n", s.Name(), c.Size, c.Root, c.Chain, c.At)
	signed, err := note.Sign(&note.Note{Text: text}, s)
	if err != nil {
		return c, fault.Wrap(fault.Internal, err, "a checkpoint cannot be signed")
	}
	c.Note = string(signed)
	return c, nil
}

// OpenCheckpoint checks the signature of a note with one of the keys and reads it.
func OpenCheckpoint(text string, keys []string) (Checkpoint, error) {
	fail := func(format string, args ...any) (Checkpoint, error) {
		return Checkpoint{}, fault.New(fault.InvalidParams, format, args...)
	}
	n, err := note.Open([]byte(text), verifiers(keys))
	if err != nil {
		return fail("not a checkpoint signed with a known key: %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(n.Text, "\n"), "\n")
	if len(lines) != 5 || lines[0] != n.Sigs[0].Name {
		return fail("the note is no checkpoint of a record")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	root, rerr := tlog.ParseHash(lines[2])
	chain, okChain := strings.CutPrefix(lines[3], "chain ")
	moment, okTime := strings.CutPrefix(lines[4], "time ")
	at, terr := strconv.ParseInt(moment, 10, 64)
	if err = errors.Join(err, rerr, terr); err != nil || size < 1 || !okChain || !okTime || len(chain) != len(genesis) {
		return fail("the note is no checkpoint of a record")
	}
	return Checkpoint{Size: size, Root: root.String(), Chain: chain, At: at, Note: text}, nil
}

// Newest is the newest stored checkpoint that covers row seq at least; fault.NotFound when there is none yet.
func Newest(ctx context.Context, d *db.DB, seq int64) (Checkpoint, error) {
	keys, err := Keys(ctx, d)
	if err != nil {
		return Checkpoint{}, err
	}
	c, ok, err := newest(ctx, d.Read, keys)
	if err == nil && (!ok || c.Size < seq) {
		err = fault.New(fault.NotFound, "no checkpoint covers the row yet; the next one is written within half a minute")
	}
	return c, err
}

func newest(ctx context.Context, q querier, keys []string) (Checkpoint, bool, error) {
	list, err := checkpoints(ctx, q, `ORDER BY size DESC LIMIT 1`)
	if err != nil || len(list) == 0 {
		return Checkpoint{}, false, err
	}
	c, err := OpenCheckpoint(list[0].note, keys)
	return c, err == nil, err
}

// stored is a checkpoint as it stands in the table, not yet believed.
type stored struct {
	size int64
	note string
}

func checkpoints(ctx context.Context, q querier, rest string, args ...any) ([]stored, error) {
	found, err := q.QueryContext(ctx, `SELECT size, note FROM audit_checkpoint `+rest, args...)
	if err != nil {
		return nil, unreadable(err)
	}
	defer found.Close()
	var list []stored
	for found.Next() {
		var s stored
		if err := found.Scan(&s.size, &s.note); err != nil {
			return nil, unreadable(err)
		}
		list = append(list, s)
	}
	if err := found.Err(); err != nil {
		return nil, unreadable(err)
	}
	return list, nil
}

// startSetting holds the checkpoint that the record begins after, once older rows were removed.
const startSetting = "audit_start"

// start reads where the record begins: the zero Checkpoint when nothing was removed.
func start(ctx context.Context, q querier, keys []string) (Checkpoint, error) {
	found, err := q.QueryContext(ctx, `SELECT value FROM setting WHERE name = $1`, startSetting)
	if err != nil {
		return Checkpoint{}, unreadable(err)
	}
	defer found.Close()
	if !found.Next() {
		return Checkpoint{Chain: genesis}, found.Err()
	}
	var text string
	if err := found.Scan(&text); err != nil {
		return Checkpoint{}, unreadable(err)
	}
	return OpenCheckpoint(text, keys)
}

// store adds a checkpoint and its new nodes. Another replica may have added the same ones.
func (c Checkpoint) store(ctx context.Context, tx *sql.Tx, first, minAt, maxAt int64, done []node) error {
	for _, n := range done {
		if _, err := tx.ExecContext(ctx, `INSERT INTO audit_tree (level, n, hash) VALUES ($1, $2, $3) ON CONFLICT (level, n) DO NOTHING`,
			n.level, n.n, n.hash.String()); err != nil {
			return unwritable(err)
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO audit_checkpoint (size, at, note, first, min_at, max_at) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (size) DO NOTHING`, c.Size, c.At, c.Note, first, minAt, maxAt); err != nil {
		return unwritable(err)
	}
	return nil
}
