package gateways

import (
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Feed is the table for a part of this process that passes it on in another protocol. All
// clients of that part count as one gateway while there are any.
type Feed struct {
	g   *Gateways
	one *gateway
}

// Follow returns a feed, of which there is one for each protocol. id is what it counts as, and
// is kept as that of a gateway is: it is the same after a restart. verified: those behind it have
// proved that they are the region's, see Caller.
func (g *Gateways) Follow(id string, verified bool) *Feed {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := &Feed{g: g, one: g.hub.follow(id)}
	f.one.verified = verified
	return f
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

// Serves takes the change of each app, by id, that every client behind the feed serves by now;
// whether there is any client (anybody); and what people should know of them (notes). Changes
// that are not nil say, too, that no client has anything of another table, but for apps that were
// taken and never reported here. Clients that are gone count for Grace, as a gateway does. Serves
// may be called at any time.
func (f *Feed) Serves(changes map[string]int64, anybody bool, notes []string) {
	f.g.mu.Lock()
	f.g.hub.serves(f.one, changes, anybody, notes, time.Now())
	f.g.mu.Unlock()
	signal(f.g.wake)
	f.g.progress()
}

// anything is no app: it stands for what those behind the feed may have had of another table.
const anything = ""

// follow makes a feed, which does not count yet.
func (h *hub) follow(id string) *gateway {
	f := &gateway{
		id: id, verified: true, have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		holds: map[string]bool{}, served: map[string]int64{},
	}
	h.feeds[id] = f
	return f
}

// serves notes what those behind the feed serve, and counts them while there are any.
func (h *hub) serves(f *gateway, changes map[string]int64, anybody bool, notes []string, now time.Time) {
	there := f.stream != 0
	if anybody && !there {
		// Those who have just come may hold anything, as a gateway that comes back does.
		f.have[anything] = version{}
		for id, a := range h.apps {
			if !a.gone() {
				f.have[id] = version{}
				delete(f.served, id)
			}
		}
	}
	if _, ok := f.have[anything]; ok && changes != nil {
		// What was taken and is not told of may still be served as another table had it.
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
