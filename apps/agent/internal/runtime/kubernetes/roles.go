package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A deployment with several roles, with instances of several hosts or with stable slots has one
// workload for each instance or rank: a Deployment of one pod with the labels of its role, group,
// slot and rank.
// Kubernetes keeps each workload alive by itself. Package groups says which workloads should exist,
// which must wait, and which may take another template:
//
//	to create      the workload is made. While it waits for roles, it has no pod
//	to replace     the workload takes the new template. Until then, it keeps the old one
//	to delete      the workload is marked, and its pod goes. An empty workload is deleted
//
// In each step, the whole state is read from the cluster again: labels, marks, templates and pods.
// So after an agent was killed at any step, the next agent continues from there. A deployment
// without replicas keeps one empty workload, which owns the objects that the app shares.

// familyRef returns a reference that identifies all instances of an assignment with several roles.
func familyRef(namespace string, a runtime.Assignment) render.Ref {
	return render.NewRef(render.KindRoles, namespace, render.FamilyKey(a))
}

// families is a Runtime with the methods about deployments with several roles.
type families struct{ *Runtime }

// applyRoles is Apply for a deployment with several roles.
func (r families) applyRoles(ctx context.Context, a runtime.Assignment) error {
	if rej := runtime.RefuseRoles(a.Deployment.GetSpec()); rej != nil {
		return rej
	}
	if _, err := r.packOf(a.Deployment.GetSpec()); err != nil {
		return err
	}
	f := newFamily(a)
	var namespace string
	for n := range f.roles {
		// If a role cannot run, this refuses the assignment before anything changes.
		objects, err := r.renderObjects(f.assignmentOf(n, runtime.Unit{}))
		if err != nil {
			return err
		}
		namespace = render.RefOf(render.KindWorkload, objects.Workload).Namespace
	}
	at := familyRef(namespace, a)
	let := r.locks.Shared("Namespace " + namespace)
	defer let()
	unlock := r.locks.Exclusive(at.String())
	defer unlock()
	r.wanted.wantRoles(at, a)
	return r.ensureRoles(ctx, at, f)
}

// lookAtRoles looks at the instances of a deployment with several roles, and repairs objects that
// are not as wanted.
func (r families) lookAtRoles(ctx context.Context, at render.Ref) error {
	let := r.locks.Shared("Namespace " + at.Namespace)
	defer let()
	unlock := r.locks.Exclusive(at.String())
	defer unlock()
	a, ok := r.wanted.rolesOf(at)
	if !ok {
		if id := r.wanted.takeRemoval(at); id != "" {
			if err := r.removeWorkloads(ctx, id); err != nil {
				r.wanted.noteRemoval(at, id)
				return err
			}
		}
		return nil
	}
	return r.ensureRoles(ctx, at, newFamily(a))
}

// family is an assignment with several roles. It is not safe for concurrent use.
type family struct {
	a     runtime.Assignment
	roles []runtime.Role
	entry string
	// parts has the assignments of single roles, by the role's index and the number of pods.
	parts map[[2]int]*runtime.Assignment
}

func newFamily(a runtime.Assignment) *family {
	f := &family{a: a, roles: runtime.RolesIn(a.Deployment), parts: map[[2]int]*runtime.Assignment{}}
	for _, r := range f.roles {
		if r.Entry {
			f.entry = r.Name
		}
	}
	return f
}

func (f *family) index(role string) int {
	return slices.IndexFunc(f.roles, func(r runtime.Role) bool { return r.Name == role })
}

// wantedGroups returns the assignment as an input of package groups.
func (f *family) wantedGroups() groups.Wanted { return f.a.GroupsWanted() }

