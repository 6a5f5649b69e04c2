package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// followRollout is a rollout during which the load changes.
type followRollout struct {
	name   string
	policy *windlassv1.RolloutPolicy
	// args are arguments of the version's instances. bad means that the version has to fail, so that the rollout goes
	// back.
	args []string
	bad  bool
}

var followRollouts = []followRollout{
	{name: "rolling", policy: &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: "25%"}},
	{name: "canary", policy: &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "25%",
		Steps: []*windlassv1.CanaryStep{{Weight: 25, Pause: "12s"}, {Weight: 50, Pause: "12s"}},
	}},
	{name: "blue-green", policy: &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "auto after 15s", Retain: durationpb.New(5 * time.Second),
	}},
	// Every instance exits before it is ready.
	{name: "rollback", policy: &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: "25%"}, bad: true, args: []string{"--load-time=1m", "--fault-crash-after=3s"}},
}

// rolloutTimeout bounds each wait in a rollout.
const rolloutTimeout = 90 * time.Second

func (s *Follow) parseRollouts() (out []followRollout, err error) {
	var names []string
	for _, r := range followRollouts {
		names = append(names, r.name)
	}
	for _, name := range s.Rollouts {
		n := slices.Index(names, name)
		if n < 0 {
			return nil, fmt.Errorf("--rollouts=%s: has to be one of %s", name, strings.Join(names, ", "))
		}
		out = append(out, followRollouts[n])
	}
	if len(out) == 0 {
		return nil, nil
	}
	if low, high := s.replicasNeeded(s.Low), s.replicasNeeded(s.High); high < low+2 {
		return nil, fmt.Errorf("--low=%d and --high=%d need %d and %d replicas in a region: the second has to be larger by 2 or more", s.Low, s.High, low, high)
	}
	return out, nil
}

// replicasNeeded returns how many replicas a region needs for a load of all regions.
func (s *Follow) replicasNeeded(clients int) int {
	return neededReplicas(float64(clients)/float64(max(s.Regions, 1)), s.leastReplicas())
}

// runRollouts makes each of the rollouts. The load rises first. When replicas are being added, the new version begins to roll. When all of
// them are ready, the load falls again.
func (r *followRun) runRollouts(ctx context.Context, rollouts []followRollout) error {
	// At times, the random load needs one replica more.
	low, high := r.s.replicasNeeded(r.s.Low)+1, r.s.replicasNeeded(r.s.High)
	r.beginSpan("before", 0)
	r.setLoad(float64(r.s.Low))
	if err := r.awaitSample(ctx, "the load is followed", func(s followSample) bool { return s.wanted <= low && s.ready == s.wanted && s.at > 10*time.Second }); err != nil {
		return err
	}
	live := int32(1)
	for i, rollout := range rollouts {
		r.Progressf("%s under load", rollout.name)
		r.beginSpan(rollout.name, 0)
		r.setLoad(float64(r.s.High))
		err := r.awaitSample(ctx, "replicas are added", func(s followSample) bool { return s.wanted > low })
		if err != nil {
			return fmt.Errorf("%s: %w", rollout.name, err)
		}
		policy := proto.CloneOf(rollout.policy)
		policy.Waves = []*windlassv1.Wave{{MaxParallel: int32(len(r.Regions))}}
		label := fmt.Sprintf("v%d-%s", i+2, rollout.name)
		if err := r.deployVersion(ctx, label, rollout.args, policy); err != nil {
			return err
		}
		if !rollout.bad {
			live = int32(i + 2)
		}
		err = r.awaitSample(ctx, "the replicas for the high load are ready", func(s followSample) bool { return s.wanted >= high && s.ready >= high })
		if err != nil {
			return fmt.Errorf("%s: %w", rollout.name, err)
		}
		r.setLoad(float64(r.s.Low))
		err = r.awaitSample(ctx, fmt.Sprintf("the rollout ends with v%d", live), func(s followSample) bool {
			return !s.rolling && r.newest.GetLiveVersion() == live
		})
		if err != nil {
			return fmt.Errorf("%s: %w", rollout.name, err)
		}
		err = r.awaitSample(ctx, "the replicas for the low load are left", func(s followSample) bool { return s.wanted <= low && s.ready == s.wanted })
		if err != nil {
			return fmt.Errorf("%s: %w", rollout.name, err)
		}
	}
	return nil
}

