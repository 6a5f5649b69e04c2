package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// InstancesEach returns how many instances make a replica of the spec.
func InstancesEach(spec *windlassv1.DeploymentSpec) int32 { return Instances(spec, 1) }

// HostsOf returns how many hosts an instance of the role has.
func HostsOf(r *windlassv1.RoleSpec) int32 { return max(r.GetHosts(), 1) }

// HostsOfInstance returns how many hosts an instance of the role with that name has, 1 if the spec has no such role.
func HostsOfInstance(spec *windlassv1.DeploymentSpec, role string) int32 {
	for _, r := range spec.GetRoles() {
		if r.GetName() == role {
			return HostsOf(r)
		}
	}
	return 1
}

// HasSeveralHosts reports whether an instance of some role of the spec has several hosts.
func HasSeveralHosts(spec *windlassv1.DeploymentSpec) bool { return RoleOfSeveralHosts(spec) >= 0 }

// RoleOfSeveralHosts returns the index of the first role whose instances have several hosts, -1 for none.
func RoleOfSeveralHosts(spec *windlassv1.DeploymentSpec) int {
	return slices.IndexFunc(spec.GetRoles(), func(r *windlassv1.RoleSpec) bool { return HostsOf(r) > 1 })
}

// RunsSeveralHosts reports whether the region's agent runs instances of several hosts. It is true for a region that no
// agent has joined, because the agent that joins may do so.
func (r Region) RunsSeveralHosts() bool {
	return r.AgentRuntime == "" || slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_UNIT_HOSTS.String())
}

// HasGang reports whether the spec says which pods start all or nothing, and an agent must know it.
func HasGang(spec *windlassv1.DeploymentSpec) bool {
	return spec.GetGang() != nil && spec.GetGang().GetOf() != windlassv1.Gang_OF_NONE
}

// StartsGangs reports whether the region's agent starts pods all or nothing. It is true for a region that no agent has
// joined, because the agent that joins may do so.
func (r Region) StartsGangs() bool {
	return r.AgentRuntime == "" || slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_GANG.String())
}

// HasTopology reports whether the spec says in which part of a region the pods of a gang run together.
func HasTopology(spec *windlassv1.DeploymentSpec) bool { return spec.GetTopology().GetPack() != "" }

// PacksGangs reports whether the region's agent runs the pods of a gang in one part of the region. It is true for a
// region that no agent has joined, because the agent that joins may do so.
func (r Region) PacksGangs() bool {
	return r.AgentRuntime == "" || slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_TOPOLOGY.String())
}

// StableRoles returns the names of the roles with stable slots, in the order of the spec.
func StableRoles(spec *windlassv1.DeploymentSpec) (names []string) {
	for _, r := range spec.GetRoles() {
		if r.GetSlots() == windlassv1.RoleSpec_SLOTS_STABLE {
			names = append(names, r.GetName())
		}
	}
	return names
}

// KeepsSlots reports whether the region's agent keeps slots stable. It is true for a region that no agent has joined,
// because the agent that joins may do so.
func (r Region) KeepsSlots() bool {
	return r.AgentRuntime == "" || slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_STABLE_SLOTS.String())
}

// HasPairing reports whether gateways send requests to pairs of instances of the spec.
func HasPairing(spec *windlassv1.DeploymentSpec) bool {
	e := spec.GetPairing().GetEngine()
	return e != windlassv1.Pairing_ENGINE_UNSPECIFIED && e != windlassv1.Pairing_ENGINE_NONE
}

// PairedRoles returns the names of the roles that prefill and decode in the pairs of the spec.
func PairedRoles(spec *windlassv1.DeploymentSpec) (prefill, decode string) {
	return cmp.Or(spec.GetPairing().GetPrefill(), "prefill"), cmp.Or(spec.GetPairing().GetDecode(), "decode")
}

// PairingEngine returns the name of the engine of the spec's pairs, as files have it.
func PairingEngine(spec *windlassv1.DeploymentSpec) string {
	name := strings.ToLower(strings.TrimPrefix(spec.GetPairing().GetEngine().String(), "ENGINE_"))
	return strings.Replace(name, "unspecified", "none", 1)
}

// RoutesPairs reports whether the region's agent tells gateways about pairs. It is true for a region that no agent has
// joined, because the agent that joins may do so.
func (r Region) RoutesPairs() bool {
	return r.AgentRuntime == "" || slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_PAIRING.String())
}

// SameGroups reports whether groups of both specs have the same roles, with as many instances of each, as many
// hosts of each instance, and the same roles with stable slots. The counts of a pool are the region's, and the same for both.
func SameGroups(a, b *windlassv1.DeploymentSpec) bool {
	left, right := StableRoles(a), StableRoles(b)
	slices.Sort(left)
	slices.Sort(right)
	if !sameHosts(a, b) || !slices.Equal(left, right) {
		return false
	}
	if len(a.GetRoles()) < 2 && len(b.GetRoles()) < 2 {
		return true
	}
	if len(a.GetRoles()) != len(b.GetRoles()) || IsPooled(a) != IsPooled(b) {
		return false
	}
	instances := map[string]int32{}
	for _, r := range a.GetRoles() {
		instances[r.GetName()] = max(r.GetInstances(), 1)
	}
	for _, r := range b.GetRoles() {
		if n, there := instances[r.GetName()]; !there || n != max(r.GetInstances(), 1) && !IsPooled(a) {
			return false
		}
	}
	return true
}

