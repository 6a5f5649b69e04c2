package runtime

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// BootstrapPort is the name of the port at which decode servers of SGLang meet a prefill server.
const BootstrapPort = "bootstrap"

// DefaultRole is the name of the one role of a deployment whose spec names no roles.
const DefaultRole = "main"

// Role is one role of a deployment. Values that it leaves out are taken from the spec.
type Role struct {
	Name string
	// Instances is the number of instances in each group, at least 1.
	Instances int
	// Pool is the number of instances in the region's whole pool. It is 0 unless the layout is
	// pooled. Unavailable is how many instances of a pool may be out of service while instances of
	// older templates are replaced.
	Pool, Unavailable int
	// Stays means that the deployment took a pool over and does not replace instances of this role.
	Stays bool
	// YieldsWhenFull means that an older instance of a pool stops if there is no room for the
	// additional instance that the replacement starts first.
	YieldsWhenFull bool
	// Hosts is the number of ranks of one instance, at least 1.
	Hosts int
	// Stable means that an instance is replaced in its slot, and that the highest slots go first.
	Stable bool
	// Entry means that routes lead to the role's instances.
	Entry bool
	// StartsAfter names roles of the group that must be ready before an instance starts for the first time.
	StartsAfter []string

	Image     string
	Command   []string
	Args      []string
	Env       map[string]string // in addition to the spec's variables; replaces those with the same names
	Resources *windlassv1.Resources
}

// Roles returns the roles of a spec, in its order. One of them is the entry role.
func Roles(s *windlassv1.DeploymentSpec) []Role {
	if len(s.GetRoles()) == 0 {
		return []Role{{
			Name: DefaultRole, Instances: 1, Hosts: 1, Entry: true,
			Image: s.GetImage(), Command: s.GetCommand(), Args: s.GetArgs(), Resources: s.GetResources(),
		}}
	}
	out := make([]Role, 0, len(s.GetRoles()))
	for _, one := range s.GetRoles() {
		r := Role{
			Name: one.GetName(), Instances: max(int(one.GetInstances()), 1), Hosts: max(int(one.GetHosts()), 1), Stable: hasStableSlots(one), Entry: one.GetEntry(), StartsAfter: one.GetStartsAfter(),
			Image: cmp.Or(one.GetImage(), s.GetImage()), Command: one.GetCommand(), Args: one.GetArgs(), Env: one.GetEnv(), Resources: one.GetResources(),
		}
		if len(r.Command) == 0 {
			r.Command = s.GetCommand()
		}
		if len(r.Args) == 0 {
			r.Args = s.GetArgs()
		}
		if r.Resources == nil {
			r.Resources = s.GetResources()
		}
		out = append(out, r)
	}
	if !slices.ContainsFunc(out, func(r Role) bool { return r.Entry }) {
		out[0].Entry = true
	}
	return out
}

// IsPooled reports whether the roles of a spec are counted and scaled separately, in one group.
func IsPooled(s *windlassv1.DeploymentSpec) bool {
	return s.GetLayout() == windlassv1.Layout_LAYOUT_POOLED && HasRoles(s)
}

// RolesIn returns the roles of a deployment. With the layout pooled, Instances is the deployment's
// share of the pool, because its replicas are percent of the pool.
func RolesIn(d *agentv1.Deployment) []Role {
	roles := Roles(d.GetSpec())
	if !IsPooled(d.GetSpec()) {
		return roles
	}
	for n := range roles {
		r := &roles[n]
		r.Pool, r.Instances = r.Instances, pool.Units(int(d.GetReplicas()), r.Instances)
		if percent := int(d.GetMaxUnavailable()); percent > 0 {
			r.Unavailable = pool.Step(percent, r.Instances)
		}
		r.YieldsWhenFull = d.GetSpec().GetUpdate().GetWhenFull() == windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE
		r.Stays = len(d.GetMovingRoles()) > 0 && !slices.Contains(d.GetMovingRoles(), r.Name)
	}
	return roles
}

// GroupsIn returns the number of groups of a deployment: one for each replica, and at most one with the layout pooled.
func GroupsIn(d *agentv1.Deployment) int {
	if IsPooled(d.GetSpec()) {
		return min(int(d.GetReplicas()), 1)
	}
	return int(d.GetReplicas())
}

// GroupsWanted returns the assignment as an input of package groups.
func (a Assignment) GroupsWanted() groups.Wanted {
	w := groups.Wanted{
		Replicas: GroupsIn(a.Deployment), Unavailable: a.MaxUnavailable(), Pooled: IsPooled(a.Deployment.GetSpec()),
		Order: pool.OrderOf(a.Deployment.GetSpec().GetUpdate()),
	}
	for _, r := range RolesIn(a.Deployment) {
		w.Roles = append(w.Roles, groups.Role{Name: r.Name, Units: r.Instances, Hosts: r.Hosts, Stable: r.Stable, StartsAfter: r.StartsAfter, Unavailable: r.Unavailable, Stays: r.Stays, YieldsWhenFull: r.YieldsWhenFull})
	}
	return w
}

