package load_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func appLoads(queued, inFlight int32, began uint64) []*gatewayv1.AppLoad {
	return []*gatewayv1.AppLoad{{
		AppId: "app_1", Queued: queued,
		Deployments: []*gatewayv1.DeploymentLoad{{DeploymentId: "dep_1", InFlight: inFlight, Began: began}},
	}}
}

func TestDemand(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1_700_000_000, 0)
	t.Run("is not known before a gateway has reported it", func(t *testing.T) {
		t.Parallel()
		_, ok := load.NewDemand().Look("app_1", begin)
		require.False(t, ok)
	})
	t.Run("adds up gateways, without those that left", func(t *testing.T) {
		t.Parallel()
		d := load.NewDemand()
		d.Joined("gw_1")
		d.Joined("gw_2")
		d.Tell("gw_1", appLoads(1, 10, 20), begin)
		d.Tell("gw_2", appLoads(2, 30, 40), begin)
		got, ok := d.Look("app_1", begin.Add(5*time.Second))
		require.True(t, ok)
		require.InDelta(t, 3, got.Queued, 0)
		require.InDelta(t, 40, got.InFlight["dep_1"], 0)
		require.InDelta(t, 12, got.Rate["dep_1"], 0.001, "60 requests in 5 s")
		d.Left("gw_2")
		got, ok = d.Look("app_1", begin.Add(5*time.Second))
		require.True(t, ok)
		require.InDelta(t, 1, got.Queued, 0)
		require.InDelta(t, 10, got.InFlight["dep_1"], 0)
		d.Left("gw_1")
		_, ok = d.Look("app_1", begin.Add(5*time.Second))
		require.False(t, ok)
	})
	t.Run("ignores requests that a gateway counted before this agent", func(t *testing.T) {
		t.Parallel()
		d := load.NewDemand()
		d.Tell("gw_1", appLoads(0, 4, 1_000_000), begin)
		got, _ := d.Look("app_1", begin.Add(5*time.Second))
		require.InDelta(t, 4, got.InFlight["dep_1"], 0)
		require.Zero(t, got.Rate["dep_1"])
		d.Tell("gw_1", appLoads(0, 4, 1_000_050), begin.Add(5*time.Second))
		got, _ = d.Look("app_1", begin.Add(5*time.Second))
		require.InDelta(t, 10, got.Rate["dep_1"], 0.001)
	})
	t.Run("has a rate after leastRate, which becomes 0 after the last requests", func(t *testing.T) {
		t.Parallel()
		d := load.NewDemand()
		d.Joined("gw_1")
		d.Tell("gw_1", appLoads(0, 0, 50), begin)
		got, _ := d.Look("app_1", begin.Add(time.Second))
		require.Empty(t, got.Rate)
		for s := range 20 {
			d.Tell("gw_1", appLoads(0, 0, 50+uint64(10*s)), begin.Add(time.Duration(s)*time.Second))
		}
		got, _ = d.Look("app_1", begin.Add(19*time.Second))
		require.InDelta(t, 10, got.Rate["dep_1"], 0.001)
		got, _ = d.Look("app_1", begin.Add(30*time.Second))
		require.Zero(t, got.Rate["dep_1"])
	})
	t.Run("has no rate of a deployment that no gateway reports any more", func(t *testing.T) {
		t.Parallel()
		d := load.NewDemand()
		d.Joined("gw_1")
		d.Tell("gw_1", appLoads(0, 0, 50), begin)
		later := appLoads(0, 0, 10)
		later[0].Deployments[0].DeploymentId = "dep_2"
		d.Tell("gw_1", later, begin.Add(5*time.Second))
		got, _ := d.Look("app_1", begin.Add(6*time.Second))
		require.Contains(t, got.Rate, "dep_1", "the last requests of dep_1 count")
		got, _ = d.Look("app_1", begin.Add(20*time.Second))
		require.Equal(t, map[string]float64{"dep_2": 0}, got.Rate)
	})
	t.Run("forgets apps that are not scaled any more", func(t *testing.T) {
		t.Parallel()
		d := load.NewDemand()
		d.Joined("gw_1")
		d.Tell("gw_1", appLoads(0, 3, 1), begin)
		d.Forget(func(string) bool { return false })
		_, ok := d.Look("app_1", begin)
		require.False(t, ok)
	})
}

// Whatever gateways report, and in whatever order they join and leave, no value is negative. The
// number of requests in flight is the sum over the last reports of the present gateways.
func TestDemand_SumsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := load.NewDemand()
		now := time.Unix(1_700_000_000, 0)
		last := map[string]int32{}
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			gw := rapid.SampledFrom([]string{"gw_1", "gw_2", "gw_3"}).Draw(t, "gateway")
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				d.Left(gw)
				delete(last, gw)
			case 1:
				d.Left(gw)
				d.Joined(gw)
				delete(last, gw)
			default:
				n := rapid.Int32Range(0, 1000).Draw(t, "in flight")
				d.Tell(gw, appLoads(0, n, rapid.Uint64Range(0, 1<<40).Draw(t, "began")), now)
				last[gw] = n
			}
			got, ok := d.Look("app_1", now)
			if ok != (len(last) > 0) {
				t.Fatalf("known %v of %v", ok, last)
			}
			var sum float64
			for _, n := range last {
				sum += float64(n)
			}
			if ok && got.InFlight["dep_1"] != sum {
				t.Fatalf("in flight %v, not %v", got.InFlight["dep_1"], sum)
			}
			for _, perSecond := range got.Rate {
				if !(perSecond >= 0) {
					t.Fatalf("rate %v", perSecond)
				}
			}
		}
	})
}
