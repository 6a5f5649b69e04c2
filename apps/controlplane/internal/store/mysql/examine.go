package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/db"
)

// Examination is what Examine found out about one address of the database.
type Examination struct {
	Address string
	// Error says why the address cannot be used. The other fields may be empty then.
	Error error
	// Server is the version of the server, and Cipher that of its TLS. Empty: the connection has no TLS.
	Server, Cipher string
	// ReadOnly means that the server accepts no writes.
	ReadOnly bool
	// Schema is the version of the schema, and Known the one of this program. 0: there is no schema yet.
	Schema, Known int64
	// Skew is by how much the server's clock is ahead of this machine's. The answer's way adds to it.
	Skew time.Duration
	// Missing are the rights on the database that the account lacks. Rights by roles are not seen.
	Missing []string
}

// neededRights are the rights on the database that migrations and the store use.
var neededRights = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "INDEX", "DROP"}

// Examine examines each address of cfg.DSN, one after the other. It changes nothing.
func Examine(ctx context.Context, cfg Config) ([]Examination, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	dsns, addresses, err := splitDSN(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("DSN: %w", err)
	}
	cfg.MaxOpen = 2
	found := make([]Examination, 0, len(dsns))
	for i, dsn := range dsns {
		c, err := driverConfig(cfg, dsn, len(dsns) > 1)
		if err != nil {
			return nil, fmt.Errorf("DSN: %w", err)
		}
		e := Examination{Address: c.Addr, Known: db.Newest()}
		if len(addresses) > 0 {
			e.Address = addresses[i]
		}
		d, _, err := openDB(ctx, cfg, servicePrimary, dsn)
		if err != nil {
			return nil, fmt.Errorf("DSN: %w", err)
		}
		e.Error = errors.Join(e.examineServer(ctx, d), d.Close())
		found = append(found, e)
	}
	return found, nil
}

func (e *Examination) examineServer(ctx context.Context, d *sql.DB) error {
	before := time.Now()
	var server string
	var millis int64
	if err := d.QueryRowContext(ctx, "SELECT VERSION(), CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)").Scan(&server, &millis); err != nil {
		return err
	}
	e.Server = server
	// The server read its clock between these times.
	switch at, after := time.UnixMilli(millis), time.Now(); {
	case at.Before(before.Truncate(time.Millisecond)):
		e.Skew = at.Sub(before)
	case at.After(after):
		e.Skew = at.Sub(after)
	}
	status, err := readPairs(ctx, d, "SHOW SESSION STATUS WHERE Variable_name = 'Ssl_version'")
	if err != nil {
		return err
	}
	e.Cipher = status["ssl_version"]
	switch _, err := checkNode(ctx, d, true); {
	case errors.Is(err, errServerReadOnly):
		e.ReadOnly = true
	case err != nil:
		return err
	}
	if err := e.readSchema(ctx, d); err != nil {
		return err
	}
	return e.readRights(ctx, d)
}

func (e *Examination) readSchema(ctx context.Context, d *sql.DB) error {
	var tables int
	err := d.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'goose_db_version'").Scan(&tables)
	if err != nil || tables == 0 {
		return err
	}
	return d.QueryRowContext(ctx, "SELECT MAX(version_id) FROM goose_db_version").Scan(&e.Schema)
}

// readRights lists the rights that are missing. The name of a database in a grant is a pattern, as of LIKE.
func (e *Examination) readRights(ctx context.Context, d *sql.DB) (err error) {
	rows, err := d.QueryContext(ctx, `SELECT privilege_type FROM information_schema.schema_privileges WHERE DATABASE() LIKE table_schema
		UNION SELECT privilege_type FROM information_schema.user_privileges`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var granted []string
	for rows.Next() {
		var right string
		if err := rows.Scan(&right); err != nil {
			return err
		}
		granted = append(granted, strings.ToUpper(right))
	}
	for _, right := range neededRights {
		if !slices.Contains(granted, right) {
			e.Missing = append(e.Missing, right)
		}
	}
	return rows.Err()
}
