package mysql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func open(t testing.TB, cfg mysql.Config) *mysql.Store {
	t.Helper()
	if cfg.DSN == "" {
		cfg.DSN = stacktest.MariaDB(t)
	}
	s, err := mysql.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// handle returns the database, without the store.
func handle(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	d, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func update(t testing.TB, s store.Store, fn func(store.Tx) error) {
	t.Helper()
	require.NoError(t, s.Update(t.Context(), fn))
}

// regions makes n regions and returns their ids.
func regions(t testing.TB, s store.Store, n int) []string {
	t.Helper()
	ids := make([]string, n)
	update(t, s, func(tx store.Tx) error {
		for i := range ids {
			ids[i] = fmt.Sprintf("reg_%02d", i)
			if err := tx.InsertRegion(model.Region{ID: ids[i], Name: fmt.Sprintf("region-%d", i), ResourceVersion: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	return ids
}

func TestTailer_MissesNoRevisionOfConcurrentCommits(t *testing.T) {
	const writers, each = 24, 25
	s := open(t, mysql.Config{MaxOpen: 40, MaxTries: 50})
	ids := regions(t, s, 5)

	done := make(chan struct{})
	seen := map[string][]model.Change{}
	var tailErr error
	var tailer sync.WaitGroup
	tailer.Go(func() {
		after := map[string]int64{}
		for _, id := range ids {
			after[id] = 0
		}
		for over := false; ; {
			select {
			case <-done:
				over = true
			default:
			}
			var got []model.Change
			if tailErr = s.View(t.Context(), func(tx store.Tx) (err error) {
				got, err = tx.Changes(after, 7)
				return err
			}); tailErr != nil {
				return
			}
			for _, c := range got {
				seen[c.RegionID] = append(seen[c.RegionID], c)
				after[c.RegionID] = c.Revision
			}
			if over && len(got) == 0 {
				return
			}
		}
	})

	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.Update(t.Context(), func(tx store.Tx) error {
					// Each writer has its own order of regions, but heads are locked in key order.
					for k := range 1 + (w+i)%len(ids) {
						tx.Change(ids[(w*7+i+len(ids)-k)%len(ids)], model.KindDeployment, fmt.Sprintf("dep_%d_%d", w, i), 1)
					}
					return nil
				}); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	close(done)
	tailer.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, tailErr)

	total := 0
	for _, id := range ids {
		chain := changefeed.Genesis()
		for i, c := range seen[id] {
			require.EqualValues(t, i+1, c.Revision, "region %s", id)
			chain = changefeed.Chain(chain, c.ID)
			require.Equal(t, chain, c.Chain)
		}
		var head model.Head
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) (err error) { head, err = tx.GetHead(id); return err }))
		require.EqualValues(t, len(seen[id]), head.Revision)
		require.Equal(t, chain, head.Chain)
		total += len(seen[id])
	}
	require.Equal(t, wantChanges(writers, each, len(ids)), total)
}

func wantChanges(writers, each, regions int) int {
	n := 0
	for w := range writers {
		for i := range each {
			n += 1 + (w+i)%regions
		}
	}
	return n
}

func TestReports_ConcurrentHighestGuardWinsWhole(t *testing.T) {
	const reports, rows = 40, 150
	s := open(t, mysql.Config{MaxTries: 50})
	var wg sync.WaitGroup
	errs := make([]error, reports)
	for r := range reports {
		wg.Go(func() {
			batch := make([]model.Instance, rows)
			for i := range batch {
				k := i
				if r%2 == 1 { // half of the writers reverse the order: the store sorts
					k = rows - 1 - i
				}
				batch[i] = model.Instance{
					ID: fmt.Sprintf("ins_%03d", k), RegionID: "reg_1", DeploymentID: "dep_1", Role: "main",
					Guard: model.NewGuard(1, int64(r+1)), Restarts: int32(r + 1), Message: fmt.Sprint(r + 1),
				}
			}
			errs[r] = s.Update(t.Context(), func(tx store.Tx) error { return tx.PutInstances(batch) })
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		all, err := tx.ListInstances(store.InstanceFilter{RegionID: "reg_1"}, store.Page{Limit: 1000})
		require.NoError(t, err)
		require.Len(t, all, rows)
		for _, m := range all {
			require.Equal(t, model.NewGuard(1, reports), m.Guard)
			require.EqualValues(t, reports, m.Restarts)
			require.Equal(t, fmt.Sprint(reports), m.Message)
		}
		return nil
	}))
}

func TestInstances_OfAnotherRegionAreNotOverwritten(t *testing.T) {
	s := open(t, mysql.Config{})
	update(t, s, func(tx store.Tx) error {
		return tx.PutInstances([]model.Instance{{ID: "ins_1", RegionID: "reg_1", Guard: 1, Message: "mine"}})
	})
	update(t, s, func(tx store.Tx) error {
		return tx.PutInstances([]model.Instance{{ID: "ins_1", RegionID: "reg_2", Guard: 9, Message: "theirs"}})
	})
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		m, err := tx.GetInstance("", "ins_1")
		require.Equal(t, "mine", m.Message)
		require.Equal(t, "reg_1", m.RegionID)
		return err
	}))
}

