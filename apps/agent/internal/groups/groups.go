// Package groups decides which instances of a deployment to create, to delete, to replace and to restart together,
// and which must wait. It is pure. All runtimes use it, for deployments with one role or with several.
//
//	group   one replica: a complete set of the deployment's roles
//	unit    one slot of a role: ranks 0 to Hosts-1, which start, fail and restart together
//	epoch   grows with each restart of a unit
//
// A group's number and a unit's slot are names: they never change while the group or unit exists, and gaps are allowed.
//
// Decisions are not stored: each follows from the wanted and the observed state. So a runtime that was killed between
// two actions continues with the remaining ones.
package groups

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/pkg/pool"
)

// Wanted is the state that a deployment should have.
type Wanted struct {
	Replicas int
	Roles    []Role
	// Unavailable is how many groups may be out of service while instances of older templates are
	// replaced. Less than 1 means 1.
	Unavailable int
	// Pooled means that each role is scaled and replaced separately, in one group at most. Role.Unavailable then
	// applies instead of Unavailable.
	Pooled bool
	// Order is the order in which the roles of a pool are replaced. Nil means coherent.
	Order pool.Order
}

// Role is a kind of instance within a group.
type Role struct {
	Name string
	// Units is the number of units in each group.
	Units int
	// Hosts is the number of ranks of a unit. Less than 1 means 1.
	Hosts int
	// Stable means that slots are 0 to Units-1, and that a unit is replaced in its slot. Scaling in deletes the highest
	// slots, whatever their state. If any role is stable, the numbers of groups are
	// chosen in the same way.
	Stable bool
	// StartsAfter names roles. Every unit of these roles in the group must be ready before an
	// instance of this role starts for the first time.
	StartsAfter []string
	// Unavailable is how many units of a pool may be out of service while units of older templates
	// are replaced. 0 means that one additional unit exists during the replacement.
	Unavailable int
	// Stays means that the present assignment does not change the role's template. Other roles of
	// the pool do not wait for units of the role that are not ready, unless units of an older
	// template are left.
	Stays bool
	// YieldsWhenFull means that a unit of an older template is deleted if there is no room for the
	// additional unit that the replacement of a pool starts first.
	YieldsWhenFull bool
}

func (r Role) hostCount() int { return max(r.Hosts, 1) }

// ID is the identity of an instance within its deployment.
type ID struct {
	Group int
	Role  string
	Slot  int
	Rank  int
}

// Unit returns the unit that the instance belongs to.
func (id ID) Unit() Unit { return Unit{id.Group, id.Role, id.Slot} }

func (id ID) compare(o ID) int {
	return cmp.Or(id.Unit().compare(o.Unit()), cmp.Compare(id.Rank, o.Rank))
}

// Unit names the ranks of one slot.
type Unit struct {
	Group int
	Role  string
	Slot  int
}

func (u Unit) compare(o Unit) int {
	return cmp.Or(cmp.Compare(u.Group, o.Group), cmp.Compare(u.Role, o.Role), cmp.Compare(u.Slot, o.Slot))
}

// Instance is an instance as the runtime observed it.
type Instance struct {
	ID

	// Key is unique, also among instances with the same identity.
	Key string
	// Epoch is the epoch of its unit at its last start.
	Epoch int
	// Started means that the instance ran at least once. Ended means that it ran, and does not run
	// any more.
	Started, Ended bool
	Ready          bool
	// Joined means that all ranks of the instance's unit were ready while it ran. If a rank is then
	// missing, the whole unit restarts.
	Joined bool
	// Unrouted means that the instance is ready, but no gateway sends requests to it. Scaling in
	// prefers it to an instance that serves.
	Unrouted bool
	// Leaving means that the instance is stopping and must not start again.
	Leaving bool
	// Old means that the instance's template is not the present template of its role.
	Old bool
	// Unfit means that the instance was never started, because the region has no room for it. If it
	// has the present template, it does not make its group count as out of service, because a
	// replacement that waits for the group would not make room.
	Unfit bool
}