// GangOf is what the pods of a gang have in common.
type GangOf int

const (
	// GangOfNone means that pods start one by one.
	GangOfNone GangOf = iota
	// GangOfUnit means that a gang has the ranks of one instance of several hosts.
	GangOfUnit
	// GangOfGroup means that a gang has all instances of one group.
	GangOfGroup
)

// defaultGangTimeout is how long the pods of a gang may lack a node, if the spec sets no timeout.
// Most new nodes start within this time.
const defaultGangTimeout = 10 * time.Minute

// Gang returns which pods of a spec start all or nothing, and how long a pod of a gang may lack a
// node.
func Gang(s *windlassv1.DeploymentSpec) (of GangOf, timeout time.Duration) {
	timeout = defaultGangTimeout
	if g := s.GetGang(); g.GetTimeout() != nil {
		timeout = g.GetTimeout().AsDuration()
	}
	switch s.GetGang().GetOf() {
	case windlassv1.Gang_OF_NONE:
		return GangOfNone, timeout
	case windlassv1.Gang_OF_GROUP:
		if !IsPooled(s) {
			return GangOfGroup, timeout
		}
	default:
	}
	if HasSeveralHosts(s) {
		return GangOfUnit, timeout
	}
	return GangOfNone, timeout
}

// Packs returns the region's word for the part of it in which all pods of a gang run, and whether they must not run
// elsewhere. The word is empty if the spec does not say where pods run.
func Packs(s *windlassv1.DeploymentSpec) (word string, required bool) {
	t := s.GetTopology()
	of, _ := Gang(s)
	switch {
	case of == GangOfNone:
		return "", false
	case t.GetOf() == windlassv1.Topology_OF_UNIT && of != GangOfUnit, t.GetOf() == windlassv1.Topology_OF_GROUP && of != GangOfGroup:
		return "", false
	}
	return t.GetPack(), t.GetMode() == windlassv1.Topology_MODE_REQUIRED
}

// HasRoles reports whether a spec has several roles. A replica is then a group of instances.
func HasRoles(s *windlassv1.DeploymentSpec) bool { return len(s.GetRoles()) > 1 }

// HasSeveralHosts reports whether an instance of some role of the spec spans several hosts.
func HasSeveralHosts(s *windlassv1.DeploymentSpec) bool {
	return slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool { return r.GetHosts() > 1 })
}

// HasStableSlots reports whether a role of the spec has stable slots.
func HasStableSlots(s *windlassv1.DeploymentSpec) bool {
	return slices.ContainsFunc(s.GetRoles(), hasStableSlots)
}

func hasStableSlots(r *windlassv1.RoleSpec) bool {
	return r.GetSlots() == windlassv1.RoleSpec_SLOTS_STABLE
}

// RefuseHosts returns why a runtime whose instances are on one host cannot run the roles of a spec,
// or nil if it can.
func RefuseHosts(s *windlassv1.DeploymentSpec) *Rejection {
	for i, r := range s.GetRoles() {
		if r.GetHosts() > 1 {
			return &Rejection{Code: ReasonUnsupported, Message: fmt.Sprintf("roles[%d].hosts: an instance cannot span %d hosts in this region: use a Kubernetes region, or leave hosts out", i, r.GetHosts())}
		}
	}
	return nil
}

// RefuseRoles returns why no runtime of this release can run the roles of a spec, or nil if one
// can.
func RefuseRoles(s *windlassv1.DeploymentSpec) *Rejection {
	if s.GetLayout() == windlassv1.Layout_LAYOUT_POOLED && !HasRoles(s) {
		return &Rejection{Code: ReasonInvalidSpec, Message: "layout: a pool needs several roles: name them, or leave layout out"}
	}
	index := map[string]int{}
	entries := 0
	for i, r := range s.GetRoles() {
		at := fmt.Sprintf("roles[%d].", i)
		switch _, twice := index[r.GetName()]; {
		case twice:
			return &Rejection{Code: ReasonInvalidSpec, Message: fmt.Sprintf("%sname: two roles are named %q", at, r.GetName())}
		case r.GetHosts() > 1 && r.GetInstances() > 1 && len(s.GetRoles()) == 1:
			return &Rejection{Code: ReasonUnsupported, Message: at + "instances: a replica of one role is one instance of several hosts: leave instances out, and raise replicas"}
		}
		if r.GetEntry() {
			entries++
		}
		index[r.GetName()] = i
	}
	if entries > 1 {
		return &Rejection{Code: ReasonInvalidSpec, Message: fmt.Sprintf("roles: %d roles are the entry: set entry for one role only", entries)}
	}
	return refuseOrder(s.GetRoles(), index)
}