func TestOversizeText_IsCutAtARuneAndFailsNothing(t *testing.T) {
	s := open(t, mysql.Config{})
	long := "x" + strings.Repeat("é", 1<<19)
	update(t, s, func(tx store.Tx) error {
		return tx.PutInstances([]model.Instance{{
			ID: "ins_1", WorkspaceID: "ws_1", RegionID: "reg_1", Guard: 1, Reason: long, Message: long, Address: "\xff\xfe",
		}})
	})
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		stored, err := tx.GetInstance("ws_1", "ins_1")
		require.NoError(t, err)
		require.Equal(t, long[:127], stored.Reason, "128 bytes would end within a letter")
		require.Equal(t, long[:8191], stored.Message)
		require.Equal(t, "\uFFFD", stored.Address)
		return nil
	}))
}

func TestLease_RunsOnTheDatabasesClock(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	s := open(t, mysql.Config{DSN: dsn})
	ids := regions(t, s, 2)
	var long, short model.Region
	update(t, s, func(tx store.Tx) (err error) {
		if long, _, err = tx.StartSession(ids[0], "session-1", 600_000, model.Region{AgentVersion: "1"}); err != nil {
			return err
		}
		short, _, err = tx.StartSession(ids[1], "session-2", -1, model.Region{})
		return err
	})
	var now int64
	require.NoError(t, handle(t, dsn).QueryRowContext(t.Context(), "SELECT CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS SIGNED)").Scan(&now))
	require.InDelta(t, now+600_000, long.LeaseExpiresAt, 30_000)
	require.Less(t, short.LeaseExpiresAt, now)

	var expired []string
	update(t, s, func(tx store.Tx) (err error) { expired, err = tx.ExpireLeases(5, 10); return err })
	require.Equal(t, ids[1:], expired)

	// A report of the current session renews the lease, a report of another session does not, and a region
	// that was deleted does not come back.
	update(t, s, func(tx store.Tx) error {
		return tx.NoteReports([]model.Region{
			{ID: ids[1], SessionID: "session-2", SessionEpoch: short.SessionEpoch, SessionFence: short.SessionFence, ReceivedRevision: 7, LastReportAt: 8, Capacity: []byte{0xff, 0, 1}},
			{ID: ids[0], SessionID: "session-0", ReceivedRevision: 9, LastReportAt: 9},
			{ID: "reg_gone", SessionID: "session-3", ReceivedRevision: 9, LastReportAt: 9},
		}, 600_000)
	})
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		rs, err := tx.CheckSessions(append(ids, "reg_gone"))
		require.NoError(t, err)
		require.Len(t, rs, 2)
		require.Zero(t, rs[0].ReceivedRevision)
		require.EqualValues(t, 7, rs[1].ReceivedRevision)
		require.EqualValues(t, 8, rs[1].LastReportAt)
		require.Equal(t, []byte{0xff, 0, 1}, rs[1].Capacity)
		require.Equal(t, windlassv1.RegionStatus_REGION_STATUS_CONNECTED, rs[1].Status)
		require.InDelta(t, now+600_000, rs[1].LeaseExpiresAt, 60_000)
		return nil
	}))
}

