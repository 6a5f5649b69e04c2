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

// EndedPods says how long pods that are over stay. Kubernetes makes another one in
// the place of each that was evicted, preempted or refused by its node, and leaves
// the old one there for people to read, until the whole cluster has thousands. Of a
// workload's, the newest few are enough to read, and an hour is long enough.
type EndedPods struct {
	// Newest of a workload's pods that are over stay for Longest: 3, and 1 h.
	Newest  int
	Longest time.Duration
	// Shortest is how long each of them stays, so that what it says is seen and
	// reported before it goes: 1 min.
	Shortest time.Duration
}

const (
	defaultNewestEnded   = 3
	defaultLongestEnded  = time.Hour
	defaultShortestEnded = time.Minute
	// endedAtOnce bounds the deletions of one round of tidying: a region whose every
	// pod was evicted is tidied within minutes, by a tenth of our share of the API
	// server.
	endedAtOnce = 25
)

func (e *EndedPods) Check() error {
	if e.Newest < 0 || e.Longest < 0 || e.Shortest < 0 {
		return fmt.Errorf("kubernetes: EndedPods is %+v: nothing in it may be negative, and 0 is the default", *e)
	}
	e.Newest = cmp.Or(e.Newest, defaultNewestEnded)
	e.Longest = cmp.Or(e.Longest, defaultLongestEnded)
	e.Shortest = cmp.Or(e.Shortest, defaultShortestEnded)
	return nil
}

// surplus are those of a workload's ended pods that may go, the oldest first.
func (e *EndedPods) surplus(ended []*corev1.Pod, now time.Time) []*corev1.Pod {
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

// EndedAt is the last that happened to a pod that is over.
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

// leftBehind reports whether a pod of ours is over and only the agent takes it away: one
// that its replica set has replaced. A pod that a person made is that person's,
// whatever labels it has. workload returns the workload that a pod is of, nil if there is none.
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

// Due are those of all pods that are over and may go now: of each workload all but the newest few, the oldest
// first.
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
		surplus = append(surplus, e.surplus(of, now)...)
	}
	slices.SortFunc(surplus, func(a, b *corev1.Pod) int { return EndedAt(a).Compare(EndedAt(b)) })
	return surplus[:min(len(surplus), endedAtOnce)]
}
