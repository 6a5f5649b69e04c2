package gateways

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Gateways send a request to a pair of instances of one version: see windlass.v1.Pairing. An
// instance that is kept when another version takes the workload over belongs to both versions. So
// the agent gives keys to instances. Two instances with a key in common may be a pair: they are of
// one group, and have the templates of one version that was seen in their workload. A file keeps
// the versions whose instances may still run, so that an agent that starts in the middle of an
// update knows them.

// featurePairing is announced by gateways that pair instances; see gatewayv1.WatchRequest.
const featurePairing = "pairing"

// templates are the templates of the two roles of a version.
type templates struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
}

// pairing returns how gateways pair the instances of a spec. Nil: they do not.
func pairing(spec *windlassv1.DeploymentSpec) *gatewayv1.Pairing {
	p := spec.GetPairing()
	switch p.GetEngine() {
	case windlassv1.Pairing_ENGINE_UNSPECIFIED, windlassv1.Pairing_ENGINE_NONE:
		return nil
	case windlassv1.Pairing_ENGINE_NIXL:
		return &gatewayv1.Pairing{Engine: gatewayv1.Pairing_ENGINE_NIXL, MinPromptBytes: p.MinPromptBytes}
	case windlassv1.Pairing_ENGINE_SGLANG:
		return &gatewayv1.Pairing{Engine: gatewayv1.Pairing_ENGINE_SGLANG}
	}
	return &gatewayv1.Pairing{} // an engine that only a later release knows
}

// pairedRoles returns the names of the roles that prefill and decode. ok is false if the spec has no pairs.
func pairedRoles(spec *windlassv1.DeploymentSpec) (prefill, decode string, ok bool) {
	if pairing(spec) == nil {
		return "", "", false
	}
	return cmp.Or(spec.GetPairing().GetPrefill(), "prefill"), cmp.Or(spec.GetPairing().GetDecode(), "decode"), true
}

