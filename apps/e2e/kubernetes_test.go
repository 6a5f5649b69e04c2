package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// anyImage has a digest, so no registry is asked. kubelab runs the model server for it.
	anyImage = "registry.example/modelserver@sha256:1111111111111111111111111111111111111111111111111111111111111111"

	h100, l4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
	gpus     = "nvidia.com/gpu"
)

// TestKubernetesRegions has every test with clusters. Each of its tests starts two API servers with schedulers and
// nodes. Two cores can run only one such test next to the other tests. So these tests run one after the other.
func TestKubernetesRegions(t *testing.T) { //nolint:tparallel // as above
	t.Parallel()
	t.Run("product", testKubernetes)
	t.Run("strategies", testStrategiesOnKubernetes)
	t.Run("analysis", testAnalysisOnKubernetes)
	t.Run("gateways", testGatewaysOfClusters)
	t.Run("dev", testDevOnKubernetes)
}

// testKubernetes runs tests in parallel on one installation with two clusters. Each test has its own apps. A
// test that counts GPUs or loses nodes also has its own nodes.
func testKubernetes(t *testing.T) {
	s := newStack(t, stackConfig{runtime: "kubernetes", losesNodes: true, groups: []string{
		"name=h100,nodes=2,gpu=nvidia.com/gpu=8,gpu-product=" + h100 + ",zones=a|b,taint=nvidia.com/gpu=present:NoSchedule",
		"name=l4,nodes=2,gpu=nvidia.com/gpu=2,gpu-product=" + l4,
		"name=cpu,nodes=1,pods=250",
		"name=frail,nodes=2,label=acme.example/frail=yes,taint=acme.example/frail=yes:NoSchedule",
	}})
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *stack){
			"an app is deployed to two clusters, updated, rolled back and deleted": testKubernetesLifecycle,
			"the scheduler counts GPUs, and the region reports free ones":          testGPUsAreCounted,
			"an app that does not fit ends with the scheduler's reason":            testDoesNotFit,
			"a staged failure ends with its reason, and the old version serves":    testStagedFailures,
			"a slow start is waited for":                                           testSlowStart,
			"an evicted or preempted pod is replaced, and has the reason":          testDisrupted,
			"a lost node is reported, and its pods run elsewhere":                  testLostNode,
			"a registry's new password replaces no pod":                            testPullSecret,
			"output and restart of one instance":                                   testOnePod,
			"charts come and go and do not drift":                                  testCharts,
			"a preset makes servers on two hosts":                                  testServeOnHosts,
			"an app follows the CPU or memory that its pods use":                   testScalesByUsage,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, s)
			})
		}
	})
	if t.Failed() {
		return
	}
	testClusterIsKilled(t, s)
	s.deleteAllApps()
	s.waitNothingInClusters(t, "app.kubernetes.io/managed-by=windlass")
	for _, region := range s.cfg.regions {
		s.eventually(t, "no namespace of Windlass is left in "+region, func(ctx context.Context) error {
			left, err := s.cluster(t, region).list(ctx, "api/v1/namespaces", "app.kubernetes.io/managed-by=windlass")
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%v", left)
			}
			return err
		})
	}
}

// podSpec returns the spec of an app that needs few resources in a cluster.
func podSpec(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	return spec(append([]func(*windlassv1.DeploymentSpec){func(s *windlassv1.DeploymentSpec) {
		s.Command, s.Image = nil, anyImage
		s.HealthCheck.Interval = seconds(1)
		s.DrainDelay, s.TerminationGrace = seconds(1), seconds(5)
		s.Kubernetes = &windlassv1.KubernetesOptions{RunAsUser: new(int64(1000))}
	}}, change...)...)
}

func pool(name string, count int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu = &windlassv1.Gpu{Count: count, Pool: name} }
}

// staged makes kubelab simulate a failure.
func staged(fault string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Kubernetes.PodAnnotations = map[string]string{"kubelab.windlass.run/fault": fault}
	}
}

