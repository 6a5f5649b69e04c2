package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestScaling_RegionGoesUpAlone raises the load of a region that is cut off from the control plane. The agent adds
// replicas, keeps them when it is killed, and the control plane adopts them when it is back.
func TestScaling_RegionGoesUpAlone(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true, regions: []string{us}})
	deployed := must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{
		Mutation: mutation(), App: named("chat"),
		Spec: spec(args("--token-rate", "10"), func(d *windlassv1.DeploymentSpec) { d.Replicas, d.Regions = nil, []string{us} }),
		Scaling: &windlassv1.ScalingPolicy{
			Max: 3, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "2"}},
			Up: &windlassv1.ScalingPace{Window: seconds(10), Every: seconds(5)}, Down: &windlassv1.ScalingPace{Window: seconds(3600)},
		},
	})
	s.waitLive(t, "chat", deployed.Version)
	host := s.host(t, "chat", windlassv1.Route_KIND_STABLE, 0)
	s.eventually(t, "the gateway serves", func(ctx context.Context) error { return complete(ctx, s.gateways[us], host) })
	run := func(n int) []process {
		t.Helper()
		s.eventually(t, fmt.Sprintf("%d instances run", n), func(context.Context) error {
			return wantRunning(s.runningOf("chat"), map[string]int{us: n})
		})
		return s.runningOf("chat")
	}
	raised := func(n float64) {
		t.Helper()
		s.eventually(t, fmt.Sprintf("%v raised replicas", n), func(ctx context.Context) error {
			got, err := s.metric(ctx, partAgent(us), "windlass_agent_raised_replicas", "")
			if err == nil && got != n {
				err = fmt.Errorf("%v are", got)
			}
			return err
		})
	}
	one := run(1)

	s.kill9(partControlPlane)
	for range 5 {
		s.hold(t, us, host)
	}
	three := run(3)
	require.Subset(t, keysOf(three), keysOf(one))
	raised(2)
	s.kill9(partAgent(us))
	s.start(partAgent(us))
	raised(2)
	requireSame(t, three, s.runningOf("chat"), "a restarted agent lost the raise")

	s.start(partControlPlane)
	s.waitConnected(us)
	s.waitReplicas(t, "chat", 3)
	raised(0)
	s.waitAgree(t)
	requireSame(t, three, s.runningOf("chat"), "the control plane did not adopt the raise")
	require.Contains(t, s.cli(t).ok("scaling", "why", "chat"), "the region was cut off, and went to 3 by itself")
}
