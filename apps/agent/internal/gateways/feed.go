package gateways

import (
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Feed supplies the table to a part of this process that serves it in another protocol. While this
// part has clients, they count together as one gateway.
type Feed struct {
	g   *Gateways
	one *gateway
}

// Follow returns the feed of one protocol. id is the feed's id. It must differ from the ids of
// gateways. It is stored in the file, so it must be the same after a restart. verified means that
// the feed's clients have proved that they belong to the region, see Caller.
func (g *Gateways) Follow(id string, verified bool) *Feed {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := &Feed{g: g, one: g.hub.addFeed(id)}
	f.one.verified = verified
	return f
}

// Known is closed when the table is complete. Until then Take returns nothing.
func (f *Feed) Known() <-chan struct{} { return f.g.complete }

// Changed is signalled when Take may return something new.
func (f *Feed) Changed() <-chan struct{} { return f.one.poke }

// Take returns the present state of every app that changed since the last call. The first call
// returns all apps. An app without hosts and previews is gone.
func (f *Feed) Take() []*gatewayv1.AppRoutes {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	switch {
	case f.one.begun:
	case f.g.tableComplete:
		f.g.hub.beginTable(f.one, time.Now())
	default:
		return nil
	}
	return f.g.hub.takeDirty(f.one)
}

// Serves records what the feed's clients serve. changes has, by app id, the change that every
// client serves now. anybody is true if there is a client. notes are shown to people.
//
// If changes is not nil, the caller confirms that no client has a state from another table. Apps
// that Take returned and that no call of Serves has reported yet are exempt. After the last client
// is gone, the feed counts for Grace, as a gateway does. Serves may be called at any time.
func (f *Feed) Serves(changes map[string]int64, anybody bool, notes []string) {
	f.g.mu.Lock()
	f.g.hub.recordFeed(f.one, changes, anybody, notes, time.Now())
	f.g.renewAsleep()
	f.g.mu.Unlock()
	signalOn(f.g.wake)
	f.g.progress()
}

// anyApp is not the id of an app. In gateway.have, it stands for states from another table that the
// feed's clients may have.
const anyApp = ""

// addFeed adds a feed, which does not count yet.
func (h *hub) addFeed(id string) *gateway {
	f := &gateway{
		id: id, verified: true, have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		mayServe: map[string]bool{}, served: map[string]int64{},
	}
	h.feeds[id] = f
	return f
}

// recordFeed records what the feed's clients serve. The feed counts while it has clients.
func (h *hub) recordFeed(f *gateway, changes map[string]int64, anybody bool, notes []string, now time.Time) {
	there := f.stream != 0
	if anybody && !there {
		// New clients may have states of any app, as a gateway that reconnects may.
		f.have[anyApp] = version{}
		for id, a := range h.apps {
			if !a.isGone() {
				f.have[id] = version{}
				delete(f.served, id)
			}
		}
	}
	if _, ok := f.have[anyApp]; ok && changes != nil {
		// Clients may still serve an app in its state from another table, if the app was taken and
		// is not in changes.
		for id := range f.mayServe {
			if _, told := changes[id]; !told && h.apps[id] != nil {
				f.have[id] = version{}
			}
		}
		delete(f.have, anyApp)
	}
	for id, change := range changes {
		h.recordServed(f, id, change)
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
	h.tidyUp()
}