// said returns a command's output without line breaks, because these depend on the width.
func said(text string) string { return strings.Join(strings.Fields(text), " ") }

func testKubernetesLifecycle(t *testing.T, s *stack) {
	const app = "lifecycle"
	two := func(v string) *windlassv1.DeploymentSpec { return podSpec(label(v), replicas(2), pool("h100", 1)) }
	v1 := s.deployReady(t, app, two("v1"))
	for _, address := range s.urls(t, app, 4) {
		text, version := chat(t, address, "windlass turns the ring")
		require.Equal(t, "windlass turns the ring", text)
		require.Equal(t, "v1", version)
	}
	pods := s.podsOf(t, app)
	require.Len(t, pods, 4)
	for _, p := range pods {
		require.Contains(t, p.Spec.NodeName, "h100-")
		require.Equal(t, "1", p.Spec.Containers[0].Resources.Limits[gpus])
	}
	require.True(t, s.deploy(t, app, two("v1")).Unchanged)

	v2 := s.deployReady(t, app, two("v2"))
	s.waitGone(t, v1.DeploymentId)
	s.waitNothingInClusters(t, "windlass.run/deployment="+v1.DeploymentId)
	for _, address := range s.urls(t, app, 4) {
		_, version := chat(t, address, "again")
		require.Equal(t, "v2", version)
	}

	back := must(t, s.owner.apps.Rollback, &windlassv1.RollbackRequest{Mutation: mutation(), App: named(app), Version: 1})
	s.waitLive(t, app, back.Version)
	s.waitGone(t, v2.DeploymentId)
	for _, address := range s.urls(t, app, 4) {
		_, version := chat(t, address, "back")
		require.Equal(t, "v1", version)
	}
	s.requireDeleted(t, v1.AppId, app)
	s.waitNothingInClusters(t, "windlass.run/app="+v1.AppId)
}

func testGPUsAreCounted(t *testing.T, s *stack) {
	const app = "counted"
	// Two nodes have two GPUs each. Two replicas fill them, and a third one has no room.
	made := s.deployReady(t, app, podSpec(regions(us), replicas(2), pool("l4", 2)))
	nodes := map[string]bool{}
	for _, p := range s.podsOf(t, app) {
		require.Equal(t, "2", p.Spec.Containers[0].Resources.Limits[gpus])
		nodes[p.Spec.NodeName] = true
	}
	require.Equal(t, map[string]bool{"l4-0": true, "l4-1": true}, nodes)
	capacity := func(requested, free, largest int32) {
		t.Helper()
		s.eventually(t, "the region reports its free GPUs", func(ctx context.Context) error {
			resp, err := s.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: us})
			if err != nil {
				return err
			}
			for _, g := range resp.Region.Gpus {
				if g.Pool == "l4" {
					if g.Product != l4 || g.Hosts != 2 || g.Allocatable != 4 || g.ResourceName != gpus || g.MemoryMib < 20_000 ||
						g.Requested != requested || g.Free != free || g.LargestFree != largest {
						return fmt.Errorf("it says %v", g)
					}
					return nil
				}
			}
			return fmt.Errorf("no pool l4 in %v", resp.Region.Gpus)
		})
	}
	capacity(4, 0, 0)
	require.Regexp(t, `(?m)^l4 +NVIDIA-L4 +nvidia.com/gpu +\S+ GiB +2 +4 +4 +0 +0 +-`, s.cli(t).ok("region", "show", us))

	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 3})
	s.eventually(t, "the third waits for room", func(ctx context.Context) error {
		list, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(app)})
		if err != nil {
			return err
		}
		for _, i := range list.Instances {
			if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING && i.Reason == "Unschedulable" &&
				strings.Contains(i.Message, "Insufficient nvidia.com/gpu") {
				return nil
			}
		}
		return fmt.Errorf("%v", list.Instances)
	})
	s.eventually(t, "status says what is missing", func(context.Context) error {
		out := said(s.cli(t).ok("status", app))
		if !strings.Contains(out, "v1 in us-east-1: Unschedulable") || !strings.Contains(out, "Insufficient nvidia.com/gpu on 2 (it asks for 2)") {
			return errors.New(out)
		}
		return nil
	})
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 2})
	s.waitLive(t, app, 1)
	s.urls(t, app, 2)
	s.requireDeleted(t, made.AppId, app)
	capacity(0, 4, 2)
}