// Decision has the actions that bring a deployment closer to its wanted state.
type Decision struct {
	// Create has the identities that have no instance, with the epoch to start each instance in.
	Create []Start
	// Delete has the keys of instances that are not wanted.
	Delete []string
	// Replace has the keys of wanted instances of older templates to delete now, so that a
	// successor is created in their place. Instances that are ready come last: in each role of a pool,
	// and without a pool in the whole list.
	Replace []string
	// Restart has the units that lost a rank. Every rank of the unit starts again, in the given
	// epoch.
	Restart []Restart
	// Wait has the reasons why instances must not start yet.
	Wait map[ID]string
}

// Start is an instance to create.
type Start struct {
	ID
	Epoch int
}

// Restart is a unit to start again.
type Restart struct {
	Unit
	Epoch int
}

// Decide compares the wanted state with the instances. Their order does not matter. If several
// instances have one identity, the instance with the lowest key stays.
func Decide(w Wanted, instances []Instance) Decision {
	instances = slices.Clone(instances)
	slices.SortFunc(instances, func(a, b Instance) int { return cmp.Or(a.compare(b.ID), cmp.Compare(a.Key, b.Key)) })
	d := Decision{Wait: map[ID]string{}}
	byGroup := map[int]map[string]units{}
	occupied := map[ID]bool{}
	hosts := map[string]int{}
	for _, r := range w.Roles {
		hosts[r.Name] = r.hostCount()
	}
	for _, i := range instances {
		if occupied[i.ID] || i.Rank >= hosts[i.Role] {
			d.Delete = append(d.Delete, i.Key)
			continue
		}
		occupied[i.ID] = true
		if byGroup[i.Group] == nil {
			byGroup[i.Group] = map[string]units{}
		}
		if byGroup[i.Group][i.Role] == nil {
			byGroup[i.Group][i.Role] = units{}
		}
		byGroup[i.Group][i.Role][i.Slot] = append(byGroup[i.Group][i.Role][i.Slot], i)
	}
	kept := map[int]bool{}
	var stay []*group
	for _, g := range chooseGroups(w, byGroup) {
		kept[g] = true
		stay = append(stay, d.decideGroup(w, g, byGroup[g]))
	}
	if !w.Pooled {
		d.decideReplacements(w, stay)
	}
	for g, roles := range byGroup {
		if !kept[g] {
			for _, of := range roles {
				d.deleteUnits(of)
			}
		}
	}
	slices.Sort(d.Delete)
	return d
}

// units has the instances of one role of one group, by slot and in the order of their ranks.
type units map[int][]Instance

// group has the facts about a group that stays, for decideReplacements.
type group struct {
	// outOfService means that the group does not serve with all its instances.
	outOfService bool
	// replacing means that some instances were replaced, or are being replaced, and others of older templates remain.
	replacing bool
	// downKeys has the keys of the group's wanted instances of older templates that are not ready.
	// readyKeys has the keys of the ready instances, by unit.
	downKeys  []string
	readyKeys [][]string
}

// addUnit adds the instances of one wanted unit. isNew reports whether a rank of the unit is missing, or has the present
// template.
func (g *group) addUnit(r Role, ranks []Instance) (isNew bool) {
	isNew = len(ranks) < r.hostCount()
	g.outOfService = g.outOfService || isNew
	var ready []string
	for _, i := range ranks {
		g.outOfService = g.outOfService || i.Leaving || !i.Ready && !i.Unfit
		switch {
		case !i.Old:
			isNew = true
		case i.Leaving:
			g.replacing = true
		case i.Ready:
			ready = append(ready, i.Key)
		default:
			g.outOfService, g.replacing = true, true
			g.downKeys = append(g.downKeys, i.Key)
		}
	}
	if ready != nil {
		g.readyKeys = append(g.readyKeys, ready)
	}
	return isNew
}

