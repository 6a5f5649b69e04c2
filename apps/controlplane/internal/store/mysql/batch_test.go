package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
)

// party runs the requests of one key in one transaction, in the given order.
func party(t *testing.T, s *mysql.Store, works ...func(store.Tx) (func() error, error)) []error {
	t.Helper()
	return partyAbout(t, s, make([]string, len(works)), works...)
}

// partyAbout is party for requests that name their app.
func partyAbout(t *testing.T, s *mysql.Store, apps []string, works ...func(store.Tx) (func() error, error)) []error {
	t.Helper()
	s.Hold(t, "key", len(works))
	errs := make([]error, len(works))
	var all sync.WaitGroup
	for i, work := range works {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("panicked: %v", p)
				}
			}()
			errs[i] = s.UpdateBatched(t.Context(), "key", apps[i], work)
		})
		require.Eventually(t, func() bool { return s.Waiting("key") > i || i == len(works)-1 }, time.Minute, 100*time.Microsecond)
	}
	all.Wait()
	return errs
}

func appFromRow(i int) model.App {
	return model.App{
		ID: fmt.Sprintf("app_%02d", i), WorkspaceID: "ws", EnvironmentID: "env", Name: fmt.Sprintf("app-%d", i), ResourceVersion: 1,
	}
}

func insert(i int) func(store.Tx) (func() error, error) {
	return func(tx store.Tx) (func() error, error) {
		return func() error {
			return tx.InsertHistory([]model.History{{ID: fmt.Sprintf("hst_%02d", i), AppID: appFromRow(i).ID}})
		}, tx.InsertApp(appFromRow(i))
	}
}

// there returns the numbers, below n, of the apps that exist.
func there(t *testing.T, s store.Store, n int) (ids []int) {
	t.Helper()
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		for i := range n {
			_, err := tx.GetApp("ws", appFromRow(i).ID)
			if err == nil {
				ids = append(ids, i)
			} else if !errors.Is(err, model.ErrNotFound) {
				return err
			}
		}
		return nil
	}))
	return ids
}

func TestBatch_SharesStatements(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	for _, err := range party(t, s, insert(0), insert(1), insert(2), insert(3)) {
		require.NoError(t, err)
	}
	require.Equal(t, []int{0, 1, 2, 3}, there(t, s, 4))
	for _, query := range []string{"InsertApps", "InsertHistory"} {
		require.InDelta(t, 1, s.Queries(query), 0, query)
	}
}

// ask is a request that reads an app with its rollouts.
func ask(i int, got *model.App) func(store.Tx) (func() error, error) {
	return func(tx store.Tx) (func() error, error) {
		a, err := tx.GetAppByName("ws", "env", appFromRow(i).Name)
		if err != nil {
			return nil, err
		}
		if *got, err = tx.LockApp("ws", a.ID); err != nil {
			return nil, err
		}
		_, deployed := tx.GetDeployment("ws", got.LiveDeploymentID)
		_, placed := tx.LockTopology(a.ID)
		_, staged := tx.GetRolloutStates([]string{a.ID})
		_, observed := tx.ListObserved([]string{a.ID})
		_, listed := tx.ListInstances(store.InstanceFilter{WorkspaceID: "ws", DeploymentID: got.LiveDeploymentID}, store.Page{Limit: 5})
		return nil, errors.Join(deployed, placed, staged, observed, listed)
	}
}

// running is an app with a deployment.
func running(i int) model.App {
	a := appFromRow(i)
	a.LiveDeploymentID = fmt.Sprintf("dep_%02d", i)
	return a
}

