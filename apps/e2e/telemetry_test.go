package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/telemetry"
)

func testTrace(t *testing.T, s *stack) {
	const app = "traced"
	d := s.deployReady(t, app, spec())

	var tree map[string]telemetry.Span // by id
	var applies []telemetry.Span
	s.eventually(t, "the deployment's spans are written", func(context.Context) error {
		f, err := os.Open(s.traces)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		spans, err := telemetry.ReadSpans(f)
		if err != nil {
			return err
		}
		applies = nil
		trace := ""
		for _, span := range spans {
			if span.Attributes["windlass.deployment"] == d.DeploymentId {
				applies = append(applies, span)
				trace = span.TraceID
			}
		}
		if len(applies) < 2 {
			return fmt.Errorf("%d applies", len(applies))
		}
		tree = map[string]telemetry.Span{}
		names := map[string]bool{}
		for _, span := range spans {
			if span.TraceID == trace {
				tree[span.SpanID] = span
				names[span.Name] = true
			}
		}
		for _, name := range []string{
			"deployment.workflow", "deployment.topology.create", "deployment.events.emit", "deployment.status.poll",
			"deployment.apply." + us, "deployment.apply." + eu,
		} {
			if !names[name] {
				return fmt.Errorf("no span %s among %v", name, sorted(names))
			}
		}
		return nil
	})

	roots := 0
	for _, span := range tree {
		require.False(t, span.Failed, "%s: %s", span.Name, span.Message)
		if span.ParentID == "" {
			roots++
			require.Contains(t, span.Name, "AppService/Deploy", "the call is the root")
			continue
		}
		require.Contains(t, tree, span.ParentID, "%s has a parent that was not exported", span.Name)
	}
	require.Equal(t, 1, roots, "spans of one tree have one root")
	path := func(span telemetry.Span) string {
		names := []string{span.Name}
		for span.ParentID != "" {
			span = tree[span.ParentID]
			names = append(names, span.Name)
		}
		return strings.Join(names, " < ")
	}
	for _, span := range tree {
		switch {
		case strings.HasPrefix(span.Name, "deployment.apply."):
			require.Equal(t, "agent", span.Service)
			require.Regexp(t, `^deployment\.apply\.[a-z0-9-]+ < deployment\.events\.emit < deployment\.workflow < .*AppService/Deploy$`, path(span))
		case strings.HasPrefix(span.Name, "deployment."):
			require.Equal(t, "controlplane", span.Service)
			require.Contains(t, path(span), "deployment.workflow < ", path(span))
		}
	}
}

func testMetrics(t *testing.T, s *stack) {
	const app = "measured"
	s.deployReady(t, app, spec())
	for part, names := range map[string][]string{
		partControlPlane: {
			"deployment_workflow_duration_seconds", "deployment_workflow_status", "deployment_polling_attempts", "deployment_workflow_step_duration_seconds",
			"deployment_topology_regions", "deployment_topology_status",
			"deployment_instances_total", "deployment_instances_by_status",
			"deployment_operations_total", "windlass_feed_lag_revisions", "windlass_watch_streams", "windlass_report_duration_seconds",
		},
		partAgent(us): {
			"deployment_health_checks_total", "deployment_instance_startup_time_seconds",
			"windlass_agent_connected", "windlass_agent_report_duration_seconds",
		},
	} {
		s.eventually(t, part+" has its metrics", func(ctx context.Context) error {
			text, err := s.scrape(ctx, part)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !strings.Contains(text, "# TYPE "+name+" ") {
					return fmt.Errorf("no %s", name)
				}
			}
			require.NotRegexp(t, `[{,][a-z_]+="(dep|app|ins|rol)_`, text, "%s has an id for a label", part)
			return nil
		})
		for _, path := range []string{"/healthz", "/readyz"} {
			status, body, err := get(t.Context(), s.metrics[part]+path)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status, "%s%s: %s", part, path, body)
		}
	}
	for _, url := range s.urls(t, app, 2) {
		chat(t, url, "count this")
		_, body, err := get(t.Context(), url+"/metrics")
		require.NoError(t, err)
		for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total"} {
			require.Contains(t, string(body), name)
		}
	}
}

func (s *stack) scrape(ctx context.Context, part string) (string, error) {
	status, body, err := get(ctx, s.metrics[part]+"/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", part, status, body)
	}
	return string(body), err
}

// metric returns the sum of the samples of a metric whose labels contain the text.
func (s *stack) metric(ctx context.Context, part, name, labels string) (sum float64, err error) {
	text, err := s.scrape(ctx, part)
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, "{") && !strings.HasPrefix(rest, " ") || !strings.Contains(rest, labels) {
			continue
		}
		fields := strings.Fields(rest)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", line, err)
		}
		sum += value
	}
	return sum, err
}
