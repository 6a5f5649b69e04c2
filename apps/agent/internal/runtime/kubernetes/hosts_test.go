package kubernetes_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ofHosts gives a spec one role. An instance of the role has n hosts.
func ofHosts(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: n}}
		s.Args = []string{"--allow-fault-api"}
	}
}

// ranks returns the pods of one instance that are not being deleted, by rank.
func (p *placed) ranks(t *testing.T, group string) map[string]corev1.Pod {
	t.Helper()
	out := map[string]corev1.Pod{}
	for _, one := range p.pods(t) {
		if one.Labels[render.LabelGroup] == group && one.Labels[render.LabelUnitOf] == render.FamilyKey(p.a) {
			out[one.Labels[render.LabelRank]] = one
		}
	}
	return out
}

// epochs returns the epochs of an instance's pods, by rank.
func (p *placed) epochs(t *testing.T, group string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for rank, pod := range p.ranks(t, group) {
		out[rank] = pod.Annotations[render.AnnotationUnitEpoch]
	}
	return out
}

// untilEpoch waits until all n ranks of group 0 are ready in the epoch.
func (p *placed) untilEpoch(t *testing.T, n int, epoch string) {
	t.Helper()
	until(t, "all ranks in epoch "+epoch, func() bool {
		of := p.ranks(t, "0")
		for _, one := range of {
			if one.Annotations[render.AnnotationUnitEpoch] != epoch || one.Annotations[render.AnnotationJoined] == "" {
				return false
			}
		}
		return len(of) == n && slices.ContainsFunc(p.instances(t), func(in runtime.Instance) bool { return in.Group == 0 && in.Status == ready })
	})
}

// inject sets faults of the model server in a pod.
func inject(t *testing.T, pod corev1.Pod, faults string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pod.Status.PodIP+":8000/faults", strings.NewReader(faults))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.NoError(t, res.Body.Close())
}

// The model servers of all ranks meet at their leader, and exit when they lose each other.
func TestHosts_RanksAreOneInstance(t *testing.T) {
	p := placeRoles(t, assignment("dep_hosts", 1, ofHosts(3)), nil)
	p.untilEpoch(t, 3, "1")
	of := p.ranks(t, "0")
	all := p.instances(t)
	require.Len(t, all, 1)
	require.Equal(t, render.InstanceID(of["0"].UID), all[0].ID)
	require.True(t, strings.HasPrefix(all[0].Address, of["0"].Status.PodIP+":"), all[0].Address)

	services, err := p.api.CoreV1().Services(p.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, services.Items, 1, "there is one service for all ranks")
	service := services.Items[0]
	require.Equal(t, corev1.ClusterIPNone, service.Spec.ClusterIP)
	require.True(t, service.Spec.PublishNotReadyAddresses, "ranks find each other before they are ready")
	leader := of["0"].Spec.Hostname + "." + service.Name + "." + p.namespace + ".svc"
	for rank, one := range of {
		require.Equal(t, service.Name, one.Spec.Subdomain)
		require.True(t, strings.HasPrefix(one.Spec.Hostname, "rank-"+rank+"-"), one.Spec.Hostname)
		for k, v := range service.Spec.Selector {
			require.Equal(t, v, one.Labels[k], k)
		}
		env := map[string]string{}
		for _, e := range one.Spec.Containers[0].Env {
			env[e.Name] = e.Value
		}
		require.Equal(t, []string{rank, "3", "1", leader}, []string{env["WINDLASS_RANK"], env["WINDLASS_HOSTS"], env["WINDLASS_UNIT_EPOCH"], env["WINDLASS_LEADER"]})
	}

	for rank, one := range of {
		checks := one.Spec.Containers[0].ReadinessProbe != nil || one.Spec.Containers[0].LivenessProbe != nil || one.Spec.Containers[0].StartupProbe != nil
		require.Equal(t, rank == "0", checks, "rank %s", rank)
	}
	inject(t, of["1"], `{"failHealth": true}`)
	inject(t, of["0"], `{"failHealth": true}`)
	until(t, "the instance is not ready", func() bool {
		all = p.instances(t)
		return len(all) == 1 && all[0].Status != ready
	})
	require.Equal(t, runtime.ReasonHealthCheckFailed, all[0].Reason)
	require.True(t, strings.HasPrefix(all[0].Message, "rank 0 of 3: "), all[0].Message)
	inject(t, of["0"], `{"failHealth": false}`)
	until(t, "the instance is ready again, by the leader's check alone", func() bool {
		all = p.instances(t)
		return len(all) == 1 && all[0].Status == ready
	})
}

