package gateways

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// hub has, for each gateway, the apps that must still be sent and the apps that it serves. It is
// pure, and not safe for concurrent use.
type hub struct {
	*table
	*routable
	grace time.Duration
	// expected is the number of gateways that must serve a route before the region serves it.
	expected int
	gateways map[string]*gateway
	streams  int64
	// feeds has the entries of all feeds, by id. An entry stands for all clients of another
	// protocol. While it counts, it is in gateways, too.
	feeds map[string]*gateway
}

// gateway is a gateway, or a feed, that counts.
type gateway struct {
	id string
	// holdsRequests means that the gateway can hold requests of apps at zero.
	holdsRequests bool
	// pairs means that the gateway can send requests to pairs of instances.
	pairs bool
	// verified means that the gateway has proved that it belongs to the region. Reports of an
	// unverified gateway have no effect on rollouts. See Caller.
	verified bool
	// process is the id of the gateway's process. Empty: it is not known.
	process string
	// stream is the number of the open Watch. 0: none is open. since is when it opened or ended.
	stream int64
	since  time.Time
	// heard is the time of the gateway's last report.
	heard time.Time
	// leaving means that the gateway takes no new requests.
	leaving bool

	// begun means that Begin was sent on the gateway's stream. have has the apps that the gateway
	// had before Begin. An entry stays until the gateway reports which change of the app it serves.
	begun bool
	have  map[string]version
	// same means that the versions in have belong to this table.
	same bool
	// dirty has the apps whose present state was not sent to the gateway. poke signals that there
	// are dirty apps.
	dirty map[string]bool
	poke  chan struct{}
	// mayServe has the apps that were sent to the gateway, or that it had before. served has the
	// change of each app that it serves.
	mayServe map[string]bool
	served   map[string]int64
	// busy has, for each instance to which the gateway sends no new requests, the number of its
	// requests in flight there. ejected has the instances that it ejected, with the reason.
	busy    map[string]int32
	ejected map[string]string
	// unproven has the instances that the gateway has not reached yet, with the error of its last
	// attempt, if any. unproven and ejected are nil before its first report.
	unproven map[string]string
	// notes are about the clients of a feed, and are shown to people.
	notes []string
}

type version struct{ epoch, generation, change int64 }

func newHub(t *table, expected int, grace time.Duration) *hub {
	return &hub{table: t, routable: newRoutable(), expected: expected, grace: grace, gateways: map[string]*gateway{}, feeds: map[string]*gateway{}}
}

// countKept counts the gateways that the previous agent process counted. Each of them counts until
// it reconnects or was away for the grace period.
func (h *hub) countKept(ids []string, now time.Time) {
	for _, id := range ids {
		h.gateways[id] = &gateway{id: id, verified: true, since: now}
	}
}

// openStream counts a gateway from now on. The stream replaces an earlier stream with that id. have
// has the versions that the gateway has already. same means that they belong to this table.
func (h *hub) openStream(id, process string, have []*gatewayv1.AppVersion, same bool, now time.Time) *gateway {
	if old := h.gateways[id]; old != nil && old.poke != nil {
		signalOn(old.poke) // so that the old stream notices that this stream has replaced it
	}
	h.streams++
	g := &gateway{
		id: id, verified: true, process: process, stream: h.streams, since: now, heard: now, same: same,
		have: map[string]version{}, dirty: map[string]bool{}, poke: make(chan struct{}, 1),
		mayServe: map[string]bool{}, served: map[string]int64{},
	}
	for _, v := range have {
		g.have[v.AppId] = version{v.Epoch, v.Generation, v.Change}
		g.mayServe[v.AppId] = true
	}
	h.gateways[id] = g
	h.adoptUnwatched()
	h.computeFindings()
	return g
}

// beginTable marks every app as dirty whose present state the gateway does not have.
func (h *hub) beginTable(g *gateway, now time.Time) {
	g.begun, g.heard = true, now
	for id, a := range h.apps {
		had, holds := g.have[id]
		at := version{a.state.Epoch, a.state.Generation, a.state.Change}
		// With pairs, another release of the gateway may have received the same change in another
		// form; see withoutPairs.
		if a.isGone() && !holds || g.same && had == at && !hasPairs(a.state) {
			continue
		}
		g.dirty[id] = true
	}
	for id := range g.have {
		if h.apps[id] == nil {
			g.dirty[id] = true
		}
	}
	signalOn(g.poke)
}

// markDirty marks the apps as dirty for every gateway and feed.
func (h *hub) markDirty(apps []string) {
	if len(h.gateways) == 0 {
		h.tidyUp()
	}
	for _, g := range h.gateways {
		if h.feeds[g.id] != g {
			g.markDirty(apps)
		}
	}
	for _, f := range h.feeds {
		f.markDirty(apps)
	}
}

func (g *gateway) markDirty(apps []string) {
	if !g.begun || len(apps) == 0 {
		return
	}
	for _, id := range apps {
		g.dirty[id] = true
	}
	signalOn(g.poke)
}

// takeDirty returns the present state of each dirty app of the gateway. The caller must send them.
func (h *hub) takeDirty(g *gateway) []*gatewayv1.AppRoutes {
	out := make([]*gatewayv1.AppRoutes, 0, len(g.dirty))
	for _, id := range slices.Sorted(maps.Keys(g.dirty)) {
		a := h.apps[id]
		switch {
		case a != nil && a.isGone() && !g.mayServe[id]:
			continue
		case a != nil && g.pairs:
			out = append(out, a.state)
		case a != nil:
			out = append(out, withoutPairs(a.state))
		default:
			h.change++
			out = append(out, &gatewayv1.AppRoutes{AppId: id, Change: h.change})
		}
		g.mayServe[id] = true
	}
	clear(g.dirty)
	return out
}

