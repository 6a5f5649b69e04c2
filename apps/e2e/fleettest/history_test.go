package fleettest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// place is a deployment in a region. region is a name.
type place struct{ region, deployment string }

// event is something that happened. An empty field means that the event is about none in particular.
type event struct {
	at                      time.Time
	part                    string // who did it
	app, deployment, region string
	text                    string
}

// history has the events that people need to understand a violation.
type history struct {
	begin time.Time

	mu     sync.Mutex
	events []event
}

func (h *history) add(e event) {
	e.at = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// maxLines is the number of printed lines of a history: its beginning and its end.
const maxLines = 90

// about returns the events that concern the app and the place: changes of the app, events in the place, and
// faults of parts on which the place depends.
func (h *history) about(app string, p place) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, e := range h.events {
		here := e.region == "" || p.region == "" || e.region == p.region
		same := e.deployment == "" || p.deployment == "" || e.deployment == p.deployment
		ours := e.app == "" || app == "" || e.app == app
		if !here || !same || !ours {
			continue
		}
		subject := strings.Join(slices.DeleteFunc([]string{e.part, e.app, e.deployment, e.region}, func(s string) bool { return s == "" }), " ")
		lines = append(lines, fmt.Sprintf("%9.3fs %s: %s", e.at.Sub(h.begin).Seconds(), subject, e.text))
	}
	if len(lines) > maxLines {
		cut := fmt.Sprintf("           ... %d more ...", len(lines)-maxLines)
		lines = slices.Concat(lines[:maxLines/4], []string{cut}, lines[len(lines)-3*maxLines/4:])
	}
	return strings.Join(lines, "\n")
}
