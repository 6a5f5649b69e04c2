package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// testScalesByUsage scales one app by CPU and one by memory, which the agents read from the clusters' metrics API. In
// kubelab a request uses one core, and a token in the cache 128 KiB.
func testScalesByUsage(t *testing.T, s *stack) {
	at := map[windlassv1.ScalingMetric_Type]string{windlassv1.ScalingMetric_TYPE_CPU: us, windlassv1.ScalingMetric_TYPE_MEMORY: eu}
	name := func(metric windlassv1.ScalingMetric_Type) string {
		return strings.ToLower(strings.TrimPrefix(metric.String(), "TYPE_"))
	}
	busy, end := context.WithCancel(t.Context())
	defer end()
	ids := map[string]string{}
	for metric, region := range at {
		app := "by-" + name(metric)
		pace := &windlassv1.ScalingPace{Window: seconds(1), Every: seconds(1)}
		made := must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{
			Mutation: mutation(), App: named(app),
			Spec: podSpec(regions(region), args("--time-to-first-token", "10m"), func(d *windlassv1.DeploymentSpec) {
				d.Resources = &windlassv1.Resources{CpuMillicores: 1000, MemoryMib: 64}
				d.Replicas = nil
			}),
			Scaling: &windlassv1.ScalingPolicy{Max: 3, Up: pace, Down: pace, Metrics: []*windlassv1.ScalingMetric{{Type: metric, Target: "100"}}},
		})
		ids[app] = made.AppId
		s.waitLive(t, app, made.Version)
		// Together the requests use 200 percent of one replica's CPU, and 197 percent of its memory.
		address := s.urls(t, app, 1)[0]
		for range 2 {
			go request(busy, address, strings.Repeat("word ", 500))
		}
	}
	for metric := range at {
		app := "by-" + name(metric)
		s.urls(t, app, 2)
		require.Regexp(t, fmt.Sprintf(`2 replicas instead of 1: %s (19|20)\d\S* of 100 wants 2`, name(metric)), s.cli(t).ok("scaling", "why", app))
	}
	end()
	for metric := range at {
		s.urls(t, "by-"+name(metric), 1)
	}

	require.NoError(t, s.cluster(t, us).call(t.Context(), http.MethodDelete, "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io", nil, nil))
	s.eventually(t, "status says that the cluster has no metrics", func(context.Context) error {
		out := s.cli(t).ok("scaling", "status", "by-cpu")
		if !strings.Contains(out, "cpu in us-east-1: the cluster has no metrics API (metrics.k8s.io)") {
			return errors.New(out)
		}
		return nil
	})
	for app, id := range ids {
		s.requireDeleted(t, id, app)
	}
}

// request sends a request that has no answer before ctx ends.
func request(ctx context.Context, address, prompt string) {
	body := fmt.Sprintf(`{"model": "echo", "prompt": %q}`, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return
	}
	client := &http.Client{Timeout: 10 * time.Minute}
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}
