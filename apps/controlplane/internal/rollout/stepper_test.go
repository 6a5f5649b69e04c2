package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	ready    = windlassv1.AppStatus_APP_STATUS_READY
	failed   = windlassv1.AppStatus_APP_STATUS_FAILED
	deleting = windlassv1.AppStatus_APP_STATUS_DELETING
)

func bubble(t *testing.T, test func(t *testing.T, h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1", "eu-west-1")
		h.runInMemory()
		test(t, h)
	})
}

// requireAlone requires that only this deployment runs and that all requests are routed to it.
func (h *harness) requireAlone(appID, deploymentID string) {
	h.t.Helper()
	h.await("nothing else is left", time.Minute, func() bool {
		for _, r := range h.rows(appID) {
			if r.DeploymentID != deploymentID && r.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				return false
			}
		}
		return true
	})
	for _, r := range h.rows(appID) {
		if r.DeploymentID == deploymentID {
			require.Equal(h.t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, r.Status)
			require.Equal(h.t, int32(100), r.Weight)
		}
	}
	require.Equal(h.t, deploymentID, h.app(appID).LiveDeploymentID)
}

func TestStep_DeploysUpdatesAndDeletesAnApp(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		app := h.newApp("chat")
		first := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		h.requireAlone(app, first)
		second := h.deploy(app, nil)
		h.await("the second is live", time.Minute, func() bool { return h.app(app).LiveDeploymentID == second })
		h.requireAlone(app, second)
		require.Equal(t, first, h.app(app).PreviousDeploymentID)

		h.change(app, func(a *model.App) { a.DeletingSince = time.Now().UnixMilli() })
		h.awaitStatus(app, deleting)
		h.await("it is gone", time.Minute, func() bool { return h.app(app).DeletedAt != 0 })
		for _, r := range h.rows(app) {
			require.Equal(t, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, r.Status)
		}
		require.Equal(t, []string{
			"RegionsStarting", "WeightsGiven", "RegionReady", "RegionReady", "LiveMoved",
			"RegionsStarting", "RegionReady", "RegionReady", "WeightsMoved", "LiveMoved", "DeploymentSuperseded",
			"RegionsStopping", "RegionStopped", "RegionStopped",
			"RoutesRemoved", "RegionsStopping", "RegionStopped", "RegionStopped", "AppDeleted",
		}, dropRepeats(h.decisions(app), "RegionsStopping"))
	})
}

// dropRepeats keeps only the first of equal neighbours, because two regions may answer in one step or in two.
func dropRepeats(what []string, name string) (out []string) {
	for i, w := range what {
		if w != name || i == 0 || what[i-1] != name {
			out = append(out, w)
		}
	}
	return out
}

func TestStep_BadVersionGoesBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		app := h.newApp("chat")
		good := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		var bad string
		for _, a := range h.agents {
			a.behave = crashing(&bad)
		}
		bad = h.deploy(app, nil)
		h.await("it fails", time.Minute, func() bool {
			return h.deployment(bad).Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
		})
		require.Equal(t, "CrashLoop", h.deployment(bad).Reason)
		require.Contains(t, h.deployment(bad).Message, "exit code 1")
		h.requireAlone(app, good)
		h.awaitStatus(app, ready)
	})
}

func TestStep_DeadlineHoldsWithoutReports(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.agents["eu-west-1"].setAway(true)
		time.Sleep(2 * time.Hour) // longer than the lease
		h.update(func(tx store.Tx) error {
			lost, err := tx.ExpireLeases(time.Now().UnixMilli(), 10)
			require.Len(t, lost, 2)
			return err
		})
		app := h.newApp("chat")
		begin := time.Now()
		dep := h.deploy(app, nil)
		h.awaitStatus(app, failed)
		require.InDelta(t, (10 * time.Minute).Seconds(), time.Since(begin).Seconds(), 61)
		require.Equal(t, rollup.ReasonRegionUnreachable, h.deployment(dep).Reason)
	})
}

func TestWaker_MakesUpForLostWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1")
		app := h.newApp("chat")
		h.deploy(app, nil) // its wake-up came before the Waker ran
		h.runInMemory()
		h.awaitStatus(app, ready)
	})
}

func TestImage_IsResolvedOnceDespiteTransientErrors(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.images.answers = []error{errors.New("503"), errors.New("503")}
		app := h.newApp("chat")
		dep := h.deploy(app, func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:v1" })
		h.awaitStatus(app, ready)
		require.Contains(t, h.deployment(dep).ResolvedImage, "registry.test/echo@sha256:")
		require.Equal(t, 3, h.images.asked)
		require.Empty(t, h.deployment(dep).Reason)

		require.Empty(t, h.images.lastLogins())
		h.deploy(app, func(s *windlassv1.DeploymentSpec) {
			s.Image = "registry.test/echo:v2"
			s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token"}, {Secret: "registry", ImagePull: true}}
		})
		h.await("the private image is resolved", time.Minute, func() bool { return h.images.lastLogins() != nil })
		require.Equal(t, []string{"chat's registry"}, h.images.lastLogins(), "and no secret that is for instances")

		h.images.answers = []error{&rollout.FinalError{Err: errors.New("manifest unknown")}}
		dep = h.deploy(app, func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:nosuch" })
		h.await("it fails", time.Minute, func() bool {
			return h.deployment(dep).Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
		})
		require.Equal(t, plan.ReasonImagePullError, h.deployment(dep).Reason)
		require.Contains(t, h.deployment(dep).Message, "manifest unknown")
	})
}