// assignmentOf returns the assignment of one instance of the n-th role.
func (f *family) assignmentOf(n int, u runtime.Unit) runtime.Assignment {
	pods := 1
	if u.Leaves || u.Waits != "" {
		pods = 0
	}
	part := f.parts[[2]int{n, pods}]
	if part == nil {
		one := f.a
		one.Deployment = proto.CloneOf(f.a.Deployment)
		spec := one.Deployment.Spec
		spec.Roles = []*windlassv1.RoleSpec{spec.Roles[n]}
		spec.Resources = f.roles[n].Resources
		one.Deployment.Replicas, one.Deployment.MaxUnavailable = int32(pods), 1
		one.TemplateHash, one.RoleTemplates = f.a.TemplateOf(f.roles[n].Name), nil
		part = &one
		f.parts[[2]int{n, pods}] = part
	}
	out := *part
	u.Role, u.At = f.roles[n].Name, fmt.Sprintf("roles[%d].", n)
	u.Hosts, u.Epoch = f.roles[n].Hosts, max(u.Epoch, 1)
	u.Entry, u.Roles, u.Replicas = f.entry, f.a.RoleCounts(), runtime.GroupsIn(f.a.Deployment)
	out.Unit = &u
	return out
}

// unit is the workload of one instance, or of one rank of an instance of several hosts.
type unit struct {
	groups.ID

	ref  render.Ref
	live *appsv1.Deployment
	// epoch is the epoch of the workload's template, or 0 for an instance of one host.
	epoch int
	// pods has the pods that count as a replica of the workload.
	pods []*corev1.Pod
	// rank has the facts about a rank of an instance of several hosts.
	rank rankPod
	// leaves means that the workload is marked to be removed. empty means that such a workload has
	// no running pod any more.
	leaves, empty bool
	// look is the time after which the workload must be looked at again. 0: it waits for an event.
	look time.Duration
}

// roomPatience is how long a pod may wait for a node before it counts as a pod without room. The
// scheduler may need up to 10 s to notice the room of a pod that has left.
const roomPatience = 15 * time.Second

// unitsOf returns the workloads of the instances of a deployment, by name.
func (r families) unitsOf(at render.Ref) []*unit {
	var out []*unit
	for _, o := range r.caches.List(render.KindWorkload, access.ByFamily, at.Namespace+"/"+at.Name) {
		w, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		u := &unit{ID: placeOf(w.Labels), ref: render.NewRef(render.KindWorkload, w.Namespace, w.Name), live: w}
		u.epoch = epochOf(w.Spec.Template.Annotations)
		all := r.caches.PodsOf(w.Namespace, w.Labels[render.LabelWorkload])
		runs := false
		for _, p := range all {
			// Ended pods, such as evicted ones, go with their workload.
			runs = runs || p.DeletionTimestamp != nil || observe.Holds(p)
			if observe.Holds(p) {
				u.pods = append(u.pods, p)
			}
		}
		if w.Labels[render.LabelRank] != "" {
			u.rank = rankPodOf(w, u.pods)
		}
		u.leaves = w.Annotations[render.AnnotationLeaves] == render.True || w.DeletionTimestamp != nil
		u.empty = u.leaves && w.DeletionTimestamp == nil && !runs && ptr.Deref(w.Spec.Replicas, 1) == 0 && !r.isUnsettled(w)
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b *unit) int { return cmp.Compare(a.ref.Name, b.ref.Name) })
	return out
}

// placeOf reads the place of an instance from the labels of its objects.
func placeOf(labels map[string]string) groups.ID {
	group, _ := strconv.Atoi(labels[render.LabelGroup])
	slot, _ := strconv.Atoi(labels[render.LabelSlot])
	rank, _ := strconv.Atoi(labels[render.LabelRank])
	return groups.ID{Role: labels[render.LabelComponent], Group: group, Slot: slot, Rank: rank}
}

