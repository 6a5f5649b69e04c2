package gateways

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pairedRegion is a region with one app whose requests go to pairs.
type pairedRegion struct {
	tab    *table
	engine windlassv1.Pairing_Engine
	list   runtime.ObservedDeployment
}

func newPairedRegion(engine windlassv1.Pairing_Engine) *pairedRegion {
	r := &pairedRegion{engine: engine}
	r.tab = r.newTable()
	return r
}

func (r *pairedRegion) newTable() *table {
	return newTable(func(id string) *agentv1.DeploymentState {
		if id != "dep" {
			return nil
		}
		return &agentv1.DeploymentState{Deployment: &agentv1.Deployment{AppId: "app", Spec: &windlassv1.DeploymentSpec{Pairing: &windlassv1.Pairing{Engine: r.engine, MinPromptBytes: 9}}}}
	})
}

// startAnew starts another agent process, with the file of the previous process.
func (r *pairedRegion) startAnew(t require.TestingT) {
	data, err := r.tab.encodeVersions()
	require.NoError(t, err)
	r.tab = r.newTable()
	require.NoError(t, r.tab.decodeVersions(data))
}

// see observes a pool. prefill and decode are the templates of the version.
func (r *pairedRegion) see(prefill, decode string, instances ...runtime.Instance) {
	r.list = runtime.ObservedDeployment{
		DeploymentID: "dep", TemplateHash: prefill + decode, Instances: instances,
		Roles: []runtime.RoleCount{{Name: "prefill", Instances: 1, Pool: 1, TemplateHash: prefill}, {Name: "decode", Instances: 1, Pool: 1, Entry: true, TemplateHash: decode}},
	}
	r.tab.setObserved([]runtime.ObservedDeployment{r.list})
	r.target()
}

func (r *pairedRegion) target() *gatewayv1.Target { return r.tab.newTarget("dep", "dep", 1) }

// pairs returns the pairs that gateways may choose: "p0+d0".
func (r *pairedRegion) pairs() (out []string) {
	t := r.target()
	for _, p := range t.Prefill {
		for _, d := range t.Instances {
			if slices.ContainsFunc(p.PairingKeys, func(key string) bool { return slices.Contains(d.PairingKeys, key) }) {
				out = append(out, p.InstanceId+"+"+d.InstanceId)
			}
		}
	}
	return out
}

func instanceOf(role, id, template string, group int) runtime.Instance {
	return runtime.Instance{ID: id, Role: role, Group: group, TemplateHash: template, Address: id + ":80", BootstrapPort: 8998, Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}
}

func TestPairs_AreOfOneVersionAndOneGroup(t *testing.T) {
	p := func(id, template string) runtime.Instance { return instanceOf("prefill", id, template, 0) }
	d := func(id, template string) runtime.Instance { return instanceOf("decode", id, template, 0) }
	t.Run("a version that does not move", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"), d("d1", "D1"))
		require.Equal(t, []string{"p0+d0", "p0+d1"}, r.pairs())
		target := r.target()
		require.Equal(t, gatewayv1.Pairing_ENGINE_NIXL, target.Pairing.Engine)
		require.EqualValues(t, 9, target.Pairing.MinPromptBytes)
		require.EqualValues(t, 8998, target.Prefill[0].BootstrapPort)
		require.Zero(t, target.Instances[0].BootstrapPort)
	})
	t.Run("an update of decode", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		r.startAnew(t)
		r.see("P1", "D2", p("p0", "P1"), d("d0", "D1"), d("d1", "D2"))
		require.Equal(t, []string{"p0+d0", "p0+d1"}, r.pairs())
	})
	t.Run("an update of both", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		r.startAnew(t)
		r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), p("p1", "P2"), d("d1", "D2"))
		require.Equal(t, []string{"p0+d0", "p1+d1"}, r.pairs())
		r.see("P2", "D2", p("p1", "P2"), d("d0", "D1"))
		require.Empty(t, r.pairs())
	})
	t.Run("an update of both, and the agent lost its file", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), p("p1", "P2"), d("d1", "D2"))
		require.Equal(t, []string{"p1+d1"}, r.pairs())
	})
	t.Run("groups", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"), instanceOf("prefill", "p1", "P1", 1), instanceOf("decode", "d1", "D1", 1))
		require.Equal(t, []string{"p0+d0", "p1+d1"}, r.pairs())
	})
	t.Run("versions that are gone are forgotten", func(t *testing.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		for n := range 20 {
			r.see(fmt.Sprint("P", n), fmt.Sprint("D", n), p("p", fmt.Sprint("P", n)), d("d", fmt.Sprint("D", n)))
			require.Len(t, r.pairs(), 1)
		}
		require.Len(t, r.tab.versions["dep"], 1)
		r.tab.setObserved(nil)
		require.Empty(t, r.tab.versions)
	})
}

