package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/service"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// healthImage returns the name of an image that runs this program of the host.
func healthImage(program string) string { return "kubelab.local/host" + program + ":test" }

// healthMain is the main function of the agent.
func healthMain() int {
	ctx, stop := service.SignalContext(context.Background())
	defer stop()
	if err := agent.Main(ctx, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// byHead sets a health check that the kubelet cannot make, and that the model server passes.
func byHead(s *windlassv1.DeploymentSpec) { s.HealthCheck.Method = "HEAD" }

// The health check of an app changes to one that a container makes, and then back to one that the
// kubelet makes.
func TestHealthCheck_CheckerIsSetInPlaceOnPods(t *testing.T) {
	p := place(t, 2)
	r := &ownCluster{rt: p.rt, api: p.api}
	id := p.a.Deployment.GetId()
	for n, change := range []func(*windlassv1.DeploymentSpec){byHead, func(s *windlassv1.DeploymentSpec) { s.HealthCheck.Method = "" }} {
		all := r.until(t, "ready", id, readyOnes(2))
		require.Zero(t, all[0].Restarts+all[1].Restarts)
		p.replace(t, fmt.Sprint("template-", n+2), func(a *runtime.Assignment) { change(a.Deployment.Spec) })
		r.until(t, "the new template", id, func(all []runtime.Instance) bool {
			return readyOnes(2)(all) && all[0].TemplateHash == p.a.TemplateHash && all[1].TemplateHash == p.a.TemplateHash
		})
		for _, pod := range p.pods(t) {
			require.Len(t, pod.Spec.Containers, 2-n)
		}
	}
}

func TestHealthCheck_BrokenCheckerIsReported(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *kubernetes.Config) { c.HealthImage = healthImage("/no/such/agent") })
	r := &ownCluster{rt: h.open(t), api: h.api}
	i := r.one(t, r.apply(t, assignment("dep_chat", 1, byHead)), running, runtime.ReasonBadCommand)
	require.Contains(t, i.Message, "container "+render.HealthContainerName+", which makes the health check (the agent's --health-image): ")
	require.Zero(t, i.Restarts)
}
