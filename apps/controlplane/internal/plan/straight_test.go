package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestStraightPolicy_HasNoPausesAnalysisOrBakes(t *testing.T) {
	gate := &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER}
	wave := func(bake *durationpb.Duration, gate *windlassv1.Approval) *windlassv1.Wave {
		return &windlassv1.Wave{Regions: []string{"us-east-1"}, MaxParallel: 2, BakeTime: bake, Approval: gate, OnFailure: windlassv1.Wave_ON_FAILURE_PAUSE}
	}
	canary := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", MaxUnavailable: "0",
		Steps: []*windlassv1.CanaryStep{{Weight: 10, Pause: "manual"}, {Weight: 50, Pause: "10m", Approval: gate}},
		Waves: []*windlassv1.Wave{wave(durationpb.New(time.Hour), gate)}, Analysis: []*windlassv1.AnalysisCheck{{Name: "errors"}},
	}
	green := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "auto after 10m", InitialWeight: 5, Approval: gate,
		Retain: durationpb.New(time.Hour),
	}
	for _, c := range []struct {
		name      string
		from      *windlassv1.RolloutPolicy
		keepGates bool
		want      *windlassv1.RolloutPolicy
	}{
		{"canary", canary, false, &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: "1", MaxUnavailable: "0", Waves: []*windlassv1.Wave{wave(nil, nil)},
		}},
		{"canary with its gates", canary, true, &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", MaxUnavailable: "0",
			Steps: []*windlassv1.CanaryStep{{Weight: 50, Approval: gate}}, Waves: []*windlassv1.Wave{wave(nil, gate)},
		}},
		{"blue-green", green, false, &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Retain: durationpb.New(time.Hour),
		}},
		{"blue-green with its gate", green, true, &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, InitialWeight: 5, Approval: gate, Retain: durationpb.New(time.Hour),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := proto.CloneOf(c.from)
			got := plan.StraightPolicy(c.from, c.keepGates)
			require.True(t, proto.Equal(c.want, got), "%v", got)
			require.True(t, proto.Equal(before, c.from), "the app's own policy stays")
		})
	}
}
