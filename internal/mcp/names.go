package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxPublicName is what clients accept: ^[a-zA-Z0-9_-]{1,64}$.
const maxPublicName = 64

// ToolRef names one tool of one server by their own names.
type ToolRef struct{ Server, Tool string }

func (r ToolRef) String() string { return r.Server + "/" + r.Tool }

// PublicName is the name of a tool on the aggregate door: <server>__<tool>, characters outside
// [A-Za-z0-9_-] as _, at most 64 bytes (cut names end in _ and 8 hex of a digest).
// Two tools may have the same PublicName; PublicNames tells them apart.
func PublicName(server, tool string) string {
	name := plainName(server, tool)
	if len(name) > maxPublicName {
		return digestName(server, tool, 8)
	}
	return name
}

// PublicNames gives every tool a public name of its own, in the order of
// refs. Where names collide, each of the tools gets its digest, so that a name
// does not depend on the order; the same ref twice has the same name.
func PublicNames(refs []ToolRef) []string {
	names := make([]string, len(refs))
	digest := make([]int, len(refs)) // hex digits of the digest
	for i, r := range refs {
		names[i] = PublicName(r.Server, r.Tool)
	}
	// A name with a digest may hit another name: go on until all differ. A
	// tool never loses its digest, so this ends after a few rounds.
	for again := true; again; {
		again = false
		first := make(map[string]int, len(refs))
		collide := make(map[string]bool)
		for i, n := range names {
			if j, ok := first[n]; ok && refs[j] != refs[i] {
				collide[n] = true
			} else if !ok {
				first[n] = i
			}
		}
		for i, n := range names {
			if collide[n] && digest[i] < maxDigest {
				again = true
				digest[i] = min(max(8, digest[i]*2), maxDigest)
				names[i] = digestName(refs[i].Server, refs[i].Tool, digest[i])
			}
		}
	}
	return names
}

const maxDigest = 32

// digestName is a public name that ends in hexDigits of the digest of the ref.
func digestName(server, tool string, hexDigits int) string {
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	name := plainName(server, tool)
	if limit := maxPublicName - 1 - hexDigits; len(name) > limit {
		name = name[:limit]
	}
	return name + "_" + hex.EncodeToString(sum[:])[:hexDigits]
}

// plainName is <server>__<tool> in the allowed alphabet, uncut. It is ASCII.
func plainName(server, tool string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, server+"__"+tool)
}

// maxParsedName bounds the names ParseName looks at, in bytes.
const maxParsedName = 1024

// ParseName returns every reading of a qualified tool name, likeliest first:
// server/tool, mcp__server__tool, server__tool. Names may hold __ themselves,
// so there can be several; the caller knows which exist, and refuses when that
// is more than one. A name with no separator has no reading. Public names that
// were altered are found by PublicNames, not here.
func ParseName(name string) []ToolRef {
	if len(name) > maxParsedName {
		return nil
	}
	var refs []ToolRef
	if server, tool, ok := strings.Cut(name, "/"); ok && server != "" && tool != "" {
		refs = append(refs, ToolRef{server, tool})
	}
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		refs = appendSplits(refs, rest)
	}
	return appendSplits(refs, name)
}

// appendSplits appends a reading for every place where name has two underscores.
func appendSplits(refs []ToolRef, name string) []ToolRef {
	for i := 1; i+2 < len(name); i++ {
		if name[i] == '_' && name[i+1] == '_' {
			refs = append(refs, ToolRef{name[:i], name[i+2:]})
		}
	}
	return refs
}
