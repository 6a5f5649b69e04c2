package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestLoosenedGates_AreThoseThatAPolicyDoesNotKeep(t *testing.T) {
	gate := func(role windlassv1.Role, count int32, notDeployer bool) *windlassv1.Approval {
		return &windlassv1.Approval{Role: role, Count: count, NotDeployer: notDeployer}
	}
	const deployer, owner = windlassv1.Role_ROLE_DEPLOYER, windlassv1.Role_ROLE_OWNER
	two := gate(owner, 2, true)
	at := func(weight int32, a *windlassv1.Approval) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, InitialWeight: weight, Approval: a}
	}
	promotion := func(a *windlassv1.Approval) *windlassv1.RolloutPolicy { return at(0, a) }
	steps := func(s ...*windlassv1.CanaryStep) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: s}
	}
	step := func(weight int32, a *windlassv1.Approval) *windlassv1.CanaryStep {
		return &windlassv1.CanaryStep{Weight: weight, Approval: a}
	}
	waves := func(w ...*windlassv1.Wave) *windlassv1.RolloutPolicy { return &windlassv1.RolloutPolicy{Waves: w} }
	wave := func(a *windlassv1.Approval, regions ...string) *windlassv1.Wave {
		return &windlassv1.Wave{Approval: a, Regions: regions}
	}
	start := func(a *windlassv1.Approval) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{StartApproval: a}
	}
	for name, c := range map[string]struct {
		was, next *windlassv1.RolloutPolicy
		fields    []string
	}{
		"none before":              {nil, promotion(two), nil},
		"the same":                 {promotion(two), promotion(two), nil},
		"no policy":                {promotion(two), nil, []string{"approval"}},
		"no gate":                  {promotion(two), promotion(nil), []string{"approval"}},
		"no start gate":            {start(two), promotion(two), []string{"startApproval"}},
		"a stricter start gate":    {start(gate(deployer, 1, false)), start(two), nil},
		"a lower role":             {promotion(two), promotion(gate(deployer, 2, true)), []string{"approval"}},
		"fewer keys":               {promotion(two), promotion(gate(owner, 1, true)), []string{"approval"}},
		"the deployer's own":       {promotion(two), promotion(gate(owner, 2, false)), []string{"approval"}},
		"an owner is the default":  {promotion(gate(owner, 1, false)), promotion(&windlassv1.Approval{}), nil},
		"more":                     {promotion(gate(deployer, 1, false)), promotion(two), nil},
		"a step dropped":           {steps(step(10, two), step(50, two)), steps(step(10, two), step(50, nil)), []string{"steps[1].approval"}},
		"another strategy":         {promotion(two), steps(step(10, two)), []string{"approval"}},
		"blue-green, no traffic":   {steps(step(10, two)), promotion(two), nil},
		"a larger initial weight":  {at(5, two), at(50, two), []string{"approval"}},
		"initial weight for none":  {promotion(two), at(1, two), []string{"approval"}},
		"a smaller initial weight": {at(50, two), at(0, two), nil},
		"a step before it":         {steps(step(10, two)), steps(step(5, nil), step(10, two)), nil},
		"behind more traffic":      {steps(step(10, two)), steps(step(99, two)), []string{"steps[0].approval"}},
		"behind a larger step":     {steps(step(10, two)), steps(step(20, nil), step(30, two)), []string{"steps[0].approval"}},
		"replicas for traffic":     {steps(step(10, two)), steps(&windlassv1.CanaryStep{Replicas: 9, Approval: two}), []string{"steps[0].approval"}},
		"two are not one":          {steps(step(10, two), step(50, two)), steps(step(10, two)), []string{"steps[1].approval"}},
		"a wave dropped":           {waves(wave(two, "a"), wave(nil)), waves(wave(nil, "a"), wave(nil)), []string{"waves[0].approval"}},
		"more regions before it":   {waves(wave(two, "a"), wave(nil)), waves(wave(two, "a", "b"), wave(nil)), []string{"waves[0].approval"}},
		"all regions before it":    {waves(wave(two, "a"), wave(nil)), waves(wave(two)), []string{"waves[0].approval"}},
		"other labels before it":   {waves(&windlassv1.Wave{Labels: map[string]string{"tier": "test"}, Approval: two}, wave(nil)), waves(&windlassv1.Wave{Labels: map[string]string{"tier": "prod"}, Approval: two}, wave(nil)), []string{"waves[0].approval"}},
		"the same labels":          {waves(&windlassv1.Wave{Labels: map[string]string{"tier": "test"}, Approval: two}, wave(nil)), waves(&windlassv1.Wave{Labels: map[string]string{"tier": "test"}, Approval: two}, wave(nil)), nil},
		"fewer regions before it":  {waves(wave(two, "a", "b"), wave(nil)), waves(wave(two, "a"), wave(nil, "b"), wave(nil)), nil},
		"a gate of its own before": {waves(wave(nil, "a"), wave(two)), waves(wave(two, "a"), wave(two)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for _, g := range LoosenedGates(c.was, c.next) {
				fields = append(fields, g.Field)
			}
			require.Equal(t, c.fields, fields)
		})
	}
}