// observedUnit returns the instance as an input of package groups.
func (r families) observedUnit(f *family, u *unit, now time.Time) groups.Instance {
	want := f.a.TemplateOf(u.Role)
	in := groups.Instance{
		ID: u.ID, Key: u.ref.Name, Leaving: u.leaves, Epoch: u.epoch,
		Started: len(u.pods) > 0 || u.live.Annotations[render.AnnotationWaits] == "" && ptr.Deref(u.live.Spec.Replicas, 1) > 0,
	}
	for _, p := range u.pods {
		in.Ready = in.Ready || observe.IsReady(p) && !render.Drains(p) && epochOf(p.Annotations) == u.epoch
		in.Old = in.Old || p.Annotations[render.AnnotationTemplateHash] != want
		if p.Spec.NodeName == "" {
			u.look = max(0, roomPatience-now.Sub(p.CreationTimestamp.Time))
			in.Unfit = in.Unfit || u.look == 0
		}
	}
	if len(u.pods) == 0 {
		in.Old = u.live.Spec.Template.Annotations[render.AnnotationTemplateHash] != want
		// Only a pool starts an instance in addition. In a group, the quota refuses a pod only until the previous pod
		// has left.
		in.Unfit = runtime.IsPooled(f.a.Deployment.GetSpec()) && observe.LacksQuota(u.live) || isGangWait(u.live)
	}
	in.Unrouted = r.released != nil && u.Role == f.entry && (u.Rank > 0 || !slices.ContainsFunc(u.pods, func(p *corev1.Pod) bool {
		return !r.released(render.InstanceID(p.UID))
	}))
	return in
}

// ensureRoles makes the instances of a deployment what they should be now. The caller holds the
// lock of at. Work that must wait is done by the next look, which an event of a pod or of a
// workload causes.
func (r families) ensureRoles(ctx context.Context, at render.Ref, f *family) error {
	all := r.unitsOf(at)
	var seen []groups.Instance
	known := map[groups.ID]*unit{}
	for _, u := range all {
		known[u.ID] = u
		if !u.empty {
			seen = append(seen, r.observedUnit(f, u, time.Now()))
		}
		if u.look > 0 {
			r.repairs.queue.AddAfter(at, u.look)
		}
	}
	f.joinRanks(all, seen)
	d := groups.Decide(f.wantedGroups(), seen)
	started := map[groups.Unit]bool{}
	for n := range seen {
		started[seen[n].Unit()] = started[seen[n].Unit()] || seen[n].Started
	}
	for _, c := range d.Create {
		seen = append(seen, groups.Instance{ID: c.ID, Key: "new", Started: started[c.Unit()]})
	}
	// Instances that are created may have to wait, too.
	waits := groups.Decide(f.wantedGroups(), seen).Wait
	gangs, err := r.lookAtGangs(ctx, at, f, known, seen, d, waits)
	if err != nil {
		return err
	}
	restarts := r.restartsOf(at, f, slices.DeleteFunc(d.Restart, func(one groups.Restart) bool {
		_, held := gangs.waitOf(one.Unit)
		return held // its ranks have ended, or will
	}), all)
	lead, stops := leaders(r), map[groups.Unit]bool{}
	for one, ranks := range f.ranksOf(all) {
		if restarts[one] == 0 {
			continue
		}
		if left := lead.stopFor(ranks, time.Now()); left > 0 {
			stops[one] = true
			r.repairs.queue.AddAfter(at, left)
		}
	}

	var puts []runtime.Assignment
	put := func(id groups.ID, u runtime.Unit) {
		if n := f.index(id.Role); n >= 0 {
			u.Group, u.Slot, u.Rank = id.Group, id.Slot, id.Rank
			place := gangs.place(id.Unit(), known[id])
			u.Domain, u.PodGroup = place.domain, place.podGroup
			puts = append(puts, f.assignmentOf(n, u))
		}
	}
	epochs := map[groups.Unit]int{}
	for _, u := range all {
		if !u.empty {
			epochs[u.Unit()] = max(epochs[u.Unit()], u.epoch)
		}
	}
	for _, c := range d.Create {
		epoch := c.Epoch
		if now := epochs[c.Unit()]; now > 0 && restarts[c.Unit()] == 0 {
			epoch = now // in the next epoch, the instance would begin a restart, which must wait
		}
		if why, held := gangs.waitOf(c.Unit()); held {
			put(c.ID, runtime.Unit{Waits: why.text, WaitsReason: why.reason, Epoch: epoch})
			continue
		}
		put(c.ID, runtime.Unit{Waits: waits[c.ID], Epoch: epoch})
	}
	var gone []*unit
	head := f.headOf(all, len(d.Create) > 0)
	for _, u := range all {
		switch in := slices.IndexFunc(seen, func(i groups.Instance) bool { return i.Key == u.ref.Name }); {
		case u.live.DeletionTimestamp != nil:
		case f.index(u.Role) < 0:
			gone = append(gone, u) // the assignment does not have this role
		case u.empty && u == head:
			put(u.ID, runtime.Unit{Leaves: true, Epoch: u.epoch})
		case u.empty && !slices.ContainsFunc(d.Create, func(c groups.Start) bool { return c.ID == u.ID }):
			gone = append(gone, u)
		case u.empty: // putUnits makes it complete again
		case seen[in].Leaving || slices.Contains(d.Delete, u.ref.Name):
			put(u.ID, runtime.Unit{Leaves: true, Epoch: u.epoch})
		case stops[u.Unit()] && u.Rank > 0:
			put(u.ID, runtime.Unit{Holds: true, Epoch: u.epoch}) // the leader still needs this rank
		case restarts[u.Unit()] > 0:
			// All ranks restart with the newest template, whatever template they had.
			put(u.ID, runtime.Unit{Epoch: restarts[u.Unit()]})
		default:
			if why, held := gangs.waitOf(u.Unit()); held {
				// All ranks will start in one epoch, whatever epoch they had.
				put(u.ID, runtime.Unit{Waits: why.text, WaitsReason: why.reason, Epoch: epochs[u.Unit()]})
				continue
			}
			put(u.ID, runtime.Unit{Waits: waits[u.ID], Holds: seen[in].Old && !slices.Contains(d.Replace, u.ref.Name), Epoch: u.epoch})
		}
	}
	if head == nil && len(f.roles) > 0 && f.a.Deployment.GetReplicas() == 0 && len(all) == 0 {
		put(groups.ID{Role: f.roles[0].Name}, runtime.Unit{Leaves: true})
	}
	full, errs := r.putUnits(ctx, puts, known)
	errs = append(errs, r.yieldUnits(ctx, f, d, seen, full, known)...)
	if head != nil && head.empty {
		errs = append(errs, r.removePeers(ctx, f, at, head))
	}
	for _, u := range gone {
		if _, left := lead.outlivesFor(u.ref, time.Now()); left > 0 {
			r.repairs.queue.AddAfter(at, left)
			continue
		}
		errs = append(errs, r.removeUnit(ctx, u, f.a.Deployment.GetId()))
	}
	now := r.unitsOf(at)
	errs = append(errs, r.markJoined(ctx, f, all, seen), r.tellPeers(ctx, f, now), r.putBudget(ctx, f, now))
	for _, u := range all {
		if r.wanted.hasDrains(u.ref) {
			r.repairs.add(u.ref) // the workload may have waited for another instance of its group
		}
	}
	return worstOf(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// headOf returns the empty workload that a deployment without replicas keeps, or nil if it needs
// none.
func (f *family) headOf(all []*unit, creates bool) *unit {
	if creates || f.a.Deployment.GetReplicas() > 0 || len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *unit) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(f.index(a.Role), f.index(b.Role)), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Rank, b.Rank))
	})
}

