package auth

import (
	"context"
	"database/sql"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"doorward.dev/doorward/internal/fault"
)

// A name is what people and records tell agents and people apart by. So one that is written otherwise, but looks like another, is refused.

// lookAlikes are letters that most typefaces draw like a Latin one. Within a name of one script, nothing but this map knows it.
var lookAlikes = func() map[rune]rune {
	m := map[rune]rune{}
	for _, pair := range [][2]string{
		{"аеорсухіјѕһԁԛԝӏкмтвнѵ", "aeopcyxijshdqwlkmtbhv"}, // Cyrillic
		{"αοενρτυχικγηωω", "aoevptuxikynww"},               // Greek
		{"օոսցհյզ", "onugniq"},                             // Armenian
	} {
		like := []rune(pair[1])
		for i, r := range []rune(pair[0]) {
			m[r] = like[i]
		}
	}
	return m
}()

// skeleton is equal for names that look alike: compatibility forms and case are folded, letters of other scripts that look Latin are written so.
func skeleton(name string) string {
	folded := norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name)))
	return strings.Map(func(r rune) rune {
		if like, ok := lookAlikes[r]; ok {
			return like
		}
		return r
	}, strings.Join(strings.Fields(folded), " "))
}

// together are the scripts that people write in one word, each line a group.
var together = [][]string{{"Latin", "Han", "Hiragana", "Katakana"}, {"Latin", "Han", "Hangul"}, {"Latin", "Han", "Bopomofo"}}

// checkLegible refuses a name with what cannot be seen, and one with letters of scripts that are not written together.
func checkLegible(what, name string) error {
	used := map[string]bool{}
	for _, r := range name {
		if unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) ||
			unicode.Is(unicode.Zs, r) && r != ' ' || r == '\u2800' || r == unicode.ReplacementChar {
			return fault.New(fault.InvalidParams, "the %s's name has a character that cannot be seen (%U); write it without", what, r)
		}
		if !unicode.IsLetter(r) || unicode.In(r, unicode.Common, unicode.Inherited) {
			continue
		}
		for script, table := range unicode.Scripts {
			if unicode.Is(table, r) {
				used[script] = true
			}
		}
	}
	if len(used) < 2 {
		return nil
	}
	for _, group := range together {
		n := 0
		for _, script := range group {
			if used[script] {
				n++
			}
		}
		if n == len(used) {
			return nil
		}
	}
	return fault.New(fault.InvalidParams, "the %s's name mixes letters of different scripts, which can look like another name; write it in one", what)
}

// distinct refuses a new name that looks like another one of the table (agent, person) in the workspace. It locks the workspace, so
// that of two such names that come at once one is refused.
func distinct(ctx context.Context, tx *sql.Tx, table, ws, id, name string) error {
	if err := checkLegible(table, name); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE workspace SET name = name WHERE id = $1`, ws); err != nil {
		return written(err, "")
	}
	rows, err := tx.QueryContext(ctx, `SELECT name FROM `+table+` WHERE workspace_id = $1 AND id <> $2 AND name <> $3`, ws, id, name)
	if err != nil {
		return unreadable(err)
	}
	defer rows.Close()
	want := skeleton(name)
	for rows.Next() {
		var other string
		if err := rows.Scan(&other); err != nil {
			return unreadable(err)
		}
		if skeleton(other) == want {
			return fault.New(fault.Conflict, "the name looks like that of the %s %s, which exists; choose one that can be told apart", table, other).Why("NAME_LOOKS_ALIKE")
		}
	}
	if err := rows.Err(); err != nil {
		return unreadable(err)
	}
	return nil
}