// awaitSample waits until holds returns true for the newest sample of each region.
func (r *followRun) awaitSample(ctx context.Context, what string, holds func(s followSample) bool) error {
	timeout := time.After(rolloutTimeout)
	for {
		r.mu.Lock()
		next := r.sampled
		met := true
		var seen []string
		for i, samples := range r.series.samples {
			if len(samples) == 0 {
				met = false
				continue
			}
			s := samples[len(samples)-1]
			met = met && holds(s)
			seen = append(seen, fmt.Sprintf("%s has %d wanted, %d ready, limit %q, rollout %t: %s", r.Regions[i], s.wanted, s.ready, s.limit, s.rolling, s.showVersions()))
		}
		r.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			return fmt.Errorf("waited %s until %s: %s", rolloutTimeout, what, strings.Join(seen, "; "))
		case <-next:
		}
	}
}

// concludeRollouts records the results of the rollouts, and returns the requirements that did not hold as an error.
func (r *followRun) concludeRollouts(env Env, rollouts []followRollout) error {
	errs := []error{r.recordRequests(env)}
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	answers, _ := env.Result.Details["answers"].(map[string]int)
	for i, rollout := range rollouts {
		label := fmt.Sprintf("v%d-%s", i+2, rollout.name)
		switch n := answers[label]; {
		case rollout.bad && n > 0:
			fail("the bad version %s answered %d requests", label, n)
		case !rollout.bad && n == 0:
			fail("version %s answered no request", label)
		}
	}
	raised, lowered, loweredAfter, margin := 0, 0, 0, followMax
	var worst time.Duration
	for i, region := range r.Regions {
		all := r.series.samples[i]
		wrong, above := belowFloor(all, r.s.leastReplicas())
		if margin = min(margin, above); wrong != "" {
			fail("%s: %s", region, wrong)
		}
		for _, span := range r.series.spans[1:] {
			samples := span.samplesIn(all)
			if len(samples) < 2 {
				fail("%s, %s: there are no samples", region, span.name)
				continue
			}
			v := judgeSpan(samples, span, r.s.Target)
			_, above := belowFloor(samples, r.s.leastReplicas())
			env.Result.Rounds = append(env.Result.Rounds, map[string]any{
				"region": region, "rollout": span.name, "seconds": (span.to - span.from).Seconds(), "raised": float64(v.raised), "lowered": float64(v.lowered),
				"lowered_after": float64(v.loweredAfter), "most_wanted": float64(v.most), "least_above_min": float64(above), "worst_p95_ms": measure.Millis(v.worst),
			})
			raised, lowered, loweredAfter, worst = raised+v.raised, lowered+v.lowered, loweredAfter+v.loweredAfter, max(worst, v.worst)
			if v.raised == 0 {
				fail("%s, %s: no replica was added during the rollout", region, span.name)
			}
			if v.lowered+v.loweredAfter == 0 {
				fail("%s, %s: no replica was removed", region, span.name)
			}
		}
	}
	env.Result.Figure("rollouts", float64(len(rollouts)), "rollouts under load")
	env.Result.Figure("raised", float64(raised), "times that replicas were added during a rollout")
	env.Result.Figure("lowered", float64(lowered), "times that replicas were removed during a rollout")
	env.Result.Figure("lowered_after", float64(loweredAfter), "times that replicas were removed after a rollout")
	env.Result.Figure("least_above_min", float64(margin), "ready replicas above the minimum, at least")
	env.Result.Figure("worst_p95_ms", measure.Millis(worst), "ms, the highest p95 of the first token")
	return oneLine(errs)
}
