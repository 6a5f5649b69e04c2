package rollup

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func place(replicas, ready int32) Place {
	return Place{
		Row: model.Topology{
			RegionID: "reg_1", Replicas: replicas, Generation: 3,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		},
		Observed: model.Observed{
			AppliedEpoch: 2, AppliedGeneration: 3, CountsGeneration: 3, Phase: phaseApplied,
			ReadyReplicas: ready, Ready: ready, Running: replicas - ready,
		},
		Region: model.Region{
			ID: "reg_1", Name: "us-east-1", SessionEpoch: 2,
			Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED,
		},
	}
}

func with(p Place, f func(*Place)) Place { f(&p); return p }

func TestFacts_CountOnlyWhenCurrent(t *testing.T) {
	p := place(2, 2)
	require.True(t, p.Ready())
	require.False(t, with(p, func(p *Place) { p.Row.Generation = 4 }).Ready(), "of an older generation")
	require.False(t, with(p, func(p *Place) { p.Observed.CountsGeneration = 2 }).Ready(), "counted before it was applied")
	require.False(t, with(p, func(p *Place) { p.Region.SessionEpoch = 3 }).Ready(), "of an older epoch")

	gone := with(place(2, 0), func(p *Place) { p.Observed.Deleted, p.Observed.Running = true, 0 })
	require.True(t, gone.Gone())
	require.False(t, gone.Ready())
	require.False(t, with(gone, func(p *Place) { p.Observed.Draining = 1 }).Gone(), "an instance still drains")
	require.False(t, with(gone, func(p *Place) { p.Row.Generation = 4 }).Gone())
	require.False(t, with(gone, func(p *Place) { p.Region.SessionEpoch = 3 }).Gone())
}

func TestNeed_IsZeroOnlyIfNothingIsWanted(t *testing.T) {
	for _, c := range []struct{ replicas, minReady, need int32 }{
		{2, 0, 2}, {3, 1, 1}, {3, 5, 3}, {0, 0, 0}, {0, 2, 0}, {1, 1, 1},
	} {
		require.Equal(t, c.need, with(place(c.replicas, 0), func(p *Place) { p.MinReady = c.minReady }).Need())
	}
}

func TestDoomed_InstanceEndsTheWaitUnlessReadyWithoutIt(t *testing.T) {
	p := with(place(2, 1), func(p *Place) {
		p.Observed.Doomed, p.Observed.Reason, p.Observed.ReasonMessage = 1, "CrashLoop", "exit code 1"
	})
	reason, message, doomed := p.Doomed()
	require.True(t, doomed)
	require.Equal(t, "CrashLoop", reason)
	require.Equal(t, "exit code 1", message)
	p.MinReady = 1
	_, _, doomed = p.Doomed()
	require.False(t, doomed)
}

func TestRejection_FinalEndsTheWait(t *testing.T) {
	p := with(place(2, 0), func(p *Place) {
		p.Observed.Phase, p.Observed.Code, p.Observed.Retryable = phaseRejected, "Unschedulable", true
	})
	_, _, doomed := p.Doomed()
	require.False(t, doomed)
	p.Observed.Retryable = false
	reason, _, doomed := p.Doomed()
	require.True(t, doomed)
	require.Equal(t, "Unschedulable", reason)
	p.Row.Generation++
	_, _, doomed = p.Doomed()
	require.False(t, doomed, "the rejection is of an older generation")
}

func TestPlace_LacksCapacityWhileTheRegionSaysSo(t *testing.T) {
	crowded := with(place(2, 1), func(p *Place) { p.Observed.Reason = "Unschedulable" })
	require.True(t, crowded.LacksCapacity())
	require.True(t, with(place(2, 0), func(p *Place) {
		p.Observed.Phase, p.Observed.Code, p.Observed.Retryable = phaseRejected, "QuotaExceeded", true
	}).LacksCapacity())
	require.False(t, with(crowded, func(p *Place) { p.MinReady = 1 }).LacksCapacity())
	require.False(t, with(crowded, func(p *Place) { p.Region.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE }).LacksCapacity())
	require.False(t, with(crowded, func(p *Place) { p.Observed.Reason = "CrashLoop" }).LacksCapacity())

	target := &model.Deployment{Version: 2, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING}
	_, text := Status(Facts{Target: target, TargetPlaces: []Place{crowded}, AwaitsCapacity: true})
	require.Contains(t, text, "v2 waits for room: ")
	_, text = Status(Facts{Target: target, TargetPlaces: []Place{crowded}})
	require.NotContains(t, text, "waits for room")
}

