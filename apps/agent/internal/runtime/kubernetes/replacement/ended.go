package replacement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// EndedPods says how long ended pods stay. Kubernetes replaces each pod that was evicted, preempted
// or refused by its node. It keeps the old pod for people to read, until the cluster has thousands
// of them. The agent keeps only the newest few of each workload, for an hour.
type EndedPods struct {
	// Newest is how many ended pods of a workload stay for Longest. Defaults: 3 and 1 h.
	Newest  int
	Longest time.Duration
	// Shortest is how long each ended pod stays, so that its status is observed and reported.
	// Default: 1 min.
	Shortest time.Duration
}

const (
	defaultNewestEnded   = 3
	defaultLongestEnded  = time.Hour
	defaultShortestEnded = time.Minute
	// endedAtOnce is the maximum number of deletions in one round of tidying, so that they take
	// only a small part of the agent's calls.
	endedAtOnce = 25
)

func (e *EndedPods) Check() error {
	if e.Newest < 0 || e.Longest < 0 || e.Shortest < 0 {
		return fmt.Errorf("kubernetes: EndedPods is %+v: use 0 for a default, or positive values", *e)
	}
	e.Newest = cmp.Or(e.Newest, defaultNewestEnded)
	e.Longest = cmp.Or(e.Longest, defaultLongestEnded)
	e.Shortest = cmp.Or(e.Shortest, defaultShortestEnded)
	return nil
}

// surplusPods returns the ended pods of a workload that may go, oldest first.
func (e *EndedPods) surplusPods(ended []*corev1.Pod, now time.Time) []*corev1.Pod {
	newest := slices.SortedFunc(slices.Values(ended), func(a, b *corev1.Pod) int {
		return cmp.Or(EndedAt(b).Compare(EndedAt(a)), cmp.Compare(b.Name, a.Name))
	})
	var out []*corev1.Pod
	for n, p := range newest {
		stays := e.Shortest
		if n < e.Newest {
			stays = max(e.Longest, e.Shortest)
		}
		if now.Sub(EndedAt(p)) >= stays {
			out = append(out, p)
		}
	}
	slices.Reverse(out)
	return out
}

// EndedAt returns the time of the last event of an ended pod.
func EndedAt(p *corev1.Pod) time.Time {
	at := p.CreationTimestamp.Time
	later := func(t metav1.Time) {
		if t.After(at) {
			at = t.Time
		}
	}
	for i := range p.Status.Conditions {
		later(p.Status.Conditions[i].LastTransitionTime)
	}
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil {
			later(t.FinishedAt)
		}
	}
	return at
}

// leftBehind reports whether a pod of the agent has ended and only the agent will remove it,
// because its ReplicaSet has replaced it. Pods that people created are not removed, whatever their
// labels are. workload returns the workload of a pod, or nil if there is none.
func leftBehind(p *corev1.Pod, workload func(render.Ref) render.Object) bool {
	if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded || p.DeletionTimestamp != nil {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || owner.Kind != "ReplicaSet" || p.Labels[render.LabelWorkload] == "" {
		return false
	}
	w := workload(render.WorkloadOf(p))
	return w == nil || w.GetAnnotations()[render.AnnotationPaused] != render.True
}

// Due returns the ended pods that may be removed now, oldest first, and at most endedAtOnce.
func (e *EndedPods) Due(pods []*corev1.Pod, workload func(render.Ref) render.Object, now time.Time) []*corev1.Pod {
	ended := map[string][]*corev1.Pod{}
	for _, p := range pods {
		if leftBehind(p, workload) {
			key := p.Namespace + "/" + p.Labels[render.LabelWorkload]
			ended[key] = append(ended[key], p)
		}
	}
	var surplus []*corev1.Pod
	for _, of := range ended {
		surplus = append(surplus, e.surplusPods(of, now)...)
	}
	slices.SortFunc(surplus, func(a, b *corev1.Pod) int { return EndedAt(a).Compare(EndedAt(b)) })
	return surplus[:min(len(surplus), endedAtOnce)]
}
