package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var noon = time.UnixMilli(1_800_000_000_000)

// inFlight returns a rollout of v2 in place of v1, with a wave of these regions.
func inFlight(regions ...*windlassv1.RegionProgress) *windlassv1.Rollout {
	return &windlassv1.Rollout{
		Id: "rol_2", DeploymentId: "dep_2", Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
		Progress: &windlassv1.RolloutProgress{Waves: []*windlassv1.WaveProgress{{State: windlassv1.WaveProgress_STATE_ROLLING, Regions: regions}}},
	}
}

// withChange returns the rollout after a change.
func withChange(ro *windlassv1.Rollout, change func(*windlassv1.Rollout)) *windlassv1.Rollout {
	change(ro)
	return ro
}

func region(name string, change func(*windlassv1.RegionProgress)) *windlassv1.RegionProgress {
	g := &windlassv1.RegionProgress{Region: name, State: windlassv1.RegionProgress_STATE_ROLLING, Step: 1, Steps: 2, Replicas: 4}
	if change != nil {
		change(g)
	}
	return g
}

func TestJudgeRollout(t *testing.T) {
	promotion := func(g *windlassv1.RegionProgress) { g.WaitsForPromotion = true }
	approval := func(g *windlassv1.RegionProgress) {
		g.Approval = &windlassv1.ApprovalProgress{Missing: "the approval of an owner"}
	}
	final := func(status windlassv1.RolloutStatus, reason, message string) *windlassv1.Rollout {
		return withChange(inFlight(), func(ro *windlassv1.Rollout) {
			ro.Status, ro.Reason, ro.Message, ro.FinishedAt = status, reason, message, 1
		})
	}
	for name, tc := range map[string]struct {
		ro      *windlassv1.Rollout
		until   string
		outcome string // empty: it goes on
		code    int
		says    string
	}{
		"it succeeded":        {final(windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, "", ""), "", outcomeSucceeded, 0, ""},
		"it failed":           {final(windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, "CrashLoop", "exit code 3"), "", outcomeFailed, 1, "echo v2 failed: CrashLoop: exit code 3\nv1 is still live. `windlass history echo` shows what happened.\nSee `windlass explain CrashLoop`."},
		"it was aborted":      {final(windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED, "Cancelled", "ada: too slow"), "", outcomeAborted, 1, "echo v2 was aborted: Cancelled: ada: too slow"},
		"it was superseded":   {final(windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, "Superseded", "v3 is wanted"), "", outcomeSuperseded, 4, "echo v2 was superseded: v3 is wanted"},
		"it rolls":            {inFlight(region("eu", nil)), "", "", 0, ""},
		"it waits for a step": {inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.StepUntil = noon.UnixMilli() + 1 })), "", "", 0, ""},
		"it waits for room":   {inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.WaitsForCapacitySince = 1 })), "", "", 0, ""},
		"a freeze holds it":   {withChange(inFlight(), func(ro *windlassv1.Rollout) { ro.Hold = &windlassv1.FreezeHold{Freeze: "f"} }), "", "", 0, ""},
		"a check holds it": {inFlight(region("eu", func(g *windlassv1.RegionProgress) {
			g.StepUntil = 1
			g.Checks = []*windlassv1.CheckProgress{{State: windlassv1.CheckProgress_STATE_HELD}}
		})), "", "", 0, ""},
		"it goes back":         {withChange(inFlight(region("eu", promotion)), func(ro *windlassv1.Rollout) { ro.Progress.GoingBack = true }), "", "", 0, ""},
		"promotion":            {inFlight(region("eu", promotion)), "", outcomePeople, 5, "echo v2 waits for promotion: windlass rollout promote echo\n"},
		"promotion, held":      {withChange(inFlight(region("eu", promotion)), func(ro *windlassv1.Rollout) { ro.Progress.PromotionHeld = true }), "", outcomePeople, 5, "an earlier rollout went back"},
		"promotion, ready":     {inFlight(region("eu", promotion)), untilReady, "", 0, ""},
		"promotion, promotion": {inFlight(region("eu", promotion)), untilPromotion, outcomePeople, 0, "echo v2 waits for promotion"},
		"another region rolls": {inFlight(region("eu", promotion), region("us", nil)), "", "", 0, ""},
		"another goes back":    {inFlight(region("eu", promotion), region("us", func(g *windlassv1.RegionProgress) { g.State = windlassv1.RegionProgress_STATE_GOING_BACK })), "", "", 0, ""},
		"approval":             {inFlight(region("eu", approval)), "", outcomePeople, 5, "echo v2 waits for the approval of an owner: windlass rollout approve echo\n"},
		"approval, promotion":  {inFlight(region("eu", approval)), untilPromotion, outcomePeople, 0, ""},
		"approval, not yet":    {inFlight(region("eu", func(g *windlassv1.RegionProgress) { approval(g); g.StepUntil = noon.UnixMilli() + 1 })), "", "", 0, ""},
		"approval at the end": {withChange(inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.State = windlassv1.RegionProgress_STATE_MOVED })), func(ro *windlassv1.Rollout) {
			w := ro.Progress.Waves[0]
			w.State, w.BakingUntil = windlassv1.WaveProgress_STATE_BAKING, noon.UnixMilli()
			w.Approval = &windlassv1.ApprovalProgress{Missing: "an owner"}
		}), "", outcomePeople, 5, "waits for an owner"},
		"it bakes till then": {withChange(inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.State = windlassv1.RegionProgress_STATE_MOVED })), func(ro *windlassv1.Rollout) {
			w := ro.Progress.Waves[0]
			w.State, w.BakingUntil = windlassv1.WaveProgress_STATE_BAKING, noon.UnixMilli()+1
			w.Approval = &windlassv1.ApprovalProgress{Missing: "an owner"}
		}), "", "", 0, ""},
		"paused by a person": {withChange(inFlight(region("eu", nil)), func(ro *windlassv1.Rollout) {
			ro.Progress.Paused, ro.Progress.PausedBy, ro.Progress.PausedWhy = true, "ada", "lunch"
		}), "", outcomePeople, 5, "echo v2 is paused by ada (lunch): windlass rollout resume echo"},
		"paused, promotion": {withChange(inFlight(region("eu", nil)), func(ro *windlassv1.Rollout) { ro.Progress.Paused, ro.Progress.PausedBy = true, "ada" }), untilPromotion, outcomePeople, 5, "is paused by ada"},
		"paused, ready":     {withChange(inFlight(region("eu", nil)), func(ro *windlassv1.Rollout) { ro.Progress.Paused, ro.Progress.PausedBy = true, "ada" }), untilReady, "", 0, ""},
		"paused by a failure": {withChange(inFlight(region("eu", nil)), func(ro *windlassv1.Rollout) {
			ro.Progress.Paused, ro.Progress.PausedBy, ro.Progress.PausedWhy = true, "windlass", "eu failed: CrashLoop"
		}), "", outcomePaused, 6, "echo v2 is paused: eu failed: CrashLoop\n`windlass rollout retry echo` retries the regions that failed"},
		"paused by it, ready":   {withChange(inFlight(region("eu", nil)), func(ro *windlassv1.Rollout) { ro.Progress.Paused, ro.Progress.PausedBy = true, "windlass" }), untilReady, outcomePaused, 6, ""},
		"first version, rolls":  {&windlassv1.Rollout{Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING}, "", "", 0, ""},
		"first version, failed": {&windlassv1.Rollout{Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, Version: 1, Reason: "BadCommand"}, "", outcomeFailed, 1, "echo v1 failed: BadCommand"},
	} {
		t.Run(name, func(t *testing.T) {
			v := judgeRollout(&windlassv1.App{Name: "echo", LiveVersion: 1}, tc.ro, tc.until, noon)
			require.Equal(t, tc.outcome != "", v.over)
			require.Equal(t, tc.outcome, v.outcome)
			require.Equal(t, tc.code, v.code)
			require.Contains(t, v.message, tc.says)
		})
	}
}

