package kubernetes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// The first event of an object is reported at once. Repeated events are summed up after firstPause,
// and then after pauses that double up to longestPause. So a client that keeps changing an object
// does not fill the app's history: it causes about ten entries on the first day and four on each
// later day.
const (
	firstPause   = 10 * time.Minute
	longestPause = 6 * time.Hour
)

// notices collects messages to people. It is safe for concurrent use.
type notices struct {
	mu  sync.Mutex
	seq int64
	// told has the newest notices. The list is always replaced, and never modified.
	told []runtime.Notice
	sums map[subject]*sum
}

// subject is the key by which notices are summed up.
type subject struct {
	kind               agentv1.Notice_Kind
	deployment, object string
}

// sum has the events of a subject since its last notice.
type sum struct {
	told    time.Time
	pause   time.Duration
	times   int
	message string
	at      time.Time
}

// add records an event, and makes a notice of it if it is the first of its subject.
func (n *notices) add(about subject, message string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sums[about]
	if s == nil {
		if n.sums == nil {
			n.sums = map[subject]*sum{}
		}
		n.sums[about] = &sum{told: now, pause: firstPause}
		n.addNotice(about, 1, message, now)
		return
	}
	s.times++
	s.message, s.at = message, now
}

// sumUp makes the notices that are due, and forgets subjects without new events. It reports whether it made a
// notice.
func (n *notices) sumUp(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var due []subject
	for about, s := range n.sums {
		switch {
		case now.Sub(s.told) < s.pause:
		case s.times == 0:
			delete(n.sums, about)
		default:
			due = append(due, about)
		}
	}
	slices.SortFunc(due, func(a, b subject) int {
		return cmp.Or(n.sums[a].at.Compare(n.sums[b].at), cmp.Compare(a.deployment, b.deployment), cmp.Compare(a.object, b.object))
	})
	for _, about := range due {
		s := n.sums[about]
		n.addNotice(about, s.times, s.message, s.at)
		s.told, s.times, s.pause = now, 0, min(2*s.pause, longestPause)
	}
	return len(due) > 0
}

func (n *notices) addNotice(about subject, times int, message string, at time.Time) {
	n.seq++
	kept := n.told[max(0, len(n.told)-runtime.MaxNotices+1):]
	n.told = append(slices.Clip(kept), runtime.Notice{
		Seq: n.seq, Kind: about.kind, DeploymentID: about.deployment, Object: about.object,
		Message: message, Times: times, At: at,
	})
}

// newestNotices returns the notices, oldest first. The caller must not change the list.
func (n *notices) newestNotices() []runtime.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told
}
