package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The pods of a gang exist only while there is room for all of them. Package gang decides which gangs may have pods. A
// gang that waits, or gives back its pods, has workloads without replicas:
//
//	look at a deployment  --its gangs-->  gangs  --may run, or why not-->  replicas of its workloads
//	                                        ^
//	nodes, pods, quotas  --admitGangs------'
//
// If the cluster serves PodGroups, its scheduler decides instead: the gang gets a PodGroup, which its pods name, and all
// pods at once. They hold nothing until each of them gets a node. Gangs that run in one part of the region, and gangs of
// pools with a quota, are still the agent's, because the scheduler knows neither.
//
// One decision covers all gangs of the region, so that two gangs never start on the same room. The
// cluster does not store what a gang waits for, because the agent computes it from existing
// objects. Once a gang runs, its workloads are like any other, so Kubernetes replaces its pods also
// while the agent is away.

// gangsRef is the queue's name for a decision about all gangs that wait.
var gangsRef = render.NewRef(render.KindRoles, "", "gangs")

const (
	// roomDelay is how long a decision waits after room was freed, so that pods that end together cause one decision.
	roomDelay = 200 * time.Millisecond
	// roomPoll is the interval of decisions while a gang waits. It covers changes that cause no
	// decision by themselves, such as changes of quotas.
	roomPoll = 5 * time.Second
)

// gangs has the gangs of the region. It is safe for concurrent use.
type gangs struct {
	mu sync.Mutex
	of map[render.Ref]map[groups.Unit]*gangEntry
	// notes has, by workload, what the gang of the workload lacks at present.
	notes map[string]string
	stuck gang.Stuck
	// podGroups is the version of the cluster's PodGroups, empty for none, as it was at the time found.
	podGroups string
	found     time.Time
}

// gangEntry is one gang. Its key in gangs is the instance of several hosts, or the number of the group.
type gangEntry struct {
	gang.Entry

	gangPlace

	members []gangMember
	// pack says in which domains the pods may be. Nil means any node.
	pack *gangPack
	// native means that a gang that waits gets a PodGroup. made is when its PodGroup was last made.
	native bool
	made   time.Time
}

// gangPlace says how the pods of a gang that runs or starts get their nodes.
type gangPlace struct {
	// domain has the nodes on which the pods run. Nil means any node.
	domain *runtime.Domain
	// podGroup is the name of the PodGroup. It is empty if the agent started the gang by itself.
	podGroup string
}

// gangPack is how a gang is packed.
type gangPack struct {
	word, label string
	required    bool
}

// nodesByDomain returns the names of the nodes by the value of a label. Nodes without a value are left out.
func nodesByDomain(nodes []*corev1.Node, label string) map[string][]string {
	out := map[string][]string{}
	for _, n := range nodes {
		if domain := n.Labels[label]; domain != "" {
			out[domain] = append(out[domain], n.Name)
		}
	}
	return out
}

// gangMember is one pod that a gang should have.
type gangMember struct {
	spec *gangSpec
	// pool is the pool of its GPUs, if the pool has a quota.
	pool string
	gpus int64
	// exists means that the pod exists. claimed means that its GPUs count in the quota.
	exists, claimed bool
	// workload identifies the workload, as access.Namespaced does. It is empty if there is none yet.
	workload string
}

// gangSpec is the spec of pods, with a text that is the same for all specs that need the same room.
type gangSpec struct {
	*corev1.PodSpec

	shape string
}

func newGangs() *gangs {
	return &gangs{of: map[render.Ref]map[groups.Unit]*gangEntry{}, notes: map[string]string{}}
}

// forgetDeployment drops the gangs of a deployment.
func (g *gangs) forgetDeployment(at render.Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, at)
}

// countIn returns how many gangs have the state.
func (g *gangs) countIn(s gang.State) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count(s)
}

// count is counted for a caller that holds g.mu.
func (g *gangs) count(s gang.State) (n int) {
	for _, all := range g.of {
		for _, e := range all {
			if e.State == s {
				n++
			}
		}
	}
	return n
}

// noteOf returns what the gang of a workload lacks at present, or "".
func (g *gangs) noteOf(workload string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.notes[workload]
}

// roomMoved queues a decision about the gangs that wait, because there may be more room.
func (r *Runtime) roomMoved() {
	if r.gangs.countIn(gang.Waits) > 0 {
		r.repairs.queue.AddAfter(gangsRef, roomDelay)
	}
}