func run(t *testing.T, s store.Store, apps ...int) {
	t.Helper()
	update(t, s, func(tx store.Tx) error {
		for _, i := range apps {
			a := running(i)
			if err := errors.Join(tx.InsertApp(a), tx.InsertDeployment(model.Deployment{ID: a.LiveDeploymentID, WorkspaceID: "ws", AppID: a.ID, Version: 1})); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestBatch_AnswersTheSameQueryOfAppsTogether(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	run(t, s, 0, 1, 2, 3)
	names := []string{appFromRow(0).Name, appFromRow(1).Name, appFromRow(2).Name, appFromRow(3).Name}
	before := map[string]float64{}
	queries := []string{"GetAppsByName", "LockApps", "GetDeployments", "LockTopologyOfApps", "GetStagings", "ListObservedOfApps", "ListInstances"}
	for _, query := range append(queries, "GetAppByName", "LockApp", "GetDeployment") {
		before[query] = s.Queries(query)
	}
	got := make([]model.App, 4)
	for _, err := range partyAbout(t, s, names, ask(0, &got[0]), ask(1, &got[1]), ask(2, &got[2]), ask(3, &got[3])) {
		require.NoError(t, err)
	}
	for i := range got {
		require.Equal(t, running(i).ID, got[i].ID)
	}
	for _, query := range queries {
		require.InDelta(t, before[query]+1, s.Queries(query), 0, query)
		delete(before, query)
	}
	for query, n := range before {
		require.InDelta(t, n, s.Queries(query), 0, query)
	}
}

func TestBatch_AnswerIsStaleAfterAnotherMembersWrite(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	run(t, s, 0, 1)
	// The first member's query runs for all members. The next members name no app, but later members see their changes.
	changes := func(tx store.Tx) (func() error, error) {
		a, err := tx.LockApp("ws", appFromRow(1).ID)
		a.Replicas = 7
		return nil, errors.Join(err, tx.UpdateApp(a))
	}
	inserts := func(tx store.Tx) (func() error, error) { return nil, tx.InsertApp(running(2)) }
	flushes := func(tx store.Tx) (func() error, error) {
		_, err := tx.ListApps("ws", "", store.Page{Limit: 9})
		return nil, err
	}
	insertDeployment := func(tx store.Tx) (func() error, error) {
		a := running(2)
		return nil, tx.InsertDeployment(model.Deployment{ID: a.LiveDeploymentID, WorkspaceID: "ws", AppID: a.ID, Version: 1})
	}
	var found model.App
	finds := func(tx store.Tx) (last func() error, err error) {
		found, err = tx.GetAppByName("ws", "env", appFromRow(1).Name)
		return nil, err
	}
	got := make([]model.App, 3)
	errs := partyAbout(t, s, []string{appFromRow(0).Name, "", "", "", "", appFromRow(1).Name, appFromRow(1).Name, appFromRow(2).Name},
		ask(0, &got[0]), changes, inserts, insertDeployment, flushes, finds, ask(1, &got[1]), ask(2, &got[2]))
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.EqualValues(t, 7, found.Replicas)
	require.EqualValues(t, 7, got[1].Replicas)
	require.Equal(t, running(2).ID, got[2].ID)
	require.InDelta(t, 0, s.Parted(), 0)
}

func TestBatch_FailingRequestFailsAlone(t *testing.T) {
	no := errors.New("no")
	for name, tc := range map[string]struct {
		bad  func(store.Tx) (func() error, error)
		want string
	}{
		"before it writes": {func(store.Tx) (func() error, error) { return nil, no }, "no"},
		"after a write":    {func(tx store.Tx) (func() error, error) { return nil, errors.Join(tx.InsertApp(appFromRow(9)), no) }, "no"},
		"in its last part": {func(tx store.Tx) (func() error, error) {
			return func() error { return no }, tx.InsertApp(appFromRow(9))
		}, "no"},
		"after a write that is not deferred": {func(tx store.Tx) (func() error, error) {
			return nil, errors.Join(tx.PutRolloutState(model.RolloutState{AppID: "app_09"}), no)
		}, "no"},
		"with a name that another app has": {func(tx store.Tx) (func() error, error) {
			taken := appFromRow(9)
			taken.Name = appFromRow(8).Name
			return nil, tx.InsertApp(taken)
		}, model.ErrExists.Error()},
		"in a panic": {func(store.Tx) (func() error, error) { panic("oh") }, "panicked: panic: oh"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, mysql.Config{}).Patient()
			update(t, s, func(tx store.Tx) error { return tx.InsertApp(appFromRow(8)) })
			errs := party(t, s, insert(0), tc.bad, insert(1), insert(2))
			require.ErrorContains(t, errs[1], tc.want)
			for _, i := range []int{0, 2, 3} {
				require.NoError(t, errs[i])
			}
			require.Equal(t, []int{0, 1, 2, 8}, there(t, s, 10))
		})
	}
}

func TestBatch_IsSmallerAfterOneThatWasTooLarge(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	ids := regions(t, s, store.MaxRegions+8)
	wide := func(from int) func(store.Tx) (func() error, error) {
		return func(tx store.Tx) (func() error, error) {
			for _, id := range ids[from:][:10] {
				tx.Change(id, model.KindDeployment, "dep_x", 1)
			}
			return nil, nil
		}
	}
	for range 3 {
		for _, err := range party(t, s, wide(0), wide(10), wide(20), wide(30)) {
			require.NoError(t, err)
		}
	}
	require.InDelta(t, 1, s.Parted(), 0, "four requests in one transaction are too many, and two are not")
}

func TestBatch_LongTransactionDelaysNoOther(t *testing.T) {
	s := open(t, mysql.Config{})
	begun, end := make(chan struct{}), make(chan struct{})
	long := make(chan error, 1)
	go func() {
		long <- s.UpdateBatched(t.Context(), "key", "", func(tx store.Tx) (func() error, error) {
			close(begun)
			<-end
			return insert(0)(tx)
		})
	}()
	<-begun
	for i := range 3 {
		require.NoError(t, s.UpdateBatched(t.Context(), "key", "", insert(i+1)))
	}
	require.Equal(t, []int{1, 2, 3}, there(t, s, 4))
	close(end)
	require.NoError(t, <-long)
	require.Equal(t, []int{0, 1, 2, 3}, there(t, s, 4))
}

func TestBatch_WithoutPatienceEveryRequestRuns(t *testing.T) {
	s := open(t, mysql.Config{}).Hasty()
	var all errgroup.Group
	for i := range 60 {
		all.Go(func() error { return s.UpdateBatched(t.Context(), "key", "", insert(i)) })
	}
	require.NoError(t, all.Wait())
	require.Len(t, there(t, s, 60), 60)
}

func TestBatch_MemberNeverBuildsOnARollback(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	row := model.Topology{AppID: "app_1", DeploymentID: "dep_1", RegionID: "reg_1", Generation: 1}
	update(t, s, func(tx store.Tx) error { return tx.PutTopology([]model.Topology{row}) })
	no := errors.New("no")
	next := func(last error) func(store.Tx) (func() error, error) {
		return func(tx store.Tx) (func() error, error) {
			rows, err := tx.LockTopology("app_1")
			if err != nil {
				return nil, err
			}
			rows[0].Generation++
			return func() error { return last }, tx.PutTopology(rows)
		}
	}
	errs := party(t, s, next(no), next(nil))
	require.ErrorIs(t, errs[0], no)
	require.NoError(t, errs[1])
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		rows, err := tx.ListTopology([]string{"app_1"})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.EqualValues(t, 2, rows[0].Generation)
		return nil
	}))
}

func TestBatch_EndedContextLeavesItsTurn(t *testing.T) {
	s := open(t, mysql.Config{}).Patient()
	s.Hold(t, "key", 1000) // for as long as that takes
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.UpdateBatched(ctx, "key", "", insert(0)), context.DeadlineExceeded)
	require.NoError(t, s.UpdateBatched(t.Context(), "another key", "", insert(1)), "requests of another key do not wait")
	require.NoError(t, s.UpdateBatched(t.Context(), "key", "", insert(2)))
	require.Equal(t, []int{1, 2}, there(t, s, 3))
}