// unitsAtOnce is how many instances of one deployment are put at the same time.
const unitsAtOnce = 4

// yieldUnits marks the workloads that leave because a pool's quota has no room for new instances. d is
// the decision that does not consider this lack of room. seen has the existing instances and the
// instances that d creates. full names the instances without room.
func (r families) yieldUnits(ctx context.Context, f *family, d groups.Decision, seen []groups.Instance, full []groups.ID, known map[groups.ID]*unit) []error {
	if len(full) == 0 {
		return nil
	}
	seen = slices.Clone(seen)
	for n := range seen {
		seen[n].Unfit = seen[n].Unfit || slices.Contains(full, seen[n].ID)
	}
	var puts []runtime.Assignment
	for _, key := range groups.Decide(f.wantedGroups(), seen).Delete {
		in := slices.IndexFunc(seen, func(i groups.Instance) bool { return i.Key == key })
		u := known[seen[in].ID]
		if u == nil || u.ref.Name != key || slices.Contains(d.Delete, key) {
			continue
		}
		puts = append(puts, f.assignmentOf(f.index(u.Role), runtime.Unit{Group: u.Group, Slot: u.Slot, Rank: u.Rank, Leaves: true, Epoch: u.epoch}))
	}
	_, errs := r.putUnits(ctx, puts, known)
	return errs
}

