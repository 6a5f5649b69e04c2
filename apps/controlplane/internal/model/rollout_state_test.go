package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestDecodeProgress_FieldsSideBySide checks that the stored form of a region's progress has all fields on one level,
// because processes of other releases read and write it, too.
func TestDecodeProgress_FieldsSideBySide(t *testing.T) {
	c, err := DecodeProgress([]byte(`{"RolloutID":"rol_1","Held":true,"Waves":[{"Name":"1","Regions":[{"RegionID":"reg_1","Since":1,
		"Score":2,"ScoredAt":3,"HeldSince":4,"NoRoomSince":5,"NoRoomFor":6,"TroubleSince":7,"MostReady":8,"HealthTold":12,
		"Relapses":9,"HalfWay":true,"Emptied":true,"Step":10,"StoppedAt":11,"PromotedBy":"ada","Reason":"NotReady"}]}]}`))
	require.NoError(t, err)
	want := RegionProgress{
		RegionID: "reg_1", Since: 1, Reason: "NotReady",
		ProgressClock: ProgressClock{Score: 2, ScoredAt: 3, ClockStoppedSince: 4},
		StepWait:      StepWait{Step: 10, StoppedAt: 11, PromotedBy: "ada"},
		CapacityWait:  CapacityWait{NoRoomSince: 5, NoRoomFor: 6},
		TroubleWatch:  TroubleWatch{TroubleSince: 7},
		HealthWatch:   HealthWatch{MostReady: 8, HealthAssigned: 12},
		RelapseCount:  RelapseCount{Relapses: 9},
		Absence:       Absence{HalfWay: true},
		EmptySteps:    EmptySteps{Emptied: true},
	}
	require.Equal(t, []RegionProgress{want}, c.Waves[0].Regions)
	require.True(t, c.PromotionPaused)

	c.Policy = &windlassv1.RolloutPolicy{}
	b, err := EncodeProgress(c)
	require.NoError(t, err)
	require.Contains(t, string(b), `"StoppedAt":11`)
	require.Contains(t, string(b), `"HealthTold":12`)
	require.Contains(t, string(b), `"HeldSince":4`)
	require.Contains(t, string(b), `"Held":true`)
	require.NotContains(t, string(b), "StepWait")
}

// TestDecodeProgress_LaggingRegions checks that lagging regions and their progress are stored under the names that
// earlier releases use.
func TestDecodeProgress_LaggingRegions(t *testing.T) {
	c, err := DecodeProgress([]byte(`{"RolloutID":"rol_1","Behind":[{"RegionID":"reg_1","DeploymentID":"dep_1","Course":{"RolloutID":"rol_0"}}]}`))
	require.NoError(t, err)
	require.Len(t, c.Lagging, 1)
	require.Equal(t, "rol_0", c.Lagging[0].Progress.RolloutID)
	b, err := EncodeProgress(c)
	require.NoError(t, err)
	require.Contains(t, string(b), `"Behind":[{"RegionID":"reg_1","DeploymentID":"dep_1","Course":{"RolloutID":"rol_0"`)
	require.NotContains(t, string(b), `"Lagging"`)
}
