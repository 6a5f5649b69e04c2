package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/db/gen"
)

// Limits of one statement: past a thousand rows a batch gains nothing more, and
// the bytes stay far below the smallest max_allowed_packet in use (16 MiB).
const (
	bulkRows  = 1000
	bulkBytes = 4 << 20
)

// bulk is a multi-row INSERT, the one statement that sqlc cannot express.
type bulk struct {
	head, row, tail string
	// into and columns make another head, and usual what the columns are by default, of
	// those that may be left out.
	into    string
	columns []string
	usual   map[string]any
}

// insertInto is an INSERT that fails on a taken key.
func insertInto(name, table string, columns ...string) bulk {
	b := bulk{into: "-- name: " + name + " :exec\nINSERT INTO " + table, columns: columns}
	b.head = b.into + columnList(columns) + " VALUES "
	b.row = "(?" + strings.Repeat(", ?", len(columns)-1) + ")"
	return b
}

func columnList(columns []string) string { return " (" + strings.Join(columns, ", ") + ")" }

// usually sets the values that columns have by default in the schema. Where all rows of a statement
// have that, it leaves the column out: to read a value costs the server about as much as
// to compare and assign it.
func (b bulk) usually(values map[string]any) bulk {
	b.usual = values
	return b
}

// without the columns that are as usual in all rows, of which args has the arguments: what
// a statement begins with, and the columns that it has.
func (b bulk) without(args []any) (head, row string, said []int) {
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

// replacing assigns the columns of a row that exists.
func (b bulk) replacing(columns ...string) bulk { return b.where("", columns) }

// guarded assigns the columns of a row that exists only where cond holds, which
// compares VALUES(guard) with guard: a row that loses, loses as a whole. The
// guard is assigned last, because assignments run from left to right and each
// sees the ones before it.
func (b bulk) guarded(cond, guard string, columns ...string) bulk {
	return b.where(cond, append(slices.Clip(columns), guard))
}

func (b bulk) where(cond string, columns []string) bulk {
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

// runBulk sends rows in chunks. They must be sorted by primary key, so that two
// batches that meet wait for each other instead of deadlocking. args appends
// one row's arguments.
//
// The statement is put together here: in the driver's hands each argument is looked at
// three times, beside a text of nothing but question marks, which costs a row of twenty
// columns several microseconds.
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
			head, row, said = b.without(all)
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

// rewrite is an UPDATE of rows that are there, each to values of its own. It is no upsert,
// which would bring back what was deleted meanwhile, and no join with a list of values: for
// that MariaDB writes a temporary table to disk, whenever a column is a text.
//
//	UPDATE t FORCE INDEX (PRIMARY) SET also, a = CASE id WHEN ? THEN ? WHEN ? THEN ? END, b = ...
//	WHERE id = ? AND guard = ? OR id = ? AND guard = ?
type rewrite struct {
	head, where string
	columns     []string
	// guards is how many values of a row stand in its condition, its id the first of them.
	guards int
}

// rewriting makes one of a table's columns, for rows that are found by id and in which the
// guards are what they are said to be. also are more assignments.
func rewriting(name, table string, guards []string, also string, columns ...string) rewrite {
	w := rewrite{
		head:  "-- name: " + name + " :execrows\nUPDATE " + table + " FORCE INDEX (PRIMARY) SET " + also,
		where: "id = ?", columns: columns, guards: 1 + len(guards),
	}
	for _, g := range guards {
		w.where += " AND " + g + " = ?"
	}
	return w
}

// rewriteRows bounds what is compared in one statement: each column of a row with all ids.
const rewriteRows = 64

// runRewrite returns how many of the rows were found. args appends a row's id, guards and
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

// scan runs a query that was put together by hand.
func scan(t *tx, db gen.DBTX, query string, args []any, row func(scanner) error) (err error) {
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
