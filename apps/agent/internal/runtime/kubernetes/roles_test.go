package kubernetes_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// twoRoles gives a spec an entry role with one instance, and another role with two instances.
func twoRoles(entry, other string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: entry, Entry: true}, {Name: other, Instances: 2}}
	}
}

// placeRoles applies a deployment with two roles. gateways is nil if no gateway sends to it.
func placeRoles(t *testing.T, a runtime.Assignment, gateways *door, change ...func(*kubernetes.Config)) *placed {
	t.Helper()
	t.Parallel()
	p := &placed{harness: newHarness(t, change...), a: a}
	if gateways != nil {
		p.before = func(rt *kubernetes.Runtime) {
			gateways.again = rt.Drain(gateways.released, func(string) time.Duration { return time.Hour })
		}
	}
	p.begin(t)
	return p
}

// begin starts the agent and applies a deployment with roles.
func (p *placed) begin(t *testing.T) {
	t.Helper()
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	var spaces []found
	for _, o := range p.objects(t) {
		if o.Kind == "Deployment" {
			spaces = append(spaces, o)
		}
	}
	require.NotEmpty(t, spaces)
	p.namespace = spaces[0].Namespace
}

func (p *placed) instances(t *testing.T) []runtime.Instance {
	t.Helper()
	o, err := p.rt.Observe(t.Context())
	require.NoError(t, err)
	at := slices.IndexFunc(o.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == p.a.Deployment.Id })
	if at < 0 {
		return nil
	}
	return o.Deployments[at].Instances
}

func TestRoles_PeersAreASecretOfTheGroupAlsoWithLongNames(t *testing.T) {
	entry, other := strings.Repeat("r", 62)+"1", strings.Repeat("r", 62)+"2"
	a := assignment("dep_roles", 2, twoRoles(entry, other))
	a.Deployment.AppName = strings.Repeat("a", 63)
	p := placeRoles(t, a, nil)
	p.awaits(t, 6, 0)
	names := map[string]bool{}
	for _, o := range p.objects(t) {
		if o.Kind == "Deployment" {
			names[o.Name] = true
		}
	}
	require.Len(t, names, 6)

	u := p.a
	u.Unit = &runtime.Unit{Role: entry, Group: 1}
	secrets := p.api.CoreV1().Secrets(p.namespace)
	until(t, "the addresses of the group", func() bool {
		secret, err := secrets.Get(t.Context(), render.PeersName(u, 1), metav1.GetOptions{})
		if err != nil {
			return false
		}
		var peers runtime.Peers
		require.NoError(t, json.Unmarshal(secret.Data["peers.json"], &peers))
		require.Equal(t, 1, peers.Group)
		want := map[string][]string{entry: {}, other: {}}
		for _, in := range p.instances(t) {
			if in.Group == 1 && in.Status == ready {
				want[in.Role] = append(want[in.Role], in.Address)
			}
		}
		return len(peers.Roles[other]) == 2 && slices.Equal(peers.Roles[entry], want[entry]) && slices.Equal(peers.Roles[other], want[other]) &&
			len(secret.OwnerReferences) == 3
	})
	for _, one := range p.pods(t) {
		require.True(t, slices.ContainsFunc(one.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && strings.Contains(v.Secret.SecretName, "-peers-")
		}))
	}
	p.scale(t, 1)
	until(t, "the Secret goes with its group", func() bool {
		list, err := secrets.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return !slices.ContainsFunc(list.Items, func(s corev1.Secret) bool { return s.Name == render.PeersName(u, 1) })
	})
	p.awaits(t, 3, 0)
}

func TestRoles_GroupGoesOnceGatewaysAreDoneWithItsEntry(t *testing.T) {
	gateways := &door{done: map[string]bool{}}
	p := placeRoles(t, assignment("dep_drain", 2, twoRoles("router", "decode")), gateways)
	p.awaits(t, 6, 0)
	p.scale(t, 1)
	leave := p.awaits(t, 3, 3)
	p.rt = p.open(t) // the next agent continues
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	require.ElementsMatch(t, leave, p.awaits(t, 3, 3))
	var entry string
	for _, in := range p.instances(t) {
		if slices.Contains(leave, in.ID) {
			require.Equal(t, 1, in.Group, "only instances of the highest group drain")
			if in.Role == "router" {
				entry = in.ID
			} else {
				gateways.release(in.ID) // gateways never send to this instance
			}
		}
	}
	require.ElementsMatch(t, leave, p.awaits(t, 3, 3), "the group's other instances stay until gateways release the entry instance")
	gateways.release(entry)
	p.awaits(t, 3, 0)
	until(t, "three left", func() bool { return len(p.instances(t)) == 3 })
}

