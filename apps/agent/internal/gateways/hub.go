package gateways

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// hub knows, for each gateway, what must still be sent to it and what it serves. It is pure,
// and not safe for concurrent use.
type hub struct {
	*table
	*routable
	grace time.Duration
	// expected is how many gateways must serve a route for the region to serve it.
	expected int
	gateways map[string]*gateway
	streams  int64
	// feeds are the entries of feeds, by id, whether they count or not. Each stands for the clients
	// of another protocol.
	feeds map[string]*gateway
}

// gateway is a gateway, or a feed, that counts.
type gateway struct {
	id string
	// holdsRequests: it can hold requests of apps at zero.
	holdsRequests bool
	// verified: it is one of the region's. Reports of other gateways decide nothing, see Caller.
	verified bool
	// process is the process that has the id; empty: not known.
	process string
	// stream numbers the open Watch; 0: none is open. since is when it opened, or ended.
	stream int64
	since  time.Time
	// heard is the time of its last report.
	heard time.Time
	// leaving: it takes no new requests.
	leaving bool

	// begun: Begin was sent on its stream. have is what it held before that, until it reports
	// which change of that it serves.
	begun bool
	have  map[string]version
	// same: have is of this table.
	same bool
	// dirty are the apps whose present state it was not sent. poke signals that there are some.
	dirty map[string]bool
	poke  chan struct{}
	// holds are the apps that it was sent, or held before. served has the change of each that it
	// serves.
	holds  map[string]bool
	served map[string]int64
	// busy counts, by instance that gets no new requests, the requests that it has in flight there.
	// ejected are the instances that it ejected, with the reason.
	busy    map[string]int32
	ejected map[string]string
	// unproven are the instances that it has not reached yet, with the error if it tried. unproven
	// and ejected are nil before its first report.
	unproven map[string]string
	// notes are shown to people, about the clients of a feed.
	notes []string
}

type version struct{ epoch, generation, change int64 }

func newHub(t *table, expected int, grace time.Duration) *hub {
	return &hub{table: t, routable: newRoutable(), expected: expected, grace: grace, gateways: map[string]*gateway{}, feeds: map[string]*gateway{}}
}

// recall counts gateways that the previous agent process knew, until they come back or were
// away for the grace.
func (h *hub) recall(ids []string, now time.Time) {
	for _, id := range ids {
		h.gateways[id] = &gateway{id: id, verified: true, since: now}
	}
}

// open counts a gateway from now on and replaces an earlier one of that id. have is what it
// holds already; same says that have is of this table.
func (h *hub) open(id, process string, have []*gatewayv1.AppVersion, same bool, now time.Time) *gateway {
	if old := h.gateways[id]; old != nil && old.poke != nil {
		signal(old.poke) // the old stream finds that another has replaced it
	}
	h.streams++
	g := &gateway{
		id: id, verified: true, process: process, stream: h.streams, since: now, heard: now, same: same,
		have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		holds: map[string]bool{}, served: map[string]int64{},
	}
	for _, v := range have {
		g.have[v.AppId] = version{v.Epoch, v.Generation, v.Change}
		g.holds[v.AppId] = true
	}
	h.gateways[id] = g
	h.regard()
	h.judge()
	return g
}

// begin marks every app that the gateway does not have as to be sent.
func (h *hub) begin(g *gateway, now time.Time) {
	g.begun, g.heard = true, now
	for id, a := range h.apps {
		had, holds := g.have[id]
		at := version{a.told.Epoch, a.told.Generation, a.told.Change}
		if a.gone() && !holds || g.same && had == at {
			continue
		}
		g.dirty[id] = true
	}
	for id := range g.have {
		if h.apps[id] == nil {
			g.dirty[id] = true
		}
	}
	signal(g.poke)
}

// touched marks the apps as to be sent to every gateway.
func (h *hub) touched(apps []string) {
	if len(h.gateways) == 0 {
		h.tidy()
	}
	for _, g := range h.gateways {
		if h.feeds[g.id] != g {
			g.owe(apps)
		}
	}
	for _, f := range h.feeds {
		f.owe(apps)
	}
}

func (g *gateway) owe(apps []string) {
	if !g.begun || len(apps) == 0 {
		return
	}
	for _, id := range apps {
		g.dirty[id] = true
	}
	signal(g.poke)
}

// take returns what the gateway must be sent now: each app in its present state.
func (h *hub) take(g *gateway) []*gatewayv1.AppRoutes {
	out := make([]*gatewayv1.AppRoutes, 0, len(g.dirty))
	for _, id := range slices.Sorted(maps.Keys(g.dirty)) {
		a := h.apps[id]
		switch {
		case a != nil && a.gone() && !g.holds[id]:
			continue
		case a != nil:
			out = append(out, a.told)
		default:
			h.change++
			out = append(out, &gatewayv1.AppRoutes{AppId: id, Change: h.change})
		}
		g.holds[id] = true
	}
	clear(g.dirty)
	return out
}

// close records that a stream has ended. left reports whether its gateway has left. It is false
// if another stream has replaced this one.
func (h *hub) close(g *gateway, now time.Time) (left bool) {
	if h.gateways[g.id] != g {
		return false
	}
	if left = g.leaving; left {
		delete(h.gateways, g.id)
	} else {
		g.stream, g.since, g.begun, g.poke = 0, now, false, nil
	}
	h.judge()
	return left
}

