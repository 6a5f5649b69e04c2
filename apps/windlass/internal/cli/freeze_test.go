package cli

import (
	"bytes"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestFreeze_FlagsBecomeTheRequest(t *testing.T) {
	now := time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
	at := func(text string) int64 {
		m, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return m.UnixMilli()
	}
	req, err := freezeFlags{reason: "4711", lasts: 2 * time.Hour}.requestOf("incident", now)
	require.NoError(t, err)
	require.Equal(t, []any{int64(0), at("2026-11-22T15:00:00Z"), windlassv1.Freeze_ON_START_REFUSE}, []any{req.From, req.Until, req.OnStart})

	req, err = freezeFlags{hold: true, from: "2026-12-24 18:00", lasts: time.Hour, zone: "Europe/Berlin"}.requestOf("christmas", now)
	require.NoError(t, err)
	require.Equal(t, []any{at("2026-12-24T17:00:00Z"), at("2026-12-24T18:00:00Z"), windlassv1.Freeze_ON_START_HOLD}, []any{req.From, req.Until, req.OnStart})
	require.Empty(t, req.TimeZone, "the zone is only for the times in the flags")

	req, err = freezeFlags{until: "2027-01-01T00:00:00+01:00", weekly: []string{"Fri 16:00 - Mon 08:00", "22:00-06:00"}, zone: "Europe/London"}.requestOf("weekends", now)
	require.NoError(t, err)
	require.Equal(t, at("2026-12-31T23:00:00Z"), req.Until)
	require.Equal(t, "Europe/London", req.TimeZone)
	require.Equal(t, []string{"Fri 16:00", "Mon 08:00", "22:00", "06:00"}, []string{req.Weekly[0].Start, req.Weekly[0].End, req.Weekly[1].Start, req.Weekly[1].End})

	for text, f := range map[string]freezeFlags{
		"--for and --until": {lasts: time.Hour, until: "2027-01-01"},
		"--for=-1h":         {lasts: -time.Hour},
		"--from=":           {from: "tomorrow"},
		"--time-zone=":      {zone: "Europe/Atlantis"},
		"--weekly=":         {weekly: []string{"Fri"}},
	} {
		_, err := f.requestOf("x", now)
		require.ErrorContains(t, err, text)
	}
}

func TestFreezeList_SaysWhatFreezesDoAndWhen(t *testing.T) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	later := time.Now().Add(time.Hour).UnixMilli()
	freezeTable(w, []*windlassv1.Freeze{
		{Name: "incident", Reason: "4711", OnStart: windlassv1.Freeze_ON_START_REFUSE, InForce: true, From: 1, SetBy: "olga"},
		{Name: "nights", App: "default/production/chat", OnStart: windlassv1.Freeze_ON_START_HOLD, NextAt: later, Weekly: []*windlassv1.WeeklyWindow{{Start: "22:00", End: "06:00"}}, TimeZone: "UTC"},
		{Name: "old", Project: "lab", Until: 5, FromFile: true},
	})
	require.NoError(t, w.Flush())
	require.Regexp(t, `incident +workspace +refused +in force +from .* +freeze set +olga +4711`, b.String())
	require.Regexp(t, `nights +app default/production/chat +held +again at `, b.String())
	require.Contains(t, b.String(), ", 22:00 - 06:00 UTC")
	require.Regexp(t, `old +project lab +refused +over .* app's file`, b.String())
}

func TestStatus_ShowsTheFreezeThatHoldsARollout(t *testing.T) {
	ro := &windlassv1.Rollout{
		Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedBy: "ada",
		Hold: &windlassv1.FreezeHold{Freeze: "christmas", Scope: "workspace", Reason: "all are on leave"},
	}
	require.Regexp(t, `Status: +held by freeze christmas of the workspace, until it is lifted: all are on leave`, renderRollout(t, ro))
}

func TestStatus_ShowsApprovers(t *testing.T) {
	gate := &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, Count: 2, NotDeployer: true}
	eu := &windlassv1.RegionProgress{
		Region: "eu", State: windlassv1.RegionProgress_STATE_ROLLING, Step: 1, Steps: 1, StepUntil: 1,
		Approval: &windlassv1.ApprovalProgress{Asked: gate, Missing: "approval by 2 keys of role owner (not by ada, who deployed it)"},
	}
	wave := &windlassv1.WaveProgress{Name: "first", State: windlassv1.WaveProgress_STATE_ROLLING, Regions: []*windlassv1.RegionProgress{eu}}
	ro := &windlassv1.Rollout{
		Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedBy: "ada",
		Progress: &windlassv1.RolloutProgress{
			Policy: &windlassv1.RolloutPolicy{
				Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY,
				Steps:    []*windlassv1.CanaryStep{{Weight: 10, Pause: "5m", Approval: gate}},
				Waves:    []*windlassv1.Wave{{Name: "first", Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_DEPLOYER}}},
			},
			Waves: []*windlassv1.WaveProgress{wave},
		},
	}
	text := renderRollout(t, ro)
	require.Contains(t, text, "step 1: 10% 5m and approval by 2 of role owner, not who deployed")
	require.Contains(t, text, "end of wave first: approval by deployer")
	require.Regexp(t, `Status: +waits for approval by 2 keys of role owner \(not by ada, who deployed it\): windlass rollout approve echo\n`, text)
	require.Regexp(t, `eu +step 1 of 1, waits for approval`, text)

	eu.StepUntil = time.Now().Add(90 * time.Second).UnixMilli()
	require.Regexp(t, `eu +step 1 of 1, 1m\d\ds left`, renderRollout(t, ro), "its time is not over")

	eu.State, eu.Approval = windlassv1.RegionProgress_STATE_MOVED, nil
	wave.State, wave.BakingUntil = windlassv1.WaveProgress_STATE_BAKING, 1
	wave.Approval = &windlassv1.ApprovalProgress{Missing: "approval by a key of role deployer"}
	text = renderRollout(t, ro)
	require.Contains(t, text, "waits for approval by a key of role deployer: windlass rollout approve echo")
	require.Regexp(t, `eu +waits for approval`, text)
}

func TestPlan_ShowsApprovers(t *testing.T) {
	gate := &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, Count: 2}
	step := &windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_GATE, Region: "eu", Step: 1, Steps: 2, Approval: gate}
	require.Equal(t, "step 1 of 2: waits for approval by 2 of role owner", stepText(step, false))
	step.Wait = durationpb.New(10 * time.Minute)
	require.Equal(t, "step 1 of 2: waits 10m00s, and for approval by 2 of role owner", stepText(step, false))
	end := &windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_GATE, Wave: "canary", Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_DEPLOYER, NotDeployer: true}}
	require.Equal(t, "the end of the wave waits for approval by deployer, not who deployed", stepText(end, false))
	require.Contains(t, waitsText(&windlassv1.PlanDeployResponse{Steps: []*windlassv1.PlanStep{step, end}}), ", and until people approve, 2 times")
}