// putUnits ensures the workloads of instances. It skips a workload that was completely made as it
// is wanted now, because repairs keep it so. full names the instances for which a pool's quota has
// no room.
func (r families) putUnits(ctx context.Context, puts []runtime.Assignment, known map[groups.ID]*unit) (full []groups.ID, errs []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, unitsAtOnce)
	for _, a := range puts {
		id := groups.ID{Role: a.Unit.Role, Group: a.Unit.Group, Slot: a.Unit.Slot, Rank: a.Unit.Rank}
		u := known[id]
		if u != nil && r.wanted.hasUnit(u.ref, a) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := r.putUnit(ctx, a); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				var refused *runtime.Rejection
				if errors.As(err, &refused) && refused.Code == runtime.ReasonQuotaExceeded {
					full = append(full, id)
				}
			}
		})
	}
	wg.Wait()
	return full, errs
}

func (r families) putUnit(ctx context.Context, a runtime.Assignment) error {
	objects, err := r.renderObjects(a)
	if err != nil {
		return err
	}
	w := render.RefOf(render.KindWorkload, objects.Workload)
	unlock := r.locks.Exclusive(w.String())
	defer unlock()
	return r.ensureObjects(ctx, w, a, objects, r.repairs.Suspected(w))
}

// removeUnit deletes the workload of an instance that is not wanted any more.
func (r families) removeUnit(ctx context.Context, u *unit, deploymentID string) error {
	r.restarts.Forget(restartKey(u.ref.Namespace, u.live.Labels[render.LabelUnitOf], u.Unit()))
	return r.removeWorkload(ctx, u.ref, cmp.Or(u.live.Labels[render.LabelDeployment], deploymentID))
}

// releasedInGroup reports whether gateways have released the instance. Gateways send requests only
// to rank 0 of the entry instances of a group. Through these, requests reach the other instances.
// So all of these must be released.
func (r families) releasedInGroup(at render.Ref, u *runtime.Unit) bool {
	for _, p := range r.caches.PodsOfGroup(at.Namespace, at.Name, u.Group) {
		rank := p.Labels[render.LabelRank]
		if observe.Holds(p) && p.Labels[render.LabelComponent] == u.Entry && (rank == "" || rank == "0") && !r.released(render.InstanceID(p.UID)) {
			return false
		}
	}
	return true
}

