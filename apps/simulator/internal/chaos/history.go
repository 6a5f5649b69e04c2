package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// place is a deployment in a region. region is a name.
type place struct{ region, deployment string }

func (p place) String() string { return p.deployment + " in " + p.region }

// event is something that happened. An empty field means that the event is about no particular one.
type event struct {
	at                      time.Time
	part                    string // what was broken or mended
	app, deployment, region string
	text                    string
}

// isAbout reports whether the event may be about an app in a place. An event that names nothing (a database that is
// killed) concerns all places. An event that names another app, deployment or region does not concern this one. If
// only a region or only an app is given, all events that name it count. If neither is given, all events count.
func (e event) isAbout(app string, p place) bool {
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

// history has the events since everything was last in order.
type history struct {
	now   func() time.Time
	begin time.Time

	mu     sync.Mutex
	events []event
	total  int
}

// maxEvents is far more than a round produces.
const maxEvents = 200_000

func newHistory(now func() time.Time) *history { return &history{now: now, begin: now()} }

// sinceBegin returns the time since the history began.
func (h *history) sinceBegin() time.Duration { return h.now().Sub(h.begin) }

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.at = h.now()
	h.total++
	if len(h.events) == maxEvents {
		// The newest events explain a violation.
		h.events = slices.Delete(h.events, 0, maxEvents/8)
	}
	h.events = append(h.events, e)
}

// deleteEvents deletes the events, because the state was found in order.
func (h *history) deleteEvents() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = h.events[:0]
}

// maxLines is the number of newest lines that are printed: about one screen.
const maxLines = 50

// eventsAbout returns the events since everything was last in order that concern the app and the place: changes to
// the app, events in the place, and faults of parts on which the place depends.
func (h *history) eventsAbout(app string, p place) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, e := range h.events {
		if !e.isAbout(app, p) {
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
