package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// admitGangs decides which of the waiting gangs start now.
func (r families) admitGangs() {
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	r.repairs.add(r.decideGangs(time.Now())...)
}

// decideGangs is admitGangs for a caller that holds the lock of gangs. It returns the deployments of gangs that start.
func (r families) decideGangs(now time.Time) (starts []render.Ref) {
	d := r.newGangDecision()
	unbound := r.pendingPods(d.nodes)
	pending := slices.Concat(r.gangs.stuck.Without(unbound, now), d.pending)
	notes := map[string]string{}
	if len(d.waiting) == 0 {
		r.gangs.stuck = gang.Stuck{} // without decisions, it is not known whether pods have room
	} else {
		free := make([]gang.Node, 0, len(d.nodes))
		for _, n := range d.nodes {
			free = append(free, gang.Node{Name: n.Name, Free: r.fleet.Free(n)})
		}
		admitted, lacks, roomy, chosen := gang.Admit(free, pending, d.quotas, d.waiting)
		r.gangs.stuck.Note(unbound, roomy, now)
		for _, key := range admitted {
			e := d.entries[key]
			e.Entry = e.LetIn(now)
			if domain := chosen[key]; domain != "" {
				e.domain = &runtime.Domain{Label: e.pack.label, Value: domain, Required: e.pack.required}
			}
			r.metrics.gangStarts.Inc()
			starts = append(starts, d.owners[key])
		}
		for key, lack := range lacks {
			e := d.entries[key]
			text := lackText(lack, e.members, e.pack.inOne(), d.podOf)
			for _, m := range e.members {
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
	return starts
}

// gangDecision has the input of one decision about the gangs that wait for the agent.
type gangDecision struct {
	nodes   []*corev1.Node
	shapes  map[string]gang.Pod            // by gangSpec.shape
	domains map[string]map[string][]string // the nodes of each domain, by the label of the domains
	// waiting has the gangs that wait. entries and owners have the entry and the deployment of each, by its key.
	waiting []gang.Gang
	entries map[string]*gangEntry
	owners  map[string]render.Ref
	// pending has the pods of gangs that start, if they do not exist yet.
	pending []gang.Pod
	// quotas has what the quotas of pools have left.
	quotas map[string]int64
}

// newGangDecision reads the gangs of the region. The caller holds the lock of gangs.
func (r families) newGangDecision() *gangDecision {
	d := &gangDecision{
		nodes: r.caches.EveryNode(), shapes: map[string]gang.Pod{}, domains: map[string]map[string][]string{},
		entries: map[string]*gangEntry{}, owners: map[string]render.Ref{}, quotas: r.quota.leftOf(r.caches.Every(render.KindWorkload)),
	}
	for at, all := range r.gangs.of {
		for key, e := range all {
			switch e.State {
			case gang.Waits:
				d.addWaiting(at, key, e)
			case gang.Starts:
				d.addStarting(e)
			default:
			}
		}
	}
	return d
}

func (d *gangDecision) addWaiting(at render.Ref, key groups.Unit, e *gangEntry) {
	e.gangPlace = gangPlace{} // its earlier pods are gone, so it may start in another domain
	if e.native {
		return
	}
	one := gang.Gang{Key: fmt.Sprintf("%s %s/%d.%d", at, key.Role, key.Group, key.Slot), Since: e.Since}
	if e.pack != nil {
		one.Pack = d.packIn(e.pack.label, e.pack.required)
	}
	for n := range e.members {
		one.Pods = append(one.Pods, d.podOf(&e.members[n]))
	}
	d.waiting = append(d.waiting, one)
	d.entries[one.Key], d.owners[one.Key] = e, at
}

func (d *gangDecision) addStarting(e *gangEntry) {
	for n := range e.members {
		m := &e.members[n]
		if !m.exists {
			pod := d.podOf(m)
			if e.domain != nil && e.domain.Required {
				pod = d.packIn(e.domain.Label, true).In(e.domain.Value, []gang.Pod{pod})[0]
			}
			d.pending = append(d.pending, pod)
		}
		if !m.claimed && m.pool != "" {
			d.quotas[m.pool] -= m.gpus
		}
	}
}

// podOf returns what the pod of a member needs.
func (d *gangDecision) podOf(m *gangMember) gang.Pod {
	p, ok := d.shapes[m.spec.shape]
	if !ok {
		p = shapeOf(d.nodes, m.spec.PodSpec)
		d.shapes[m.spec.shape] = p
	}
	p.Shape, p.Pool, p.GPUs = fmt.Sprintf("%s %s %d", m.spec.shape, m.pool, m.gpus), m.pool, m.gpus
	return p
}

// packIn returns the domains of a label.
func (d *gangDecision) packIn(label string, required bool) *gang.Pack {
	if d.domains[label] == nil {
		d.domains[label] = nodesByDomain(d.nodes, label)
	}
	return &gang.Pack{Label: label, Domains: d.domains[label], Required: required}
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
