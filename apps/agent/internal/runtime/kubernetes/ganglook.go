package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

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

// gangRules say how the gangs of a deployment start.
type gangRules struct {
	pack *gangPack
	// native means that the cluster's scheduler places gangs.
	native  bool
	timeout time.Duration
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