// closeStream records that a stream has ended. left is true if its gateway had reported that it is
// leaving. It is false if another stream has replaced this one.
func (h *hub) closeStream(g *gateway, now time.Time) (left bool) {
	if h.gateways[g.id] != g {
		return false
	}
	if left = g.leaving; left {
		delete(h.gateways, g.id)
	} else {
		g.stream, g.since, g.begun, g.poke = 0, now, false, nil
	}
	h.computeFindings()
	return left
}

// applyReport records a gateway's report. It returns false if the gateway's process has no stream.
func (h *hub) applyReport(r *gatewayv1.ReportRequest, now time.Time) bool {
	g := h.gateways[r.GatewayId]
	if g == nil || g.stream == 0 || !g.begun || g.process != r.ProcessId {
		return false
	}
	g.heard, g.leaving = now, g.leaving || r.Leaving
	for _, s := range r.Served {
		h.recordServed(g, s.AppId, s.InstancesChange)
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
	h.tidyUp()
	h.computeFindings()
	return true
}

// recordServed records the change of an app that the gateway serves. A number above the newest
// change counts as the newest change.
func (h *hub) recordServed(g *gateway, appID string, change int64) {
	g.served[appID] = max(g.served[appID], min(change, h.change))
	delete(g.have, appID)
}

// tidyUp drops removed apps and closed instances that no gateway serves any more.
func (h *hub) tidyUp() {
	for _, g := range h.gateways {
		if len(g.have) > 0 || g.stream == 0 {
			return // it is not known what the gateway serves
		}
	}
	for instance, apps := range h.closed {
		for id, change := range apps {
			if h.allServe(id, change) {
				h.forgetClosed(instance, id)
			}
		}
	}
	for id := range h.removed {
		if !h.allServe(id, h.apps[id].state.Change) {
			continue
		}
		h.dropApp(id)
		for _, g := range h.gateways {
			delete(g.mayServe, id)
			delete(g.served, id)
		}
	}
}

// allServe reports whether no gateway serves an earlier change of the app.
func (h *hub) allServe(appID string, change int64) bool {
	for _, g := range h.gateways {
		if g.mayServe[appID] && g.served[appID] < change || g.dirty[appID] && !g.mayServe[appID] {
			return false
		}
	}
	return true
}

// expireGateways removes gateways that were away for the grace period. It returns their ids, and when to
// call it again. A zero time means never.
func (h *hub) expireGateways(now time.Time) (expired []string, next time.Time) {
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
		h.tidyUp()
	}
	slices.Sort(expired)
	return expired, next
}

// whyNotServed returns why a route that the table has received is not served yet, or "" if it is
// served. A route counts as served if a newer route of the app is served.
func (h *hub) whyNotServed(appID string, epoch, generation int64) (why string) {
	a := h.apps[appID]
	if a == nil {
		return "" // the app was removed, and no gateway serves it any more
	}
	// An app without a route is in the table because of its previews: there was no route to remove.
	if a.routes != nil && (a.state.Epoch < epoch || a.state.Epoch == epoch && a.state.Generation < generation) {
		return "the table of routes does not have the route yet"
	}
	serving := 0
	var behind []string
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		g := h.gateways[id]
		_, untold := g.have[appID]
		switch {
		case !g.verified:
		case !g.pairs && g.stream != 0 && !g.leaving && needsPairs(a.state):
			behind = append(behind, id+", which cannot pair prefill and decode servers (update it),")
		case !untold && g.begun && (g.served[appID] >= a.routeChange || a.isGone() && !g.mayServe[appID]):
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
		return fmt.Sprintf("waits for gateway %s to serve it", joinFirst(behind))
	case serving < h.expected:
		return fmt.Sprintf("%d of %d expected gateways serve it", serving, h.expected)
	}
	return ""
}

// isReleased reports whether no gateway sends to the instance any more or has a request in flight
// there.
func (h *hub) isReleased(instanceID string) bool {
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
			if g.mayServe[id] && g.served[id] < change {
				return false
			}
		}
	}
	return true
}

// notesForPeople returns problems of the gateways, for people.
func (h *hub) notesForPeople() []string {
	connected, unverified := 0, 0
	var out []string
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		g := h.gateways[id]
		switch {
		case !g.verified:
			unverified++
		case h.feeds[id] == g && g.stream == 0: // the feed's notes are about its clients
		case g.stream == 0:
			out = append(out, fmt.Sprintf("gateway %s is away since %s: routes wait for it for %s at most", id, g.since.UTC().Format(time.TimeOnly), h.grace))
		case !g.leaving:
			connected++
		}
	}
	if unverified > 0 {
		out = append(out, fmt.Sprintf("%d gateways are not authenticated: routes do not wait for them, and their request counts are not used; start the agent without --listen-insecure", unverified))
	}
	for _, id := range slices.Sorted(maps.Keys(h.feeds)) {
		out = append(out, h.feeds[id].notes...)
	}
	out = append(out, h.noteUnpaired()...)
	if connected < h.expected {
		out = append(out, fmt.Sprintf("%d of %d expected gateways are connected: new routes wait", connected, h.expected))
	}
	return out
}

// countingIDs returns the ids of the verified gateways that count.
func (h *hub) countingIDs() []string {
	var out []string
	for id, g := range h.gateways {
		if g.verified {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// joinFirst joins the first names, and says how many more names there are.
func joinFirst(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func signalOn(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isSilent reports whether the gateway has sent no report for longer than longest since its Begin.
func (g *gateway) isSilent(now time.Time, longest time.Duration) bool {
	return g.begun && now.Sub(g.heard) > longest
}