// instancesIn returns all instances of a target.
func instancesIn(t *gatewayv1.Target) iter.Seq[*gatewayv1.Instance] {
	return func(yield func(*gatewayv1.Instance) bool) {
		for _, list := range [][]*gatewayv1.Instance{t.GetInstances(), t.GetPrefill()} {
			for _, in := range list {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// leadsTo reports whether gateways send requests to instances of the role.
func (t *table) leadsTo(d *runtime.ObservedDeployment, role string) bool {
	prefill, _, ok := pairedRoles(t.assignment(d.DeploymentID).GetDeployment().GetSpec())
	return d.IsEntry(role) || ok && role == prefill
}

// addPairs marks the instances of a target that are pairs.
func (t *table) addPairs(target *gatewayv1.Target) {
	d := t.assignment(target.DeploymentId).GetDeployment()
	prefill, decode, ok := pairedRoles(d.GetSpec())
	if !ok {
		return
	}
	target.Pairing = pairing(d.GetSpec())
	target.Prefill = t.reachableInstances(target.DeploymentId, target.WorkloadKey, func(_ *runtime.ObservedDeployment, role string) bool { return role == prefill })
	seen := t.templatesOf(target.WorkloadKey, prefill, decode)
	type place struct {
		group    int
		template string
	}
	places := map[string]place{}
	here := map[place]map[string]bool{} // by group and role, the templates of its instances
	for _, list := range t.listsOf(target.WorkloadKey) {
		for n := range list.Instances {
			in := &list.Instances[n]
			at := place{in.Group, in.Role}
			if here[at] == nil {
				here[at] = map[string]bool{}
			}
			here[at][in.TemplateHash] = true
			places[in.ID] = place{in.Group, in.TemplateHash}
		}
	}
	keys := map[string]map[place][]string{prefill: {}, decode: {}}
	for at := range here {
		if at.template != prefill {
			continue
		}
		n := 0
		for _, p := range slices.Sorted(maps.Keys(here[at])) {
			for _, d := range slices.Sorted(maps.Keys(here[place{at.group, decode}])) {
				if !seen[templates{p, d}] {
					continue
				}
				key := fmt.Sprintf("%d.%d", at.group, n)
				ofPrefill, ofDecode := place{at.group, p}, place{at.group, d}
				keys[prefill][ofPrefill] = append(keys[prefill][ofPrefill], key)
				keys[decode][ofDecode] = append(keys[decode][ofDecode], key)
				n++
			}
		}
	}
	ports := t.bootstrapPorts(target.WorkloadKey)
	for _, in := range target.Prefill {
		in.PairingKeys, in.BootstrapPort = keys[prefill][places[in.InstanceId]], ports[in.InstanceId]
	}
	for _, in := range target.Instances {
		in.PairingKeys = keys[decode][places[in.InstanceId]]
	}
}

// templatesOf returns the templates of all versions that were seen in the workload and whose instances may still run.
func (t *table) templatesOf(key, prefill, decode string) map[templates]bool {
	known := t.versions[key]
	if len(t.listsOf(key)) == 0 {
		return known // nothing was observed yet
	}
	if known == nil {
		known = map[templates]bool{}
		t.versions[key] = known
	}
	used := map[string]bool{}
	for _, d := range t.listsOf(key) {
		var now templates
		for _, r := range d.Roles {
			switch r.Name {
			case prefill:
				now.Prefill = r.TemplateHash
			case decode:
				now.Decode = r.TemplateHash
			}
		}
		t.versionsNew = t.versionsNew || !known[now]
		known[now], used[now.Prefill], used[now.Decode] = true, true, true
		for n := range d.Instances {
			used[d.Instances[n].TemplateHash] = true
		}
	}
	maps.DeleteFunc(known, func(v templates, _ bool) bool { return !used[v.Prefill] || !used[v.Decode] })
	return known
}

// forgetVersions forgets the versions of workloads that do not exist any more.
func (t *table) forgetVersions() {
	maps.DeleteFunc(t.versions, func(key string, _ map[templates]bool) bool { return t.workloads[key] == nil })
}

// encodeVersions returns the content of the file of versions.
func (t *table) encodeVersions() ([]byte, error) {
	out := map[string][]templates{}
	for key, known := range t.versions {
		out[key] = slices.SortedFunc(maps.Keys(known), func(a, b templates) int {
			return cmp.Or(cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.Decode, b.Decode))
		})
	}
	return json.Marshal(out)
}

// decodeVersions reads the file of versions.
func (t *table) decodeVersions(data []byte) error {
	var in map[string][]templates
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	for key, known := range in {
		t.versions[key] = map[templates]bool{}
		for _, v := range known {
			t.versions[key][v] = true
		}
	}
	return nil
}

// recallVersions reads the versions that the previous agent process saw.
func (g *Gateways) recallVersions() error {
	data, err := g.cfg.Files.Read(g.cfg.Versions)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = g.hub.decodeVersions(data)
	}
	if err != nil {
		return fmt.Errorf("read versions %s: %w", g.cfg.Versions, err)
	}
	g.versionsKept = data
	return nil
}

// keepVersions writes the file of versions if its content is out of date. Only Run calls it.
func (g *Gateways) keepVersions() error {
	g.mu.Lock()
	data, err := g.hub.encodeVersions()
	g.mu.Unlock()
	if err != nil || bytes.Equal(data, g.versionsKept) || len(g.versionsKept) == 0 && string(data) == "{}" {
		return err
	}
	if err := g.cfg.Files.Replace(g.cfg.Versions, data); err != nil {
		return err
	}
	g.versionsKept = data
	return nil
}

// bootstrapPorts returns the ports of the workload's instances at which decode servers meet them, by id.
func (t *table) bootstrapPorts(key string) map[string]int32 {
	out := map[string]int32{}
	for _, d := range t.listsOf(key) {
		for n := range d.Instances {
			out[d.Instances[n].ID] = int32(d.Instances[n].BootstrapPort)
		}
	}
	return out
}

// hasPairs reports whether the state has pairs.
func hasPairs(r *gatewayv1.AppRoutes) bool {
	return slices.ContainsFunc(r.GetTargets(), func(t *gatewayv1.Target) bool { return t.Pairing != nil })
}

// needsPairs reports whether the state has targets whose instances cannot serve requests alone.
// Instances of vLLM can serve requests alone.
func needsPairs(r *gatewayv1.AppRoutes) bool {
	return slices.ContainsFunc(r.GetTargets(), func(t *gatewayv1.Target) bool { return !servesAlone(t) })
}

func servesAlone(t *gatewayv1.Target) bool {
	return t.Pairing == nil || t.Pairing.Engine == gatewayv1.Pairing_ENGINE_NIXL
}

// withoutPairs returns the state for a gateway that does not know pairs: requests go to one instance if it can serve
// them alone, and to none otherwise.
func withoutPairs(r *gatewayv1.AppRoutes) *gatewayv1.AppRoutes {
	if !hasPairs(r) {
		return r
	}
	out := proto.CloneOf(r)
	for _, t := range out.Targets {
		if !servesAlone(t) {
			t.Instances = nil
		}
		t.Pairing, t.Prefill = nil, nil
		for _, in := range t.Instances {
			in.PairingKeys = nil
		}
	}
	return out
}

// noteUnpaired returns a note for people if a gateway does not pair instances of apps that have pairs.
func (h *hub) noteUnpaired() []string {
	apps := 0
	for _, a := range h.apps {
		if hasPairs(a.state) {
			apps++
		}
	}
	if apps == 0 {
		return nil
	}
	var out []string
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		if g := h.gateways[id]; !g.pairs && g.stream != 0 && !g.leaving {
			out = append(out, fmt.Sprintf("gateway %s does not pair prefill and decode servers, but %d apps need pairs: vLLM's decode servers do the prefill of its requests themselves, and SGLang's servers get none of its requests; update the gateway", id, apps))
		}
	}
	return out
}
