package gateways

import (
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Feed gives the table to a part of this process that serves it in another protocol. All
// clients of that part count together as one gateway while it has any.
type Feed struct {
	g   *Gateways
	one *gateway
}

// Follow returns the feed of one protocol. id stands for the feed where gateways are counted. It
// is kept in the file, so it must be the same after a restart. verified says that the feed's
// clients have proved that they are the region's, see Caller.
func (g *Gateways) Follow(id string, verified bool) *Feed {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := &Feed{g: g, one: g.hub.follow(id)}
	f.one.verified = verified
	return f
}

// Known is closed when the table is complete. Until then Take returns nothing.
func (f *Feed) Known() <-chan struct{} { return f.g.known }

// Changed is signalled when Take would return something new.
func (f *Feed) Changed() <-chan struct{} { return f.one.poke }

// Take returns the present state of every app that changed since the last call; the first call
// returns all apps. An app without hosts and previews is gone.
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

// Serves reports what the feed's clients serve. changes has, by app id, the change that every
// client serves by now. anybody says whether there is a client. notes are shown to people. If
// changes is not nil, no client holds state of another table, except for apps that were taken
// and never reported here. Clients that are gone count for Grace, as a gateway does. Serves may
// be called at any time.
func (f *Feed) Serves(changes map[string]int64, anybody bool, notes []string) {
	f.g.mu.Lock()
	f.g.hub.serves(f.one, changes, anybody, notes, time.Now())
	f.g.reassess()
	f.g.mu.Unlock()
	signal(f.g.wake)
	f.g.progress()
}

// anything is not an app's id. It stands for state of another table that the feed's clients may hold.
const anything = ""

// follow adds a feed, which does not count yet.
func (h *hub) follow(id string) *gateway {
	f := &gateway{
		id: id, verified: true, have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		holds: map[string]bool{}, served: map[string]int64{},
	}
	h.feeds[id] = f
	return f
}

// serves records what the feed's clients serve. The feed counts while it has clients.
func (h *hub) serves(f *gateway, changes map[string]int64, anybody bool, notes []string, now time.Time) {
	there := f.stream != 0
	if anybody && !there {
		// New clients may hold anything, as a gateway that comes back does.
		f.have[anything] = version{}
		for id, a := range h.apps {
			if !a.gone() {
				f.have[id] = version{}
				delete(f.served, id)
			}
		}
	}
	if _, ok := f.have[anything]; ok && changes != nil {
		// An app that was taken and is not in changes may still be served as another table had it.
		for id := range f.holds {
			if _, told := changes[id]; !told && h.apps[id] != nil {
				f.have[id] = version{}
			}
		}
		delete(f.have, anything)
	}
	for id, change := range changes {
		h.serve(f, id, change)
	}
	switch {
	case anybody && !there:
		h.streams++
		f.stream, f.since = h.streams, now
		h.gateways[f.id] = f
	case !anybody && there:
		f.stream, f.since = 0, now
	}
	f.heard, f.notes = now, notes
	h.tidy()
}
