package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// Observe returns the state of the caches, without a call. It examines only pods of workloads that
// changed since the last Observe. For other workloads, it returns the same list as before.
func (r *Runtime) Observe(ctx context.Context) (runtime.Observation, error) {
	if err := r.awaitCaches(ctx); err != nil {
		return runtime.Observation{}, err
	}
	r.look.Lock()
	defer r.look.Unlock()
	seen := map[string]*runtime.ObservedDeployment{}
	alive := map[string]bool{}
	at := func(id string) *runtime.ObservedDeployment {
		d := seen[id]
		if d == nil {
			d = &runtime.ObservedDeployment{DeploymentID: id}
			seen[id] = d
		}
		return d
	}
	now := time.Now()

	heard := r.heard.take()
	memories := make(map[string]*observe.Memory, len(r.memories))
	look := func(key, template string, w *appsv1.Deployment) []runtime.Instance {
		if memories[key] != nil {
			return nil // the pods of this workload are listed already
		}
		m := r.memories[key]
		if m == nil {
			m = &observe.Memory{}
		}
		memories[key] = m
		var secrets *redact.Values
		if w != nil {
			secrets = r.wanted.secretsOf(render.NewRef(render.KindWorkload, w.Namespace, w.Name))
		}
		if list, ok := m.Settled(w, template, secrets); ok && !heard[key] {
			return list
		}
		namespace, label, _ := strings.Cut(key, "/")
		return m.Instances(observe.Input{
			Now: now, TemplateHash: template, Pods: r.caches.PodsOf(namespace, label), Workload: w, Nodes: r.caches.Node, Journal: r.journal, Secrets: secrets,
			Waits: r.gangs.noteOf(key),
		})
	}
	parts, ends := map[string][]part{}, map[string]bool{}
	// The lists of a deployment with several roles are joined at the end.
	add := func(d *runtime.ObservedDeployment, key string, list []runtime.Instance, w *appsv1.Deployment) {
		if key == render.ParentKey(key) {
			d.Instances = joinLists(d.Instances, list)
		} else if len(list) > 0 {
			parts[d.DeploymentID] = append(parts[d.DeploymentID], r.partOf(key, list, w))
		}
	}
	for _, o := range r.caches.Every(render.KindWorkload) {
		w, ok := o.(*appsv1.Deployment)
		id := o.GetLabels()[render.LabelDeployment]
		if !ok || id == "" {
			continue
		}
		d := at(id)
		if w.DeletionTimestamp == nil {
			alive[id] = true
		}
		if w.Labels[render.LabelUnitOf] != "" {
			noteRoles(d, w, ends)
		} else if n, err := strconv.ParseInt(w.Annotations[render.AnnotationGeneration], 10, 64); err == nil && n >= d.Generation {
			d.Generation, d.TemplateHash = n, w.Annotations[render.AnnotationTemplateHash]
		}
		key := access.Namespaced(w, render.LabelWorkload)
		add(d, key, look(key, w.Annotations[render.AnnotationTemplateHash], w), w)
		d.Unsettled = d.Unsettled || r.isUnsettled(w)
	}
	// Pods that outlive their workload are listed under the deployment for which the workload was
	// made. This is their deployment, unless another one had adopted the workload.
	for _, key := range r.caches.PodKeys() {
		if memories[key] != nil {
			continue
		}
		_, name, _ := strings.Cut(key, "/")
		d := at(render.ParentKey(name))
		add(d, key, look(key, "", nil), nil)
	}
	// ReplicaSets without pods are listed in the same way.
	for _, key := range r.caches.ReplicaSetKeys() {
		if memories[key] == nil {
			_, name, _ := strings.Cut(key, "/")
			at(render.ParentKey(name))
		}
	}
	// Kubernetes collects these kinds after the workload, so they are the last objects of a deployment.
	for _, k := range []render.Kind{render.KindService, render.KindDisruptionBudget, render.KindNetworkPolicy, render.KindServiceAccount} {
		for _, id := range r.caches.Deployments(k) {
			at(id)
		}
	}
	r.memories = memories
	out := runtime.Observation{Capacity: r.fleet.Capacity(), Notices: r.notices.newestNotices(), Deployments: make([]runtime.ObservedDeployment, 0, len(seen))}
	r.joins.joinParts(seen, parts)
	for id, d := range seen {
		d.Removing = !alive[id] && len(r.wanted.workloadsOf(id)) == 0
		out.Deployments = append(out.Deployments, *d)
	}
	slices.SortFunc(out.Deployments, func(a, b runtime.ObservedDeployment) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	return out, nil
}

// noteRoles records in d what the workload of one instance shows. The deployment has several roles,
// or instances of several hosts. Its generation is the lowest one of its workloads. A workload that
// is being deleted may have an older generation, so it counts only if there is no other workload.
// ends has the deployments whose workloads were seen. Its value is true if all of them are being
// deleted.
func noteRoles(d *runtime.ObservedDeployment, w *appsv1.Deployment, ends map[string]bool) {
	n, err := strconv.ParseInt(w.Annotations[render.AnnotationGeneration], 10, 64)
	deleted := w.DeletionTimestamp != nil
	ending, known := ends[d.DeploymentID]
	if err != nil || known && !ending && (deleted || n > d.Generation) {
		return
	}
	template, roles := w.Annotations[render.AnnotationTemplateHash], []runtime.RoleCount(nil)
	if text := w.Annotations[render.AnnotationRoles]; text != "" {
		if json.Unmarshal([]byte(text), &roles) != nil || len(roles) == 0 {
			return
		}
		template = roles[0].TemplateHash
	}
	d.Generation, d.Roles, d.TemplateHash = n, roles, template
	ends[d.DeploymentID] = deleted
}

// part is the list of instances of one workload of a deployment with several roles.
type part struct {
	key  string
	list []runtime.Instance
	// hosts is 0 unless the workload is a rank of an instance of several hosts. For a rank, epoch
	// is the workload's epoch, stale has the ids of pods of other epochs, and pod is the input for
	// endedRanks.
	hosts, epoch int
	stale        map[string]bool
	pod          rankPod
}

func (r *Runtime) partOf(key string, list []runtime.Instance, w *appsv1.Deployment) part {
	p := part{key: key, list: list}
	if w == nil || w.Labels[render.LabelRank] == "" {
		return p
	}
	p.hosts, _ = strconv.Atoi(w.Annotations[render.AnnotationHosts])
	p.epoch = epochOf(w.Spec.Template.Annotations)
	pods := r.caches.PodsOf(w.Namespace, w.Labels[render.LabelWorkload])
	p.pod = rankPodOf(w, pods)
	for _, pod := range pods {
		if epochOf(pod.Annotations) != p.epoch {
			if p.stale == nil {
				p.stale = map[string]bool{}
			}
			p.stale[render.InstanceID(pod.UID)] = true
		}
	}
	return p
}

func (p part) sameAs(o part) bool {
	return p.key == o.key && p.hosts == o.hosts && p.epoch == o.epoch && p.pod == o.pod && len(p.stale) == len(o.stale) && len(p.list) == len(o.list) && &p.list[0] == &o.list[0]
}

// joins caches the joined lists of deployments with several roles. A list stays the same slice
// while none of its parts changes.
type joins map[string]join

type join struct {
	parts []part
	list  []runtime.Instance
}

// joinParts sets the lists of the deployments that have parts, ordered by place.
func (j *joins) joinParts(seen map[string]*runtime.ObservedDeployment, parts map[string][]part) {
	now := make(joins, len(parts))
	for id, all := range parts {
		slices.SortFunc(all, func(a, b part) int { return cmp.Compare(a.key, b.key) })
		one := (*j)[id]
		if !slices.EqualFunc(one.parts, all, part.sameAs) {
			one = join{parts: all}
			for _, instance := range instancesOf(all) {
				if len(instance) > 1 || isRank(instance[0]) {
					one.list = append(one.list, joinedRanks(instance)...)
				} else {
					one.list = append(one.list, instance[0].list...)
				}
			}
			slices.SortStableFunc(one.list, func(a, b runtime.Instance) int {
				return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.ID, b.ID))
			})
		}
		now[id] = one
		seen[id].Instances = joinLists(seen[id].Instances, one.list)
	}
	*j = now
}

// joinLists concatenates two lists. It returns list itself, and not a copy, if before is empty.
func joinLists(before, list []runtime.Instance) []runtime.Instance {
	if len(before) == 0 {
		return list
	}
	return slices.Concat(before, list)
}

// news has the workloads with a change since the last Observe, by namespace and label.
type news struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (n *news) add(keys ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys == nil {
		n.keys = map[string]bool{}
	}
	for _, k := range keys {
		n.keys[k] = true
	}
}

func (n *news) take() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.keys
	n.keys = nil
	return taken
}