// gangLook says which gangs of a deployment must have no pods at present.
type gangLook struct {
	of   runtime.GangOf
	held map[groups.Unit]gangWait
	// places has the place of each gang that was looked at.
	places map[groups.Unit]gangPlace
}

// place returns the place of an instance's pods. live is the workload of the instance, or nil.
func (l gangLook) place(u groups.Unit, live *unit) gangPlace {
	if place, ok := l.places[l.key(u)]; ok || live == nil {
		return place
	}
	return gangPlace{render.DomainOf(live.live.Spec.Template.Annotations), podGroupOf(live.live)}
}

// podGroupOf returns the PodGroup of a workload's pods, or "".
func podGroupOf(w *appsv1.Deployment) string {
	if g := w.Spec.Template.Spec.SchedulingGroup; g != nil {
		return ptr.Deref(g.PodGroupName, "")
	}
	return ""
}

// gangWait says why the pods of a gang must not exist: a reason for programs, and a text for
// people.
type gangWait struct{ reason, text string }

func (l gangLook) key(u groups.Unit) groups.Unit {
	if l.of == runtime.GangOfGroup {
		return groups.Unit{Group: u.Group}
	}
	return u
}

// waitOf returns why the instance must have no pods, or false.
func (l gangLook) waitOf(u groups.Unit) (gangWait, bool) {
	w, ok := l.held[l.key(u)]
	return w, ok
}

// isGangWait reports whether a workload has no replicas because its gang must have no pods.
func isGangWait(o render.Object) bool {
	reason := o.GetAnnotations()[render.AnnotationWaitsReason]
	return reason == runtime.ReasonUnschedulable || reason == runtime.ReasonGangTimeout
}

// gangDraft is what one look sees of a gang.
type gangDraft struct {
	gang.Seen

	gangPlace

	members []gangMember
	// owners are the workloads of the pods.
	owners []metav1.OwnerReference
	// skip means that other rules decide about some instances: they leave, or start after other roles.
	skip bool
}

// lookAtGangs decides which gangs of a deployment may have pods. seen has the instances and those that will be created.
// waits has the instances that start after other roles.
func (r families) lookAtGangs(ctx context.Context, at render.Ref, f *family, known map[groups.ID]*unit, seen []groups.Instance, d groups.Decision, waits map[groups.ID]string) (gangLook, error) {
	of, timeout := runtime.Gang(f.a.Deployment.GetSpec())
	look := gangLook{of: of}
	if of == runtime.GangOfNone {
		r.gangs.forgetDeployment(at)
		return look, nil
	}
	pack, err := r.packOf(f.a.Deployment.GetSpec())
	if err != nil {
		return look, err
	}
	podGroups, err := r.podGroupVersion(ctx)
	if err != nil {
		return look, err
	}
	now := time.Now()
	drafts := map[groups.Unit]*gangDraft{}
	specs := map[string]*gangSpec{}
	for n := range seen {
		in := &seen[n]
		role := f.index(in.Role)
		if role < 0 || of == runtime.GangOfUnit && f.hostsOf(in.Role) < 2 {
			continue
		}
		key := look.key(in.Unit())
		if drafts[key] == nil {
			drafts[key] = &gangDraft{}
		}
		draft := drafts[key]
		draft.skip = draft.skip || in.Leaving || slices.Contains(d.Delete, in.Key) || waits[in.ID] != ""
		if specs[in.Role] == nil {
			spec, err := r.podSpec(f, role)
			if err != nil {
				return look, err
			}
			specs[in.Role] = spec
		}
		m := gangMember{spec: specs[in.Role]}
		if gpu := f.roles[role].Resources.GetGpu(); r.quota.pools[gpu.GetPool()].Quota > 0 {
			m.pool, m.gpus = gpu.GetPool(), int64(gpu.GetCount())
		}
		if u := known[in.ID]; u != nil && !u.empty {
			r.seeMember(draft, &m, u, now)
		}
		draft.Started = draft.Started || in.Started
		draft.Pods++
		draft.members = append(draft.members, m)
	}
	look.held, look.places = r.updateGangs(at, f, drafts, gangRules{pack: pack, native: podGroups != "" && pack == nil, timeout: timeout}, now)
	return look, r.makePodGroups(ctx, at, f, drafts, podGroups, &look)
}

// gangRules say how the gangs of a deployment start.
type gangRules struct {
	pack *gangPack
	// native means that the cluster's scheduler places gangs.
	native  bool
	timeout time.Duration
}

