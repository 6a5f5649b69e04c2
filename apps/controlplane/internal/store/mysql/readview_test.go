package mysql_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// holed returns a store with one region with revisions 1 to 5, and a handle that can delete changes.
func holed(t *testing.T) (s *mysql.Store, region string, d *sql.DB) {
	t.Helper()
	dsn := stacktest.MariaDB(t)
	s = open(t, mysql.Config{DSN: dsn})
	region = regions(t, s, 1)[0]
	for i := range 5 {
		update(t, s, func(tx store.Tx) error {
			tx.Change(region, model.KindDeployment, fmt.Sprintf("dep_%d", i), 1)
			return nil
		})
	}
	return s, region, handle(t, dsn)
}

func revisions(t *testing.T, s *mysql.Store, region string, after int64) []int64 {
	t.Helper()
	var found []int64
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		changes, err := tx.Changes(map[string]int64{region: after}, 10)
		for _, c := range changes {
			found = append(found, c.Revision)
		}
		return err
	}))
	return found
}

func TestSnapshot_CompactedChangesAreNoTornRead(t *testing.T) {
	s, region, _ := holed(t)
	update(t, s, func(tx store.Tx) error { _, err := tx.CompactChanges(region, 3, 10); return err })
	require.Equal(t, []int64{4, 5}, revisions(t, s, region, 0))
	for range 2 {
		require.NoError(t, s.Snapshot(t.Context(), func(tx store.Tx) error {
			h, err := tx.GetHead(region)
			require.EqualValues(t, 5, h.Revision)
			return err
		}))
		update(t, s, func(tx store.Tx) error { _, err := tx.CompactChanges(region, 5, 10); return err })
	}
}

func TestSnapshot_WithoutACommitBelowItsHeadStartsAgain(t *testing.T) {
	s, region, d := holed(t)
	var kept struct {
		key, id string
		chain   []byte
	}
	require.NoError(t, d.QueryRowContext(t.Context(), "SELECT change_key, id, chain FROM region_changes WHERE revision = 3").Scan(&kept.key, &kept.id, &kept.chain))
	_, err := d.ExecContext(t.Context(), "DELETE FROM region_changes WHERE revision = 3")
	require.NoError(t, err)

	// Revision 3 is missing for good. An error is better than a snapshot that lacks a change.
	err = s.Snapshot(t.Context(), func(tx store.Tx) error { _, err := tx.GetHead(region); return err })
	require.ErrorContains(t, err, "without earlier ones")

	// Revision 3 is missing for a moment. The snapshot that begins again has all changes.
	var back sync.Once
	require.NoError(t, s.Snapshot(t.Context(), func(tx store.Tx) error {
		back.Do(func() {
			_, err := d.ExecContext(t.Context(), "INSERT INTO region_changes (region, revision, kind, change_key, generation, id, chain) VALUES (?, 3, 1, ?, 1, ?, ?)",
				region, kept.key, kept.id, kept.chain)
			require.NoError(t, err)
		})
		h, err := tx.GetHead(region)
		require.NoError(t, err)
		require.EqualValues(t, 5, h.Revision)
		changes, err := tx.Changes(map[string]int64{region: 0}, 10)
		require.Len(t, changes, 5)
		return err
	}))
	require.Equal(t, []int64{1, 2, 3, 4, 5}, revisions(t, s, region, 0))
}