func testDoesNotFit(t *testing.T, s *stack) {
	large := podSpec(pool("h100", 9))
	large.ProgressDeadline = seconds(15)
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("large"), Spec: large})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, rpc.DetailOf(err).GetReason(), "%v", err)
	waits := &windlassv1.RolloutPolicy{WaitForCapacity: seconds(1)}
	made := s.deployBy(t, "large", large, waits)
	d := s.waitFailed(t, "large", made)
	require.Equal(t, "Unschedulable", d.Reason, d.Message)
	require.Contains(t, d.Message, "none of 7 nodes fits: Insufficient nvidia.com/gpu on 2 (it asks for 9)")
	s.waitNothingInClusters(t, "windlass.run/deployment="+made.DeploymentId)
	require.Contains(t, said(s.cli(t).ok("status", "large")), "Insufficient nvidia.com/gpu on 2 (it asks for 9)")

	made = s.deployBy(t, "poolless", podSpec(pool("b300", 1)), waits)
	d = s.waitFailed(t, "poolless", made)
	require.Equal(t, "UnknownPool", d.Reason, d.Message)
	require.Contains(t, d.Message, `has no pool "b300": it has h100, l4`)
	s.waitNothingInClusters(t, "windlass.run/deployment="+made.DeploymentId)

	made = s.deploy(t, "imageless", spec())
	require.Equal(t, "Unsupported", s.waitFailed(t, "imageless", made).Reason)
	s.waitNothingInClusters(t, "windlass.run/deployment="+made.DeploymentId)
}

func testStagedFailures(t *testing.T, s *stack) {
	for _, c := range []struct {
		fault, reason string
		says          []string
		change        func(*windlassv1.DeploymentSpec)
	}{
		{fault: "image-pull-error", reason: "ImagePullError", says: []string{"cannot pull " + anyImage, "not found"}},
		{fault: "crash-loop", reason: "CrashLoop", says: []string{"3 times in a row: exit code 1", "last output: Loading model weights", "engine core failed to start"}},
		{fault: "oom", reason: "OOMKilled", says: []string{"over its memory limit of 64 MiB"}},
		{fault: "never-ready", reason: "StartupTimeout", says: []string{"not ready within 3s"}, change: func(s *windlassv1.DeploymentSpec) {
			s.HealthCheck.StartupBudget = seconds(3)
		}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			s.deployReady(t, c.fault, podSpec(label("good")))
			before := s.podsOf(t, c.fault)
			require.Len(t, before, 2)

			bad := podSpec(label("bad"), staged(c.fault))
			if c.change != nil {
				c.change(bad)
			}
			made := s.deploy(t, c.fault, bad)
			d := s.waitFailed(t, c.fault, made)
			require.Equal(t, c.reason, d.Reason, d.Message)
			rollout := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: made.RolloutId}).Rollout
			require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, rollout.Status)
			require.Equal(t, c.reason, rollout.Reason)
			require.Less(t, rollout.FinishedAt-rollout.CreatedAt, bad.ProgressDeadline.AsDuration().Milliseconds(), "it failed only at its deadline")

			status := said(s.cli(t).ok("status", c.fault))
			require.Contains(t, status, "v1 -> v2 failed: "+c.reason)
			for _, text := range c.says {
				require.Contains(t, status, text)
			}
			s.waitNothingInClusters(t, "windlass.run/deployment="+made.DeploymentId)
			require.Equal(t, uids(before), uids(s.podsOf(t, c.fault)), "the old version was touched")
			s.waitLive(t, c.fault, 1)
			for _, address := range s.urls(t, c.fault, 2) {
				_, version := chat(t, address, "still here")
				require.Equal(t, "good", version)
			}
		})
	}
}

