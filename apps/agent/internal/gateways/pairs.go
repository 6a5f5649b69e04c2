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

// Gateways send a request to a pair of instances of one version: see windlass.v1.Pairing. An instance that is kept when
// another version takes the workload over belongs to both versions. So the agent gives instances keys, and two instances
// with a key in common may be a pair: they are of one group, and have the templates of one version that was seen in
// their workload. Each key has the pairing of its version, because the version that takes a workload over may pair
// instances in another way, or not at all. A file keeps the versions whose instances may still run, so that an agent
// that starts in the middle of an update knows them.

// featurePairing is announced by gateways that pair instances; see gatewayv1.WatchRequest.
const featurePairing = "pairing"

// seenVersion is a version that was seen in a workload of several roles.
type seenVersion struct {
	// Templates has the templates of all roles, by name.
	Templates map[string]string `json:"templates"`
	// Entry is the role that routes lead to.
	Entry string `json:"entry"`
	// Pairing is nil for a version whose instances are not paired.
	Pairing *seenPairing `json:"pairing,omitempty"`
}

// seenPairing is how gateways pair the instances of a version.
type seenPairing struct {
	Prefill        string                   `json:"prefill"`
	Decode         string                   `json:"decode"`
	Engine         gatewayv1.Pairing_Engine `json:"engine"`
	MinPromptBytes int64                    `json:"minPromptBytes,omitempty"`
}

func (v seenVersion) equals(other seenVersion) bool {
	return v.Entry == other.Entry && maps.Equal(v.Templates, other.Templates) &&
		(v.Pairing == nil) == (other.Pairing == nil) && (v.Pairing == nil || *v.Pairing == *other.Pairing)
}

// proto returns the pairing for gateways, nil for none.
func (v seenVersion) proto() *gatewayv1.Pairing {
	if v.Pairing == nil {
		return nil
	}
	return &gatewayv1.Pairing{Engine: v.Pairing.Engine, MinPromptBytes: v.Pairing.MinPromptBytes}
}

// prefill and decode return the instances that prefill and decode in pairs of the version.
func (v seenVersion) prefill() made { return made{v.Pairing.Prefill, v.Templates[v.Pairing.Prefill]} }
func (v seenVersion) decode() made  { return made{v.Pairing.Decode, v.Templates[v.Pairing.Decode]} }

// answering returns the instances that answer requests of the version.
func (v seenVersion) answering() made {
	if v.Pairing != nil {
		return v.decode()
	}
	return made{v.Entry, v.Templates[v.Entry]}
}

// serves reports whether instances of the version may still answer requests, as instances of no newer version. used has
// the instances that are there or are wanted.
func (v seenVersion) serves(newest seenVersion, used map[made]bool) bool {
	if at := v.answering(); newest.Templates[at.role] != at.template {
		return used[at]
	}
	for role, template := range v.Templates {
		if !used[made{role, template}] {
			return false // its other instances answer as those of the newest version
		}
	}
	return true
}

// made is what instances have in common that serve a version alike.
type made struct{ role, template string }

func madeAs(in *runtime.Instance) made { return made{in.Role, in.TemplateHash} }