// sameHosts reports whether instances of each role have the same number of hosts in a and b.
func sameHosts(a, b *windlassv1.DeploymentSpec) bool {
	hosts := func(spec *windlassv1.DeploymentSpec) map[string]int32 {
		out := map[string]int32{}
		for _, r := range spec.GetRoles() {
			if HostsOf(r) > 1 {
				out[r.GetName()] = HostsOf(r)
			}
		}
		return out
	}
	return maps.Equal(hosts(a), hosts(b))
}

// RolesTogether returns the names of the roles that change as one, in the order of the spec.
func RolesTogether(spec *windlassv1.DeploymentSpec) (names []string) {
	for _, r := range spec.GetRoles() {
		if r.GetTogether() {
			names = append(names, r.GetName())
		}
	}
	return names
}

// HasSpecImage reports whether instances of the role change with the image of the spec. They do if the role has no image
// of its own, or if it changes together with a role that has none.
func HasSpecImage(spec *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec) bool {
	return r.GetImage() == "" || r.GetTogether() && slices.ContainsFunc(spec.GetRoles(), func(o *windlassv1.RoleSpec) bool {
		return o.GetTogether() && o.GetImage() == ""
	})
}

// RolesOfImage returns the names of the roles that change with the image of the spec, in the order of the spec; see
// HasSpecImage. It is empty for a spec without an image.
func RolesOfImage(spec *windlassv1.DeploymentSpec) (names []string) {
	if spec.GetImage() == "" {
		return nil
	}
	for _, r := range spec.GetRoles() {
		if HasSpecImage(spec, r) {
			names = append(names, r.GetName())
		}
	}
	return names
}

// EncodeRoleHashes returns the form in which Deployment.RolesMade has hashes of roles by name.
func EncodeRoleHashes(hashes map[string][]byte) (string, error) {
	d := &agentv1.Deployment{}
	for name, hash := range hashes {
		d.RoleTemplates = append(d.RoleTemplates, &agentv1.RoleTemplate{Role: name, TemplateHash: hash})
	}
	slices.SortFunc(d.RoleTemplates, func(a, b *agentv1.RoleTemplate) int { return cmp.Compare(a.GetRole(), b.GetRole()) })
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encode hashes of roles: %w", err)
	}
	return string(b), nil
}

// RoleHashes returns the hash of what instances of each role are made of, by the role's name. It is empty for
// one role, and for versions of releases that had no such hashes.
func (d *Deployment) RoleHashes() map[string][]byte {
	held := &agentv1.Deployment{}
	if d.RolesMade == "" || proto.Unmarshal([]byte(d.RolesMade), held) != nil {
		return nil
	}
	hashes := map[string][]byte{}
	for _, r := range held.GetRoleTemplates() {
		hashes[r.GetRole()] = r.GetTemplateHash()
	}
	return hashes
}

// These bounds keep the counts of all roles within their column.
const (
	maxCountedRoles = 8
	maxRoleName     = 63
	maxRoleReason   = 64
	maxRoleMessage  = 256
)

// EncodeRoleCounts returns a report's counts of groups and roles, in the form of Observed.RoleCounts. It is empty
// for a deployment with one role.
func EncodeRoleCounts(r *agentv1.DeploymentRollup) string {
	if len(r.GetRoles()) == 0 {
		return ""
	}
	kept := &agentv1.DeploymentRollup{Groups: max(r.GetGroups(), 0)}
	for _, role := range r.GetRoles()[:min(len(r.GetRoles()), maxCountedRoles)] {
		kept.Roles = append(kept.Roles, &agentv1.RoleRollup{
			Role: cutText(role.GetRole(), maxRoleName), Instances: max(role.GetInstances(), 0), Ready: max(role.GetReady(), 0), Updated: max(role.GetUpdated(), 0),
			Pool: max(role.GetPool(), 0), Doomed: max(role.GetDoomed(), 0), Reason: cutText(role.GetReason(), maxRoleReason), Message: cutText(role.GetMessage(), maxRoleMessage),
		})
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(kept)
	if err != nil {
		return "" // only invalid UTF-8 fails, and a received message has none
	}
	return string(b)
}

// Counts returns how many groups exist, and the counts of each role. roles is empty for a deployment with one
// role.
func (o Observed) Counts() (groups int32, roles []*agentv1.RoleRollup) {
	held := &agentv1.DeploymentRollup{}
	if o.RoleCounts == "" || proto.Unmarshal([]byte(o.RoleCounts), held) != nil {
		return 0, nil
	}
	return held.GetGroups(), held.GetRoles()
}

// cutText returns the first n bytes of a text, without bytes that are not UTF-8.
func cutText(text string, n int) string { return strings.ToValidUTF8(text[:min(n, len(text))], "") }