func TestAppStatus(t *testing.T) {
	crash := func(p *Place) {
		p.Observed.Fail, p.Observed.Running, p.Observed.Reason, p.Observed.ReasonMessage = 1, 0, "CrashLoop", "exit code 1"
	}
	away := func(p *Place) { p.Region.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE }
	failed := &model.Deployment{
		Version: 1, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED, Message: "us-east-1: exit code 1",
	}
	cancelled := &model.Deployment{Version: 1, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED}
	deploying := &model.Deployment{Version: 2, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING}
	for _, c := range []struct {
		name    string
		facts   Facts
		want    windlassv1.AppStatus
		message string
	}{
		{"nothing was ever deployed", Facts{}, windlassv1.AppStatus_APP_STATUS_IDLE, ""},
		{"the first was cancelled", Facts{Newest: cancelled}, windlassv1.AppStatus_APP_STATUS_IDLE, ""},
		{"the first failed", Facts{Newest: failed}, windlassv1.AppStatus_APP_STATUS_FAILED, "v1 failed: us-east-1: exit code 1"},
		{"all is well", Facts{HasLive: true, Live: []Place{place(2, 2)}}, windlassv1.AppStatus_APP_STATUS_READY, ""},
		{"a later one failed", Facts{HasLive: true, Live: []Place{place(2, 2)}, Newest: failed}, windlassv1.AppStatus_APP_STATUS_READY, ""},
		{"nothing is wanted", Facts{HasLive: true, Live: []Place{place(0, 0)}}, windlassv1.AppStatus_APP_STATUS_READY, ""},
		{
			"a rollout is under way",
			Facts{HasLive: true, Live: []Place{place(2, 2)}, Target: deploying, TargetPlaces: []Place{place(2, 1)}},
			windlassv1.AppStatus_APP_STATUS_PROGRESSING, "v2: us-east-1: 1 of 2 replicas ready",
		},
		{
			"replicas are starting",
			Facts{HasLive: true, Live: []Place{place(4, 2)}},
			windlassv1.AppStatus_APP_STATUS_PROGRESSING, "us-east-1: 2 of 4 replicas ready",
		},
		{
			"some fail",
			Facts{HasLive: true, Live: []Place{with(place(2, 1), crash)}},
			windlassv1.AppStatus_APP_STATUS_DEGRADED, "us-east-1: 1 of 2 replicas ready (CrashLoop: exit code 1)",
		},
		{
			"all fail",
			Facts{HasLive: true, Live: []Place{with(place(2, 0), crash)}},
			windlassv1.AppStatus_APP_STATUS_FAILED, "us-east-1: 0 of 2 replicas ready (CrashLoop: exit code 1)",
		},
		{
			"a region is away",
			Facts{HasLive: true, Live: []Place{place(2, 2), with(place(2, 2), away)}},
			windlassv1.AppStatus_APP_STATUS_DEGRADED, "us-east-1: 2 of 2 replicas ready when last heard of, region is out of reach",
		},
		{
			"the app is being deleted",
			Facts{Deleting: true, HasLive: true, Live: []Place{with(place(2, 2), func(p *Place) {
				p.Row.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
			})}},
			windlassv1.AppStatus_APP_STATUS_DELETING, "us-east-1: stopping, 2 instances left",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, message := Status(c.facts)
			require.Equal(t, c.want.String(), status.String())
			require.Equal(t, c.message, message)
		})
	}
}

func TestStatusLine_StaysShort(t *testing.T) {
	var places []Place
	for range 40 {
		places = append(places, place(2, 1))
	}
	_, message := Status(Facts{HasLive: true, Live: places})
	require.Contains(t, message, "and 37 more")
}

