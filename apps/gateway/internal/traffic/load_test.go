package traffic_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	t.Run("is returned after a change", func(t *testing.T) {
		t.Parallel()
		var all traffic.Traffic
		apps := map[string][]string{"app_1": {"dep_1", "dep_2"}, "app_2": nil}
		changed, told := all.Loads(apps, nil)
		require.Len(t, changed, 2, "an app without a request has a load of 0")
		require.Len(t, changed[0].Deployments, 2)

		one, two, three := all.Begin("app_1"), all.Begin("app_1"), all.Begin("app_1")
		one.Sent("dep_1")
		one.Sent("dep_1") // another attempt
		two.Sent("dep_1")
		two.Sent("dep_2")
		changed, told = all.Loads(apps, told)
		require.Len(t, changed, 1)
		require.EqualValues(t, 1, changed[0].Queued)
		require.Equal(t, []int32{1, 1}, inFlight(changed[0]))
		changed, told = all.Loads(apps, told)
		require.Empty(t, changed)

		one.End()
		one.End()
		three.End()
		three.Sent("dep_1")
		changed, told = all.Loads(apps, told)
		require.Len(t, changed, 1)
		require.Zero(t, changed[0].Queued)
		require.Equal(t, []int32{0, 1}, inFlight(changed[0]))
		require.EqualValues(t, 2, changed[0].Deployments[0].Began)

		// A request that began and ended since the last call, and was sent to no instance, changes nothing.
		four := all.Begin("app_1")
		four.End()
		changed, told = all.Loads(apps, told)
		require.Empty(t, changed)

		// A deployment without a route stays until its last request has ended.
		apps["app_1"] = []string{"dep_1"}
		changed, told = all.Loads(apps, told)
		require.Empty(t, changed)
		two.End()
		changed, told = all.Loads(apps, told)
		require.Len(t, changed[0].Deployments, 1)

		delete(apps, "app_1")
		changed, told = all.Loads(apps, told)
		require.Empty(t, changed)
		require.Len(t, told, 1, "the load of app_1 is dropped, so that it is returned when app_1 is counted again")

		all.ForgetApps(func(id string) bool { return id == "app_2" })
		apps["app_1"] = []string{"dep_1"}
		changed, _ = all.Loads(apps, told)
		require.Len(t, changed, 1)
		require.Zero(t, changed[0].Deployments[0].Began, "its load was forgotten")
	})
	t.Run("is zero after concurrent requests have ended", func(t *testing.T) {
		t.Parallel()
		var all traffic.Traffic
		apps := map[string][]string{"app_1": {"dep_1"}}
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 200 {
					c := all.Begin("app_1")
					c.Sent("dep_1")
					all.Loads(apps, nil)
					c.End()
				}
			})
		}
		callers.Wait()
		changed, _ := all.Loads(apps, nil)
		require.Equal(t, []int32{0}, inFlight(changed[0]))
		require.Zero(t, changed[0].Queued)
		require.EqualValues(t, 1600, changed[0].Deployments[0].Began)
	})
}

func inFlight(l *gatewayv1.AppLoad) (out []int32) {
	for _, d := range l.Deployments {
		out = append(out, d.InFlight)
	}
	return out
}
