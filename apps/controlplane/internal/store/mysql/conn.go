package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/windlass-run/windlass/db/gen"
)

// readCommitted sets the isolation level of a new connection. It is a statement, not a parameter of the DSN,
// because the variable's name differs between servers.
type readCommitted struct{ driver.Connector }

// Connect implements driver.Connector.
func (c readCommitted) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	ex, ok := conn.(driver.ExecerContext)
	if !ok {
		return nil, errors.Join(errors.New("the driver's connection executes no statements"), conn.Close())
	}
	if _, err := ex.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil); err != nil {
		return nil, errors.Join(fmt.Errorf("set isolation: %w", err), conn.Close())
	}
	return conn, nil
}

// Close implements io.Closer. database/sql calls it when the pool is closed.
func (c readCommitted) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// errReadOnly is the error of a write in View or Snapshot.
var errReadOnly = errors.New("the transaction is for reading; write in Update")

// conn runs the statements of one transaction. It counts them, refuses writes in read-only transactions,
// and refuses all statements once the transaction is broken.
type conn struct {
	db gen.DBTX
	tx *tx
}

func (c conn) begin(query string) error {
	if err := c.tx.writeAhead(query); err != nil {
		return err
	}
	c.tx.metrics.queries.WithLabelValues(queryName(query)).Inc()
	c.tx.statements++
	return c.tx.broken
}

// ExecContext implements gen.DBTX.
func (c conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if c.tx.readOnly {
		return nil, errReadOnly
	}
	if err := c.begin(query); err != nil {
		return nil, err
	}
	if shared := c.tx.shared; shared != nil && !shared.writing {
		c.tx.bindMember()
		clear(shared.read)
		shared.prefetched = nil
	}
	return c.db.ExecContext(ctx, query, args...)
}

// PrepareContext implements gen.DBTX.
func (c conn) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return c.db.PrepareContext(ctx, query)
}

// QueryContext implements gen.DBTX.
func (c conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := c.begin(query); err != nil {
		return nil, err
	}
	return c.db.QueryContext(ctx, query, args...)
}

// QueryRowContext implements gen.DBTX. It cannot return a sql.Row with an error, so a query of a broken
// transaction runs with a context that is already cancelled.
func (c conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := c.begin(query); err != nil {
		over, cancel := context.WithCancelCause(ctx)
		cancel(err)
		ctx = over
	}
	return c.db.QueryRowContext(ctx, query, args...)
}

// queryName returns the name in "-- name: GetApp :one", the first line of every statement.
func queryName(query string) string {
	rest, ok := strings.CutPrefix(query, "-- name: ")
	if !ok {
		return "other"
	}
	name, _, _ := strings.Cut(rest, " ")
	return strings.TrimSpace(name)
}
