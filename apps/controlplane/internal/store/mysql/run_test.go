package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestDeadlock_RunsTheWholeTransactionAgain(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := open(t, mysql.Config{Registerer: reg})
	twoApps(t, s)

	var runs atomic.Int32
	var both sync.WaitGroup // both transactions hold their first lock before one takes its second
	both.Add(2)
	step := func(first, second string) error {
		entered := sync.OnceFunc(func() { both.Done(); both.Wait() })
		return s.Update(t.Context(), func(tx store.Tx) error {
			runs.Add(1)
			a, err := tx.LockApp("ws_1", first)
			if err != nil {
				return err
			}
			entered()
			// The error is swallowed. The store must remember that the transaction was rolled back.
			b, _ := tx.LockApp("ws_1", second)
			a.LatestVersion++
			if err := tx.UpdateApp(a); err != nil {
				return err
			}
			b.LatestVersion++
			return tx.UpdateApp(b)
		})
	}
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { errA = step("app_a", "app_b") })
	wg.Go(func() { errB = step("app_b", "app_a") })
	wg.Wait()
	require.NoError(t, errA)
	require.NoError(t, errB)
	require.EqualValues(t, 3, runs.Load())
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		for _, id := range []string{"app_a", "app_b"} {
			a, err := tx.GetApp("ws_1", id)
			require.NoError(t, err)
			require.EqualValues(t, 2, a.LatestVersion, id)
		}
		return nil
	}))
	n, err := testutil.GatherAndCount(reg, "windlass_store_transaction_retries_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestConnection_LostBeforeTheCommitIsRetried(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	s := open(t, mysql.Config{DSN: dsn})
	twoApps(t, s)
	killer := handle(t, dsn)
	runs := 0
	update(t, s, func(tx store.Tx) error {
		runs++
		a, err := tx.LockApp("ws_1", "app_a")
		if err != nil {
			return err
		}
		if runs == 1 {
			killOthers(t, killer)
		}
		a.LatestVersion++
		return tx.UpdateApp(a)
	})
	require.Equal(t, 2, runs)
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		a, err := tx.GetApp("ws_1", "app_a")
		require.EqualValues(t, 1, a.LatestVersion)
		return err
	}))
}

// killOthers ends all connections to the database except one connection of d.
func killOthers(t testing.TB, d *sql.DB) {
	t.Helper()
	ctx := context.Background()
	c, err := d.Conn(ctx)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	rows, err := c.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var id int64
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, ids)
	for _, id := range ids {
		_, err := c.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		require.NoError(t, err)
	}
}

func TestCommit_WithALostAnswerIsNotRepeated(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	s := open(t, mysql.Config{DSN: dsn})
	twoApps(t, s)
	killer := handle(t, dsn)
	commits := 0
	s.OnCommit(func(store.Commit) { commits++ })
	runs := 0
	err := s.Update(t.Context(), func(tx store.Tx) error {
		runs++
		a, err := tx.LockApp("ws_1", "app_a")
		if err != nil {
			return err
		}
		a.LatestVersion++
		if err := tx.UpdateApp(a); err != nil {
			return err
		}
		killOthers(t, killer) // COMMIT is the next statement
		return nil
	})
	require.ErrorIs(t, err, model.ErrOutcomeUnknown)
	require.Equal(t, 1, runs)
	require.Zero(t, commits)
}

func TestSnapshot_SeesOneMomentAndReturnsItsConnection(t *testing.T) {
	s := open(t, mysql.Config{MaxOpen: 2})
	twoApps(t, s)
	bump := func() {
		update(t, s, func(tx store.Tx) error {
			a, err := tx.LockApp("", "app_a")
			require.NoError(t, err)
			a.LatestVersion++
			return tx.UpdateApp(a)
		})
	}
	read := func(tx store.Tx) int32 {
		a, err := tx.GetApp("ws_1", "app_a")
		require.NoError(t, err)
		return a.LatestVersion
	}
	for i := range 3 {
		require.NoError(t, s.Snapshot(t.Context(), func(tx store.Tx) error {
			bump() // before the first read: the moment is the beginning
			require.EqualValues(t, i, read(tx))
			_, err := tx.LockApp("", "app_a")
			require.ErrorContains(t, err, "for reading")
			require.ErrorContains(t, tx.StepApps([]model.AppStep{{App: model.App{ID: "app_a"}}}), "for reading")
			return nil
		}))
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
			require.EqualValues(t, i+1, read(tx))
			return nil
		}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Snapshot(ctx, func(tx store.Tx) error {
		cancel()
		_, err := tx.GetApp("ws_1", "app_a")
		return err
	})
	require.ErrorIs(t, err, context.Canceled)
	bump()
}

func TestContext_EndEndsTheTransaction(t *testing.T) {
	s := open(t, mysql.Config{})
	twoApps(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	update(t, s, func(holder store.Tx) error {
		_, err := holder.LockApp("", "app_a")
		require.NoError(t, err)
		err = s.Update(ctx, func(tx store.Tx) error {
			_, err := tx.LockApp("", "app_a")
			return err
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return nil
	})
}

// twoApps makes two apps, which tests lock in opposite orders.
func twoApps(t testing.TB, s store.Store) {
	t.Helper()
	update(t, s, func(tx store.Tx) error {
		for _, id := range []string{"app_a", "app_b"} {
			if err := tx.InsertApp(model.App{ID: id, WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: id[4:], ResourceVersion: 1}); err != nil {
				return err
			}
		}
		return nil
	})
}
