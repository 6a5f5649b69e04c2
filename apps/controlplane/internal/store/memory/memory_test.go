package memory_test

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/storetest"
)

func now() int64 { return time.Now().UnixMilli() }

func TestContract(t *testing.T) {
	storetest.Run(t, func(testing.TB) store.Store { return memory.New(now) })
}

func region(t *testing.T, s store.Store, id string) {
	t.Helper()
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		return tx.InsertRegion(model.Region{ID: id, Name: id, ResourceVersion: 1})
	}))
}

func change(t *testing.T, s store.Store, region, key string) {
	t.Helper()
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		tx.Change(region, model.KindDeployment, key, 1)
		return nil
	}))
}

func keys(t *testing.T, s store.Store, region string) []string {
	t.Helper()
	var out []string
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		changes, err := tx.Changes(map[string]int64{region: 0}, 100)
		for _, c := range changes {
			out = append(out, c.Key)
		}
		return err
	}))
	return out
}

func TestTransaction_RunsAgainIfItOverlapsAnEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(now)
		require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
			return tx.InsertApp(model.App{ID: "app_1", WorkspaceID: "ws_1", ResourceVersion: 1})
		}))
		tries := make([]int, 3)
		errs := make([]error, len(tries))
		var wg sync.WaitGroup
		for i := range tries {
			wg.Go(func() {
				errs[i] = s.Update(t.Context(), func(tx store.Tx) error {
					tries[i]++
					a, err := tx.LockApp("", "app_1")
					if err != nil {
						return err
					}
					// All have read before the first commits. The transaction that started last commits first.
					time.Sleep(time.Hour - time.Duration(i)*time.Minute)
					a.LatestVersion++
					return tx.UpdateApp(a)
				})
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
			a, err := tx.GetApp("ws_1", "app_1")
			require.EqualValues(t, 3, a.LatestVersion)
			return err
		}))
		require.Equal(t, 1, tries[2])
		require.Greater(t, tries[0], 1)
	})
}

func TestAttempt_ThatSawTwoMomentsReturnsNoError(t *testing.T) {
	s := memory.New(now)
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		return tx.InsertApp(model.App{ID: "app_1", WorkspaceID: "ws_1", ResourceVersion: 1})
	}))
	bump := func(tx store.Tx) error {
		a, err := tx.LockApp("", "app_1")
		if err != nil {
			return err
		}
		return tx.UpdateApp(a)
	}
	try := 0
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		try++
		a, err := tx.LockApp("", "app_1")
		if err != nil {
			return err
		}
		if try == 1 {
			require.NoError(t, s.Update(t.Context(), bump))
		}
		return tx.UpdateApp(a) // a conflict under a lock, which no database would report
	}))
	require.Equal(t, 2, try)
}

func TestLease_RunsOnTheGivenClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(now)
		region(t, s, "reg_1")
		expired := func() (ids []string) {
			require.NoError(t, s.Update(t.Context(), func(tx store.Tx) (err error) {
				ids, err = tx.ExpireLeases(now(), 10)
				return err
			}))
			return ids
		}
		require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
			_, _, err := tx.StartSession("reg_1", "s", 1000, model.Region{})
			return err
		}))
		time.Sleep(time.Second)
		require.Empty(t, expired())
		time.Sleep(time.Millisecond)
		require.Equal(t, []string{"reg_1"}, expired())
	})
}

func TestRestore_ForgetsWhatCameAfterTheBackup(t *testing.T) {
	s := memory.New(now)
	region(t, s, "reg_1")
	change(t, s, "reg_1", "a")
	backup := s.Clone()
	change(t, s, "reg_1", "b")
	change(t, s, "reg_1", "c")
	require.Equal(t, []string{"a"}, keys(t, backup, "reg_1"), "a backup does not move")

	s.Restore(backup)
	change(t, s, "reg_1", "d")
	require.Equal(t, []string{"a", "d"}, keys(t, s, "reg_1"))
	change(t, backup, "reg_1", "e")
	require.Equal(t, []string{"a", "e"}, keys(t, backup, "reg_1"), "neither store writes into the other")
	require.Equal(t, []string{"a", "d"}, keys(t, s, "reg_1"))
}

func TestRestore_DuringATransactionRunsItAgain(t *testing.T) {
	s := memory.New(now)
	region(t, s, "reg_1")
	backup := s.Clone()
	try := 0
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		if try++; try == 1 {
			s.Restore(backup)
		}
		tx.Change("reg_1", model.KindDeployment, "a", 1)
		return nil
	}))
	require.Equal(t, 2, try)
	require.Equal(t, []string{"a"}, keys(t, s, "reg_1"))
}

func TestRestore_KeepsListeners(t *testing.T) {
	s := memory.New(now)
	region(t, s, "reg_1")
	commits := 0
	s.OnCommit(func(store.Commit) { commits++ })
	s.Restore(s.Clone())
	change(t, s, "reg_1", "a")
	require.Equal(t, 1, commits)
}

// A row that was inserted and deleted meanwhile is not the same as a row that never existed.
func TestTransaction_RunsAgainIfAnAbsentRowCameAndWent(t *testing.T) {
	for _, deleted := range []int{0, 5000} {
		s := memory.New(now)
		claim := model.Idempotency{WorkspaceID: "ws_1", Key: "claim"}
		insert := func(i model.Idempotency) {
			require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error { return tx.InsertIdempotency(i) }))
		}
		remove := func(key string) {
			require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error { return tx.DeleteIdempotencyKey("ws_1", key) }))
		}
		tries := 0
		require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
			if tries++; tries == 1 {
				require.NoError(t, tx.InsertIdempotency(claim))
				insert(claim)
				remove("claim")
				for n := range deleted {
					other := model.Idempotency{WorkspaceID: "ws_1", Key: strconv.Itoa(n)}
					insert(other)
					remove(other.Key)
				}
				return nil
			}
			return tx.InsertIdempotency(claim)
		}))
		require.Equal(t, 2, tries)
	}
}
