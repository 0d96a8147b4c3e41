package audit

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// The Merkle tree has a leaf for each row, made of the hash of the row. Only its nodes over 256, 65,536, … whole
// rows are stored: a two hundred and fifty-sixth of the record, enough to prove anything by reading at most 256 hashes a level, and
// still there when the rows below are gone.
const treeStep = 8

// block is how many rows the lowest stored node covers; the record can be cut only there.
const block = 1 << treeStep

// tree is a growing Merkle tree, kept as its right edge: one node for each bit of its size.
type tree struct {
	size int64
	edge []tlog.Hash // largest subtree first
}

// node is a whole subtree: the n-th on its level.
type node struct {
	level int
	n     int64
	hash  tlog.Hash
}

// leaf is the leaf of a row with this hash.
func leaf(hash string) (tlog.Hash, error) {
	var raw [tlog.HashSize]byte
	if len(hash) != 2*len(raw) {
		return tlog.Hash{}, errors.New("a row has a damaged hash")
	}
	if _, err := hex.Decode(raw[:], []byte(hash)); err != nil {
		return tlog.Hash{}, errors.New("a row has a damaged hash")
	}
	return tlog.RecordHash(raw[:]), nil
}

// add appends a leaf and gives the nodes to store that it completed, appended to done.
func (t *tree) add(h tlog.Hash, done []node) []node {
	n := t.size
	for level := 1; n&1 == 1; level++ {
		h = tlog.NodeHash(t.edge[len(t.edge)-1], h)
		t.edge = t.edge[:len(t.edge)-1]
		n >>= 1
		if level%treeStep == 0 {
			done = append(done, node{level, n, h})
		}
	}
	t.edge = append(t.edge, h)
	t.size++
	return done
}

// root is the hash of the whole tree, which must not be empty.
func (t *tree) root() tlog.Hash {
	h := t.edge[len(t.edge)-1]
	for i := len(t.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(t.edge[i], h)
	}
	return h
}

// querier is what the tree is read with: a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// nodes reads nodes of the tree from the database, for package tlog.
type nodes struct {
	ctx context.Context
	q   querier
}

// errGone is a node whose rows were removed or are not there yet.
var errGone = errors.New("a part of the tree that is needed is missing: its rows were removed, or the record is damaged")

// ReadHashes implements tlog.HashReader.
func (r nodes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, x := range indexes {
		level, n := tlog.SplitStoredHashIndex(x)
		var err error
		if out[i], err = r.node(level, n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// node computes a node from those stored next below it, or from the rows.
func (r nodes) node(level int, n int64) (tlog.Hash, error) {
	base := level / treeStep * treeStep
	width := int64(1) << (level - base)
	query, args := `SELECT hash FROM audit_tree WHERE level = $1 AND n >= $2 AND n < $3 ORDER BY n`, []any{base, n * width, (n + 1) * width}
	if base == 0 {
		query, args = `SELECT hash FROM audit_events WHERE seq > $1 AND seq <= $2 ORDER BY seq`, []any{n * width, (n + 1) * width}
	}
	found, err := r.q.QueryContext(r.ctx, query, args...)
	if err != nil {
		return tlog.Hash{}, unreadable(err)
	}
	defer found.Close()
	var t tree
	for found.Next() {
		var text string
		if err := found.Scan(&text); err != nil {
			return tlog.Hash{}, unreadable(err)
		}
		h, err := leaf(text)
		if base > 0 {
			h, err = tlog.ParseHash(text)
		}
		if err != nil {
			return tlog.Hash{}, fmt.Errorf("%w (%w)", errGone, err)
		}
		t.add(h, nil)
	}
	if err := found.Err(); err != nil {
		return tlog.Hash{}, unreadable(err)
	}
	if t.size != width {
		return tlog.Hash{}, errGone
	}
	return t.root(), nil
}

// tree reads the tree of the first size rows.
func (r nodes) tree(size int64) (tree, error) {
	t := tree{size: size}
	for level := 62; level >= 0; level-- {
		if size>>level&1 == 0 {
			continue
		}
		h, err := r.node(level, size>>level-1)
		if err != nil {
			return tree{}, err
		}
		t.edge = append(t.edge, h)
	}
	return t, nil
}
