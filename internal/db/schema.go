package db

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"doorward.dev/doorward/internal/fault"
)

// table is what the database itself says of one of its tables.
type table struct {
	name    string
	columns []column
	key     []string        // quoted columns of its primary key
	refers  map[string]bool // to tables that must be filled before
}

type column struct {
	name string
	kind kind
}

// kind is a type that both databases have.
type kind int

const (
	text kind = iota
	number
	boolean
)

// kinds are the types that migrations may use, as the two databases name them.
var kinds = map[string]kind{"text": text, "bigint": number, "integer": number, "boolean": boolean}

// incomplete is the table that marks a database into which a restore has not ended.
const incomplete = "doorward_incomplete"

// notData are the tables that say how the database was made; another one is made in its own way.
var notData = []string{"goose_db_version", incomplete}

const (
	columnsSQLite = `SELECT m.name, c.name, lower(c.type), c.pk FROM sqlite_schema m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' ORDER BY m.name, c.cid`
	refersSQLite = `SELECT m.name, f."table" FROM sqlite_schema m JOIN pragma_foreign_key_list(m.name) f WHERE m.type = 'table'`

	columnsPostgres = `SELECT t.relname, c.attname, format_type(c.atttypid, c.atttypmod), COALESCE(array_position(k.conkey, c.attnum), 0)
		FROM pg_class t JOIN pg_attribute c ON c.attrelid = t.oid AND c.attnum > 0 AND NOT c.attisdropped
		LEFT JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'p'
		WHERE t.relkind IN ('r', 'p') AND t.relnamespace = current_schema()::regnamespace ORDER BY t.relname, c.attnum`
	refersPostgres = `SELECT t.relname, f.relname FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid JOIN pg_class f ON f.oid = k.confrelid
		WHERE k.contype = 'f' AND t.relnamespace = current_schema()::regnamespace`
)

// tables lists all tables with data in an order in which foreign keys let them be filled. It is read from the database, so
// that no table of a later migration can be forgotten.
func (d *DB) tables(ctx context.Context, tx *sql.Tx) ([]table, error) {
	columns, refers := columnsSQLite, refersSQLite
	if d.postgres {
		columns, refers = columnsPostgres, refersPostgres
	}
	all, err := readColumns(ctx, tx, columns)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, refers)
	if err != nil {
		return nil, unavailable(err)
	}
	defer rows.Close()
	for rows.Next() {
		var from, to string
		if err := rows.Scan(&from, &to); err != nil {
			return nil, unavailable(err)
		}
		for i := range all {
			if all[i].name == from && to != from {
				all[i].refers[to] = true
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, unavailable(err)
	}
	return inOrder(all)
}

func readColumns(ctx context.Context, tx *sql.Tx, query string) (all []table, err error) {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return nil, unavailable(err)
	}
	defer rows.Close()
	keys := map[string]map[int]string{}
	for rows.Next() {
		var name, col, typ string
		var pk int
		if err := rows.Scan(&name, &col, &typ, &pk); err != nil {
			return nil, unavailable(err)
		}
		if slices.Contains(notData, name) {
			continue
		}
		k, ok := kinds[typ]
		if !ok {
			return nil, fault.New(fault.Internal, "column %s of table %s has the type %s, which a backup cannot hold", col, name, typ)
		}
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, table{name: name, refers: map[string]bool{}})
			keys[name] = map[int]string{}
		}
		t := &all[len(all)-1]
		t.columns = append(t.columns, column{col, k})
		if pk > 0 {
			keys[name][pk] = col
		}
	}
	for i := range all {
		columns := keys[all[i].name] // by place in the key, from 1
		for n := range len(columns) {
			all[i].key = append(all[i].key, quote(columns[n+1]))
		}
	}
	if err := rows.Err(); err != nil {
		return nil, unavailable(err)
	}
	return all, nil
}

// inOrder puts tables behind those they refer to, else by name.
func inOrder(all []table) (sorted []table, err error) {
	done := map[string]bool{}
	for len(sorted) < len(all) {
		before := len(sorted)
		for _, t := range all {
			waits := false
			for to := range t.refers {
				waits = waits || !done[to]
			}
			if !done[t.name] && !waits {
				sorted, done[t.name] = append(sorted, t), true
			}
		}
		if len(sorted) == before {
			return nil, fault.New(fault.Internal, "tables refer to each other in a circle: no order fills them")
		}
	}
	return sorted, nil
}

// names are the columns, quoted: condition and the like are words of SQL.
func (t *table) names() string {
	quoted := make([]string, len(t.columns))
	for i, c := range t.columns {
		quoted[i] = quote(c.name)
	}
	return strings.Join(quoted, ", ")
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
