// Package traffic stores the requests that a region's gateways counted in the last 24 hours, for
// the analysis of rollouts. It is pure: the time is an argument.
//
// Each deployment has slots of four widths. A slot has the requests of the reports that arrived in
// its time:
//
//	width     1 s     5 s      1 min    10 min
//	kept for  2 min   10 min   2 h      24 h
//
// Look uses the narrowest slots that are kept for the whole window. It adds up the slots that begin
// within the window. A slot without requests takes no memory.
package traffic

import (
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
)

// Reach is the longest window that Look covers.
const Reach = 24 * time.Hour

// slotKind is a width of slots, and how long slots of this width are kept.
type slotKind struct{ width, reach time.Duration }

// slotKinds has the kinds, in the order of their widths.
var slotKinds = [...]slotKind{
	{time.Second, 2 * time.Minute},
	{5 * time.Second, 10 * time.Minute},
	{time.Minute, 2 * time.Hour},
	{10 * time.Minute, Reach},
}

// Counts has numbers of requests that have ended.
type Counts struct {
	Requests, Errors uint64
	// Latency counts the times to the last byte. FirstToken counts the times to the first byte of
	// the body, only for streamed responses.
	Latency, FirstToken histogram.Counts
}

// Add adds the requests of more.
func (c *Counts) Add(more *Counts) {
	c.Requests += more.Requests
	c.Errors += more.Errors
	c.Latency.Add(&more.Latency)
	c.FirstToken.Add(&more.FirstToken)
}

// countsSince returns the requests in c that are not in before. If a counter in c is lower than in
// before, it has restarted at 0, so all of c is new.
func (c *Counts) countsSince(before *Counts) Counts {
	if c.Requests < before.Requests || c.Errors < before.Errors {
		return *c
	}
	out := Counts{Requests: c.Requests - before.Requests, Errors: c.Errors - before.Errors}
	for i := range c.Latency {
		out.Latency[i] = c.Latency[i] - min(before.Latency[i], c.Latency[i])
		out.FirstToken[i] = c.FirstToken[i] - min(before.FirstToken[i], c.FirstToken[i])
	}
	return out
}

// History has the request counts of a region. It is not safe for concurrent use.
type History struct {
	deployments map[string]*deployment
	// reported has the last counts of each gateway, by gateway and deployment.
	reported map[string]map[string]Counts
	// Counted is called with the requests that a report adds to a deployment. Nil: no call.
	Counted func(deploymentID string, more *Counts, now time.Time)
}

type deployment struct {
	// slots has, for each of slotKinds, the slots by number. The number of a slot is its start, in
	// widths since 1970.
	slots [len(slotKinds)]map[int64]*Counts
}

// New returns an empty History.
func New() *History {
	return &History{deployments: map[string]*deployment{}, reported: map[string]map[string]Counts{}}
}

// Joined adds a gateway whose process has just started, so all requests in its reports are new.
func (h *History) Joined(gateway string) {
	if h.reported[gateway] == nil {
		h.reported[gateway] = map[string]Counts{}
	}
}

// Left forgets the last counts of a gateway. The requests that the gateway reported stay.
func (h *History) Left(gateway string) { delete(h.reported, gateway) }

// Tell adds a gateway's report: its counts since its process started, by deployment. If Joined was
// not called for the gateway, its first report only sets the start of the count, because it is not
// known when these requests came.
func (h *History) Tell(gateway string, all map[string]Counts, now time.Time) {
	known, ok := h.reported[gateway]
	if !ok {
		h.reported[gateway] = maps.Clone(all)
		return
	}
	for id, counts := range all {
		before := known[id]
		if more := counts.countsSince(&before); more.Requests > 0 {
			h.addToSlots(id, &more, now)
			if h.Counted != nil {
				h.Counted(id, &more, now)
			}
		}
		known[id] = counts
	}
}

func (h *History) addToSlots(id string, more *Counts, now time.Time) {
	d := h.deployments[id]
	if d == nil {
		d = &deployment{}
		h.deployments[id] = d
	}
	for i, kind := range slotKinds {
		number := now.UnixNano() / int64(kind.width)
		if d.slots[i] == nil {
			d.slots[i] = map[int64]*Counts{}
		}
		slot := d.slots[i][number]
		if slot == nil {
			slot = &Counts{}
			d.slots[i][number] = slot
			oldest := now.Add(-kind.reach).UnixNano() / int64(kind.width)
			maps.DeleteFunc(d.slots[i], func(n int64, _ *Counts) bool { return n < oldest })
		}
		slot.Add(more)
	}
}

// Look returns the requests of the deployment that ended in the window before now. The start of the
// window is exact to one slot.
func (h *History) Look(id string, window time.Duration, now time.Time) (sum Counts) {
	d := h.deployments[id]
	if d == nil {
		return sum
	}
	i := slices.IndexFunc(slotKinds[:], func(kind slotKind) bool { return window <= kind.reach })
	if i < 0 {
		i = len(slotKinds) - 1
	}
	begin := now.Add(-window).UnixNano()
	for number, slot := range d.slots[i] {
		if number*int64(slotKinds[i].width) >= begin {
			sum.Add(slot)
		}
	}
	return sum
}

// Forget drops the deployments for which keep returns false.
func (h *History) Forget(keep func(deploymentID string) bool) {
	maps.DeleteFunc(h.deployments, func(id string, _ *deployment) bool { return !keep(id) })
	for _, all := range h.reported {
		maps.DeleteFunc(all, func(id string, _ Counts) bool { return !keep(id) })
	}
}