// refuseOrder returns why the roles cannot start in the order of starts_after, or nil if they can.
func refuseOrder(roles []*windlassv1.RoleSpec, index map[string]int) *Rejection {
	starts := map[string]bool{}
	for range roles {
		for _, r := range roles {
			starts[r.GetName()] = !slices.ContainsFunc(r.GetStartsAfter(), func(name string) bool { return !starts[name] })
		}
	}
	for i, r := range roles {
		for _, name := range r.GetStartsAfter() {
			if _, known := index[name]; !known {
				return &Rejection{Code: ReasonInvalidSpec, Message: fmt.Sprintf("roles[%d].startsAfter: there is no role %q: name a role of the app", i, name)}
			}
		}
		if !starts[r.GetName()] {
			return &Rejection{Code: ReasonInvalidSpec, Message: fmt.Sprintf("roles[%d].startsAfter: role %s waits for itself, directly or through other roles", i, r.GetName())}
		}
	}
	return nil
}

// TemplateOf returns the hash of the template of the role's instances.
func (a Assignment) TemplateOf(role string) string {
	return cmp.Or(a.RoleTemplates[role], a.TemplateHash)
}

// RoleCount is how many instances one role of a deployment should have, and their template.
type RoleCount struct {
	Name string `json:"name"`
	// Instances is the number of instances in each group. Pool is the number of instances in the
	// region's whole pool. It is 0 unless the layout is pooled.
	Instances int `json:"instances"`
	Pool      int `json:"pool,omitempty"`
	// Entry means that routes lead to the role's instances.
	Entry bool `json:"entry,omitempty"`
	// TemplateHash is the template of the newest assignment.
	TemplateHash string `json:"template,omitempty"`
}

// RoleCounts returns the RoleCount of each role of an assignment, or nil if there is only one role.
func (a Assignment) RoleCounts() []RoleCount {
	if !HasRoles(a.Deployment.GetSpec()) {
		return nil
	}
	var out []RoleCount
	for _, r := range RolesIn(a.Deployment) {
		out = append(out, RoleCount{r.Name, r.Instances, r.Pool, r.Entry, a.TemplateOf(r.Name)})
	}
	return out
}

// IsCurrent reports whether an instance was made from the newest template.
func (d *ObservedDeployment) IsCurrent(in *Instance) bool {
	for n := range d.Roles {
		if d.Roles[n].Name == in.Role {
			return in.TemplateHash == d.Roles[n].TemplateHash
		}
	}
	return in.TemplateHash == d.TemplateHash && len(d.Roles) == 0
}

// IsEntry reports whether routes lead to instances of the role.
func (d *ObservedDeployment) IsEntry(role string) bool {
	return len(d.Roles) == 0 || slices.ContainsFunc(d.Roles, func(r RoleCount) bool { return r.Entry && r.Name == role })
}

// IsPool reports whether the deployment's one group is a pool. A replica is then one percent of the
// pool.
func (d *ObservedDeployment) IsPool() bool { return len(d.Roles) > 0 && d.Roles[0].Pool > 0 }

// CompleteGroups returns the groups in which every instance of every role is ready. A pool serves
// with the instances that it has, so it is complete if one instance of every role is ready. The
// result is nil if a replica is a single instance. counts reports whether an instance may count as
// ready.
func (d *ObservedDeployment) CompleteGroups(counts func(*Instance) bool) map[int]bool {
	if len(d.Roles) == 0 {
		return nil
	}
	type place struct {
		group int
		role  string
	}
	ready, out := map[place]int{}, map[int]bool{}
	for n := range d.Instances {
		in := &d.Instances[n]
		switch in.Status {
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
			if counts(in) {
				ready[place{in.Group, in.Role}]++
			}
			out[in.Group] = true
		default:
		}
	}
	for g := range out {
		for _, r := range d.Roles {
			if n := ready[place{g, r.Name}]; n == 0 || n < r.Instances && r.Pool == 0 {
				delete(out, g)
				break
			}
		}
	}
	return out
}

// PeersEnv is the variable with the path of an instance's peers file. Only instances of deployments
// with several roles have it.
const PeersEnv = "WINDLASS_PEERS"

// Peers is the content of a peers file: the addresses of the ready instances of one group, by role
// and in the order of their slots. Every role of the group is in it.
type Peers struct {
	Group int                 `json:"group"`
	Roles map[string][]string `json:"roles"`
}

// PeersOf returns the content of the peers file of each group. serves reports whether an instance
// is listed.
func PeersOf(roles []string, instances []Instance, serves func(*Instance) bool) map[int][]byte {
	sorted := slices.Clone(instances)
	slices.SortStableFunc(sorted, func(a, b Instance) int { return cmp.Compare(a.Slot, b.Slot) })
	all := map[int]Peers{}
	for n := range sorted {
		in := &sorted[n]
		p, ok := all[in.Group]
		if !ok {
			p = Peers{Group: in.Group, Roles: map[string][]string{}}
			for _, r := range roles {
				p.Roles[r] = []string{}
			}
			all[in.Group] = p
		}
		if _, wanted := p.Roles[in.Role]; wanted && in.Address != "" && serves(in) {
			p.Roles[in.Role] = append(p.Roles[in.Role], in.Address)
		}
	}
	out := make(map[int][]byte, len(all))
	for g, p := range all {
		data, err := json.Marshal(p)
		if err != nil {
			continue // cannot happen: maps of strings can always be encoded
		}
		out[g] = append(data, '\n')
	}
	return out
}
