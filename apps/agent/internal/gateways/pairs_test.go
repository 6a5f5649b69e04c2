package gateways

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pairedRegion is a region with one app whose requests go to pairs. Its versions are deployments of the workload "dep".
type pairedRegion struct {
	tab *table
	// engines has the engine of each version. version is the one that the region runs.
	engines map[string]windlassv1.Pairing_Engine
	version string
	list    runtime.ObservedDeployment
}

func newPairedRegion(engine windlassv1.Pairing_Engine) *pairedRegion {
	r := &pairedRegion{engines: map[string]windlassv1.Pairing_Engine{"dep": engine}, version: "dep"}
	r.tab = r.newTable()
	return r
}

func (r *pairedRegion) newTable() *table {
	return newTable(func(id string) *agentv1.DeploymentState {
		engine, ok := r.engines[id]
		if !ok {
			return nil
		}
		spec := &windlassv1.DeploymentSpec{}
		if engine != windlassv1.Pairing_ENGINE_NONE {
			spec.Pairing = &windlassv1.Pairing{Engine: engine, MinPromptBytes: 9}
		}
		return &agentv1.DeploymentState{WorkloadKey: "dep", Deployment: &agentv1.Deployment{AppId: "app", Spec: spec}}
	})
}

// takeOver makes another version, of another engine, take the workload over.
func (r *pairedRegion) takeOver(version string, engine windlassv1.Pairing_Engine) {
	r.version, r.engines[version] = version, engine
}

// startAnew starts another agent process, with the file of the one before.
func (r *pairedRegion) startAnew(t require.TestingT) {
	data, err := r.tab.encodeVersions()
	require.NoError(t, err)
	r.tab = r.newTable()
	require.NoError(t, r.tab.decodeVersions(data))
}

// see observes a pool. prefill and decode are the templates of the version.
func (r *pairedRegion) see(prefill, decode string, instances ...runtime.Instance) {
	r.list = runtime.ObservedDeployment{
		DeploymentID: r.version, TemplateHash: prefill + decode, Instances: instances,
		Roles: []runtime.RoleCount{{Name: "prefill", Instances: 1, Pool: 1, TemplateHash: prefill}, {Name: "decode", Instances: 1, Pool: 1, Entry: true, TemplateHash: decode}},
	}
	r.tab.setObserved([]runtime.ObservedDeployment{r.list})
	r.target()
}

func (r *pairedRegion) target() *gatewayv1.Target { return r.tab.newTarget(r.version, "dep", 1) }

// ways returns how each instance gets requests: "p0+d0 ENGINE_NIXL" for a pair, and "d0 alone".
func (r *pairedRegion) ways() (out []string) {
	t := r.target()
	for _, d := range t.Instances {
		if d.Alone {
			out = append(out, d.InstanceId+" alone")
		}
		for _, p := range t.Prefill {
			for _, key := range p.PairingKeys {
				if !slices.Contains(d.PairingKeys, key) {
					continue
				}
				how := t.Pairing
				if own := t.KeyPairings[key]; own != nil {
					how = own
				}
				out = append(out, p.InstanceId+"+"+d.InstanceId+" "+how.Engine.String())
			}
		}
	}
	return out
}

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

// While a version takes a pool over, each instance gets requests in the way of the version that it runs.
func TestPairs_GetRequestsInTheWayOfTheirVersion(t *testing.T) {
	const none, nixl, sglang = windlassv1.Pairing_ENGINE_NONE, windlassv1.Pairing_ENGINE_NIXL, windlassv1.Pairing_ENGINE_SGLANG
	p := func(id, template string) runtime.Instance { return instanceOf("prefill", id, template, 0) }
	d := func(id, template string) runtime.Instance { return instanceOf("decode", id, template, 0) }
	for _, engine := range []windlassv1.Pairing_Engine{nixl, sglang} {
		t.Run("from none to "+engine.String(), func(t *testing.T) {
			r := newPairedRegion(none)
			r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
			require.Nil(t, r.target().Pairing)
			r.startAnew(t)
			r.takeOver("new", engine)
			r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"))
			require.Equal(t, []string{"d0 alone"}, r.ways(), "no new instance is ready")
			r.startAnew(t)
			r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), d("d1", "D2"))
			require.Equal(t, []string{"d0 alone"}, r.ways(), "the new pair is not complete")
			r.see("P2", "D2", p("p1", "P2"), d("d0", "D1"))
			require.Equal(t, []string{"d0 alone"}, r.ways(), "prefill servers are replaced first")
			r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), d("d1", "D2"), p("p1", "P2"))
			require.Equal(t, []string{"d0 alone", "p1+d1 ENGINE_" + engineName(engine)}, r.ways())
			r.see("P2", "D2", d("d1", "D2"), p("p1", "P2"))
			require.Equal(t, []string{"p1+d1 ENGINE_" + engineName(engine)}, r.ways())
		})
		t.Run("from "+engine.String()+" to none", func(t *testing.T) {
			r := newPairedRegion(engine)
			r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
			r.takeOver("new", none)
			r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), d("d1", "D2"))
			require.Equal(t, []string{"p0+d0 ENGINE_" + engineName(engine), "d1 alone"}, r.ways())
			r.see("P2", "D2", p("p1", "P2"), d("d1", "D2"))
			require.Nil(t, r.target().Pairing)
		})
	}
	t.Run("only prefill servers differ", func(t *testing.T) {
		r := newPairedRegion(none)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		r.takeOver("new", sglang)
		r.see("P2", "D1", p("p0", "P1"), d("d0", "D1"))
		require.Equal(t, []string{"d0 alone"}, r.ways())
		r.see("P2", "D1", p("p0", "P1"), p("p1", "P2"), d("d0", "D1"))
		require.Equal(t, []string{"d0 alone", "p1+d0 ENGINE_SGLANG"}, r.ways())
		r.see("P2", "D1", p("p1", "P2"), d("d0", "D1"))
		require.Equal(t, []string{"p1+d0 ENGINE_SGLANG"}, r.ways(), "no instance of the version without pairs is left")
	})
	t.Run("the same instances", func(t *testing.T) {
		r := newPairedRegion(none)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		r.takeOver("new", nixl)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		require.Equal(t, []string{"p0+d0 ENGINE_NIXL"}, r.ways())
	})
	t.Run("from one engine to another", func(t *testing.T) {
		r := newPairedRegion(nixl)
		r.see("P1", "D1", p("p0", "P1"), d("d0", "D1"))
		r.takeOver("new", sglang)
		r.startAnew(t)
		r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"))
		require.Equal(t, []string{"p0+d0 ENGINE_NIXL"}, r.ways())
		r.see("P2", "D2", p("p0", "P1"), d("d0", "D1"), p("p1", "P2"), d("d1", "D2"))
		require.Equal(t, []string{"p0+d0 ENGINE_NIXL", "p1+d1 ENGINE_SGLANG"}, r.ways())
		state := withoutPairs(&gatewayv1.AppRoutes{Targets: []*gatewayv1.Target{r.target()}})
		require.Len(t, state.Targets[0].Instances, 1)
		require.Equal(t, "d0", state.Targets[0].Instances[0].InstanceId)
	})
}

