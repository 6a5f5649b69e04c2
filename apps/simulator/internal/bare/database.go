// Package bare uses SQL, Restate and Connect without Windlass. It measures what each of them can do alone on
// this machine, so that the figures of a scenario can be compared with these limits. It also reads the
// database of a run directly, so that no part of Windlass can influence the result.
package bare

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// DB is the database of a run.
type DB struct{ *sql.DB }

// OpenDB opens a database with a small pool.
func OpenDB(dsn string) (*DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	cfg.InterpolateParams = true
	cfg.Logger = &mysql.NopLogger{} // the driver returns these messages as errors, too
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	return &DB{db}, nil
}

// inTx runs fn in a transaction, and commits unless fn fails.
func (db *DB) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback() // the server has often rolled back already
		return err
	}
	return tx.Commit()
}

// Count returns the result of a query for one number.
func (db *DB) Count(ctx context.Context, query string, args ...any) (n int64, err error) {
	if err := db.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return n, nil
}

// Strings returns the first column of a query.
func (db *DB) Strings(ctx context.Context, query string, args ...any) ([]string, error) {
	var out []string
	err := each(ctx, db, query, args, func(rows *sql.Rows) error {
		var s string
		err := rows.Scan(&s)
		out = append(out, s)
		return err
	})
	return out, err
}

// Questions returns the number of all statements that the server has ever received, including this one.
func (db *DB) Questions(ctx context.Context) (n int64, err error) {
	var name string
	if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		return 0, fmt.Errorf("read the statement counter: %w", err)
	}
	return n, nil
}

// Regions returns the ids of regions by name.
func (db *DB) Regions(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	err := each(ctx, db, "SELECT name, id FROM regions", nil, func(rows *sql.Rows) error {
		var name, id string
		err := rows.Scan(&name, &id)
		out[name] = id
		return err
	})
	return out, err
}

// Heads returns the newest revisions by region id.
func (db *DB) Heads(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	err := each(ctx, db, "SELECT region, revision FROM region_heads", nil, func(rows *sql.Rows) error {
		var id string
		var revision int64
		err := rows.Scan(&id, &revision)
		out[id] = revision
		return err
	})
	return out, err
}

// These are the kinds of changes, as the feed numbers them.
const (
	KindDeployment = 1
	KindRoutes     = 2
)

// Change is one row of the feed.
type Change struct {
	Region     string // id
	Revision   int64
	Kind       int
	Key        string
	Generation int64
	// At is when the change got its revision, by this machine's clock. That is inside the transaction, just
	// before its commit.
	At time.Time
}

// ChangesSince returns the changes above the given heads, in order.
func (db *DB) ChangesSince(ctx context.Context, heads map[string]int64) ([]Change, error) {
	var out []Change
	query := "SELECT region, revision, kind, change_key, generation, id FROM region_changes ORDER BY region, revision"
	err := each(ctx, db, query, nil, func(rows *sql.Rows) error {
		var c Change
		var id string
		if err := rows.Scan(&c.Region, &c.Revision, &c.Kind, &c.Key, &c.Generation, &id); err != nil {
			return err
		}
		if c.Revision <= heads[c.Region] {
			return nil
		}
		var err error
		c.At, err = IDTime(id)
		out = append(out, c)
		return err
	})
	return out, err
}

// IDTime returns when an id was made. Ids are UUIDv7: their first 48 bits are milliseconds, and the 12 bits
// after the version are a fraction of a millisecond.
func IDTime(id string) (time.Time, error) {
	_, digits, _ := strings.Cut(id, "_")
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) != 16 {
		return time.Time{}, fmt.Errorf("%q is no id", id)
	}
	millis := int64(0)
	for _, b := range raw[:6] {
		millis = millis<<8 | int64(b)
	}
	part := int64(raw[6]&0x0f)<<8 | int64(raw[7])
	// The generator stores nanoseconds within the millisecond, divided by 256.
	return time.UnixMilli(millis).Add(time.Duration(part << 8)), nil
}

// Row is one row of a result, as text.
type Row []sql.NullString

// Text returns the text of a column.
func (r Row) Text(i int) string { return r[i].String }

// Int returns the number in a column, or 0 if the column has none.
func (r Row) Int(i int) int64 {
	n, err := strconv.ParseInt(r[i].String, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Rows returns all rows of a query.
func (db *DB) Rows(ctx context.Context, query string, args ...any) ([]Row, error) {
	var out []Row
	err := each(ctx, db, query, args, func(rows *sql.Rows) error {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		row := make(Row, len(columns))
		targets := make([]any, len(columns))
		for i := range row {
			targets[i] = &row[i]
		}
		out = append(out, row)
		return rows.Scan(targets...)
	})
	return out, err
}
