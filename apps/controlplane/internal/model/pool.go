package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// IsPooled reports whether roles of the spec are counted and scaled separately. A replica is then one percent
// of the region's pool.
func IsPooled(spec *windlassv1.DeploymentSpec) bool {
	return spec.GetLayout() == windlassv1.Layout_LAYOUT_POOLED
}

// SizeText returns a number of replicas of the spec in words: "2 replicas", or "a whole pool", "no pool" and "25% of a
// pool" for a pool.
func SizeText(spec *windlassv1.DeploymentSpec, replicas int32) string {
	return pool.SizeText(IsPooled(spec), replicas)
}

// ReadyText returns how many of the replicas are ready: "3 of 4 replicas ready", or "75% of the pool ready" for a pool.
func ReadyText(pooled bool, ready, replicas int32) string {
	switch {
	case !pooled:
		return fmt.Sprintf("%d of %d replicas ready", ready, replicas)
	case replicas == pool.Whole:
		return fmt.Sprintf("%d%% of the pool ready", ready)
	}
	return fmt.Sprintf("%d%% of the pool ready, of %d%%", ready, replicas)
}

// RoleCounts are how many instances of each role a region's whole pool has, by the role's name.
type RoleCounts map[string]int32

// Encode returns the form in which Topology.Roles has the counts: "decode=2,prefill=8".
func (c RoleCounts) Encode() string {
	var parts []string
	for name, n := range c {
		parts = append(parts, fmt.Sprintf("%s=%d", name, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// RoleCounts returns the counts of the row's roles. It is empty unless the layout is pooled.
func (t Topology) RoleCounts() RoleCounts {
	c := RoleCounts{}
	for part := range strings.SplitSeq(t.Roles, ",") {
		name, text, _ := strings.Cut(part, "=")
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			c[name] = int32(n)
		}
	}
	return c
}

// In returns spec, which is the spec of one region, with the row's counts of a pool's roles. For other layouts it
// returns spec itself, so callers must not change the result.
func (t Topology) In(spec *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	if !IsPooled(spec) {
		return spec
	}
	counts, out := t.RoleCounts(), proto.CloneOf(spec)
	for _, r := range out.GetRoles() {
		if n := counts[r.GetName()]; n > 0 {
			r.Instances = n
		}
	}
	return out
}

// InstancesOf returns how many instances of the role belong to that number of replicas of the spec.
func InstancesOf(spec *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec, replicas int32) int32 {
	n := max(r.GetInstances(), 1)
	if !IsPooled(spec) {
		return n * replicas
	}
	return int32(pool.Units(int(replicas), int(n)))
}

// Instances returns how many instances the replicas of the spec have.
func Instances(spec *windlassv1.DeploymentSpec, replicas int32) int32 {
	if len(spec.GetRoles()) == 0 {
		return replicas
	}
	var n int32
	for _, r := range spec.GetRoles() {
		n += InstancesOf(spec, r, replicas)
	}
	return n
}

// Shares returns the percent of the pool that is ready, whatever the version of its instances, and the percent that
// exists. ok is false if the region reports no pool.
func (o Observed) Shares() (ready, existing int32, ok bool) {
	_, roles := o.Counts()
	var serve, exist []pool.Role
	for _, r := range roles {
		if r.GetPool() == 0 {
			return 0, 0, false
		}
		serve = append(serve, pool.Role{Have: int(r.GetReady()), Pool: int(r.GetPool())})
		exist = append(exist, pool.Role{Have: int(r.GetInstances()), Pool: int(r.GetPool())})
	}
	return int32(pool.Ready(serve)), int32(pool.Existing(exist)), len(roles) > 0
}

// MovingRoles returns the names of the roles whose instances the region replaces since the row took a pool over. It is
// empty for a row that took none over.
func (t Topology) MovingRoles() []string {
	if t.Moving == "" {
		return nil
	}
	return strings.Split(t.Moving, ",")
}

// EncodeMovingRoles returns the form in which Topology.Moving has the names of roles.
func EncodeMovingRoles(names []string) string { return strings.Join(names, ",") }

// HasMoved reports whether a region runs all instances of a role of the row's pool, and none of an earlier version. It is
// false until the region has reported the row's newest generation.
func (t Topology) HasMoved(role string, o Observed) bool {
	if o.CountsGeneration < t.Generation || o.AppliedGeneration < t.Generation || o.Phase != int32(agentv1.AppliedState_PHASE_APPLIED) {
		return false
	}
	_, roles := o.Counts()
	for _, r := range roles {
		if r.GetRole() == role {
			return r.GetUpdated() == r.GetInstances() && r.GetUpdated() >= int32(pool.Units(int(t.Replicas), int(r.GetPool())))
		}
	}
	return len(roles) == 0 && o.ReadyReplicas >= t.Replicas
}

// MovesInPlace reports whether a region replaces the instances of the moving roles in their slots when it moves to d.
// d has layout pooled. hasOrders reports whether the region's agent replaces roles in the order that the spec names.
func (d *Deployment) MovesInPlace(moving []string, hasOrders bool) bool {
	order := pool.OrderOf(nil)
	if hasOrders {
		order = pool.OrderOf(d.Spec.GetUpdate())
	}
	return order.InPlace(len(moving))
}

// ReplacesWhenFull reports whether an old instance of a pool stops if the region has no room for one instance more of its
// role.
func ReplacesWhenFull(spec *windlassv1.DeploymentSpec) bool {
	return spec.GetUpdate().GetWhenFull() == windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE
}

// PercentOfSet returns how many percent of a pool may be out of service while one version gives up one instance of each role
// for another version. It is one instance of the smallest role, and what is lost because the shares that the instances of the
// two versions cover are rounded down: of 6 instances, 1 and 4 cover 16 + 66 percent. spec is the spec in the region.
func PercentOfSet(spec *windlassv1.DeploymentSpec) (percent int32) {
	for _, r := range spec.GetRoles() {
		n := max(r.GetInstances(), 1)
		for kept := range n {
			percent = max(percent, pool.Whole-kept*pool.Whole/n-(n-1-kept)*pool.Whole/n)
		}
	}
	return percent
}

// RolesInPlace returns the roles whose instances are replaced in their places, as they are before the first is replaced.
// spec is the spec in the region. unavailable is how many percent of the pool may be out of service.
func RolesInPlace(spec *windlassv1.DeploymentSpec, moving []string, unavailable int32) (out []pool.Progress) {
	for _, r := range spec.GetRoles() {
		if !slices.Contains(moving, r.GetName()) {
			continue
		}
		one := pool.Progress{Name: r.GetName(), Units: int(max(r.GetInstances(), 1))}
		if unavailable > 0 {
			one.Unavailable = pool.Step(int(unavailable), one.Units)
		}
		out = append(out, one)
	}
	return out
}

// HasPoolOrders reports whether the region's agent replaces the roles of pools in the order that specs name.
func (r Region) HasPoolOrders() bool {
	return slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_POOL_ORDERS.String())
}

// HasPoolYields reports whether the region's agent stops an old instance of a pool when the spec says so and there is no
// room for one more. See ReplacesWhenFull.
func (r Region) HasPoolYields() bool {
	return slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_POOL_YIELDS.String())
}

// ChangedRoles returns the names of the roles whose instances are made differently in b than in d. same reports
// whether both are pools of the same roles. Only then can one take over the instances of the other.
//
// A role has changed if its hash differs, if it changes with the image and the image differs, or if only one of the
// versions changes it with the image. In each case, the region gets another template hash for the role. A role whose
// hash is not known counts as changed.
func (d *Deployment) ChangedRoles(b *Deployment) (changed []string, same bool) {
	if d == nil || b == nil || !IsPooled(d.Spec) || !IsPooled(b.Spec) || !SameGroups(d.Spec, b.Spec) {
		return nil, false
	}
	left, right := d.RoleHashes(), b.RoleHashes()
	ofImage, wasOfImage := RolesOfImage(d.Spec), RolesOfImage(b.Spec)
	for _, r := range d.Spec.GetRoles() {
		now, was := left[r.GetName()], right[r.GetName()]
		follows, followed := slices.Contains(ofImage, r.GetName()), slices.Contains(wasOfImage, r.GetName())
		if now == nil || !slices.Equal(now, was) || follows != followed || follows && d.ResolvedImage != b.ResolvedImage {
			changed = append(changed, r.GetName())
		}
	}
	return changed, true
}