// decideReplacements decides which instances of older templates to replace. Instances that are not
// ready are replaced at once, because they serve nothing, and a broken instance must not delay the
// template that repairs it. In a group with one role, one ready unit is replaced at a time. A group
// with several roles is replaced as a whole, so that no group that serves has two templates.
func (d *Decision) decideReplacements(w Wanted, stay []*group) {
	whole := len(w.Roles) > 1
	away := 0
	for _, g := range stay {
		d.Replace = append(d.Replace, g.downKeys...)
		if g.outOfService {
			away++
		}
	}
	slices.SortStableFunc(stay, func(a, b *group) int { return trueFirst(a.replacing, b.replacing) })
	for _, g := range stay {
		switch {
		case whole && g.replacing && g.outOfService:
			d.Replace = append(d.Replace, slices.Concat(g.readyKeys...)...)
		case g.outOfService || len(g.readyKeys) == 0 || away >= max(w.Unavailable, 1):
		case whole:
			d.Replace = append(d.Replace, slices.Concat(g.readyKeys...)...)
			away++
		default:
			d.Replace = append(d.Replace, g.readyKeys[0]...)
			away++
		}
	}
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// decideGroup decides about one group that stays.
func (d *Decision) decideGroup(w Wanted, number int, there map[string]units) *group {
	out := &group{}
	missing := map[string]string{}
	wanted := map[string]bool{}
	slots := map[string][]int{}
	var bounds []pool.Bound
	if w.Pooled {
		w = fitPool(w, there)
		bounds = poolBounds(w, there)
	}
	for n, r := range w.Roles {
		wanted[r.Name] = true
		if w.Pooled && !r.Stable {
			slots[r.Name] = choosePoolSlots(r, there[r.Name], bounds[n])
		} else {
			slots[r.Name] = chooseSlots(r, there[r.Name])
		}
		if w.Pooled && r.Stable {
			d.Replace = append(d.Replace, replacePoolSlots(r, there[r.Name], slots[r.Name], bounds[n])...)
		}
		ready := 0
		for _, slot := range slots[r.Name] {
			if isUnitReady(r, there[r.Name][slot]) {
				ready++
			}
		}
		if ready < min(r.Units, len(slots[r.Name])) {
			missing[r.Name] = fmt.Sprintf("%s, of which %d of %d are ready", r.Name, ready, len(slots[r.Name]))
		}
	}
	for name, of := range there {
		if !wanted[name] {
			d.deleteUnits(of)
		}
	}
	for _, r := range w.Roles {
		var waits []string
		for _, name := range r.StartsAfter {
			if why := missing[name]; why != "" {
				waits = append(waits, why)
			}
		}
		why := ""
		if len(waits) > 0 {
			why = "waits for role " + strings.Join(waits, ", and for role ")
		}
		left := maps.Clone(there[r.Name])
		isNew, isOld := false, false
		for _, slot := range slots[r.Name] {
			d.decideUnit(r, Unit{number, r.Name, slot}, left[slot], why)
			before := len(out.readyKeys)
			isNew = out.addUnit(r, left[slot]) || isNew
			isOld = isOld || len(out.readyKeys) > before
			delete(left, slot)
		}
		out.replacing = out.replacing || isNew && isOld
		d.deleteUnits(left)
	}
	return out
}

// decideUnit decides about one unit that stays. why is the reason why its ranks must not start for the
// first time yet, or "".
func (d *Decision) decideUnit(r Role, u Unit, ranks []Instance, why string) {
	if r.hostCount() > 1 && slices.ContainsFunc(ranks, func(i Instance) bool { return i.Leaving }) {
		return // missing ranks are created once all ranks are gone, because a new rank must not join ranks that stop
	}
	epoch, joined, ended, behind := 1, false, false, false
	for _, i := range ranks {
		epoch = max(epoch, i.Epoch)
		joined = joined || i.Joined || i.Ready
		ended = ended || i.Ended
	}
	for _, i := range ranks {
		behind = behind || i.Started && i.Epoch < epoch
	}
	if r.hostCount() > 1 {
		switch lost := ended || joined && len(ranks) < r.hostCount(); {
		case behind:
			// A restart is under way: ranks of earlier epochs still have to restart.
			d.Restart = append(d.Restart, Restart{u, epoch})
		case lost:
			epoch++
			d.Restart = append(d.Restart, Restart{u, epoch})
		}
	}
	there := map[int]bool{}
	for _, i := range ranks {
		there[i.Rank] = true
		if why != "" && !i.Started && !i.Leaving {
			d.Wait[i.ID] = why
		}
	}
	for rank := range r.hostCount() {
		if !there[rank] {
			d.Create = append(d.Create, Start{ID{u.Group, u.Role, u.Slot, rank}, epoch})
		}
	}
}

func (d *Decision) deleteUnits(of units) {
	for _, ranks := range of {
		for _, i := range ranks {
			d.Delete = append(d.Delete, i.Key)
		}
	}
}

// isUnitReady reports whether every rank of the unit exists and is ready.
func isUnitReady(r Role, ranks []Instance) bool {
	return len(ranks) == r.hostCount() && !slices.ContainsFunc(ranks, func(i Instance) bool { return !i.Ready || i.Leaving })
}

// The states of groups and units. Scaling in deletes groups and units with the highest state first.
const (
	unitServes = iota
	unitUnrouted
	unitNotReady
	unitLeaves
)

func unitState(r Role, ranks []Instance) int {
	state := unitServes
	for _, i := range ranks {
		switch {
		case i.Leaving:
			return unitLeaves
		case !i.Ready:
			state = max(state, unitNotReady)
		case i.Unrouted:
			state = max(state, unitUnrouted)
		}
	}
	if len(ranks) < r.hostCount() {
		state = unitNotReady
	}
	return state
}

// chooseGroups returns the groups that stay, and the lowest free numbers for missing groups.
func chooseGroups(w Wanted, there map[int]map[string]units) []int {
	if slices.ContainsFunc(w.Roles, func(r Role) bool { return r.Stable }) {
		return firstNumbers(w.Replicas)
	}
	state := map[int]int{}
	for g, roles := range there {
		for _, r := range w.Roles {
			slots := chooseSlots(r, roles[r.Name])
			for _, slot := range slots {
				state[g] = max(state[g], unitState(r, roles[r.Name][slot]))
			}
		}
	}
	return chooseNumbers(max(w.Replicas, 0), slices.Collect(maps.Keys(there)), state)
}

// chooseSlots returns the slots of a role of a group that stay, and the lowest free slots for units that are missing.
func chooseSlots(r Role, there units) []int {
	n := max(r.Units, 0)
	if r.Stable {
		return firstNumbers(n)
	}
	state := map[int]int{}
	for slot, ranks := range there {
		state[slot] = unitState(r, ranks)
	}
	return chooseNumbers(n, slices.Collect(maps.Keys(there)), state)
}

// firstNumbers returns the numbers 0 to n-1.
func firstNumbers(n int) []int {
	out := make([]int, max(n, 0))
	for k := range out {
		out[k] = k
	}
	return out
}

// chooseNumbers returns n numbers: existing ones, lowest state and number first, and then the lowest free ones.
func chooseNumbers(n int, there []int, state map[int]int) []int {
	slices.SortFunc(there, func(a, b int) int { return cmp.Or(cmp.Compare(state[a], state[b]), cmp.Compare(a, b)) })
	taken := there[:min(n, len(there))]
	out := slices.Clone(taken)
	used := map[int]bool{}
	for _, k := range taken {
		used[k] = true
	}
	for k := 0; len(out) < n; k++ {
		if !used[k] {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
