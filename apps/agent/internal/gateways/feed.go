package gateways

import (
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Feed is the table for a part of this process that passes it on in another protocol. All
// who have it from there count as one gateway while there are any. Use it from one
// goroutine.
type Feed struct {
	g   *Gateways
	one *gateway
}

// Follow returns the feed; there is one. id is what it counts as, and is kept as that of a
// gateway is: it is the same after a restart.
func (g *Gateways) Follow(id string) *Feed {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hub.feed = &gateway{
		id: id, have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		holds: map[string]bool{}, served: map[string]int64{},
	}
	return &Feed{g: g, one: g.hub.feed}
}

// Known is closed when the table is complete. Take says nothing before.
func (f *Feed) Known() <-chan struct{} { return f.g.known }

// Changed is signalled when Take has something new.
func (f *Feed) Changed() <-chan struct{} { return f.one.poke }

// Take returns every app that changed since it was taken last, as it is by now: all, the
// first time. One without hosts and previews is gone.
func (f *Feed) Take() []*gatewayv1.AppRoutes {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	switch {
	case f.one.begun:
	case f.g.knows:
		f.g.hub.begin(f.one, time.Now())
	default:
		return nil
	}
	return f.g.hub.take(f.one)
}

// Serves tells the change of each app, by id, that everybody behind the feed serves by
// now, whether anybody is, and what people should know of them. Who is not there any more counts
// for Grace, as a gateway does.
func (f *Feed) Serves(changes map[string]int64, anybody bool, notes []string) {
	f.g.mu.Lock()
	h, now := f.g.hub, time.Now()
	there := f.one.stream != 0
	if anybody && !there {
		// What was served by nobody is not served by those who have just come.
		for id, a := range h.apps {
			if !a.gone() {
				delete(f.one.served, id)
			}
		}
	}
	for id, change := range changes {
		h.serve(f.one, id, change)
	}
	switch {
	case anybody && !there:
		h.streams++
		f.one.stream, f.one.since = h.streams, now
		h.gateways[f.one.id] = f.one
	case !anybody && there:
		f.one.stream, f.one.since = 0, now
	}
	f.one.heard, h.feedNotes = now, notes
	h.tidy()
	f.g.mu.Unlock()
	signal(f.g.wake)
	f.g.progress()
}
