package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/backup"
	"github.com/windlass-run/windlass/db"
)

// restoreTable exists while a backup is being restored. A program that finds it does not start.
const restoreTable = "unfinished_restore"

// ErrUnfinishedRestore says that the database holds a part of a backup.
var ErrUnfinishedRestore = errors.New(`a restore of this database did not finish: run "controlplane backup restore" again with --replace`)

const (
	// peerSilence is how long a silent process of the control plane counts as running.
	peerSilence = 30 * time.Second
	// loadRows and loadBytes bound one statement of a restore.
	loadRows  = 500
	loadBytes = 1 << 20
)

// BackupConfig configures Dump and Load.
type BackupConfig struct {
	Config
	// Program is this program's version.
	Program string
	// Progress is called with the name of each table before its rows. nil: never.
	Progress func(table string)
	// Replace allows Load to delete the existing rows of the database.
	Replace bool
}

// open returns one connection, with settings for rows of any size.
func (c BackupConfig) open(ctx context.Context) (*sql.DB, *sql.Conn, error) {
	if err := c.setDefaults(); err != nil {
		return nil, nil, err
	}
	c.MaxOpen = 3 // a migration needs two more
	d, _, err := openDB(ctx, c.Config, servicePrimary, c.DSN)
	if err != nil {
		return nil, nil, fmt.Errorf("DSN: %w", err)
	}
	conn, err := d.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect to the database: %w", err), d.Close())
	}
	return d, conn, nil
}

