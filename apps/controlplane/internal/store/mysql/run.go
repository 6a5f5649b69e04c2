package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// retryPolicy starts with a short delay, because the other transaction of a deadlock usually ends within milliseconds.
// The maximum is for a row for which many transactions wait.
var retryPolicy = backoff.Policy{Min: 4 * time.Millisecond, Max: 500 * time.Millisecond}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) (err error) {
	defer s.observeQuery("update", time.Now(), &err)
	for try := 1; ; try++ {
		commit, err := s.tryTx(ctx, fn)
		if err == nil {
			s.notify(commit)
			return nil
		}
		reason := retryReason(err)
		if reason == "" || ctx.Err() != nil {
			return err
		}
		if try == s.cfg.MaxTries {
			return fmt.Errorf("gave up after %d tries: %w", try, err)
		}
		s.metrics.retries.WithLabelValues(reason).Inc()
		if !sleepFor(ctx, retryPolicy.Delay(try, s.cfg.Random)) {
			return err
		}
	}
}

// tryTx runs one transaction.
func (s *Store) tryTx(ctx context.Context, fn func(store.Tx) error) (store.Commit, error) {
	sqlTx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return store.Commit{}, fmt.Errorf("store: begin: %w", err)
	}
	// After a commit this does nothing. If the rollback fails, the connection is lost, and the server rolls
	// back.
	defer func() { _ = sqlTx.Rollback() }()

	t := s.newTx(ctx, sqlTx, sqlTx, false)
	err = fn(t)
	if t.broken != nil {
		return store.Commit{}, t.broken
	}
	if err != nil {
		return store.Commit{}, err
	}
	return t.commit(sqlTx)
}

// commit writes the deferred rows, appends the changes and commits.
func (t *tx) commit(sqlTx *sql.Tx) (store.Commit, error) {
	if err := t.flush(); err != nil {
		return store.Commit{}, err
	}
	revisions, err := t.appendChanges()
	if err != nil {
		return store.Commit{}, err
	}
	if err := t.ctx.Err(); err != nil {
		return store.Commit{}, fmt.Errorf("store: commit: %w", err)
	}
	if err := sqlTx.Commit(); err != nil {
		return store.Commit{}, commitError(err)
	}
	return t.commitOf(revisions), nil
}

// commitError distinguishes a refusal by the server, whose outcome is known, from a lost connection, whose outcome is
// unknown. database/sql returns ErrTxDone or the context's error if it rolled back without sending COMMIT.
func commitError(err error) error {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) && !connectionLost(err) || errors.Is(err, sql.ErrTxDone) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("store: commit: %w", err)
	}
	// The cause is not wrapped, because retryReason would take it for a connection that was lost before the
	// commit.
	return fmt.Errorf("store: commit: %w: %s", model.ErrOutcomeUnknown, err.Error())
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) (err error) {
	defer s.observeQuery("view", time.Now(), &err)
	t := s.newTx(ctx, s.db, s.reads, true)
	if err := fn(t); err != nil {
		return err
	}
	return t.requireUnchanged()
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, fn func(store.Tx) error) (err error) {
	defer s.observeQuery("snapshot", time.Now(), &err)
	c, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("store: snapshot: %w", err)
	}
	defer func() {
		if closed := c.Close(); !errors.Is(closed, sql.ErrConnDone) { // the connection was discarded
			err = errors.Join(err, closed)
		}
	}()
	if err := beginMoment(ctx, c); err != nil {
		return errors.Join(err, discardConn(c))
	}
	// A connection that cannot end its transaction must not return to the pool.
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, rollback := c.ExecContext(end, "ROLLBACK"); rollback != nil {
			err = errors.Join(err, discardConn(c))
		}
	}()
	t := s.newTx(ctx, c, c, true)
	t.reopen = func() error {
		if _, err := c.ExecContext(ctx, "ROLLBACK"); err != nil {
			return fmt.Errorf("store: snapshot: %w", err)
		}
		return beginMoment(ctx, c)
	}
	if err := fn(t); err != nil {
		return err
	}
	return t.requireUnchanged()
}

// beginMoment begins a snapshot on a connection without a transaction.
func beginMoment(ctx context.Context, c *sql.Conn) error {
	for _, q := range []string{
		"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
		"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
	} {
		if _, err := c.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("store: snapshot: %w", err)
		}
	}
	return nil
}

// discardConn removes the connection from the pool.
func discardConn(c *sql.Conn) error {
	err := c.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}

func (s *Store) observeQuery(kind string, start time.Time, err *error) {
	result := "ok"
	if *err != nil {
		result = "error"
	}
	s.metrics.seconds.WithLabelValues(kind, result).Observe(time.Since(start).Seconds())
}

// Server errors after which the same transaction may succeed.
const (
	errLockWait     = 1205
	errDeadlock     = 1213
	errChanged      = 1020 // MariaDB: record has changed since last read
	errTiDBConflict = 9007
	errTiDBRetry    = 8022
)

// errTooManyConnections is a refusal before a session begins.
const errTooManyConnections = 1040

// Server errors after which the server closes the connection.
const (
	errShutdown    = 1053
	errKilled      = 1927 // MariaDB
	errKilledMySQL = 3169
	errIdle        = 4031
)

// Server errors of a node that takes no work, although it answers.
const (
	errNotReady       = 1047 // Galera: the node is not in the primary part of its cluster
	errOptionPrevents = 1290 // --read-only, among other options
	errReadOnlyMode   = 1836
)

// notWritable reports whether the server refused a statement because it is read-only or not ready. The transaction did
// not change anything.
func notWritable(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return false
	}
	switch my.Number {
	case errNotReady, errReadOnlyMode:
		return true
	case errOptionPrevents:
		return strings.Contains(my.Message, "read-only") || strings.Contains(my.Message, "read_only")
	}
	return false
}

// retryReason returns why the transaction may be run again, empty if it may not.
func retryReason(err error) string {
	if connectionLost(err) {
		return "connection_lost"
	}
	if notWritable(err) {
		return "not_writable"
	}
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch my.Number {
		case errLockWait:
			return "lock_wait"
		case errDeadlock:
			return "deadlock"
		case errChanged, errTiDBConflict, errTiDBRetry:
			return "write_conflict"
		}
	}
	return ""
}

// connectionLost reports whether the server ended the session, and so rolled back its open transaction.
func connectionLost(err error) bool {
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch my.Number {
		case errShutdown, errKilled, errKilledMySQL, errIdle:
			return true
		}
		return false
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// IsUnavailable reports whether the database is out of reach, or too busy to begin a transaction. The same
// call may succeed later.
func IsUnavailable(err error) bool {
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok && my.Number == errTooManyConnections {
		return true
	}
	_, network := errors.AsType[net.Error](err)
	return network || retryReason(err) != ""
}

// sleepFor waits for d. It reports whether d passed before ctx ended.
func sleepFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
