package kubernetes_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// If the variable agentEnv is set, the test binary runs as an agent. The variable contains the
// order.
const agentEnv = "WINDLASS_TEST_KUBERNETES_AGENT"

// order says what an agent of a test does.
type order struct {
	Host, Token     string
	CA              []byte
	Region, Prefix  string
	Deployments     int
	Generation      int64
	Remove          bool
	KillAt          int64 // number of the change at which the agent is killed; 0: never
	KillAfterAnswer bool
	// Lease is the name of a lease. If it is not empty, the agent only holds that lease.
	Lease string
}

func (o order) client() *rest.Config {
	return &rest.Config{Host: o.Host, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{CAData: o.CA}}
}

// agentMain carries out the order, and kills itself at the change KillAt.
func agentMain(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if o.Lease != "" {
		return holdLease(o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg := o.client()
	var changes atomic.Int64
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			mine := req.Method != http.MethodGet && !strings.Contains(req.URL.Path, "/events") && changes.Add(1) == o.KillAt
			if mine && !o.KillAfterAnswer {
				die()
			}
			res, err := next.RoundTrip(req)
			if mine {
				die()
			}
			return res, err
		})
	})
	rt, err := kubernetes.New(kubernetes.Config{
		Client: cfg, Region: o.Region, NamespacePrefix: o.Prefix, AgentVersion: "test",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Registerer: prometheus.NewRegistry(), Random: rand.Float64,
	})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() { _ = rt.Run(ctx) }()
	var wg sync.WaitGroup
	for i := range o.Deployments {
		wg.Go(func() {
			insist(ctx, rt, o, i)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return 1
	}
	return 0
}

// insist repeats a call that failed, as the reconciler does. If ctx ends first, it prints the last error.
func insist(ctx context.Context, rt *kubernetes.Runtime, o order, i int) {
	a := crashAssignment(i, o.Generation)
	var last error
	for ctx.Err() == nil {
		var err error
		if o.Remove {
			if err = rt.Remove(ctx, a.Deployment.Id); err == nil {
				var left []runtime.ObservedDeployment
				if left, err = observed(ctx, rt, a.Deployment.Id); err == nil && len(left) == 0 {
					return
				}
				err = cmp.Or(err, fmt.Errorf("the deployment still exists: %+v", left))
			}
		} else if err = rt.Apply(ctx, a); err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
	}
	_, _ = fmt.Fprintf(os.Stderr, "generation %d of %s: %v\n", o.Generation, a.Deployment.Id, last)
}

// observed returns what the runtime observes of a deployment.
func observed(ctx context.Context, rt *kubernetes.Runtime, deploymentID string) ([]runtime.ObservedDeployment, error) {
	seen, err := rt.Observe(ctx)
	return slices.DeleteFunc(slices.Clone(seen.Deployments), func(d runtime.ObservedDeployment) bool { return d.DeploymentID != deploymentID }), err
}

// crashAssignment returns an assignment. The generation determines its template and its number of
// replicas.
func crashAssignment(i int, generation int64) runtime.Assignment {
	a := assignment(fmt.Sprintf("dep_crash_%d", i), int(generation%3), func(s *windlassv1.DeploymentSpec) {
		s.Env = map[string]string{"GENERATION": fmt.Sprint(generation)}
		s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 1}}
	})
	a.Deployment.AppId = "app_crash" // the deployments share the claim of one app
	a.Deployment.AppName = "crash"
	a.Deployment.Version = int32(i + 1)
	a.WorkloadVersion = i + 1
	a.Generation, a.TemplateHash = generation, fmt.Sprint("template-", generation)
	return a
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// order returns an order for an agent of this harness.
func (h *harness) order() order {
	c := h.cfg.Client
	return order{
		Host: c.Host, Token: c.BearerToken, CA: c.CAData, Region: h.cfg.Region, Prefix: h.cfg.NamespacePrefix,
	}
}

// run starts an agent that carries out the order, and reports whether the agent completed it.
func (o order) run(t *testing.T) bool {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self(t))
	cmd.Env = append(os.Environ(), agentEnv+"="+string(text))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = io.Discard, &out
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, ok := exit.Sys().(syscall.WaitStatus)
		require.True(t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "%v: %s", err, out.String())
		return false
	}
	require.NoError(t, err, out.String())
	return true
}

