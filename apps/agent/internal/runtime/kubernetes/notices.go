package kubernetes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// What happens to one object again and again is told at once, then summed up: after
// firstPause, and while it goes on after pauses that double up to longestPause. So a
// client that keeps changing an object back does not push everything else out of an app's
// history: it gets some ten entries on the first day and four on each later day.
const (
	firstPause   = 10 * time.Minute
	longestPause = 6 * time.Hour
)

// notices are what people should know of. Safe for concurrent use.
type notices struct {
	mu  sync.Mutex
	seq int64
	// told are the newest. The list is replaced and never changed.
	told []runtime.Notice
	sums map[subject]*sum
}

// subject is what notices are summed up by.
type subject struct {
	kind               agentv1.Notice_Kind
	deployment, object string
}

// sum is what happened since it was last told.
type sum struct {
	told    time.Time
	pause   time.Duration
	times   int
	message string
	at      time.Time
}

// add notes that something happened, and tells of it if it is the first time.
func (n *notices) add(about subject, message string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sums[about]
	if s == nil {
		if n.sums == nil {
			n.sums = map[subject]*sum{}
		}
		n.sums[about] = &sum{told: now, pause: firstPause}
		n.tell(about, 1, message, now)
		return
	}
	s.times++
	s.message, s.at = message, now
}

// sumUp tells what is due, and forgets what did not happen again. It says whether it
// told anything.
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
		n.tell(about, s.times, s.message, s.at)
		s.told, s.times, s.pause = now, 0, min(2*s.pause, longestPause)
	}
	return len(due) > 0
}

func (n *notices) tell(about subject, times int, message string, at time.Time) {
	n.seq++
	kept := n.told[max(0, len(n.told)-runtime.MaxNotices+1):]
	n.told = append(slices.Clip(kept), runtime.Notice{
		Seq: n.seq, Kind: about.kind, DeploymentID: about.deployment, Object: about.object,
		Message: message, Times: times, At: at,
	})
}

// newest are those to be told, oldest first; read only.
func (n *notices) newest() []runtime.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told
}
