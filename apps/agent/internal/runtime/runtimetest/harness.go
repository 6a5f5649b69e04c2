package runtimetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Harness is one runtime with its own state, which is empty at first.
type Harness struct {
	// Open starts and returns a runtime on the harness's state. It ends the previous runtime, as a
	// restart of the agent does.
	Open func(t *testing.T) runtime.Runtime
	// Shut ends the open runtime and leaves its instances running.
	Shut func(t *testing.T)
	// Command runs this test binary. If the runtime needs an image, the binary is in Image.
	Command []string
	Image   string
	// Leftovers returns one line for every object of instances that still exists. The suite calls
	// it when such objects no longer exist or are being deleted, because directories are deleted in the background.
	Leftovers func(t *testing.T) []string
	// Stored returns everything that the runtime stores. The suite searches it for secrets.
	Stored func(t *testing.T) string
	// GPUs is the number of GPUs of the host, all of one product.
	GPUs       int
	GPUProduct string
	// Unsupported returns a spec that the runtime cannot run.
	Unsupported *windlassv1.DeploymentSpec
	// Platform says how the runtime's platform differs from a host.
	Platform Platform
}

// Platform says how a platform differs from a host on which only the runtime repairs instances.
// Each field changes a guarantee to the strongest one that the platform allows.
type Platform struct {
	// KeepsSecrets means that the platform stores secrets. So an ended instance starts again by
	// itself, even before an agent has the values.
	KeepsSecrets bool
	// ReplacesOnRestart means that an instance cannot be started again in its place. So Restart
	// replaces it by another instance.
	ReplacesOnRestart bool
	// ChoosesWhoGoes means that the platform chooses which of several equal instances it removes
	// when replicas are scaled down.
	ChoosesWhoGoes bool
	// DrainsBeside means that a draining instance no longer counts as a replica, and that its
	// successor starts before the draining instance has ended.
	DrainsBeside bool
	// HidesGPUs means that the platform assigns devices. So the runtime knows how many GPUs an
	// instance has, but not which.
	HidesGPUs bool
	// HidesFiles means that instances see no files of the platform, because the test does not mount
	// them.
	HidesFiles bool
	// Grows means that hosts may be added. So an instance that fits on no host waits and is not
	// refused.
	Grows bool
	// SpansHosts means that an instance may have several hosts, and that the platform runs one rank
	// on each of them.
	SpansHosts bool
}

// patience is the deadline of every wait. It is long, because the machine may be busy.
const patience = 60 * time.Second

// suite is the state of the test of one guarantee.
type suite struct {
	Harness
	rt runtime.Runtime
}

func setup(t *testing.T, newHarness func(*testing.T) Harness) *suite {
	t.Helper()
	t.Parallel()
	h := newHarness(t)
	return &suite{Harness: h, rt: h.Open(t)}
}

func (s *suite) reopenRuntime(t *testing.T) {
	t.Helper()
	s.rt = s.Open(t)
}

// newAssignment returns an assignment of the workload, after each change was applied to it.
func (s *suite) newAssignment(id string, replicas int, change ...func(*runtime.Assignment)) runtime.Assignment {
	a := runtime.Assignment{
		Deployment: &agentv1.Deployment{
			Id: id, WorkspaceId: "ws_1", ProjectId: "prj_1", EnvironmentId: "env_1", AppId: "app_1",
			ProjectName: "shop", EnvironmentName: "staging", AppName: "echo", Version: 3, Replicas: int32(replicas),
			Spec: &windlassv1.DeploymentSpec{
				Image:   s.Image,
				Command: s.Command,
				Env:     map[string]string{workloadEnv: "1"},
				HealthCheck: &windlassv1.HealthCheck{
					Path: "/health", Interval: durationpb.New(100 * time.Millisecond), Timeout: durationpb.New(5 * time.Second),
					UnhealthyThreshold: 2, HealthyThreshold: 2, StartupBudget: durationpb.New(patience),
				},
				Resources:        &windlassv1.Resources{CpuMillicores: 100, MemoryMib: 64},
				TerminationGrace: durationpb.New(20 * time.Second),
				DrainDelay:       durationpb.New(0),
			},
		},
		WorkloadKey: id, WorkloadVersion: 3, Generation: 1, TemplateHash: "template-1",
	}
	for _, c := range change {
		c(&a)
	}
	return a
}

func withEnv(name, value string) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) { a.Deployment.Spec.Env[name] = value }
}

func withFault(f string) func(*runtime.Assignment) { return withEnv(FaultEnv, f) }

// next returns the next generation of an assignment, after each change was applied to it.
func next(a runtime.Assignment, change ...func(*runtime.Assignment)) runtime.Assignment {
	a.Deployment = proto.CloneOf(a.Deployment)
	a.Generation++
	for _, c := range change {
		c(&a)
	}
	return a
}

func withTemplate(hash string) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) { a.TemplateHash = hash }
}

func withReplicas(n int) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) { a.Deployment.Replicas = int32(n) }
}

// apply applies the assignment. It repeats a retryable rejection, as the reconciler does.
func (s *suite) apply(t *testing.T, a runtime.Assignment) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := s.rt.Apply(t.Context(), a)
		if rej, ok := errors.AsType[*runtime.Rejection](err); ok && rej.Retryable && time.Now().Before(deadline) {
			s.wait()
			continue
		}
		require.NoError(t, err)
		return
	}
}

// wait waits for a change, but only for a short time, because another reader may have taken the
// signal.
func (s *suite) wait() {
	select {
	case <-s.rt.Changes():
	case <-time.After(5 * time.Millisecond):
	}
}