func engineName(e windlassv1.Pairing_Engine) string {
	return strings.TrimPrefix(e.String(), "ENGINE_")
}

// vLLM's decode servers prefill prompts themselves while there is no prefill server.
func TestPairs_DecodeServersOfVLLMServeWithoutPrefillServers(t *testing.T) {
	for engine, want := range map[windlassv1.Pairing_Engine]gatewayv1.Instance_State{
		windlassv1.Pairing_ENGINE_NIXL: gatewayv1.Instance_STATE_READY, windlassv1.Pairing_ENGINE_SGLANG: gatewayv1.Instance_STATE_DRAINING,
	} {
		r := newPairedRegion(engine)
		r.see("P1", "D1", instanceOf("decode", "d0", "D1", 0))
		target := r.target()
		require.Equal(t, want, target.Instances[0].State, engine)
		require.NotEmpty(t, target.Instances[0].PairingKeys, "the key says which way its requests go")
	}
	// Prefill servers are replaced first.
	r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
	r.see("P1", "D1", instanceOf("prefill", "p0", "P1", 0), instanceOf("decode", "d0", "D1", 0))
	r.startAnew(t)
	r.see("P2", "D2", instanceOf("prefill", "p1", "P2", 0), instanceOf("decode", "d0", "D1", 0))
	require.Empty(t, r.pairs())
	require.NotEmpty(t, r.target().Instances[0].PairingKeys)
}

// Whatever versions move over a pool, and whenever the agent starts anew, a pair has the templates of one version.
func TestPairs_HaveTheTemplatesOfOneVersion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newPairedRegion(windlassv1.Pairing_ENGINE_NIXL)
		now := struct{ prefill, decode string }{"P0", "D0"}
		versions := map[[2]string]bool{{now.prefill, now.decode}: true}
		list := []runtime.Instance{instanceOf("prefill", "i0", "P0", 0), instanceOf("decode", "i1", "D0", 0)}
		for n := range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // another version
				if rapid.Bool().Draw(t, "prefill") {
					now.prefill = fmt.Sprint("P", n)
				}
				if rapid.Bool().Draw(t, "decode") {
					now.decode = fmt.Sprint("D", n)
				}
				versions[[2]string{now.prefill, now.decode}] = true
			case 1, 2: // an instance of the version starts
				role, template := "prefill", now.prefill
				if rapid.Bool().Draw(t, "role") {
					role, template = "decode", now.decode
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
			r.see(now.prefill, now.decode, list...)
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
					if !versions[[2]string{of[p.InstanceId], of[d.InstanceId]}] {
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
		require.Contains(t, h.notesForPeople()[0], "gateway old-gateway does not pair prefill and decode servers")
		if alone == 1 {
			require.Empty(t, h.whyNotServed("app", 1, 1))
		} else {
			require.Contains(t, h.whyNotServed("app", 1, 1), "old-gateway, which cannot pair")
		}
		require.Contains(t, openIn(h.apps["app"].state), "p0")
		require.False(t, h.isReleased("p0"))

		// A gateway process of the next release may still have the state that the previous release
		// received.
		again := h.openStream("old-gateway", "c", []*gatewayv1.AppVersion{{AppId: "app", Epoch: 1, Generation: 1, Change: got.Change}}, true, now)
		again.pairs = true
		h.beginTable(again, now)
		require.Len(t, h.takeDirty(again), 1)
	}
}