// sound checks what must hold at every moment: no object of a deployment exists twice, and each
// object has the owners with which it must be deleted.
func (h *harness) sound(t *testing.T) {
	t.Helper()
	seen := map[string]string{}
	for _, o := range h.objects(t) {
		switch o.Kind {
		case "Pod", "ReplicaSet":
			require.Len(t, o.OwnerReferences, 1, o)
			continue
		case "Deployment":
			require.Empty(t, o.OwnerReferences, o)
		case "PersistentVolumeClaim":
			require.NotEmpty(t, o.OwnerReferences, o)
		default:
			require.Len(t, o.OwnerReferences, 1, o)
		}
		owned := map[string]bool{}
		for _, owner := range o.OwnerReferences {
			require.False(t, owned[string(owner.UID)], "%v has an owner twice", o)
			owned[string(owner.UID)] = true
		}
		if o.Kind == "Secret" && strings.Contains(o.Name, "-env-") || o.Kind == "PersistentVolumeClaim" {
			continue // there is a Secret for each template in use, and one claim for all deployments
		}
		once := o.Kind + " of " + o.Labels[render.LabelWorkload]
		if o.Kind == "Secret" {
			once = o.Name
		}
		require.Empty(t, seen[once], "%s: %s and %s", once, seen[once], o)
		seen[once] = o.String()
	}
}

// complete checks that all objects of n deployments exist, and no others.
func (h *harness) complete(t *testing.T, n int, generation int64) {
	t.Helper()
	h.sound(t)
	all := h.objects(t)
	kinds, workloads := map[string]int{}, map[types.UID]bool{}
	for _, o := range all {
		if o.Kind == "Deployment" {
			workloads[o.UID] = true
		}
	}
	for _, o := range all {
		kinds[o.Kind]++
		if o.Kind == "Deployment" {
			require.Equal(t, fmt.Sprint(generation), o.Annotations[render.AnnotationGeneration])
			require.NotEmpty(t, o.Annotations["windlass.run/hash"])
		}
		if o.Kind == "PersistentVolumeClaim" {
			// Some owners may be workloads that were removed and made again. Kubernetes removes
			// such owner references later.
			owners := slices.DeleteFunc(slices.Clone(o.OwnerReferences), func(r metav1.OwnerReference) bool { return !workloads[r.UID] })
			require.Len(t, owners, n, "each version owns the claim: %v", o.OwnerReferences)
		}
	}
	for _, kind := range []string{"Deployment", "Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget"} {
		require.Equal(t, n, kinds[kind], kind)
	}
	require.Equal(t, 1, kinds["PersistentVolumeClaim"])
	spaces, err := h.api.CoreV1().Namespaces().List(t.Context(), h.selector())
	require.NoError(t, err)
	require.Len(t, spaces.Items, 1)
}

// Agents make, change and remove three deployments of one app. They are killed at random changes,
// either before a change was sent or after it was answered.
func TestCrash_AgentKilledAnywhereLeavesNoDuplicates(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	o := h.order()
	o.Deployments = 3
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	killed, lived := 0, 0
	for killed < 50 {
		o.Generation++
		o.Remove = o.Generation%5 == 0
		for range 1 + random.IntN(4) {
			// Three deployments take about thirty changes to make, and about twelve changes to get
			// another template.
			o.KillAt, o.KillAfterAnswer = 1+random.Int64N(14), random.IntN(2) == 0
			if o.run(t) {
				lived++
				break
			}
			killed++
			h.sound(t)
		}
		o.KillAt = 0
		if random.IntN(3) == 0 {
			require.True(t, o.run(t))
			if o.Remove {
				require.Empty(t, h.leftovers(t))
			} else {
				h.complete(t, o.Deployments, o.Generation)
			}
		}
	}
	o.Remove, o.KillAt = false, 0
	o.Generation++
	require.True(t, o.run(t))
	h.complete(t, o.Deployments, o.Generation)
	o.Remove = true
	require.True(t, o.run(t))
	require.Empty(t, h.leftovers(t))
	t.Logf("%d agents were killed, and %d completed their order", killed, lived)
}

// holdLease prints a line once it has the lease, and holds the lease until it is killed.
func holdLease(o order) int {
	err := access.Lease{
		Client: o.client(), Namespace: kubetest.Namespace, Name: o.Lease, Identity: fmt.Sprint("pid-", os.Getpid()),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}.Hold(context.Background(), func(ctx context.Context) error {
		_, _ = fmt.Fprintln(os.Stdout, "held")
		<-ctx.Done()
		return nil
	})
	_, _ = fmt.Fprintln(os.Stderr, err)
	return 1
}