func TestStep_RepeatedAndConcurrentOnesDecideOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1", "eu-west-1")
		app := h.newApp("chat")
		h.deploy(app, nil)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				err := h.stepper.Step(context.Background(), app)
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Equal(t, []string{"RegionsStarting", "WeightsGiven"}, h.decisions(app))
		require.Len(t, h.rows(app), 2)
		for _, r := range h.rows(app) {
			require.Equal(t, int64(1), r.Generation)
		}
		require.Equal(t, int64(8), h.app(app).Step)
		h.view(func(tx store.Tx) error {
			head, err := tx.GetHead(h.regions["us-east-1"])
			require.Equal(t, int64(2), head.Revision, "one decision is one change of the row and one of the route")
			return err
		})
	})
}

func TestStep_OfAnAbsentAppIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		require.NoError(t, h.stepper.Step(context.Background(), "app_none"))
	})
}

func TestStep_ConcurrentAppsAllEndReady(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		var apps []string
		for i := range 60 {
			apps = append(apps, h.newApp(fmt.Sprintf("app-%d", i)))
			h.deploy(apps[i], nil)
		}
		for _, app := range apps {
			h.awaitStatus(app, ready)
		}
		require.Equal(t, float64(60), metric(t, h, "deployment_workflow_status", "succeeded"))
	})
}

func metric(t *testing.T, h *harness, name, status string) float64 {
	families, err := h.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == status {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestMetrics_HaveTheirNamesAndNoIDs(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		app := h.newApp("chat")
		h.deploy(app, func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:v1" })
		h.awaitStatus(app, ready)
		gauges, err := rollout.NewGauges(store.Bind[rollout.GaugesTx](h.store), discard(), h.registry)
		require.NoError(t, err)
		require.NoError(t, gauges.Count(context.Background()))
		require.NoError(t, testutil.GatherAndCompare(h.registry, strings.NewReader(`
# HELP deployment_topology_regions Regions that have anything assigned.
# TYPE deployment_topology_regions gauge
deployment_topology_regions 2
# HELP deployment_topology_status Assignments of deployments to regions that have not stopped, by status.
# TYPE deployment_topology_status gauge
deployment_topology_status{status="started"} 2
deployment_topology_status{status="starting"} 0
deployment_topology_status{status="stopping"} 0
# HELP windlass_regions Regions by status: pending without an agent so far, connected, unreachable.
# TYPE windlass_regions gauge
windlass_regions{status="connected"} 2
windlass_regions{status="pending"} 0
windlass_regions{status="unreachable"} 0
# HELP windlass_rollouts_in_flight Rollouts that have begun and not ended.
# TYPE windlass_rollouts_in_flight gauge
windlass_rollouts_in_flight 0
# HELP windlass_rollout_oldest_seconds Age of the oldest rollout in flight; 0: there is none.
# TYPE windlass_rollout_oldest_seconds gauge
windlass_rollout_oldest_seconds 0
`), "deployment_topology_regions", "deployment_topology_status", "windlass_regions", "windlass_rollouts_in_flight",
			"windlass_rollout_oldest_seconds"))
		problems, err := testutil.GatherAndLint(h.registry)
		require.NoError(t, err)
		for _, p := range problems {
			// The name is given.
			require.Equal(t, "deployment_workflow_status", p.Metric, p.Text)
		}
		for _, name := range []string{
			"deployment_workflow_duration_seconds", "deployment_workflow_status",
			"deployment_build_duration_seconds", "deployment_polling_attempts", "deployment_workflow_step_duration_seconds",
		} {
			n, err := testutil.GatherAndCount(h.registry, name)
			require.NoError(t, err)
			require.Equal(t, 1, n, name)
		}
	})
}

func TestTrace_JoinsTheCallTheStepsAndTheRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := tracetest.NewSpanRecorder()
		h := newHarness(t, recorder, "us-east-1", "eu-west-1")
		h.runInMemory()
		app := h.newApp("chat")
		h.deploy(app, func(s *windlassv1.DeploymentSpec) { s.Image = "registry.test/echo:v1" })
		h.awaitStatus(app, ready)
		synctest.Wait()

		byName := map[string][]sdktrace.ReadOnlySpan{}
		for _, s := range recorder.Ended() {
			byName[s.Name()] = append(byName[s.Name()], s)
			require.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.SpanContext().TraceID().String(), s.Name())
		}
		require.Len(t, byName["deployment.workflow"], 1)
		root := byName["deployment.workflow"][0]
		require.Equal(t, "b7ad6b7169203331", root.Parent().SpanID().String())
		require.GreaterOrEqual(t, root.EndTime().Sub(root.StartTime()), 50*time.Millisecond, "it lasts as long as the rollout")
		workflow := byName["deployment.build"][0].Parent().SpanID()
		for _, name := range []string{"deployment.build", "deployment.topology.create", "deployment.events.emit"} {
			require.NotEmpty(t, byName[name], name)
			for _, s := range byName[name] {
				require.Equal(t, workflow, s.Parent().SpanID(), name)
			}
		}
		for _, r := range h.rows(app) {
			require.Contains(t, r.Traceparent, byName["deployment.events.emit"][0].SpanContext().SpanID().String(),
				"the span that sent the row to the region is the parent of the region's apply")
		}
	})
}