func testSlowStart(t *testing.T, s *stack) {
	const app = "slow"
	s.deployReady(t, app, podSpec(label("good")))
	made := s.deployReady(t, app, podSpec(label("slow"), staged("slow-start=5s")))
	list := must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{Deployment: made.DeploymentId})
	require.Len(t, list.Instances, 2)
	for _, i := range list.Instances {
		require.Zero(t, i.Restarts, "it was restarted while it started")
		require.GreaterOrEqual(t, i.ReadyAt-i.StartedAt, int64(4000))
	}
}

// testDisrupted asserts that the eviction or preemption of a pod does not count against the version. The
// rollout succeeds, and the app keeps serving.
func testDisrupted(t *testing.T, s *stack) {
	for fault, c := range map[string]struct{ reason, says string }{
		"evict-after=8s":   {"Evicted", "low on resource"},
		"preempt-after=8s": {"Preempted", "higher priority"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			app := strings.ToLower(c.reason)
			made := s.deployReady(t, app, podSpec(regions(us), staged(fault)))
			before := s.podsOf(t, app)
			require.Len(t, before, 1)
			s.eventually(t, "an instance reports that it was "+app, func(ctx context.Context) error {
				list, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(app), IncludeTerminated: true})
				if err != nil {
					return err
				}
				for _, i := range list.Instances {
					if i.Reason == c.reason && strings.Contains(i.Message, c.says) {
						return nil
					}
				}
				return fmt.Errorf("%v", list.Instances)
			})
			require.Contains(t, said(s.cli(t).ok("list", "instances", app, "--all")), c.reason+": ")
			s.eventually(t, "another pod serves", func(context.Context) error {
				if now := s.podsOf(t, app); len(now) != 1 || slices.Equal(uids(now), uids(before)) {
					return fmt.Errorf("%v", now)
				}
				return nil
			})
			s.waitLive(t, app, 1)
			rollout := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: made.RolloutId}).Rollout
			require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, rollout.Status)
			// The staged fault would repeat for ever.
			s.requireDeleted(t, made.AppId, app)
		})
	}
}

func testLostNode(t *testing.T, s *stack) {
	const app = "lost"
	made := s.deployReady(t, app, podSpec(label("v1"), regions(us), func(d *windlassv1.DeploymentSpec) {
		d.Kubernetes.NodeSelector = map[string]string{"acme.example/frail": "yes"}
		d.Kubernetes.Tolerations = []*windlassv1.Toleration{{Key: "acme.example/frail", Value: "yes"}}
	}))
	pods := s.podsOf(t, app)
	require.Len(t, pods, 1)
	first := uids(pods)[0]
	node := pods[first].Spec.NodeName
	c := s.cluster(t, us)
	lose := func(value any) {
		t.Helper()
		body := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"kubelab.windlass.run/lost": value}}}
		require.NoError(t, c.call(t.Context(), http.MethodPatch, "/api/v1/nodes/"+node, body, nil))
	}
	lose("true")
	s.eventually(t, "status names the node", func(context.Context) error {
		out := said(s.cli(t).ok("list", "instances", app))
		if !strings.Contains(out, "NodeLost: node "+node+" ") {
			return errors.New(out)
		}
		return nil
	})
	s.eventually(t, "another node serves", func(context.Context) error {
		for uid, p := range s.podsOf(t, app) {
			if uid != first && p.Spec.NodeName != node {
				return nil
			}
		}
		return errors.New("no pod elsewhere")
	})
	s.waitLive(t, app, 1)
	_, version := chat(t, s.urls(t, app, 1)[0], "from elsewhere")
	require.Equal(t, "v1", version)
	lose(nil)
	s.eventually(t, "the lost pod ends once its node is back", func(ctx context.Context) error {
		pods, err := c.list(ctx, "api/v1/pods", "app.kubernetes.io/name="+app)
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("%v", pods)
		}
		return err
	})
	s.requireDeleted(t, made.AppId, app)
}