// observedOf returns what the runtime reports about a deployment, or nil if it reports nothing.
func (s *suite) observedOf(t *testing.T, id string) *runtime.ObservedDeployment {
	t.Helper()
	o, err := s.rt.Observe(t.Context())
	require.NoError(t, err)
	for i := range o.Deployments {
		if o.Deployments[i].DeploymentID == id {
			return &o.Deployments[i]
		}
	}
	return nil
}

func (s *suite) listInstances(t *testing.T, id string) []runtime.Instance {
	t.Helper()
	if o := s.observedOf(t, id); o != nil {
		return o.Instances
	}
	return nil
}

// instancesOf returns the instances of several deployments at one moment.
func (s *suite) instancesOf(t *testing.T, ids []string) []runtime.Instance {
	t.Helper()
	seen, err := s.rt.Observe(t.Context())
	require.NoError(t, err)
	var out []runtime.Instance
	for _, d := range seen.Deployments {
		if slices.Contains(ids, d.DeploymentID) {
			out = append(out, d.Instances...)
		}
	}
	return out
}

// awaitInstances waits until ok returns true for the deployment's instances, and returns these instances.
func (s *suite) awaitInstances(t *testing.T, what, id string, ok func([]runtime.Instance) bool) []runtime.Instance {
	t.Helper()
	return s.untilOf(t, what, []string{id}, ok)
}

func (s *suite) untilOf(t *testing.T, what string, ids []string, ok func([]runtime.Instance) bool) []runtime.Instance {
	t.Helper()
	var last []runtime.Instance
	deadline := time.Now().Add(patience)
	for !time.Now().After(deadline) {
		if last = s.instancesOf(t, ids); ok(last) {
			return last
		}
		s.wait()
	}
	require.FailNow(t, "timeout: waited for "+what, "%s", describeInstances(last))
	return nil
}

func describeInstances(all []runtime.Instance) string {
	var b strings.Builder
	for _, in := range all {
		_, _ = fmt.Fprintf(&b, "%+v\n", in)
	}
	return b.String()
}

// awaitReady waits until the deployment has n instances and all are ready.
func (s *suite) awaitReady(t *testing.T, id string, n int) []runtime.Instance {
	t.Helper()
	return s.awaitInstances(t, fmt.Sprintf("%d ready", n), id, func(all []runtime.Instance) bool {
		return len(all) == n && count(all, isReady) == n
	})
}

// countedInstances returns the instances that count as replicas.
func (s *suite) countedInstances(all []runtime.Instance) []runtime.Instance {
	if !s.Platform.DrainsBeside {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(in runtime.Instance) bool { return in.Status == draining })
}

// awaitAnother waits until the instance was restarted, or was replaced by another one, and all n
// instances are ready.
func (s *suite) awaitAnother(t *testing.T, id string, was runtime.Instance, n int) runtime.Instance {
	t.Helper()
	all := s.awaitInstances(t, "a restart", id, func(all []runtime.Instance) bool {
		if len(all) != n || count(all, isReady) != n {
			return false
		}
		i := slices.IndexFunc(all, func(in runtime.Instance) bool { return in.ID == was.ID })
		if s.Platform.ReplacesOnRestart {
			return i < 0
		}
		return i >= 0 && all[i].Restarts == was.Restarts+1
	})
	return all[slices.IndexFunc(all, func(in runtime.Instance) bool { return in.Group == was.Group })]
}

// awaitGone waits until the runtime reports nothing about the deployment any more.
func (s *suite) awaitGone(t *testing.T, id string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for s.observedOf(t, id) != nil {
		require.False(t, time.Now().After(deadline), "still there: %+v", s.observedOf(t, id))
		s.wait()
	}
}

// awaitNoLeftovers waits until no object of instances exists.
func (s *suite) awaitNoLeftovers(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for left := s.Leftovers(t); len(left) > 0; left = s.Leftovers(t) {
		require.False(t, time.Now().After(deadline), "still there: %v", left)
		s.wait()
	}
}

func isReady(in runtime.Instance) bool {
	return in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY
}

func hasStatus(st windlassv1.InstanceStatus, reason string) func(runtime.Instance) bool {
	return func(in runtime.Instance) bool { return in.Status == st && in.Reason == reason }
}

func count(all []runtime.Instance, ok func(runtime.Instance) bool) int {
	n := 0
	for _, in := range all {
		if ok(in) {
			n++
		}
	}
	return n
}

func everyInstance(n int, ok func(runtime.Instance) bool) func([]runtime.Instance) bool {
	return func(all []runtime.Instance) bool { return len(all) == n && count(all, ok) == n }
}

// askInstance calls an instance and returns its answer.
func askInstance(t *testing.T, method, address, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(b)
}

func get(t *testing.T, in runtime.Instance, path string) string {
	t.Helper()
	return askInstance(t, http.MethodGet, in.Address, path)
}

// tellInstance sends a POST, and ignores a missing answer, because the workload may exit.
func tellInstance(t *testing.T, in runtime.Instance, path string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+in.Address+path, nil)
	require.NoError(t, err)
	if res, err := http.DefaultClient.Do(req); err == nil {
		_ = res.Body.Close()
	}
}

// isAnswering reports whether a process listens at the instance's address.
func isAnswering(t *testing.T, in runtime.Instance) bool {
	t.Helper()
	c, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", in.Address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func variableOf(t *testing.T, in runtime.Instance, name string) string {
	t.Helper()
	return get(t, in, "/env?name="+name)
}