const (
	// podGroupsAgain is the interval at which the agent looks again whether the cluster serves PodGroups.
	podGroupsAgain = time.Minute
	// podGroupAgain is the interval at which the PodGroup of a gang that starts is made again, in case it was removed.
	podGroupAgain = 30 * time.Second
)

// podGroupVersion returns the version of PodGroups with which gangs start, or "" if the agent starts them.
func (r families) podGroupVersion(ctx context.Context) (string, error) {
	if r.cfg.GangsBy == GangsByAgent {
		return "", nil
	}
	r.gangs.mu.Lock()
	version, fresh := r.gangs.podGroups, time.Since(r.gangs.found) < podGroupsAgain
	r.gangs.mu.Unlock()
	if !fresh {
		var err error
		if version, err = r.api.PodGroupVersion(ctx); err != nil {
			return "", err
		}
		r.gangs.mu.Lock()
		r.gangs.podGroups, r.gangs.found = version, time.Now()
		r.gangs.mu.Unlock()
	}
	if version == "" && r.cfg.GangsBy == GangsByScheduler {
		return "", &runtime.Rejection{
			Code: runtime.ReasonUnsupported, Retryable: true,
			Message: "gang: the cluster serves no PodGroups of scheduling.k8s.io, but the region's agent has --gangs=native: turn on the cluster's feature gates GenericWorkload and GangScheduling, or use --gangs=auto",
		}
	}
	return version, nil
}

// makePodGroups makes the PodGroups of gangs that the cluster's scheduler places, and lets these gangs start. A gang
// first gets workloads without pods, which own its PodGroup. So no pod exists without its PodGroup.
func (r families) makePodGroups(ctx context.Context, at render.Ref, f *family, drafts map[groups.Unit]*gangDraft, version string, look *gangLook) error {
	if version == "" {
		return nil
	}
	for key, draft := range drafts {
		name, due := r.podGroupDue(at, f, key, draft)
		if !due {
			continue
		}
		err := r.api.MakePodGroup(ctx, version, &access.PodGroup{
			Name: name, Namespace: at.Namespace, Labels: r.render.PodGroupLabels(f.a, key.Role, key.Group, key.Slot), Owners: draft.owners, MinCount: draft.Pods,
		})
		if err != nil {
			return r.podGroupRefused(err)
		}
		r.letInNatively(at, key, name, look)
	}
	return nil
}

// podGroupDue returns the name of the gang's PodGroup, and whether to make it now.
func (r families) podGroupDue(at render.Ref, f *family, key groups.Unit, draft *gangDraft) (name string, due bool) {
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	e := r.gangs.of[at][key]
	if e == nil || len(draft.owners) < draft.Pods {
		return "", false
	}
	switch e.State {
	case gang.Waits:
		return render.PodGroupName(f.a, key.Role, key.Group, key.Slot, draft.Pods), e.native
	case gang.Starts:
		return e.podGroup, e.podGroup != "" && time.Since(e.made) >= podGroupAgain
	default:
		return "", false
	}
}

// letInNatively lets a gang start whose PodGroup was made.
func (r families) letInNatively(at render.Ref, key groups.Unit, name string, look *gangLook) {
	now := time.Now()
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	e := r.gangs.of[at][key]
	e.made = now
	if e.State == gang.Waits {
		e.Entry, e.gangPlace = e.LetIn(now), gangPlace{podGroup: name}
		r.metrics.gangStarts.Inc()
	}
	delete(look.held, key)
	look.places[key] = e.gangPlace
}

// podGroupRefused returns the error of a PodGroup that could not be made. If the agent may not make any, it starts gangs
// by itself for a time, unless its operator excludes that.
func (r families) podGroupRefused(err error) error {
	var refused *runtime.Rejection
	if r.cfg.GangsBy == GangsByScheduler || !errors.As(err, &refused) {
		return err
	}
	r.cfg.Log.Warn("cannot make a PodGroup, so the agent starts gangs by itself for now", "error", err)
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	r.gangs.podGroups, r.gangs.found = "", time.Now()
	for _, all := range r.gangs.of {
		for _, e := range all {
			e.native = false
		}
	}
	r.repairs.queue.AddAfter(gangsRef, roomDelay)
	return nil
}