func TestWaitLines(t *testing.T) {
	app := &windlassv1.App{Name: "echo"}
	later := noon.Add(time.Hour).UnixMilli()
	lines := func(ro *windlassv1.Rollout) []string { return waitLines(app, ro, noon) }
	require.Empty(t, lines(nil))
	require.Empty(t, lines(inFlight(region("eu", nil))))
	require.Equal(t, []string{"waits at step 1 of 2 in eu until " + timeText(later), "waits for room in us"}, lines(inFlight(
		region("eu", func(g *windlassv1.RegionProgress) { g.StepUntil = later }), region("us", func(g *windlassv1.RegionProgress) { g.WaitsForCapacitySince = 5 }))))
	require.Equal(t, []string{"waits for promotion: windlass rollout promote echo: an earlier rollout went back, so promotion is no longer automatic"},
		lines(withChange(inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.WaitsForPromotion = true })), func(ro *windlassv1.Rollout) { ro.Progress.PromotionHeld = true })))
	require.Equal(t, []string{"goes back to v1: CrashLoop"}, lines(withChange(inFlight(), func(ro *windlassv1.Rollout) { ro.Progress.GoingBack, ro.Reason = true, "CrashLoop" })))
	require.Equal(t, []string{"is paused by windlass (eu failed)"}, lines(withChange(inFlight(), func(ro *windlassv1.Rollout) {
		ro.Progress.Paused, ro.Progress.PausedBy, ro.Progress.PausedWhy = true, "windlass", "eu failed"
	})))
	require.Equal(t, []string{"is held by freeze f of the app, until it is lifted: away"}, lines(withChange(inFlight(), func(ro *windlassv1.Rollout) {
		ro.Hold = &windlassv1.FreezeHold{Freeze: "f", Scope: "app", Reason: "away"}
	})))
	require.Equal(t, []string{"bakes in eu, us until " + timeText(later)}, lines(withChange(inFlight(
		region("eu", func(g *windlassv1.RegionProgress) { g.State = windlassv1.RegionProgress_STATE_MOVED }),
		region("us", func(g *windlassv1.RegionProgress) { g.State = windlassv1.RegionProgress_STATE_MOVED }),
	), func(ro *windlassv1.Rollout) {
		ro.Progress.Waves[0].State, ro.Progress.Waves[0].BakingUntil = windlassv1.WaveProgress_STATE_BAKING, later
	})))
	held := inFlight(region("eu", func(g *windlassv1.RegionProgress) {
		g.StepUntil = noon.UnixMilli()
		g.Checks = []*windlassv1.CheckProgress{{Name: "p95", State: windlassv1.CheckProgress_STATE_HELD, HeldSince: 1, Message: "no samples"}}
	}))
	require.Equal(t, []string{"is held by p95 in eu: no samples; `windlass rollout promote echo` goes on without it"}, lines(held))
	require.Equal(t, lines(held), waitLines(app, held, noon.Add(time.Minute)), "the text does not change each second")
}