// tellPeers writes the peers file of each group whose file has changed. A pod's annotation says
// which content was last written for it, so no content is written twice.
func (r families) tellPeers(ctx context.Context, f *family, all []*unit) error {
	var names []string
	for _, role := range f.roles {
		names = append(names, role.Name)
	}
	members := map[int][]*unit{}
	for _, u := range all {
		if f.index(u.Role) >= 0 && u.live.DeletionTimestamp == nil {
			members[u.Group] = append(members[u.Group], u)
		}
	}
	var errs []error
	for _, units := range members {
		// The entry instances of a pool keep serving without a leaving instance of another role.
		stays := runtime.IsPooled(f.a.Deployment.GetSpec()) && slices.ContainsFunc(units, func(u *unit) bool { return u.Role == f.entry && !u.leaves })
		var peers []runtime.Instance
		var pods []*corev1.Pod
		whole := f.wholeUnits(units)
		for _, u := range units {
			for _, p := range u.pods {
				pods = append(pods, p)
				if u.Rank > 0 {
					continue // the instance has the address of rank 0
				}
				in := runtime.Instance{ID: p.Name, Role: u.Role, Group: u.Group, Slot: u.Slot}
				// A draining instance serves requests that gateways still send to its group.
				if observe.IsReady(p) && whole[u.Unit()] && (!stays || !u.leaves || u.Role == f.entry) {
					in.Address = observe.AddressOf(p)
				}
				peers = append(peers, in)
			}
		}
		for _, content := range runtime.PeersOf(names, peers, func(*runtime.Instance) bool { return true }) {
			errs = append(errs, r.tellGroup(ctx, f, units, pods, content))
		}
	}
	return worstOf(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

func (r families) tellGroup(ctx context.Context, f *family, units []*unit, pods []*corev1.Pod, content []byte) error {
	sum := sha256.Sum256(content)
	mark := hex.EncodeToString(sum[:8])
	told := func(p *corev1.Pod) bool { return p.Annotations[render.AnnotationPeers] == mark }
	if !slices.ContainsFunc(pods, told) {
		if err := r.writePeers(ctx, f, units, content); err != nil {
			return err
		}
	}
	var errs []error
	for _, p := range pods {
		if told(p) {
			continue
		}
		if err := r.api.Annotate(ctx, p, map[string]any{render.AnnotationPeers: mark}); err != nil {
			errs = append(errs, err)
		}
	}
	return worstOf(errs)
}

// writePeers writes the peers file of a group. All instances of the group own it together.
func (r families) writePeers(ctx context.Context, f *family, units []*unit, content []byte) error {
	u := units[0]
	a := f.assignmentOf(f.index(u.Role), runtime.Unit{Group: u.Group, Slot: u.Slot, Rank: u.Rank})
	cfg := r.render
	cfg.Namespace = u.ref.Namespace
	secret, err := render.Peers(cfg, a, content)
	if err != nil {
		return err
	}
	var owners []render.Object
	for _, one := range units {
		owners = append(owners, one.live)
	}
	secret.WithOwnerReferences(desired.OwnerReferences(owners)...)
	r.wanted.notePeers(render.NewRef(render.KindRoles, u.ref.Namespace, render.FamilyKey(f.a)), true)
	_, err = r.api.Apply(ctx, render.RefOf(render.KindSecret, secret), secret, nil, false)
	return err
}

// putBudget puts the disruption budget of all instances. Instances that stay own it. If no instance
// stays, the leaving instances own it.
func (r families) putBudget(ctx context.Context, f *family, all []*unit) error {
	var stay, left []render.Object
	var first *unit
	for _, u := range all {
		switch {
		case u.live.DeletionTimestamp != nil || f.index(u.Role) < 0:
			continue
		case u.leaves:
			left = append(left, u.live)
		default:
			stay = append(stay, u.live)
		}
		if first == nil {
			first = u
		}
	}
	if first == nil {
		return nil
	}
	if len(stay) == 0 {
		stay = left
	}
	cfg := r.render
	cfg.Namespace = first.ref.Namespace
	budget, err := render.FamilyBudget(cfg, f.assignmentOf(f.index(first.Role), runtime.Unit{Group: first.Group, Slot: first.Slot, Rank: first.Rank}), f.isServing(all))
	if err != nil {
		return err
	}
	step, err := desired.Joint(budget, stay, r.caches.Get(render.RefOf(render.KindDisruptionBudget, budget)))
	if step == nil || err != nil {
		return err
	}
	_, err = r.put(ctx, *step, false)
	return err
}

// isServing reports whether any instance serves. For roles with one host, it returns true, because
// Kubernetes knows which instances are ready.
func (f *family) isServing(all []*unit) bool {
	spans := slices.ContainsFunc(f.roles, func(r runtime.Role) bool { return f.hostsOf(r.Name) > 1 })
	return !spans || slices.Contains(slices.Collect(maps.Values(f.wholeUnits(all))), true)
}

// removePeers removes the peers file that the empty workload of a deployment without replicas owns.
// It makes no call if the file was removed before.
func (r families) removePeers(ctx context.Context, f *family, at render.Ref, head *unit) error {
	if !r.wanted.mayHavePeers(at) {
		return nil
	}
	err := r.api.Remove(ctx, render.NewRef(render.KindSecret, at.Namespace, render.PeersName(f.a, head.Group)), metav1.DeleteOptions{})
	if err != nil && !access.IsNotFound(err) {
		return err
	}
	r.wanted.notePeers(at, false)
	return nil
}