func testPullSecret(t *testing.T, s *stack) {
	const app = "private"
	set := func(value string) {
		t.Helper()
		must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{Mutation: mutation(), Environment: env, Name: "registry", Value: value})
	}
	const first, second = `{"auths":{"registry.example":{"auth":"Zmlyc3Q6MQ=="}}}`, `{"auths":{"registry.example":{"auth":"c2Vjb25kOjI="}}}`
	set(first)
	made := s.deployReady(t, app, podSpec(regions(us), func(d *windlassv1.DeploymentSpec) {
		d.Secrets = []*windlassv1.SecretReference{{Secret: "registry", ImagePull: true}}
	}))
	c := s.cluster(t, us)
	pull := func(ctx context.Context) (string, error) {
		secrets, err := c.list(ctx, "api/v1/secrets", "app.kubernetes.io/name="+app)
		if err != nil {
			return "", err
		}
		for _, o := range secrets {
			if o.Type == "kubernetes.io/dockerconfigjson" {
				return o.Data[".dockerconfigjson"], nil
			}
		}
		return "", fmt.Errorf("no pull secret in %v", secrets)
	}
	kept, err := pull(t.Context())
	require.NoError(t, err)
	before := s.podsOf(t, app)
	require.Len(t, before, 1)
	for _, p := range before {
		require.Len(t, p.Spec.ImagePullSecrets, 1)
	}

	set(second)
	s.eventually(t, "the cluster has the new password", func(ctx context.Context) error {
		now, err := pull(ctx)
		if err == nil && now == kept {
			err = errors.New("it has the old one")
		}
		return err
	})
	s.waitLive(t, app, 1)
	require.Equal(t, uids(before), uids(s.podsOf(t, app)), "a pod was replaced")
	s.requireDeleted(t, made.AppId, app)
}

func testOnePod(t *testing.T, s *stack) {
	const app = "one-pod"
	s.deployReady(t, app, podSpec(replicas(2), regions(us)))
	list := must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{App: named(app)})
	require.Len(t, list.Instances, 2)
	chosen := list.Instances[0]
	logs := must(t, s.owner.deployments.GetLogs, &windlassv1.GetLogsRequest{Instance: chosen.Id, TailLines: 50})
	require.NotEmpty(t, logs.Data)
	before := s.podsOf(t, app)
	must(t, s.owner.deployments.RestartInstance, &windlassv1.RestartInstanceRequest{Mutation: mutation(), Instance: chosen.Id})
	s.eventually(t, "one of two pods was replaced", func(context.Context) error {
		same := 0
		now := s.podsOf(t, app)
		for uid := range now {
			if _, ok := before[uid]; ok {
				same++
			}
		}
		if len(now) != 2 || same != 1 {
			return fmt.Errorf("%d pods, %d of before", len(now), same)
		}
		return nil
	})
	s.waitLive(t, app, 1)
}

// testClusterIsKilled kills a region's whole cluster, and then its agent, and starts them again. The same
// instances run afterwards, and changes made meanwhile are carried out.
func testClusterIsKilled(t *testing.T, s *stack) {
	const app = "powerless"
	before := s.deployReady(t, app, podSpec(label("v1"), replicas(2)))
	s.kill9(partCluster(us))
	made := s.deploy(t, app, podSpec(label("v2"), replicas(2)))
	s.restart(partAgent(eu))
	s.start(partCluster(us))
	s.restart(partAgent(us))
	s.waitLive(t, app, made.Version)
	s.waitGone(t, before.DeploymentId)
	s.waitNothingInClusters(t, "windlass.run/deployment="+before.DeploymentId)
	for _, address := range s.urls(t, app, 4) {
		_, version := chat(t, address, "with power")
		require.Equal(t, "v2", version)
	}
	require.Len(t, s.podsOf(t, app), 4)
}