func TestJudgeSize(t *testing.T) {
	picture := func(wanted, ready int32, ro *windlassv1.Rollout) *windlassv1.WatchAppResponse {
		return &windlassv1.WatchAppResponse{
			App: &windlassv1.App{Name: "echo", LiveDeploymentId: "dep_1"}, Rollout: ro,
			Deployments: []*windlassv1.Deployment{{Id: "dep_1", Regions: []*windlassv1.RegionTopology{
				{Region: "eu", Replicas: wanted, Ready: ready},
				{Region: "us", Replicas: 2, Ready: 0},
				{Region: "ap", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED},
			}}},
		}
	}
	over := func(r *windlassv1.WatchAppResponse, region string, asked int32) bool {
		return judgeSize(r, region, asked, new(bool)).over
	}
	require.True(t, over(picture(4, 4, nil), "eu", 4), "other regions do not count")
	require.False(t, over(picture(4, 3, nil), "eu", 4))
	require.False(t, over(picture(4, 4, nil), "", 4))
	require.False(t, over(picture(2, 2, nil), "eu", 4), "the new number is not reached yet")
	require.True(t, over(picture(0, 0, nil), "eu", 0))

	// During a rollout, both versions count.
	moving := inFlight(region("eu", func(g *windlassv1.RegionProgress) {
		g.Replicas, g.WaitsForPromotion = 6, true
		g.Old, g.New = &windlassv1.VersionProgress{Replicas: 5, Ready: 5}, &windlassv1.VersionProgress{Replicas: 1, Ready: 1}
	}))
	require.True(t, over(picture(5, 5, moving), "eu", 6))
	moving.Progress.Waves[0].Regions[0].Old.Ready = 4
	require.False(t, over(picture(5, 4, moving), "eu", 6))
	after := picture(6, 6, nil)
	after.App.LiveDeploymentId, after.Deployments[0].Id = "dep_2", "dep_2"
	require.True(t, over(after, "eu", 6), "the rollout ended meanwhile, and the number is kept")

	seen := false
	require.False(t, judgeSize(picture(4, 1, nil), "eu", 4, &seen).over)
	v := judgeSize(picture(3, 1, nil), "eu", 4, &seen)
	require.Equal(t, codeSuperseded, v.code, "another person scaled it")
}

func TestJudgeRole_StoppedPoolIsNotWaitedFor(t *testing.T) {
	row := func(region string, replicas, ready, wanted int32) *windlassv1.RegionTopology {
		return &windlassv1.RegionTopology{
			Region: region, Replicas: replicas, Generation: 2, AppliedGeneration: 2, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
			Roles: []*windlassv1.RoleTopology{{Role: "decode", Wanted: wanted, Ready: ready}},
		}
	}
	judge := func(region string, rows ...*windlassv1.RegionTopology) verdict {
		return judgeRole(&windlassv1.WatchAppResponse{
			App: &windlassv1.App{Name: "chat"}, Deployments: []*windlassv1.Deployment{{Id: "dep_1", Regions: rows}},
		}, &windlassv1.ScaleRequest{Role: "decode", Replicas: 6, Region: region})
	}
	require.Equal(t, verdict{over: true, outcome: outcomeSucceeded}, judge("", row("eu", 100, 6, 6), row("us", 0, 0, 6)), "it is ready in the region where it runs")
	require.False(t, judge("", row("eu", 100, 5, 6), row("us", 0, 0, 6)).over)
	require.False(t, judge("").over, "nothing is known yet")
	for _, v := range []verdict{judge("", row("eu", 0, 0, 6)), judge("us", row("eu", 100, 5, 6), row("us", 0, 0, 6))} {
		require.True(t, v.over)
		require.Equal(t, "stopped", v.outcome)
		require.NoError(t, v.errorOf())
		require.Contains(t, v.message, "the pool is stopped in ")
		require.Contains(t, v.message, "windlass scale chat --replicas 100")
	}
	gone := row("eu", 100, 0, 6)
	gone.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
	require.Equal(t, "stopped", judge("", gone).outcome)
}
