package gateways

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// hub knows, of each gateway, what it has yet to be sent and what it serves. It is pure,
// and not safe for concurrent use.
type hub struct {
	*table
	*routable
	grace time.Duration
	// expected is how many gateways must serve a route for the region to serve it.
	expected int
	gateways map[string]*gateway
	streams  int64
	// feeds are gateways that others of another protocol are behind, by id, whether they count
	// or not.
	feeds map[string]*gateway
}

// gateway is one that counts.
type gateway struct {
	id string
	// verified: it is one of the region's. What others say decides nothing, see Caller.
	verified bool
	// process that has the id; empty: not known.
	process string
	// stream is the Watch that is open, 0 when none is; since when it is, or is not.
	stream int64
	since  time.Time
	// heard is when it last said anything.
	heard time.Time
	// leaving: it takes no new requests.
	leaving bool

	// begun: its stream is past Begin. have is what it held before that, until it tells
	// how it serves that.
	begun bool
	have  map[string]version
	// same: have is of this table.
	same bool
	// dirty are apps that it has not been sent as they are; poke tells that there are some.
	dirty map[string]bool
	poke  chan struct{}
	// holds are the apps that it was sent, or had. served is the change of each that it
	// serves.
	holds  map[string]bool
	served map[string]int64
	// busy is how many requests it has in flight where it sends no more; ejected are those
	// that it sends nothing for what it saw.
	busy    map[string]int32
	ejected map[string]string
	// unproven are instances that it has not reached yet, with why if it tried. It and ejected
	// are nil before its first report.
	unproven map[string]string
	// notes are what people should know of those behind a feed.
	notes []string
}

type version struct{ epoch, generation, change int64 }

func newHub(t *table, expected int, grace time.Duration) *hub {
	return &hub{table: t, routable: newRoutable(), expected: expected, grace: grace, gateways: map[string]*gateway{}, feeds: map[string]*gateway{}}
}

// recall counts gateways that an agent before this one knew, until they come back or were
// away for the grace.
func (h *hub) recall(ids []string, now time.Time) {
	for _, id := range ids {
		h.gateways[id] = &gateway{id: id, verified: true, since: now}
	}
}

// open counts a gateway from now on, in the place of one of that id. have is what it holds
// already; same, that it is of this table.
func (h *hub) open(id, process string, have []*gatewayv1.AppVersion, same bool, now time.Time) *gateway {
	if old := h.gateways[id]; old != nil && old.poke != nil {
		signal(old.poke) // its stream finds that it is not the one that is open
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

// begin has the gateway sent all that it does not have.
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

// touched has the apps sent to every gateway.
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

// close notes that a stream has ended. left: its gateway has left. One whose place another has
// taken has nothing to leave.
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

// heed takes a report; false: there is no stream of that gateway's process.
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

// serve notes the change of an app that the gateway serves. A change that was never made
// cannot be served: of a number beyond the newest change, the newest counts.
func (h *hub) serve(g *gateway, appID string, change int64) {
	g.served[appID] = max(g.served[appID], min(change, h.change))
	delete(g.have, appID)
}

// tidy forgets what every gateway is past.
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

// expire counts no more who was away for the grace. It returns those, and when to look
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

// routed tells why an app's route, which the table was given, is not served yet; "" when it
// is. A route that is newer than the one asked for answers for it.
func (h *hub) routed(appID string, epoch, generation int64) (why string) {
	a := h.apps[appID]
	if a == nil {
		return "" // it was taken out, and everybody serves that
	}
	// Without a route there was none to take out: the app is there for its previews.
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

// notes say what people should know of the gateways.
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

// known are the gateways that count.
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

// list names a few of them.
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

// silent tells that a gateway has said nothing for too long since its Begin.
func (g *gateway) silent(now time.Time, longest time.Duration) bool {
	return g.begun && now.Sub(g.heard) > longest
}