func TestDrain_EntryInstanceOfAPoolWaitsForItsOwnRelease(t *testing.T) {
	gateways := &door{done: map[string]bool{}}
	p := placeRoles(t, assignment("dep_pool", 100, func(s *windlassv1.DeploymentSpec) {
		s.Layout = windlassv1.Layout_LAYOUT_POOLED
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Entry: true, Instances: 2}, {Name: "decode"}}
	}), gateways)
	p.awaits(t, 3, 0)
	p.change(t, func(a *runtime.Assignment) { a.Deployment.Spec.Roles[0].Instances = 1 })
	leave := p.awaits(t, 2, 1)
	gateways.release(leave[0])
	p.awaits(t, 2, 0)
	until(t, "two instances, although gateways send to the other entry instance", func() bool { return len(p.instances(t)) == 2 })
}

func TestRoles_IdleAgentMakesNoCall(t *testing.T) {
	p := placeRoles(t, assignment("dep_idle", 1, twoRoles("router", "decode")), nil)
	p.awaits(t, 3, 0)
	written := func() map[string]string {
		out := map[string]string{}
		for _, o := range p.objects(t) {
			out[o.String()] = o.ResourceVersion
		}
		return out
	}
	until(t, "all pods know their peers", func() bool {
		marks := map[string]bool{}
		for _, one := range p.pods(t) {
			marks[one.Annotations[render.AnnotationPeers]] = true
		}
		return len(marks) == 1 && !marks[""]
	})
	var before map[string]string
	until(t, "nothing moves", func() bool {
		last := before
		before = written()
		return last != nil && len(last) == len(before) && func() bool {
			for k, v := range before {
				if last[k] != v {
					return false
				}
			}
			return true
		}()
	})
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	p.awaits(t, 3, 0)
	require.Equal(t, before, written(), "another agent writes nothing")
}

// All GPUs of the pool's nodes are in use, or all GPUs of its quota.
func TestRoles_PoolWithoutRoomYields(t *testing.T) {
	t.Parallel()
	for _, quota := range []int{0, 8} {
		h := newHarness(t, func(c *kubernetes.Config) {
			c.Pools = map[string]render.Pool{"a100": {Name: "a100", NodeSelector: map[string]string{"pool": "a100"}, ResourceName: "nvidia.com/gpu", Quota: quota}}
		})
		p := &placed{harness: h, a: assignment("dep_yields", 100, twoRoles("router", "decode"), func(s *windlassv1.DeploymentSpec) {
			s.Layout = windlassv1.Layout_LAYOUT_POOLED
			s.Update = &windlassv1.PoolUpdate{WhenFull: windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE}
			s.Roles[1].Resources = &windlassv1.Resources{CpuMillicores: 100, MemoryMib: 64, Gpu: &windlassv1.Gpu{Count: 4, Pool: "a100"}}
		})}
		p.a.RoleTemplates = map[string]string{"router": "r1", "decode": "d1"}
		p.rt = p.open(t)
		require.NoError(t, p.rt.Apply(t.Context(), p.a))
		p.awaits(t, 3, 0)
		before := p.instances(t)

		p.a.Generation++
		p.a.RoleTemplates = map[string]string{"router": "r1", "decode": "d2"}
		_ = p.rt.Apply(t.Context(), p.a) // it fails while the quota has no room, and is tried again
		until(t, "both are replaced", func() bool {
			made, serve := 0, 0
			for _, in := range p.instances(t) {
				if in.Role != "decode" || in.Status != ready {
					continue
				}
				if serve++; in.TemplateHash == "d2" {
					made++
				}
			}
			require.GreaterOrEqual(t, serve, 1, "one at a time")
			return made == 2
		})
		for _, in := range before {
			if in.Role == "router" {
				require.True(t, slices.ContainsFunc(p.instances(t), func(o runtime.Instance) bool { return o.ID == in.ID }))
			}
		}
		require.NoError(t, p.rt.Remove(t.Context(), "dep_yields"))
		until(t, "nothing is left", func() bool { return len(p.instances(t)) == 0 })
	}
}

// If all GPUs are in use, a new pod gets the room of the old pod only when the old pod has ended.
func TestRoles_NextGroupWaitsForTheRoomOfTheFirst(t *testing.T) {
	const patience = 15 * time.Second
	p := placeRoles(t, assignment("dep_room", 2, twoRoles("router", "decode")), nil)
	p.awaits(t, 6, 0)
	p.change(t, func(a *runtime.Assignment) {
		a.TemplateHash = "template-2"
		a.Deployment.Spec.Roles[0].Resources = &windlassv1.Resources{CpuMillicores: 1_000_000_000} // no node has this much
	})
	until(t, "the removal of the other group", func() bool {
		waiting := time.Duration(0)
		old := map[int]int{}
		for _, one := range p.pods(t) {
			if one.Spec.NodeName == "" {
				waiting = max(waiting, time.Since(one.CreationTimestamp.Time))
			}
			if one.Annotations[render.AnnotationTemplateHash] == "template-1" {
				group, err := strconv.Atoi(one.Labels[render.LabelGroup])
				require.NoError(t, err)
				old[group]++
			}
		}
		if old[0] < 3 && old[1] < 3 {
			require.GreaterOrEqual(t, waiting, patience-time.Second, "creation times have whole seconds")
			return true
		}
		return false
	})
}