// ask sends the model server in a pod a request whose answer takes several seconds. It returns once
// the answer has begun. finish waits for the rest of the answer.
func ask(t *testing.T, pod corev1.Pod) (finish func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	body := `{"model": "echo", "prompt": "` + strings.Repeat("word ", 20) + `", "stream": true}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pod.Status.PodIP+":8000/v1/completions", strings.NewReader(body))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(t, http.StatusOK, res.StatusCode)
	lines := bufio.NewReader(res.Body)
	_, err = lines.ReadString('\n')
	require.NoError(t, err)
	return func() {
		t.Helper()
		rest, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.Contains(t, string(rest), "data: [DONE]", "the answer is whole")
	}
}

func TestHosts_RanksOutliveTheirLeader(t *testing.T) {
	t.Parallel()
	pods := func(p *placed) typedcorev1.PodInterface { return p.api.CoreV1().Pods(p.namespace) }
	for n, c := range []struct {
		name string
		end  func(*testing.T, *placed, corev1.Pod)
		// epoch and template are the epoch and the template of the next instance. They are empty if
		// there is none.
		epoch, template string
	}{
		{"scale in", func(t *testing.T, p *placed, _ corev1.Pod) { p.scale(t, 0) }, "", ""},
		{"removal", func(t *testing.T, p *placed, _ corev1.Pod) {
			require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
		}, "", ""},
		{"another template", func(t *testing.T, p *placed, _ corev1.Pod) { p.replace(t, "template-2") }, "1", "template-2"},
		{"deletion of the leader's pod", func(t *testing.T, p *placed, leader corev1.Pod) {
			require.NoError(t, pods(p).Delete(t.Context(), leader.Name, metav1.DeleteOptions{}))
		}, "2", "template-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gateways := &door{done: map[string]bool{}}
			p := placeRoles(t, assignment(fmt.Sprint("dep_outlive_", n), 1, ofHosts(2), func(s *windlassv1.DeploymentSpec) {
				s.Args = append(s.Args, "--token-rate=5") // 20 tokens take 4 s
			}), gateways)
			p.untilEpoch(t, 2, "1")
			of := p.ranks(t, "0")
			gateways.release(render.InstanceID(of["0"].UID))
			finish := ask(t, of["0"])
			c.end(t, p, of["0"])
			finish()
			until(t, "the other rank has ended, too", func() bool {
				now, err := pods(p).Get(t.Context(), of["1"].Name, metav1.GetOptions{})
				return apierrors.IsNotFound(err) || err == nil && now.UID != of["1"].UID
			})
			if c.epoch == "" {
				until(t, "no pod is left", func() bool { return len(p.pods(t)) == 0 })
				return
			}
			p.untilEpoch(t, 2, c.epoch)
			for _, pod := range p.ranks(t, "0") {
				require.Equal(t, c.template, pod.Annotations[render.AnnotationTemplateHash])
			}
		})
	}
}

func TestHosts_EndOfOneRankRestartsAllOfItsInstance(t *testing.T) {
	gateways := &door{done: map[string]bool{}}
	p := placeRoles(t, assignment("dep_ends", 2, ofHosts(2)), gateways)
	p.untilEpoch(t, 2, "1")
	p.awaits(t, 2, 0)
	beside := p.ranks(t, "1")

	// Gateways release no instance. A restart does not wait for them, because the instance does not
	// serve any more.
	inject(t, p.ranks(t, "0")["1"], `{"crashAfter": "1ms", "exitCode": 3}`)
	p.untilEpoch(t, 2, "2")
	before := p.ranks(t, "0")
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), before["1"].Name, metav1.DeleteOptions{}))
	p.untilEpoch(t, 2, "3")
	for rank, one := range p.ranks(t, "0") {
		require.NotEqual(t, before[rank].UID, one.UID, "rank %s is a new pod", rank)
		require.NotEqual(t, before[rank].Spec.Hostname, one.Spec.Hostname)
	}

	// The end of a rank also counts if no agent runs at that time.
	before = p.ranks(t, "0")
	p.shut(t)
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), before["0"].Name, metav1.DeleteOptions{}))
	until(t, "Kubernetes replaces the pod", func() bool {
		now := p.ranks(t, "0")["0"]
		return now.UID != "" && now.UID != before["0"].UID
	})
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	until(t, "all ranks in one epoch again", func() bool {
		of := p.epochs(t, "0")
		return len(of) == 2 && of["0"] == of["1"] && of["0"] == "4"
	})
	for rank, one := range p.ranks(t, "1") {
		require.Equal(t, beside[rank].UID, one.UID, "the other instance stays")
	}
}

func TestHosts_OnePodIsEvictedAtATime(t *testing.T) {
	p := placeRoles(t, assignment("dep_evicted", 2, ofHosts(2)), nil)
	p.untilEpoch(t, 2, "1")
	p.awaits(t, 2, 0)
	budgets := p.api.PolicyV1().PodDisruptionBudgets(p.namespace)
	budget := func() policyv1.PodDisruptionBudget {
		list, err := budgets.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1, "there is one budget for all instances")
		return list.Items[0]
	}
	first := budget()
	allowed := func(n int32) {
		t.Helper()
		until(t, fmt.Sprint(n, " of four pods may be evicted"), func() bool {
			status := budget().Status
			return status.ExpectedPods == 4 && status.DisruptionsAllowed == n
		})
	}
	evict := func(pod corev1.Pod) error {
		return p.api.PolicyV1().Evictions(p.namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: pod.Name}})
	}
	of, other := p.ranks(t, "0"), p.ranks(t, "1")
	inject(t, of["0"], `{"failHealth": true}`)
	allowed(0)
	require.True(t, apierrors.IsTooManyRequests(evict(other["1"])), "a ready instance is not evicted while another one is not ready")
	inject(t, of["0"], `{"failHealth": false}`)
	allowed(1)
	require.NoError(t, evict(of["1"]))
	p.untilEpoch(t, 2, "2")
	require.Equal(t, other["0"].UID, p.ranks(t, "1")["0"].UID)
	require.InDelta(t, 1, p.counted(t, "windlass_agent_kubernetes_rank_restarts_total", nil), 0)

	// The budget outlives instances, is put back, and goes with the last instance.
	p.scale(t, 3)
	p.awaits(t, 3, 0)
	require.Equal(t, first.OwnerReferences, budget().OwnerReferences, "another instance does not change the budget's owners")
	p.scale(t, 0)
	until(t, "no pod left", func() bool { return len(p.pods(t)) == 0 })
	p.scale(t, 1)
	p.awaits(t, 1, 0)
	require.NoError(t, budgets.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	until(t, "the budget exists again", func() bool {
		list, err := budgets.List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].UID != first.UID
	})
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	until(t, "nothing is left", func() bool { return len(p.leftovers(t)) == 0 })
}

// A rank that waits for its unready leader is ready, but its eviction interrupts no service.
func TestHosts_RanksAreEvictedIfNoInstanceServes(t *testing.T) {
	p := placeRoles(t, assignment("dep_down", 1, ofHosts(2)), nil)
	p.untilEpoch(t, 2, "1")
	p.awaits(t, 1, 0)
	of := p.ranks(t, "0")
	inject(t, of["0"], `{"failHealth": true}`)
	until(t, "the rank that is ready is evicted", func() bool {
		err := p.api.PolicyV1().Evictions(p.namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: of["1"].Name}})
		return err == nil
	})
}

func TestHosts_MissingRankWaitsForTheRestart(t *testing.T) {
	p := placeRoles(t, assignment("dep_missing", 1, ofHosts(2)), nil, func(c *kubernetes.Config) {
		c.Repair = backoff.Policy{Min: time.Hour, Max: time.Hour}
	})
	p.untilEpoch(t, 2, "1")
	inject(t, p.ranks(t, "0")["1"], `{"crashAfter": "1ms", "exitCode": 3}`)
	p.untilEpoch(t, 2, "2") // the next restart must wait for an hour
	lost := p.ranks(t, "0")["1"]
	deployments := p.api.AppsV1().Deployments(p.namespace)
	list, err := deployments.List(t.Context(), metav1.ListOptions{LabelSelector: render.LabelWorkload + "=" + lost.Labels[render.LabelWorkload]})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.NoError(t, deployments.Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}))
	until(t, "the rank exists again", func() bool {
		now := p.ranks(t, "0")["1"]
		return now.UID != "" && now.UID != lost.UID
	})
	until(t, "its pod is ready", func() bool {
		return slices.ContainsFunc(p.ranks(t, "0")["1"].Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	require.Equal(t, map[string]string{"0": "2", "1": "2"}, p.epochs(t, "0"))
	for _, in := range p.instances(t) {
		require.NotEqual(t, ready, in.Status, "%+v", in)
	}
}

func TestHosts_UpdateAndScaleTakeWholeInstances(t *testing.T) {
	gateways := &door{done: map[string]bool{}}
	p := placeRoles(t, assignment("dep_whole", 2, ofHosts(2)), gateways)
	p.awaits(t, 2, 0)
	old := map[string]bool{}
	for _, one := range p.pods(t) {
		old[string(one.UID)] = true
	}
	p.replace(t, "template-2")
	until(t, "both instances are replaced", func() bool {
		n := 0
		for _, in := range p.instances(t) {
			require.False(t, in.Status == draining && in.TemplateHash != "template-1", "%+v", in)
			if in.Status == draining {
				gateways.release(in.ID)
			} else if in.Status == ready && in.TemplateHash == "template-2" {
				n++
			}
		}
		return n == 2
	})
	for _, one := range p.pods(t) {
		require.False(t, old[string(one.UID)], "%s has the old template", one.Name)
	}
	p.scale(t, 1)
	gateways.release(p.awaits(t, 1, 1)...)
	until(t, "two pods left", func() bool { return len(p.pods(t)) == 2 && len(p.ranks(t, "0")) == 2 })
	p.scale(t, 0)
	gateways.release(p.awaits(t, 0, 1)...)
	until(t, "no pod left", func() bool { return len(p.pods(t)) == 0 })
	p.scale(t, 1)
	p.awaits(t, 1, 0)
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	require.Empty(t, p.leftovers(t))
}

func TestHosts_WorkTogetherWithRolesOfOneHost(t *testing.T) {
	p := placeRoles(t, assignment("dep_mixed", 1, func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: "router", Entry: true, StartsAfter: []string{"decode"}}, {Name: "decode", Instances: 2, Hosts: 2}}
	}), nil)
	p.awaits(t, 3, 0)
	require.Len(t, p.pods(t), 5)
	all := p.instances(t)
	require.Len(t, all, 3, "two instances of decode, and the router")
	o, err := p.rt.Observe(t.Context())
	require.NoError(t, err)
	at := slices.IndexFunc(o.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == "dep_mixed" })
	require.Equal(t, map[int]bool{0: true}, o.Deployments[at].CompleteGroups(o.Deployments[at].IsCurrent))
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	p.awaits(t, 3, 0)
	p.change(t, func(a *runtime.Assignment) {
		a.TemplateHash, a.RoleTemplates = "r2", map[string]string{"router": "r2", "decode": "template-1"}
	})
	until(t, "only the router is replaced", func() bool {
		return slices.ContainsFunc(p.instances(t), func(in runtime.Instance) bool {
			return in.Role == "router" && in.TemplateHash == "r2" && in.Status == ready
		})
	})
	for _, in := range all {
		if in.Role == "decode" {
			require.True(t, slices.ContainsFunc(p.instances(t), func(now runtime.Instance) bool { return now.ID == in.ID && now.Status == ready }), "decode stays")
		}
	}
}

// The instances of a pool that have several hosts are counted, replaced and restarted as instances.
func TestHosts_OfAPoolAreCountedAndReplacedAsInstances(t *testing.T) {
	p := placeRoles(t, assignment("dep_pool_hosts", 100, func(s *windlassv1.DeploymentSpec) {
		s.Layout = windlassv1.Layout_LAYOUT_POOLED
		s.Roles = []*windlassv1.RoleSpec{{Name: "router", Entry: true}, {Name: "shard", Instances: 2, Hosts: 2}}
	}, func(s *windlassv1.DeploymentSpec) { s.Args = []string{"--allow-fault-api"} }), nil)
	p.awaits(t, 3, 0)
	require.Len(t, p.pods(t), 5)
	shards := func(template string) (n int) {
		for _, in := range p.instances(t) {
			if in.Role == "shard" && in.Status == ready && (template == "" || in.TemplateHash == template) {
				n++
			}
		}
		return n
	}
	router := func() string {
		for _, in := range p.instances(t) {
			if in.Role == "router" {
				return in.ID
			}
		}
		return ""
	}
	first := router()
	p.change(t, func(a *runtime.Assignment) {
		a.RoleTemplates = map[string]string{"router": "template-1", "shard": "template-2"}
		a.Deployment.MovingRoles = []string{"shard"}
	})
	until(t, "both shards are replaced", func() bool {
		require.GreaterOrEqual(t, shards(""), 2, "an old one goes once a new one is ready")
		return shards("template-2") == 2
	})
	until(t, "pods of both shards and the router", func() bool { return len(p.pods(t)) == 5 })
	require.Equal(t, first, router(), "the router stays")

	// A rank that ends takes its instance with it, and no other one.
	for _, one := range p.pods(t) {
		if one.Labels[render.LabelRank] == "1" {
			inject(t, one, `{"crashAfter": "1ms", "exitCode": 3}`)
			break
		}
	}
	restarted := func() bool {
		return slices.ContainsFunc(p.instances(t), func(in runtime.Instance) bool { return in.Role == "shard" && in.Restarts == 1 && in.Status == ready })
	}
	until(t, "one restart of one instance", func() bool {
		require.GreaterOrEqual(t, shards(""), 1)
		return restarted() && shards("") == 2
	})
	p.change(t, func(a *runtime.Assignment) { a.Deployment.Spec.Roles[1].Instances = 1 })
	until(t, "one shard of two pods", func() bool { return len(p.pods(t)) == 3 && shards("") == 1 })
	require.Equal(t, first, router())
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	require.Empty(t, p.leftovers(t))
}