// packOf returns how the gangs of a spec are packed, or nil if they are not.
func (r families) packOf(s *windlassv1.DeploymentSpec) (*gangPack, error) {
	word, required := runtime.Packs(s)
	if word == "" {
		return nil, nil
	}
	label, ok := r.render.Topology[word]
	if !ok {
		return nil, &runtime.Rejection{
			Code: runtime.ReasonUnsupported,
			Message: fmt.Sprintf("topology.pack: the region has no word %q, but %s: use one of these, or leave topology out. --topology of the region's agent adds words",
				word, cmp.Or(strings.Join(slices.Sorted(maps.Keys(r.render.Topology)), ", "), "none")),
		}
	}
	return &gangPack{word, label, required}, nil
}

// seeMember adds to draft and m what the workload of one pod of a gang shows.
func (r families) seeMember(draft *gangDraft, m *gangMember, u *unit, now time.Time) {
	m.workload = access.Namespaced(u.live, render.LabelWorkload)
	m.claimed = u.live.Spec.Replicas == nil || *u.live.Spec.Replicas > 0
	if draft.domain == nil {
		draft.domain = render.DomainOf(u.live.Spec.Template.Annotations)
	}
	draft.podGroup = cmp.Or(draft.podGroup, podGroupOf(u.live))
	if u.live.DeletionTimestamp == nil {
		draft.owners = append(draft.owners, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: u.live.Name, UID: u.live.UID})
	}
	draft.GaveBack = draft.GaveBack || u.live.Annotations[render.AnnotationWaitsReason] == runtime.ReasonGangTimeout
	bound := false
	for _, p := range u.pods {
		m.exists, bound = true, bound || p.Spec.NodeName != ""
		if at := p.CreationTimestamp.Time; p.Spec.NodeName == "" && (draft.Oldest.IsZero() || at.Before(draft.Oldest)) {
			draft.Oldest = at
		}
	}
	if bound {
		draft.Bound++
	}
	draft.Left = draft.Left || m.exists || slices.ContainsFunc(r.caches.PodsOf(u.live.Namespace, u.live.Labels[render.LabelWorkload]), func(p *corev1.Pod) bool {
		// A pod that does not end in time is on a node that does not answer, and may stay for ever.
		return p.DeletionTimestamp != nil && now.Before(p.DeletionTimestamp.Add(stopMargin))
	})
}

// updateGangs replaces what is known about the gangs of a deployment, and returns those that must have no pods, and the
// places of all.
func (r families) updateGangs(at render.Ref, f *family, drafts map[groups.Unit]*gangDraft, rules gangRules, now time.Time) (map[groups.Unit]gangWait, map[groups.Unit]gangPlace) {
	timeout := rules.timeout
	pause := func(failures int) time.Duration { return r.cfg.Gangs.Delay(failures, r.cfg.Random) }
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	before, all, fresh := r.gangs.of[at], map[groups.Unit]*gangEntry{}, false
	for key, draft := range drafts {
		if draft.skip {
			continue
		}
		e := &gangEntry{members: draft.members, pack: rules.pack, gangPlace: draft.gangPlace}
		if was := before[key]; was != nil {
			e.Entry, e.gangPlace, e.made = was.Entry, was.gangPlace, was.made
		}
		e.native = rules.native && !slices.ContainsFunc(draft.members, func(m gangMember) bool { return m.pool != "" })
		was := e.State
		draft.Queued = e.podGroup != ""
		e.Entry = e.Next(draft.Seen, now, timeout, pause)
		all[key] = e
		fresh = fresh || e.State == gang.Waits && was != gang.Waits
		if e.State == gang.GivesBack && was != gang.GivesBack {
			r.metrics.gangTimeouts.Inc()
			r.cfg.Log.Warn("not all pods of a gang had a node in time; all are removed until the next try", "deployment", f.a.Deployment.GetId(),
				"group", key.Group, "role", key.Role, "slot", key.Slot, "pods", draft.Pods, "bound", draft.Bound, "timeout", timeout, "retry", e.Retry)
		}
	}
	r.gangs.of[at] = all
	if fresh {
		for _, other := range r.decideGangs(now) {
			if other != at {
				r.repairs.add(other)
			}
		}
	} else if r.gangs.count(gang.Waits) > 0 {
		r.repairs.queue.AddAfter(gangsRef, roomDelay) // a gang may need less room now
	}
	held, places := map[groups.Unit]gangWait{}, map[groups.Unit]gangPlace{}
	for key, e := range all {
		places[key] = e.gangPlace
		switch e.State {
		case gang.Waits:
			held[key] = gangWait{runtime.ReasonUnschedulable, fmt.Sprintf("waits for room for all of its %d pods", len(e.members)) + e.pack.inOne()}
		case gang.GivesBack:
			held[key] = gangWait{runtime.ReasonGangTimeout, fmt.Sprintf("not all of its %d pods had a node within %v: all are removed until the next try at %s",
				len(e.members), timeout, e.Retry.UTC().Format(time.RFC3339))}
			r.repairs.queue.AddAfter(at, max(e.Retry.Sub(now), roomDelay))
		case gang.Starts:
			r.repairs.queue.AddAfter(at, max(e.Since.Add(timeout).Sub(now), roomDelay))
		default:
		}
	}
	return held, places
}