// heed takes a report. It returns false if that gateway's process has no stream.
func (h *hub) heed(r *gatewayv1.ReportRequest, now time.Time) bool {
	g := h.gateways[r.GatewayId]
	if g == nil || g.stream == 0 || !g.begun || g.process != r.ProcessId {
		return false
	}
	g.heard, g.leaving = now, g.leaving || r.Leaving
	for _, s := range r.Served {
		h.serve(g, s.AppId, s.InstancesChange)
	}
	g.busy, g.ejected, g.unproven = map[string]int32{}, map[string]string{}, map[string]string{}
	for _, in := range r.Instances {
		if in.InFlight > 0 {
			g.busy[in.InstanceId] = in.InFlight
		}
		if in.Unproven {
			g.unproven[in.InstanceId] = in.Reason
		}
		if in.Ejected {
			g.ejected[in.InstanceId] = in.Reason
		}
	}
	h.tidy()
	h.judge()
	return true
}

// serve records the change of an app that the gateway serves. A number beyond the newest change
// counts as the newest change.
func (h *hub) serve(g *gateway, appID string, change int64) {
	g.served[appID] = max(g.served[appID], min(change, h.change))
	delete(g.have, appID)
}

// tidy drops removed apps and closed instances that no gateway serves any more.
func (h *hub) tidy() {
	for _, g := range h.gateways {
		if len(g.have) > 0 || g.stream == 0 {
			return // it is not known what it serves
		}
	}
	for instance, apps := range h.closed {
		for id, change := range apps {
			if h.everybodyServes(id, change) {
				h.past(instance, id)
			}
		}
	}
	for id := range h.removed {
		if !h.everybodyServes(id, h.apps[id].told.Change) {
			continue
		}
		h.forget(id)
		for _, g := range h.gateways {
			delete(g.holds, id)
			delete(g.served, id)
		}
	}
}

func (h *hub) everybodyServes(appID string, change int64) bool {
	for _, g := range h.gateways {
		if g.holds[appID] && g.served[appID] < change || g.dirty[appID] && !g.holds[appID] {
			return false
		}
	}
	return true
}

// expire removes gateways that were away for the grace. It returns their ids, and when to look
// again; zero: never.
func (h *hub) expire(now time.Time) (expired []string, next time.Time) {
	for id, g := range h.gateways {
		if g.stream != 0 {
			continue
		}
		end := g.since.Add(h.grace)
		switch {
		case !now.Before(end):
			delete(h.gateways, id)
			expired = append(expired, id)
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	if len(expired) > 0 {
		h.tidy()
	}
	slices.Sort(expired)
	return expired, next
}

// routed returns why an app's route, which the table was given, is not served yet; "" when it
// is. A newer route answers for an older one.
func (h *hub) routed(appID string, epoch, generation int64) (why string) {
	a := h.apps[appID]
	if a == nil {
		return "" // the app was removed, and every gateway serves that
	}
	// An app without a route is in the table for its previews: there was no route to remove.
	if a.routes != nil && (a.told.Epoch < epoch || a.told.Epoch == epoch && a.told.Generation < generation) {
		return "the table of routes does not have it yet"
	}
	serving := 0
	var behind []string
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		g := h.gateways[id]
		_, untold := g.have[appID]
		switch {
		case !g.verified:
		case !untold && g.begun && (g.served[appID] >= a.routed || a.gone() && !g.holds[appID]):
			if g.stream != 0 && !g.leaving {
				serving++
			}
		case g.stream == 0:
			behind = append(behind, fmt.Sprintf("%s, which is away", id))
		case !g.leaving:
			behind = append(behind, id)
		}
	}
	switch {
	case len(behind) > 0:
		return fmt.Sprintf("waits for gateway %s to serve it", list(behind))
	case serving < h.expected:
		return fmt.Sprintf("%d of %d expected gateways serve it", serving, h.expected)
	}
	return ""
}

// released reports whether no gateway sends to the instance any more or has a request in flight
// there.
func (h *hub) released(instanceID string) bool {
	if len(h.gateways) == 0 {
		return true
	}
	if h.opened[instanceID] > 0 {
		return false
	}
	for _, g := range h.gateways {
		if g.stream == 0 || !g.begun || len(g.have) > 0 || g.busy[instanceID] > 0 {
			return false
		}
		for id, change := range h.closed[instanceID] {
			if g.holds[id] && g.served[id] < change {
				return false
			}
		}
	}
	return true
}

// notes returns what people should know about the gateways.
func (h *hub) notes() []string {
	connected, unverified := 0, 0
	var out []string
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		g := h.gateways[id]
		switch {
		case !g.verified:
			unverified++
		case h.feeds[id] == g && g.stream == 0: // its own notes say who
		case g.stream == 0:
			out = append(out, fmt.Sprintf("gateway %s is away: it counts no more %s after it went, at %s", id, h.grace, g.since.UTC().Format(time.TimeOnly)))
		case !g.leaving:
			connected++
		}
	}
	if unverified > 0 {
		out = append(out, fmt.Sprintf("%d gateways are not authenticated: routes do not wait for them, and their figures do not count; leave --listen-insecure out", unverified))
	}
	for _, id := range slices.Sorted(maps.Keys(h.feeds)) {
		out = append(out, h.feeds[id].notes...)
	}
	if connected < h.expected {
		out = append(out, fmt.Sprintf("%d of %d expected gateways are connected: new routes wait", connected, h.expected))
	}
	return out
}

// known returns the ids of the gateways that count.
func (h *hub) known() []string {
	var out []string
	for id, g := range h.gateways {
		if g.verified {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// list joins the first few names.
func list(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// silent reports whether the gateway, since its Begin, has sent no report for longest.
func (g *gateway) silent(now time.Time, longest time.Duration) bool {
	return g.begun && now.Sub(g.heard) > longest
}
