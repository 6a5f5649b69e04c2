package observe

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// topic is the subject of an event. The journal keeps the newest event of each topic.
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

// note is the stored part of an event.
type note struct {
	topic topic
	text  string
	at    time.Time
	count int32
	// source is the event's UID. An event with another UID on the same topic is added to count.
	source types.UID
}

// Journal keeps the newest Warning events of each pod, one for each topic. It is safe for
// concurrent use. The zero value is ready to use.
type Journal struct {
	mu    sync.Mutex
	pods  map[types.UID]*page
	edits uint64
}

// page has the notes of one pod. edit is the journal's count when the page last changed. A reader
// compares it with the count of its last read.
type page struct {
	notes []note
	edit  uint64
}

// Add adds an event. It reports whether the notes of a pod have changed.
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
		// "Unable to attach or mount volumes" only summarizes earlier events.
		if n.topic == topicMount && vagueMount(n.text) && !vagueMount(old.text) {
			n.text = old.text
		}
		*old = n
		j.touchPage(p)
		return true
	}
	p.notes = append(p.notes, n)
	j.touchPage(p)
	return true
}

func (j *Journal) touchPage(p *page) {
	j.edits++
	p.edit = j.edits
}

// Forget drops the notes of a pod that is gone. Callers must also call it for an unknown pod whose
// events have expired, because the journal itself drops nothing.
func (j *Journal) Forget(pod types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.pods, pod)
	j.edits++
}

// Keep drops the notes of all pods for which known returns false.
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

// count returns a number that grows with every change.
func (j *Journal) count() uint64 {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.edits
}

// lastEdit returns the count at which a pod's notes last changed, or 0 if there are none.
func (j *Journal) lastEdit(pod types.UID) uint64 {
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

// read returns a pod's notes if they have changed since edit. A nil journal is empty.
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