// inOne returns the part of a message that says where all pods must be.
func (p *gangPack) inOne() string {
	if p == nil || !p.required {
		return ""
	}
	return " in one " + p.word
}

// admitGangs decides which of the waiting gangs start now.
func (r families) admitGangs() {
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	r.repairs.add(r.decideGangs(time.Now())...)
}

// decideGangs is admitGangs for a caller that holds the lock of gangs. It returns the deployments of gangs that start.
func (r families) decideGangs(now time.Time) []render.Ref {
	type place struct {
		at  render.Ref
		key groups.Unit
	}
	nodes := r.caches.EveryNode()
	shapes := map[string]gang.Pod{}
	podOf := func(m *gangMember) gang.Pod {
		p, ok := shapes[m.spec.shape]
		if !ok {
			p = shapeOf(nodes, m.spec.PodSpec)
			shapes[m.spec.shape] = p
		}
		p.Shape, p.Pool, p.GPUs = fmt.Sprintf("%s %s %d", m.spec.shape, m.pool, m.gpus), m.pool, m.gpus
		return p
	}
	domains := map[string]map[string][]string{} // by label
	packIn := func(label string, required bool) *gang.Pack {
		if domains[label] == nil {
			domains[label] = nodesByDomain(nodes, label)
		}
		return &gang.Pack{Label: label, Domains: domains[label], Required: required}
	}
	unbound := r.pendingPods(nodes)
	pending := r.gangs.stuck.Without(unbound, now)
	quotas := r.quota.leftOf(r.caches.Every(render.KindWorkload))
	var waiting []gang.Gang
	places := map[string]place{}
	for at, all := range r.gangs.of {
		for key, e := range all {
			switch e.State {
			case gang.Waits:
				e.gangPlace = gangPlace{} // its earlier pods are gone, so it may start in another domain
				if e.native {
					continue
				}
				one := gang.Gang{Key: fmt.Sprintf("%s %s/%d.%d", at, key.Role, key.Group, key.Slot), Since: e.Since}
				if e.pack != nil {
					one.Pack = packIn(e.pack.label, e.pack.required)
				}
				for n := range e.members {
					one.Pods = append(one.Pods, podOf(&e.members[n]))
				}
				waiting, places[one.Key] = append(waiting, one), place{at, key}
			case gang.Starts:
				for n := range e.members {
					if m := &e.members[n]; !m.exists {
						pod := podOf(m)
						if e.domain != nil && e.domain.Required {
							pod = packIn(e.domain.Label, true).In(e.domain.Value, []gang.Pod{pod})[0]
						}
						pending = append(pending, pod)
					}
					if m := &e.members[n]; !m.claimed && m.pool != "" {
						quotas[m.pool] -= m.gpus
					}
				}
			default:
			}
		}
	}
	var out []render.Ref
	notes := map[string]string{}
	if len(waiting) == 0 {
		r.gangs.stuck = gang.Stuck{} // without decisions, it is not known whether pods have room
	} else {
		free := make([]gang.Node, 0, len(nodes))
		for _, n := range nodes {
			free = append(free, gang.Node{Name: n.Name, Free: r.fleet.Free(n)})
		}
		starts, lacks, roomy, chosen := gang.Admit(free, pending, quotas, waiting)
		r.gangs.stuck.Note(unbound, roomy, now)
		for _, key := range starts {
			at := places[key]
			e := r.gangs.of[at.at][at.key]
			e.Entry = e.LetIn(now)
			if domain := chosen[key]; domain != "" {
				e.domain = &runtime.Domain{Label: e.pack.label, Value: domain, Required: e.pack.required}
			}
			r.metrics.gangStarts.Inc()
			out = append(out, at.at)
		}
		for key, lack := range lacks {
			at := places[key]
			members := r.gangs.of[at.at][at.key].members
			text := lackText(lack, members, r.gangs.of[at.at][at.key].pack.inOne(), podOf)
			for _, m := range members {
				notes[m.workload] = text
			}
		}
	}
	r.gangs.replaceNotes(notes, func(workload string) {
		r.heard.add(workload)
		r.signalChange()
	})
	if r.gangs.count(gang.Waits) > 0 {
		r.repairs.queue.AddAfter(gangsRef, roomPoll)
	}
	return out
}

