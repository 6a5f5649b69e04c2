package observe

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// topic is what an event is about. One event per topic is kept: the newest.
type topic uint8

const (
	topicNone topic = iota
	topicPull
	topicMount
	topicSandbox
	topicStartup
	topicLiveness
	topicReadiness
	topicEvicted
)

// note is what is kept of an event.
type note struct {
	topic topic
	text  string
	at    time.Time
	count int32
	// source is the event's UID: another one on the same topic adds to count.
	source types.UID
}

// Journal keeps what Warning events told of pods, a few lines for each. It may be
// used from several goroutines. The zero value is ready.
type Journal struct {
	mu    sync.Mutex
	pods  map[types.UID]*page
	edits uint64
}

// page is one pod's. edit is the journal's count when it last changed, so that a
// reader sees that it has read this before.
type page struct {
	notes []note
	edit  uint64
}

// Add takes an event in. It reports whether that changed what is known of a pod.
func (j *Journal) Add(e *corev1.Event) bool {
	if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.UID == "" {
		return false
	}
	n := note{topic: topicOf(e), text: strings.TrimSpace(e.Message), at: lastTime(e), count: eventCount(e), source: e.UID}
	if n.topic == topicNone {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pods == nil {
		j.pods = map[types.UID]*page{}
	}
	p := j.pods[e.InvolvedObject.UID]
	if p == nil {
		p = &page{}
		j.pods[e.InvolvedObject.UID] = p
	}
	for i := range p.notes {
		old := &p.notes[i]
		if old.topic != n.topic {
			continue
		}
		if n.at.Before(old.at) || n == *old {
			return false
		}
		if old.source != n.source {
			n.count += old.count
		} else {
			n.count = max(n.count, old.count)
		}
		// "Unable to attach or mount volumes" only sums up what was told before.
		if n.topic == topicMount && vagueMount(n.text) && !vagueMount(old.text) {
			n.text = old.text
		}
		*old = n
		j.touch(p)
		return true
	}
	p.notes = append(p.notes, n)
	j.touch(p)
	return true
}

func (j *Journal) touch(p *page) {
	j.edits++
	p.edit = j.edits
}

// Forget drops a pod that is gone. Call it also for events that ran out and whose
// pod is not known: the journal has no other end.
func (j *Journal) Forget(pod types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.pods, pod)
	j.edits++
}

// Keep drops the pods that are not known.
func (j *Journal) Keep(known func(types.UID) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for uid := range j.pods {
		if !known(uid) {
			delete(j.pods, uid)
			j.edits++
		}
	}
}

// count grows with every change.
func (j *Journal) count() uint64 {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.edits
}

// edit is when a pod's notes last changed; 0: there are none.
func (j *Journal) edit(pod types.UID) uint64 {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.pods[pod]; p != nil {
		return p.edit
	}
	return 0
}

// read returns a pod's notes unless they are those of edit. A nil journal is an
// empty one.
func (j *Journal) read(pod types.UID, edit uint64) (notes []note, now uint64, changed bool) {
	if j == nil {
		return nil, 0, edit != 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.pods[pod]
	if p == nil {
		return nil, 0, edit != 0
	}
	if p.edit == edit {
		return nil, edit, false
	}
	return append([]note(nil), p.notes...), p.edit, true
}

func topicOf(e *corev1.Event) topic {
	switch e.Reason {
	case "Failed", "InspectFailed", "ErrImageNeverPull":
		if strings.Contains(e.Message, "ull image") || strings.Contains(e.Message, "nspect image") || e.Reason != "Failed" {
			return topicPull
		}
	case "FailedMount", "FailedAttachVolume", "FailedMapVolume":
		return topicMount
	case "FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady", "FailedPrepareDynamicResources":
		return topicSandbox
	case "Unhealthy":
		switch {
		case strings.HasPrefix(e.Message, "Startup probe"):
			return topicStartup
		case strings.HasPrefix(e.Message, "Liveness probe"):
			return topicLiveness
		case strings.HasPrefix(e.Message, "Readiness probe"):
			return topicReadiness
		}
	case "Evicted":
		return topicEvicted
	}
	return topicNone
}

func vagueMount(text string) bool {
	return strings.HasPrefix(text, "Unable to attach or mount volumes")
}

func lastTime(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	if at.IsZero() {
		at = e.EventTime.Time
	}
	if at.IsZero() {
		at = e.CreationTimestamp.Time
	}
	return at
}

func eventCount(e *corev1.Event) int32 {
	n := max(e.Count, 1)
	if e.Series != nil {
		n = max(n, e.Series.Count)
	}
	return n
}