func execAll(ctx context.Context, conn *sql.Conn, statements ...string) error {
	for _, q := range statements {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

// Dump writes the rows of all tables, as of one moment, to the backup that begin creates. Control planes may run
// meanwhile. Rows of running processes are left out.
func Dump(ctx context.Context, c BackupConfig, begin func(backup.Header) (*backup.Writer, error)) (totals backup.Totals, err error) {
	d, conn, err := c.open(ctx)
	if err != nil {
		return totals, err
	}
	defer func() { err = errors.Join(err, conn.Close(), d.Close()) }()
	// The server must wait for a backup that is written more slowly than the server sends it.
	err = execAll(ctx, conn, "SET SESSION net_write_timeout = 3600", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
		"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
	if err != nil {
		return totals, err
	}
	tables, err := tablesOf(ctx, conn)
	if err != nil {
		return totals, err
	}
	if tables.hasTable(restoreTable) {
		return totals, ErrUnfinishedRestore
	}
	if !tables.hasTable("goose_db_version") {
		return totals, errors.New("the database has no schema of Windlass: check --mysql-dsn")
	}
	h := backup.Header{Program: c.Program, Taken: time.Now().UTC()}
	if err := conn.QueryRowContext(ctx, "SELECT MAX(version_id) FROM goose_db_version").Scan(&h.Schema); err != nil {
		return totals, fmt.Errorf("read the schema's version: %w", err)
	}
	w, err := begin(h)
	if err != nil {
		return totals, err
	}
	for _, t := range tables {
		if t.Name == "peers" || strings.HasPrefix(t.Name, "goose_") {
			continue
		}
		if c.Progress != nil {
			c.Progress(t.Name)
		}
		if err := dumpTable(ctx, conn, w, t); err != nil {
			return totals, fmt.Errorf("table %s: %w", t.Name, err)
		}
	}
	return w.Close()
}

func dumpTable(ctx context.Context, conn *sql.Conn, w *backup.Writer, t backup.Table) error {
	if err := w.Begin(t); err != nil {
		return err
	}
	rows, err := conn.QueryContext(ctx, "SELECT "+columnText(t)+" FROM "+quoteName(t.Name)) //nolint:gosec // names are quoted, and the database's own
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	raw, values, into := make([]sql.RawBytes, len(t.Columns)), make([][]byte, len(t.Columns)), make([]any, len(t.Columns))
	for i := range raw {
		into[i] = &raw[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i := range raw {
			values[i] = raw[i]
		}
		if err := w.Row(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func columnText(t backup.Table) string {
	var all []string
	for _, c := range t.Columns {
		all = append(all, quoteName(c))
	}
	return strings.Join(all, ", ")
}

type tableList []backup.Table

func (l tableList) hasTable(name string) bool {
	return slices.ContainsFunc(l, func(t backup.Table) bool { return t.Name == name })
}

// tablesOf lists the tables of the database with their columns, by name.
func tablesOf(ctx context.Context, conn *sql.Conn) (all tableList, err error) {
	rows, err := conn.QueryContext(ctx, `SELECT c.table_name, c.column_name, c.data_type
		FROM information_schema.columns c JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
		WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' ORDER BY c.table_name, c.ordinal_position`)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var table, column, kind string
		if err := rows.Scan(&table, &column, &kind); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].Name != table {
			all = append(all, backup.Table{Name: table})
		}
		t := &all[len(all)-1]
		t.Columns = append(t.Columns, column)
		kind = strings.ToLower(kind)
		t.Binary = append(t.Binary, strings.HasSuffix(kind, "binary") || strings.HasSuffix(kind, "blob") || kind == "bit")
	}
	return all, rows.Err()
}

// Load replaces the content of the database with the backup's. The database must be empty, unless c.Replace is set, and
// no control plane may use it. Until Load has read the whole backup, no control plane starts on the database.
func Load(ctx context.Context, c BackupConfig, r *backup.Reader) (totals backup.Totals, err error) {
	if newest := db.Newest(); r.Header.Schema > newest {
		return totals, fmt.Errorf("the backup has schema %d, and this program knows up to %d: use the program of version %s or later", r.Header.Schema, newest, r.Header.Program)
	}
	d, conn, err := c.open(ctx)
	if err != nil {
		return totals, err
	}
	defer func() { err = errors.Join(err, conn.Close(), d.Close()) }()
	tables, err := tablesOf(ctx, conn)
	if err == nil {
		err = c.checkTarget(ctx, conn, tables)
	}
	if err == nil {
		err = execAll(ctx, conn, "SET SESSION foreign_key_checks = 0", "SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')",
			"CREATE TABLE IF NOT EXISTS "+restoreTable+" (id INT NOT NULL, PRIMARY KEY (id))")
	}
	if err != nil {
		return totals, err
	}
	for _, t := range tables {
		if t.Name != restoreTable {
			if err := execAll(ctx, conn, "DROP TABLE "+quoteName(t.Name)); err != nil {
				return totals, err
			}
		}
	}
	if err := db.MigrateTo(ctx, d, r.Header.Schema); err != nil {
		return totals, err
	}
	if tables, err = tablesOf(ctx, conn); err != nil {
		return totals, err
	}
	// Migrations insert rows that are also in the backup.
	for _, t := range tables {
		if t.Name != restoreTable && !strings.HasPrefix(t.Name, "goose_") {
			if err := execAll(ctx, conn, "DELETE FROM "+quoteName(t.Name)); err != nil {
				return totals, err
			}
		}
	}
	if err := c.load(ctx, conn, r, tables); err != nil {
		return r.Totals(), err
	}
	return r.Totals(), execAll(ctx, conn, "DROP TABLE "+restoreTable)
}

// checkTarget returns an error if a restore would delete something that it must not.
func (c BackupConfig) checkTarget(ctx context.Context, conn *sql.Conn, tables tableList) error {
	if len(tables) == 0 {
		return nil
	}
	if !c.Replace {
		return errors.New("the database is not empty: name an empty one, or use --replace, which deletes all that it has")
	}
	known := append(db.Tables(), restoreTable)
	for _, t := range tables {
		if !slices.Contains(known, t.Name) {
			return fmt.Errorf("the database has a table %q, which is not of this version of Windlass: nothing is deleted; move the table, or name an empty database", t.Name)
		}
	}
	if !tables.hasTable("peers") {
		return nil
	}
	var running int
	err := conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM peers WHERE last_seen >= CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - ?", peerSilence.Milliseconds()).Scan(&running)
	if err != nil {
		return fmt.Errorf("look for control planes: %w", err)
	}
	if running > 0 {
		return fmt.Errorf("%d processes of the control plane use the database, or did so within the last %s: stop them all, and try again", running, peerSilence)
	}
	return nil
}

// load inserts the rows of r.
func (c BackupConfig) load(ctx context.Context, conn *sql.Conn, r *backup.Reader, tables tableList) error {
	var batch insertion
	for {
		row, err := r.Next()
		if errors.Is(err, io.EOF) {
			return batch.run(ctx, conn)
		}
		if err != nil {
			return err
		}
		if batch.isFull() || batch.table.Name != row.Table.Name {
			if err := batch.run(ctx, conn); err != nil {
				return err
			}
			if batch.table.Name != row.Table.Name {
				if !tables.hasTable(row.Table.Name) {
					return fmt.Errorf("the backup has a table %q, which schema %d does not have", row.Table.Name, r.Header.Schema)
				}
				if c.Progress != nil {
					c.Progress(row.Table.Name)
				}
			}
			batch = insertion{table: *row.Table}
		}
		batch.add(row)
	}
}

// insertion has the rows of one INSERT statement.
type insertion struct {
	table       backup.Table
	args        []any
	rows, bytes int
}

func (i *insertion) isFull() bool { return i.rows >= loadRows || i.bytes >= loadBytes }

func (i *insertion) add(r backup.Row) {
	i.args = append(i.args, r.Values...)
	i.rows++
	for _, v := range r.Values {
		switch v := v.(type) {
		case string:
			i.bytes += len(v)
		case []byte:
			i.bytes += len(v)
		}
	}
}

func (i *insertion) run(ctx context.Context, conn *sql.Conn) error {
	if i.rows == 0 {
		return nil
	}
	row := "(?" + strings.Repeat(", ?", len(i.table.Columns)-1) + ")"
	query := "INSERT INTO " + quoteName(i.table.Name) + " (" + columnText(i.table) + ") VALUES " + row + strings.Repeat(", "+row, i.rows-1) //nolint:gosec // names are quoted, and checked against the schema
	if _, err := conn.ExecContext(ctx, query, i.args...); err != nil {
		return fmt.Errorf("insert rows of table %s: %w", i.table.Name, err)
	}
	return nil
}

// checkRestored returns ErrUnfinishedRestore if the database holds a part of a backup.
func checkRestored(ctx context.Context, d *sql.DB) error {
	var n int
	err := d.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?", restoreTable).Scan(&n)
	if err == nil && n > 0 {
		err = ErrUnfinishedRestore
	}
	return err
}