// replaceNotes replaces the notes, and calls changed for each workload with another note. The caller holds g.mu.
func (g *gangs) replaceNotes(notes map[string]string, changed func(workload string)) {
	delete(notes, "")
	for workload := range g.notes {
		if _, still := notes[workload]; !still {
			changed(workload)
		}
	}
	for workload, text := range notes {
		if g.notes[workload] != text {
			changed(workload)
		}
	}
	g.notes = notes
}

// pendingPods returns the pods of the region without a node. Pods of one template are alike.
func (r families) pendingPods(nodes []*corev1.Node) (out []gang.Pod) {
	shapes := map[string]gang.Pod{}
	for _, p := range r.fleet.Pending() {
		key := access.Namespaced(p, render.LabelWorkload) + " " + p.Annotations[render.AnnotationTemplateHash]
		shape, ok := shapes[key]
		if !ok {
			shape = shapeOf(nodes, &p.Spec)
			shapes[key] = shape
		}
		shape.Key = string(p.UID)
		out = append(out, shape)
	}
	return out
}

func shapeOf(nodes []*corev1.Node, spec *corev1.PodSpec) gang.Pod {
	p := gang.Pod{Needs: observe.Needs(spec), Nodes: map[string]bool{}}
	for _, n := range nodes {
		if observe.Takes(n, spec) {
			p.Nodes[n.Name] = true
		}
	}
	return p
}

// podSpec returns the spec of the pods of the n-th role.
func (r families) podSpec(f *family, n int) (*gangSpec, error) {
	objects, err := r.renderObjects(f.assignmentOf(n, runtime.Unit{}))
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(objects.Workload.Spec.Template.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode the pod of role %s: %w", f.roles[n].Name, err)
	}
	spec := &corev1.PodSpec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, fmt.Errorf("decode the pod of role %s: %w", f.roles[n].Name, err)
	}
	var nodes *corev1.NodeAffinity
	if spec.Affinity != nil {
		nodes = spec.Affinity.NodeAffinity
	}
	shape, err := json.Marshal([]any{observe.Needs(spec), spec.NodeSelector, spec.Tolerations, nodes})
	if err != nil {
		return nil, fmt.Errorf("encode what a pod of role %s needs: %w", f.roles[n].Name, err)
	}
	return &gangSpec{spec, string(shape)}, nil
}

// lackText says what a gang waits for.
func lackText(lack gang.Lack, members []gangMember, where string, podOf func(*gangMember) gang.Pod) string {
	if lack.Pool != "" {
		asked := int64(0)
		for _, m := range members {
			if m.pool == lack.Pool {
				asked += m.gpus
			}
		}
		return fmt.Sprintf("waits for room for all of its %d pods: they need %d GPUs of pool %s, whose quota has %d left", len(members), asked, lack.Pool, lack.Quota)
	}
	text := fmt.Sprintf("waits for room for all of its %d pods%s: there is room for %d", len(members), where, lack.Fits)
	first := podOf(&members[0])
	if slices.ContainsFunc(members, func(m gangMember) bool { return m.spec.shape != members[0].spec.shape }) {
		return text
	}
	return fmt.Sprintf("%s, and each needs %s on one of %d nodes", text, needsText(first.Needs), len(first.Nodes))
}

// needsText lists devices first, then CPU and memory.
func needsText(needs gang.Resources) string {
	names := slices.SortedFunc(maps.Keys(needs), func(a, b string) int {
		return cmp.Or(-cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		switch corev1.ResourceName(name) {
		case corev1.ResourcePods:
		case corev1.ResourceCPU:
			parts = append(parts, fmt.Sprintf("%d millicores", needs[name]))
		case corev1.ResourceMemory:
			parts = append(parts, fmt.Sprintf("%d MiB", needs[name]>>20))
		default:
			parts = append(parts, fmt.Sprintf("%d %s", needs[name], name))
		}
	}
	return strings.Join(parts, ", ")
}