// A pair has the templates of one version, whichever versions take the pool over, and whenever the
// agent restarts.
func TestPairs_HaveTheTemplatesOfOneVersion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		now := templates{"P0", "D0"}
		versions := map[templates]bool{now: true}
		list := []runtime.Instance{instanceOf("prefill", "i0", "P0", 0), instanceOf("decode", "i1", "D0", 0)}
		for n := range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // another version
				if rapid.Bool().Draw(t, "prefill") {
					now.Prefill = fmt.Sprint("P", n)
				}
				if rapid.Bool().Draw(t, "decode") {
					now.Decode = fmt.Sprint("D", n)
				}
				versions[now] = true
			case 1, 2: // an instance of the version starts
				role, template := "prefill", now.Prefill
				if rapid.Bool().Draw(t, "role") {
					role, template = "decode", now.Decode
				}
				list = append(list, instanceOf(role, fmt.Sprint("n", n), template, 0))
			case 3: // an instance ends
				if len(list) > 0 {
					at := rapid.IntRange(0, len(list)-1).Draw(t, "which")
					list = slices.Delete(slices.Clone(list), at, at+1)
				}
			case 4:
				r.startAnew(t)
			case 5: // the agent lost its file
				r = newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
			}
			r.see(now.Prefill, now.Decode, list...)
			of := map[string]string{}
			for _, in := range list {
				of[in.ID] = in.TemplateHash
			}
			target := r.target()
			for _, p := range target.Prefill {
				for _, d := range target.Instances {
					if !slices.ContainsFunc(p.PairingKeys, func(key string) bool { return slices.Contains(d.PairingKeys, key) }) {
						continue
					}
					if !versions[templates{of[p.InstanceId], of[d.InstanceId]}] {
						t.Fatalf("%s and %s are a pair of no version", of[p.InstanceId], of[d.InstanceId])
					}
				}
			}
		}
	})
}

func TestPairs_AreNotForGatewaysThatDoNotKnowThem(t *testing.T) {
	for engine, alone := range map[windlassv1.Pairing_Engine]int{windlassv1.Pairing_ENGINE_NIXL: 1, windlassv1.Pairing_ENGINE_SGLANG: 0} {
		r := newPairedRegion(engine)
		h := newHub(r.tab, 0, Grace)
		h.setRoute(&agentv1.Routes{AppId: "app", Hosts: []string{"app.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep", Weight: 1}}}, 1, 1)
		r.see("P1", "D1", instanceOf("prefill", "p0", "P1", 0), instanceOf("decode", "d0", "D1", 0))
		now := time.Unix(0, 0)
		old, recent := h.openStream("old-gateway", "a", nil, false, now), h.openStream("new-gateway", "b", nil, false, now)
		recent.pairs = true
		h.beginTable(old, now)
		h.beginTable(recent, now)
		got := h.takeDirty(recent)[0]
		require.Len(t, got.Targets[0].Prefill, 1)
		require.NotNil(t, got.Targets[0].Pairing)
		h.recordServed(recent, "app", got.Change)
		got = h.takeDirty(old)[0]
		require.Nil(t, got.Targets[0].Pairing)
		require.Empty(t, got.Targets[0].Prefill)
		require.Len(t, got.Targets[0].Instances, alone)
		h.recordServed(old, "app", got.Change)
		require.Contains(t, h.notes()[0], "gateway old-gateway does not pair prefill and decode servers")
		if alone == 1 {
			require.Empty(t, h.whyNotServed("app", 1, 1))
		} else {
			require.Contains(t, h.whyNotServed("app", 1, 1), "old-gateway, which cannot pair")
		}
		require.Contains(t, openIn(h.apps["app"].state), "p0")
		require.False(t, h.released("p0"))

		// A gateway process of the next release may still have the state that the previous release
		// received.
		again := h.openStream("old-gateway", "c", []*gatewayv1.AppVersion{{AppId: "app", Epoch: 1, Generation: 1, Change: got.Change}}, true, now)
		again.pairs = true
		h.beginTable(again, now)
		require.Len(t, h.takeDirty(again), 1)
	}
}
