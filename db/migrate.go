// Package db holds the schema and the queries that sqlc turns into package gen. The schema is forward-only
// migrations with one DDL statement each, which are embedded in the binary.
//
// In MySQL a DDL statement commits by itself. If a migrator is killed between a statement and the record of
// its version, the schema is one step ahead of that version. So every migration can be run twice, and the
// next Migrate finishes the work.
//
// # Expand, then contract
//
// The first control plane of a new version migrates while control planes of the old version still run. They continue
// to run on the new schema. So a migration only expands:
//
//	may       CREATE TABLE; ADD COLUMN that has a DEFAULT or may be NULL; ADD KEY;
//	          MODIFY to a type that holds all values of the old type
//	may not   DROP a table, column or key; RENAME; CHANGE; ADD COLUMN ... NOT NULL
//	          without a DEFAULT; ADD UNIQUE, CHECK or FOREIGN KEY; any other MODIFY
//
// The old version inserts rows without the new columns, and does not know the new tables. The new version must handle
// these rows while both versions may run. A later migration removes columns and tables that no running version uses.
// It has a comment on a separate line, with the last migration of the first version that does not need them:
//
//	-- contract since 44: nothing reads apps.colour
//
// A process of the old version that restarts then finds a newer schema. It runs on this schema, like processes that did
// not restart, unless a later migration removes something that it needs. The database stores the oldest program that may
// run, next to the schema's version.
//
// Tests of this package check the statements. Tests of the control plane's store check that writers of
// earlier schemas still work on the newest.
package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrNewerSchema means that a later version of the program has migrated the database, and that the schema lacks
// something that this program needs.
var ErrNewerSchema = errors.New("the database's schema is newer than this program")

// Baseline is the last migration of the first release. No control plane runs on an older schema.
const Baseline = 27

// migrateTimeout limits Migrate if ctx has no deadline. It includes the wait for another process's migration.
const migrateTimeout = 5 * time.Minute

// Migrate brings the schema to this program's version. Several processes may call it at once: one of them migrates, and
// the others wait. Migrate leaves a newer schema unchanged, and returns ErrNewerSchema if this program cannot run on it.
// It uses two connections of db at a time.
func Migrate(ctx context.Context, db *sql.DB) error { return MigrateTo(ctx, db, newest) }

const newest = math.MaxInt64

// MigrateTo is Migrate, but only up to a version, for the schema of an earlier control plane.
func MigrateTo(ctx context.Context, db *sql.DB, version int64) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, migrateTimeout)
		defer cancel()
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectMySQL, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	oldest, err := oldestProgram(files)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := withLock(ctx, db, func(c *sql.Conn) error { return migrateUp(ctx, c, p, version, oldest) }); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Newest returns the last migration that this program knows.
func Newest() int64 {
	var newest int64
	for _, name := range migrationFiles() {
		n, err := goose.NumericComponent(name)
		if err != nil {
			panic(err) // a test of this package reads all migrations
		}
		newest = max(newest, n)
	}
	return newest
}

var tableMade = regexp.MustCompile("(?i)CREATE TABLE (?:IF NOT EXISTS )?`?([a-z0-9_]+)")

// Tables returns the names of all tables that this program's migrations make or made, and of the tables with the
// schema's version.
func Tables() []string {
	out := []string{"goose_db_version", "goose_oldest_program"}
	for _, name := range migrationFiles() {
		text, err := migrations.ReadFile(name)
		if err != nil {
			panic(err) // it is part of the program
		}
		for _, m := range tableMade.FindAllSubmatch(text, -1) {
			out = append(out, string(m[1]))
		}
	}
	return out
}

func migrationFiles() []string {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is constant
	}
	return names
}

func migrateUp(ctx context.Context, c *sql.Conn, p *goose.Provider, version, oldest int64) error {
	for _, q := range versionTable {
		if _, err := c.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("prepare the table of versions: %w", err)
		}
	}
	at, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if at > known {
		return runsOn(ctx, c, at, known)
	}
	if _, err := p.UpTo(ctx, version); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, noteOldest, oldest); err != nil {
		return fmt.Errorf("store the oldest program that may run: %w", err)
	}
	return nil
}

// runsOn returns nil if a program that knows migrations up to known can run on a newer schema of version at.
func runsOn(ctx context.Context, c *sql.Conn, at, known int64) error {
	oldest := at // without a record, only a program with this version may run
	err := c.QueryRowContext(ctx, "SELECT oldest FROM goose_oldest_program WHERE id = 1").Scan(&oldest)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read the oldest program that may run: %w", err)
	}
	if known < oldest {
		return fmt.Errorf("%w: the schema has version %d and needs a program that knows migration %d, but this program knows only %d; run a newer version of the program", ErrNewerSchema, at, oldest, known)
	}
	return nil
}

var contract = regexp.MustCompile(`(?m)^-- contract since (\d+): \S`)

// oldestProgram returns the last migration that a program must know to run on the schema after all migrations in files.
func oldestProgram(files fs.FS) (int64, error) {
	oldest := int64(Baseline)
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return 0, err
		}
		for _, m := range contract.FindAllSubmatch(text, -1) {
			since, err := strconv.ParseInt(string(m[1]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			oldest = max(oldest, since)
		}
	}
	return oldest, nil
}

// versionTable creates goose's table of versions, with version 0 in it. Goose would create the table in two steps and
// without its lock. After a kill between the steps, the table could not be used, and other processes could read it
// between the steps.
var versionTable = []string{
	`CREATE TABLE IF NOT EXISTS goose_db_version (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    version_id BIGINT NOT NULL,
    is_applied BOOLEAN NOT NULL,
    tstamp     DATETIME NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (id)
) ENGINE = InnoDB`,
	`INSERT INTO goose_db_version (version_id, is_applied)
SELECT 0, TRUE FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM goose_db_version WHERE version_id = 0)`,
	// The second table has the last migration that a program must know to run on the schema.
	`CREATE TABLE IF NOT EXISTS goose_oldest_program (
    id     TINYINT UNSIGNED NOT NULL,
    oldest BIGINT NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB`,
}

const noteOldest = "INSERT INTO goose_oldest_program (id, oldest) VALUES (1, ?) ON DUPLICATE KEY UPDATE oldest = GREATEST(oldest, VALUES(oldest))"

// lockSlice is the time in seconds that one attempt to lock waits. It is shorter than usual read timeouts of
// connections.
const lockSlice = 2

// lockName contains a hash of the schema's name, because named locks belong to the whole server.
const lockName = "CONCAT('windlass.', MD5(DATABASE()))"

// withLock runs fn while it holds a named lock of the server on a connection. The lock ends with the connection, so a
// killed process blocks no other process.
func withLock(ctx context.Context, db *sql.DB, fn func(*sql.Conn) error) (err error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		if closed := c.Close(); !errors.Is(closed, sql.ErrConnDone) { // discarded
			err = errors.Join(err, closed)
		}
	}()
	for {
		var got sql.NullInt64
		if err := c.QueryRowContext(ctx, "SELECT GET_LOCK("+lockName+", ?)", lockSlice).Scan(&got); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if got.Int64 == 1 {
			break
		}
	}
	defer func() {
		// The connection must not return to the pool with the lock.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*lockSlice*time.Second)
		defer cancel()
		if _, unlock := c.ExecContext(end, "DO RELEASE_LOCK("+lockName+")"); unlock != nil {
			_ = c.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	return fn(c)
}