// pairingOf returns how gateways pair the instances of a spec. Nil: they do not.
func pairingOf(spec *windlassv1.DeploymentSpec) *gatewayv1.Pairing {
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
	if pairingOf(spec) == nil {
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

// pairsOf is how gateways send requests to the instances of a workload.
type pairsOf struct {
	// pairing is the target's. Nil: no version has pairs, and then the fields below are empty.
	pairing *gatewayv1.Pairing
	// versions has the versions that were seen, the newest last.
	versions []seenVersion
	// prefillRole is the role that prefills in the deployment's own version. Empty: its instances are not paired.
	prefillRole string
	// prefill and decode have the instances of the versions with pairs.
	prefill, decode map[made]bool
	// alone has the instances that answer requests alone, because their version has no pairs.
	alone map[made]bool
	// whole has the decode servers that can answer requests alone, although their version has pairs.
	whole map[made]bool
}

// pairsIn returns how gateways send requests to the instances of a deployment's workload.
func (t *table) pairsIn(deploymentID, key string) *pairsOf {
	spec := t.assignment(deploymentID).GetDeployment().GetSpec()
	versions := t.versionsOf(deploymentID, key)
	p := &pairsOf{pairing: pairingOf(spec)}
	for _, v := range slices.Backward(versions) {
		if p.pairing == nil {
			p.pairing = v.proto()
		}
	}
	if p.pairing == nil {
		return p
	}
	p.versions, p.prefill, p.decode, p.alone, p.whole = versions, map[made]bool{}, map[made]bool{}, map[made]bool{}, map[made]bool{}
	p.prefillRole, _, _ = pairedRoles(spec)
	for _, v := range versions {
		if v.Pairing == nil {
			p.alone[v.answering()] = true
			continue
		}
		p.prefill[v.prefill()], p.decode[v.decode()] = true, true
		if v.Pairing.Engine == gatewayv1.Pairing_ENGINE_NIXL {
			p.whole[v.decode()] = true
		}
	}
	return p
}

// answers reports whether an instance is one of the target's instances, and prefills whether it is one of its prefill.
func (p *pairsOf) answers(d *runtime.ObservedDeployment, in *runtime.Instance) bool {
	return d.IsEntry(in.Role) || p.alone[madeAs(in)] || p.decode[madeAs(in)]
}

func (p *pairsOf) prefills(_ *runtime.ObservedDeployment, in *runtime.Instance) bool {
	return p.prefillRole != "" && in.Role == p.prefillRole || p.prefill[madeAs(in)]
}

// addPairs adds to a target which of its instances are pairs, and in which way they get requests.
func (t *table) addPairs(target *gatewayv1.Target, p *pairsOf) {
	if p.pairing == nil {
		return
	}
	target.Pairing = p.pairing
	target.Prefill = t.reachableInstances(target.DeploymentId, target.WorkloadKey, p.prefills, never)
	type place struct {
		group int
		made  made
	}
	places, here, groups := map[string]place{}, map[place]bool{}, map[int]bool{}
	for _, list := range t.listsOf(target.WorkloadKey) {
		for n := range list.Instances {
			in := &list.Instances[n]
			at := place{in.Group, madeAs(in)}
			places[in.ID], here[at], groups[in.Group] = at, true, true
		}
	}
	// Two versions that differ in other roles only have the same pairs. The newer one says how they get requests.
	type pair struct{ prefill, decode made }
	pairings := map[pair]*gatewayv1.Pairing{}
	for _, v := range p.versions {
		if v.Pairing != nil {
			pairings[pair{v.prefill(), v.decode()}] = v.proto()
		}
	}
	byMade := func(a, b made) int {
		return cmp.Or(cmp.Compare(a.role, b.role), cmp.Compare(a.template, b.template))
	}
	sorted := slices.SortedFunc(maps.Keys(pairings), func(a, b pair) int {
		return cmp.Or(byMade(a.prefill, b.prefill), byMade(a.decode, b.decode))
	})
	prefillKeys, decodeKeys := map[place][]string{}, map[place][]string{}
	for group := range groups {
		n := 0
		for _, one := range sorted {
			ofPrefill, ofDecode := place{group, one.prefill}, place{group, one.decode}
			if !here[ofPrefill] && !here[ofDecode] {
				continue
			}
			key := fmt.Sprintf("%d.%d", group, n)
			prefillKeys[ofPrefill] = append(prefillKeys[ofPrefill], key)
			decodeKeys[ofDecode] = append(decodeKeys[ofDecode], key)
			if how := pairings[one]; !proto.Equal(how, p.pairing) {
				if target.KeyPairings == nil {
					target.KeyPairings = map[string]*gatewayv1.Pairing{}
				}
				target.KeyPairings[key] = how
			}
			n++
		}
	}
	ports := t.bootstrapPorts(target.WorkloadKey)
	for _, in := range target.Prefill {
		in.PairingKeys, in.BootstrapPort = prefillKeys[places[in.InstanceId]], ports[in.InstanceId]
	}
	for _, in := range target.Instances {
		in.PairingKeys, in.Alone = decodeKeys[places[in.InstanceId]], p.alone[places[in.InstanceId].made]
	}
}

// versionsOf returns all versions that were seen in the workload and whose instances may still run, the newest last.
// The deployment's own version is newer than the others. Workloads of one role have none, because no version with
// pairs takes them over.
func (t *table) versionsOf(deploymentID, key string) []seenVersion {
	known := slices.Clone(t.versions[key])
	lists := t.listsOf(key)
	if len(lists) == 0 {
		return known // nothing was observed yet
	}
	used := map[made]bool{}
	for _, own := range []bool{false, true} {
		for n := range lists {
			d := &lists[n]
			if (d.DeploymentID == deploymentID) != own || len(d.Roles) == 0 {
				continue
			}
			for n := range d.Instances {
				used[madeAs(&d.Instances[n])] = true
			}
			now := seenVersion{Templates: map[string]string{}}
			for _, r := range d.Roles {
				now.Templates[r.Name] = r.TemplateHash
				used[made{r.Name, r.TemplateHash}] = true
				if r.Entry {
					now.Entry = r.Name
				}
			}
			spec := t.assignment(d.DeploymentID).GetDeployment().GetSpec()
			if spec == nil {
				continue // it is removed, and was seen before
			}
			if prefill, decode, ok := pairedRoles(spec); ok {
				how := pairingOf(spec)
				now.Pairing = &seenPairing{Prefill: prefill, Decode: decode, Engine: how.Engine, MinPromptBytes: how.MinPromptBytes}
			}
			t.versionsNew = t.versionsNew || !slices.ContainsFunc(known, now.equals)
			known = append(slices.DeleteFunc(known, func(v seenVersion) bool { return maps.Equal(v.Templates, now.Templates) }), now)
		}
	}
	if len(known) > 0 {
		newest := known[len(known)-1]
		known = slices.DeleteFunc(known, func(v seenVersion) bool { return !v.serves(newest, used) })
	}
	if t.versions[key] = known; len(known) == 0 {
		delete(t.versions, key)
	}
	return known
}

// forgetVersions forgets the versions of workloads that do not exist any more.
func (t *table) forgetVersions() {
	maps.DeleteFunc(t.versions, func(key string, _ []seenVersion) bool { return t.workloads[key] == nil })
}

// encodeVersions returns the content of the file of versions.
func (t *table) encodeVersions() ([]byte, error) { return json.Marshal(t.versions) }

// decodeVersions reads the file of versions. Versions of earlier builds, which have no roles, are not known.
func (t *table) decodeVersions(data []byte) error {
	var in map[string][]seenVersion
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	for key, known := range in {
		if known = slices.DeleteFunc(known, func(v seenVersion) bool { return len(v.Templates) == 0 }); len(known) > 0 {
			t.versions[key] = known
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
	nixl := func(p *gatewayv1.Pairing) bool { return p == nil || p.Engine == gatewayv1.Pairing_ENGINE_NIXL }
	return slices.ContainsFunc(r.GetTargets(), func(t *gatewayv1.Target) bool {
		for _, p := range t.KeyPairings {
			if !nixl(p) {
				return true
			}
		}
		return !nixl(t.Pairing)
	})
}

// servesAlone reports whether one of the target's instances can serve requests alone.
func servesAlone(t *gatewayv1.Target, in *gatewayv1.Instance) bool {
	if t.Pairing == nil || in.Alone {
		return true
	}
	for _, key := range in.PairingKeys {
		how := t.Pairing
		if own := t.KeyPairings[key]; own != nil {
			how = own
		}
		if how.Engine == gatewayv1.Pairing_ENGINE_NIXL {
			return true
		}
	}
	return len(in.PairingKeys) == 0 && t.Pairing.Engine == gatewayv1.Pairing_ENGINE_NIXL
}

// withoutPairs returns the state for a gateway that does not know pairs: requests go to instances that can serve them
// alone.
func withoutPairs(r *gatewayv1.AppRoutes) *gatewayv1.AppRoutes {
	if !hasPairs(r) {
		return r
	}
	out := proto.CloneOf(r)
	for _, t := range out.Targets {
		t.Instances = slices.DeleteFunc(t.Instances, func(in *gatewayv1.Instance) bool { return !servesAlone(t, in) })
		t.Pairing, t.Prefill, t.KeyPairings = nil, nil, nil
		for _, in := range t.Instances {
			in.PairingKeys, in.Alone = nil, false
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
