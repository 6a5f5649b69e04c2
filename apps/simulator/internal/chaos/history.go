package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// place is where a deployment runs; region is a name.
type place struct{ region, deployment string }

func (p place) String() string { return p.deployment + " in " + p.region }

// event is something that happened. An empty field means that it is about none in
// particular.
type event struct {
	at                      time.Time
	part                    string // what was broken or mended
	app, deployment, region string
	text                    string
}

// concerns reports whether the event may be about an app in a place. An event that names
// nothing (a database that is killed) concerns all places. An event that names another app,
// deployment or region does not concern this one. For a region or an app alone, all events that
// name it count; for neither, all events.
func (e event) concerns(app string, p place) bool {
	switch {
	case app == "" && p == place{}:
		return true
	case e.region != "" && e.region != p.region && (p.region != "" || p.deployment == ""):
		return false
	case e.deployment != "" && e.deployment != p.deployment && (p.deployment != "" || p.region == ""):
		return false
	}
	return e.app == "" || e.app == app
}

// history is all that happened since everything was last in order.
type history struct {
	now   func() time.Time
	begin time.Time

	mu     sync.Mutex
	events []event
	total  int
}

// maxEvents is far more than a storm has.
const maxEvents = 200_000

func newHistory(now func() time.Time) *history { return &history{now: now, begin: now()} }

// since is how long it goes back.
func (h *history) since() time.Duration { return h.now().Sub(h.begin) }

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.at = h.now()
	h.total++
	if len(h.events) == maxEvents {
		// What shows a violation is what came shortly before it.
		h.events = slices.Delete(h.events, 0, maxEvents/8)
	}
	h.events = append(h.events, e)
}

// settled forgets what led to a state that was found in order.
func (h *history) settled() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = h.events[:0]
}

// maxLines of a history that is printed, the newest: what is read on one screen.
const maxLines = 50

// about is the shortest history that shows something: since everything was in
// order, what was done to the app, what happened in the place, and what broke that
// this place depends on.
func (h *history) about(app string, p place) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, e := range h.events {
		if !e.concerns(app, p) {
			continue
		}
		subject := strings.Join(slices.DeleteFunc([]string{e.part, e.app, e.deployment, e.region}, func(s string) bool { return s == "" }), " ")
		lines = append(lines, fmt.Sprintf("%9.3fs %s: %s", e.at.Sub(h.begin).Seconds(), subject, e.text))
	}
	if cut := len(lines) - maxLines; cut > 0 {
		lines = append([]string{fmt.Sprintf("          ... %d before ...", cut)}, lines[cut:]...)
	}
	return lines
}