func TestView_ReadsListsFromTheReplicaButNotTheFeed(t *testing.T) {
	replica := stacktest.MariaDB(t)
	open(t, mysql.Config{DSN: replica}) // an empty database: a replica that lags for ever
	s := open(t, mysql.Config{ReadDSN: replica})
	ids := regions(t, s, 1)
	update(t, s, func(tx store.Tx) error { tx.Change(ids[0], model.KindDeployment, "dep_1", 1); return nil })
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		_, err := tx.GetRegion(ids[0])
		require.ErrorIs(t, err, model.ErrNotFound)
		h, err := tx.GetHead(ids[0])
		require.EqualValues(t, 1, h.Revision)
		return err
	}))
}

func TestView_ReadsAPresetFromThePrimary(t *testing.T) {
	replica := stacktest.MariaDB(t)
	open(t, mysql.Config{DSN: replica}) // an empty database: a replica that lags for ever
	s := open(t, mysql.Config{ReadDSN: replica})
	update(t, s, func(tx store.Tx) error {
		return tx.InsertPreset(model.Preset{WorkspaceID: "ws_1", Name: "ember", Version: 3, Definition: &windlassv1.PresetDefinition{Title: "Ember"}})
	})
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		for _, version := range []int32{0, 3} {
			p, err := tx.GetPreset("ws_1", "ember", version)
			if err != nil {
				return err
			}
			require.EqualValues(t, 3, p.Version)
		}
		return nil
	}))
}

func TestChain_OfANewEpochHoldsAtItsFirstRevision(t *testing.T) {
	s := open(t, mysql.Config{})
	ids := regions(t, s, 1)
	change := func(tx store.Tx) error { tx.Change(ids[0], model.KindDeployment, "dep_1", 1); return nil }
	update(t, s, change)
	var bumped model.Head
	update(t, s, func(tx store.Tx) (err error) { bumped, err = tx.BumpEpoch(ids[0], []byte("salt")); return err })
	update(t, s, change)
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		chain, err := tx.ChainAt(ids[0], 1)
		require.NoError(t, err)
		require.Equal(t, bumped.Chain, chain)
		changes, err := tx.Changes(map[string]int64{ids[0]: 1}, 10)
		require.NoError(t, err)
		require.Equal(t, changefeed.Chain(bumped.Chain, changes[0].ID), changes[0].Chain)
		return nil
	}))
}

func TestNames_ThatNoColumnCouldHoldAreNotFound(t *testing.T) {
	s := open(t, mysql.Config{})
	twoApps(t, s)
	for _, id := range []string{"app_é", "'; DROP TABLE apps; --", "app_a\x00", string(make([]byte, 5000)), "\xff\xfe", "%"} {
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
			_, err := tx.GetApp("ws_1", id)
			require.ErrorIs(t, err, model.ErrNotFound, "%q", id)
			_, err = tx.GetApp(id, "app_a")
			require.ErrorIs(t, err, model.ErrNotFound, "%q", id)
			_, err = tx.GetAppByName("ws_1", "env_1", id)
			require.ErrorIs(t, err, model.ErrNotFound, "%q", id)
			_, err = tx.GetRegionByName("ws_1", id)
			require.ErrorIs(t, err, model.ErrNotFound, "%q", id)
			apps, err := tx.ListApps(id, "", store.Page{})
			require.NoError(t, err, "%q", id)
			require.Empty(t, apps, "%q", id)
			return nil
		}))
	}
}