func drawObserved(t *rapid.T) model.Observed {
	n := rapid.Int32Range(0, 2)
	return model.Observed{
		AppliedEpoch:      rapid.Int64Range(1, 3).Draw(t, "epoch"),
		AppliedGeneration: rapid.Int64Range(2, 4).Draw(t, "generation"),
		CountsGeneration:  rapid.Int64Range(2, 4).Draw(t, "counts generation"),
		Phase:             rapid.Int32Range(0, int32(agentv1.AppliedState_PHASE_REJECTED)).Draw(t, "phase"),
		Code:              rapid.SampledFrom([]string{"", "Unschedulable", "Unsupported"}).Draw(t, "code"),
		Retryable:         rapid.Bool().Draw(t, "retryable"),
		Deleted:           rapid.Bool().Draw(t, "deleted"),
		Pending:           n.Draw(t, "pending"), Running: n.Draw(t, "running"), Ready: n.Draw(t, "ready"),
		Fail: n.Draw(t, "fail"), ReadyReplicas: n.Draw(t, "ready replicas"), Doomed: n.Draw(t, "doomed"),
		Restarts: n.Draw(t, "restarts"),
		Reason:   rapid.SampledFrom([]string{"", "CrashLoop", "NotReady", "Unschedulable"}).Draw(t, "reason"),
	}
}

// TestEdge_NoneMeansTheSameDecision requires that a report that wakes no app does not change a decision of the
// planner.
func TestEdge_NoneMeansTheSameDecision(t *testing.T) {
	type verdict struct {
		ready, settled, gone, applied, doomed, failing, unschedulable bool
		reason                                                        string
		status                                                        windlassv1.AppStatus
	}
	judge := func(o model.Observed, minReady int32) verdict {
		p := place(2, 0)
		p.MinReady, p.Observed = minReady, o
		v := verdict{ready: p.Ready(), settled: p.Settled(), gone: p.Gone(), applied: p.Applied(), failing: p.Failing(), unschedulable: p.LacksCapacity()}
		v.reason, _, v.doomed = p.Doomed()
		v.status, _ = Status(Facts{HasLive: true, Live: []Place{p}})
		return v
	}
	rapid.Check(t, func(t *rapid.T) {
		before := drawObserved(t)
		after := before
		// Most fields stay, as they do in real reports.
		change := drawObserved(t)
		switch rapid.IntRange(0, 5).Draw(t, "what changes") {
		case 0:
			after = change
		case 1:
			after.Pending, after.Running = change.Pending, change.Running
		case 2:
			after.Reason, after.Code = change.Reason, change.Code
		case 3:
			after.Fail, after.Doomed, after.Restarts = change.Fail, change.Doomed, change.Restarts
		case 4:
			after.Ready, after.ReadyReplicas = change.Ready, change.ReadyReplicas
		case 5:
			after.Phase, after.Deleted, after.Retryable = change.Phase, change.Deleted, change.Retryable
		}
		if !Edges(before, after) {
			minReady := rapid.Int32Range(0, 2).Draw(t, "min ready")
			require.Equal(t, judge(before, minReady), judge(after, minReady))
		}
	})
}

func TestRouteStatus_IsOfThePresentEpochAndGeneration(t *testing.T) {
	region := model.Region{SessionEpoch: 2}
	route := model.Route{Generation: 4}
	o := model.RouteObserved{Epoch: 2, Generation: 4, Phase: phaseApplied}
	require.True(t, RouteAcknowledged(route, o, region))
	require.True(t, RouteAcknowledged(model.Route{}, model.RouteObserved{}, region), "there never was a route")
	for _, bad := range []model.RouteObserved{
		{},
		{Epoch: 1, Generation: 9, Phase: phaseApplied},
		{Epoch: 2, Generation: 3, Phase: phaseApplied},
		{Epoch: 2, Generation: 4, Phase: phaseRejected},
	} {
		require.False(t, RouteAcknowledged(route, bad, region))
		require.True(t, RouteEdges(o, bad))
	}
}
