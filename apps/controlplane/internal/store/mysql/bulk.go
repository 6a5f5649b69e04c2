package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/db/gen"
)

// Limits of one statement. Larger batches gain nothing, and the bytes stay far below the
// smallest max_allowed_packet in use (16 MiB).
const (
	bulkRows  = 1000
	bulkBytes = 4 << 20
)

// bulk is a multi-row INSERT, the one statement that sqlc cannot express.
type bulk struct {
	head, row, tail string
	// into and columns can make a statement without some of the columns. usual has the default values of columns that
	// may be left out.
	into    string
	columns []string
	usual   map[string]any
}

// insertInto returns an INSERT that fails if the key is taken.
func insertInto(name, table string, columns ...string) bulk {
	b := bulk{into: "-- name: " + name + " :exec\nINSERT INTO " + table, columns: columns}
	b.head = b.into + columnList(columns) + " VALUES "
	b.row = "(?" + strings.Repeat(", ?", len(columns)-1) + ")"
	return b
}

func columnList(columns []string) string { return " (" + strings.Join(columns, ", ") + ")" }

// withDefaults sets the default values that columns have in the schema. A statement leaves a column out if all its
// rows have the default, because each value costs the server time to read.
func (b bulk) withDefaults(values map[string]any) bulk {
	b.usual = values
	return b
}

// withoutDefaults returns the statement's head and row, without the columns that have their default value in all rows
// of args. said has the indexes of the remaining columns.
func (b bulk) withoutDefaults(args []any) (head, row string, said []int) {
	var columns []string
	for c, name := range b.columns {
		value, ok := b.usual[name]
		for at := c; ok && at < len(args); at += len(b.columns) {
			ok = args[at] == value
		}
		if !ok {
			columns, said = append(columns, name), append(said, c)
		}
	}
	return b.into + columnList(columns) + " VALUES ", "(?" + strings.Repeat(", ?", len(columns)-1) + ")", said
}

// replacingColumns makes the statement also assign the columns of an existing row.
func (b bulk) replacingColumns(columns ...string) bulk { return b.whereColumns("", columns) }

// guardedBy makes the statement also assign the columns of an existing row, if cond holds. cond compares VALUES(guard)
// with guard. Either all columns of a row change or none. The guard is assigned last, because assignments run from
// left to right, and each of them sees the earlier ones.
func (b bulk) guardedBy(cond, guard string, columns ...string) bulk {
	return b.whereColumns(cond, append(slices.Clip(columns), guard))
}

func (b bulk) whereColumns(cond string, columns []string) bulk {
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c + " = VALUES(" + c + ")"
		if cond != "" {
			set[i] = c + " = IF(" + cond + ", VALUES(" + c + "), " + c + ")"
		}
	}
	b.tail = " ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
	return b
}

// runBulk sends rows in chunks. They must be sorted by primary key, so that two concurrent batches wait for
// each other instead of deadlocking. args appends one row's arguments.
//
// The text is composed here, because the driver would read each argument three times to interpolate it.
func runBulk[R any](t *tx, db gen.DBTX, b bulk, rows []R, args func([]any, R) []any) error {
	text := texts.Get().(*[]byte)
	defer texts.Put(text)
	width := strings.Count(b.row, "?")
	var all, one []any
	for len(rows) > 0 {
		n := min(len(rows), bulkRows)
		all = slices.Grow(all[:0], n*width)
		for _, r := range rows[:n] {
			all = args(all, r)
		}
		if len(all) != n*width {
			return fmt.Errorf("%d rows of %d values got %d", n, width, len(all))
		}
		head, row, said := b.head, b.row, []int(nil)
		if b.usual != nil {
			head, row, said = b.withoutDefaults(all)
		}
		query, parts := (*text)[:0], strings.Split(row, "?")
		query = append(query, head...)
		for at := range n {
			if len(query) > bulkBytes {
				n = at
				break
			}
			if at > 0 {
				query = append(query, ", "...)
			}
			values := all[at*width:][:width]
			if said != nil {
				one = one[:0]
				for _, c := range said {
					one = append(one, values[c])
				}
				values = one
			}
			var err error
			if query, err = appendRow(query, parts, values); err != nil {
				return err
			}
		}
		query = append(query, b.tail...)
		*text = query
		if _, err := db.ExecContext(t.ctx, string(query)); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// rewrite is an UPDATE of existing rows, which sets the values of each row. An upsert would restore rows that were
// deleted meanwhile. A join with a list of values would make MariaDB write a temporary table to disk, if any
// column is a text.
//
//	UPDATE t FORCE INDEX (PRIMARY) SET also, a = CASE id WHEN ? THEN ? WHEN ? THEN ? END, b = ...
//	WHERE id = ? AND guard = ? OR id = ? AND guard = ?
type rewrite struct {
	head, where string
	columns     []string
	// guards is the number of values in a row's condition. The first is the row's id.
	guards int
}

// rewriteQuery returns an UPDATE of a table's columns, for rows with the given ids and guards. also has additional
// assignments.
func rewriteQuery(name, table string, guards []string, also string, columns ...string) rewrite {
	w := rewrite{
		head:  "-- name: " + name + " :execrows\nUPDATE " + table + " FORCE INDEX (PRIMARY) SET " + also,
		where: "id = ?", columns: columns, guards: 1 + len(guards),
	}
	for _, g := range guards {
		w.where += " AND " + g + " = ?"
	}
	return w
}

// rewriteRows limits one statement's comparisons, because for each column of a row, it compares all ids.
const rewriteRows = 64

// runRewrite runs the UPDATE and returns how many of the rows were found. args appends a row's id, guards and
// columns.
func runRewrite[R any](t *tx, w rewrite, rows []R, args func([]any, R) []any) (found int, err error) {
	for part := range slices.Chunk(rows, rewriteRows) {
		values := make([][]any, len(part))
		for i, r := range part {
			values[i] = args(nil, r)
		}
		var query strings.Builder
		var all []any
		query.WriteString(w.head)
		for c, column := range w.columns {
			if c > 0 || !strings.HasSuffix(w.head, " SET ") {
				query.WriteString(", ")
			}
			query.WriteString(column + " = CASE id")
			for _, v := range values {
				query.WriteString(" WHEN ? THEN ?")
				all = append(all, v[0], v[w.guards+c])
			}
			query.WriteString(" END")
		}
		for i, v := range values {
			if i == 0 {
				query.WriteString(" WHERE ")
			} else {
				query.WriteString(" OR ")
			}
			query.WriteString(w.where)
			all = append(all, v[:w.guards]...)
		}
		result, err := t.db.ExecContext(t.ctx, query.String(), all...)
		if err != nil {
			return found, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return found, err
		}
		found += int(n)
	}
	return found, nil
}

// scanner is one row of a result.
type scanner interface{ Scan(dest ...any) error }

// scanRows runs a query that does not come from sqlc.
func scanRows(t *tx, db gen.DBTX, query string, args []any, row func(scanner) error) (err error) {
	rows, err := db.QueryContext(t.ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
