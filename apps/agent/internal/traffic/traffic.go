// Package traffic keeps what a region's gateways saw of each deployment, for those who
// judge a rollout: a day of it, the finer the younger. It is pure; time is an argument.
//
//	slots of  1 s   5 s   1 min   10 min
//	reach     2 min 10 min 2 h    24 h
//
// A look back adds up the slots of the finest kind that reaches so far, and only those
// that begin within the window. A slot without traffic takes no room; a deployment that is
// busy all day takes 270 KiB.
package traffic

import (
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
)

// Reach is how far anybody can look back.
const Reach = 24 * time.Hour

var tiers = [...]struct{ width, reach time.Duration }{
	{time.Second, 2 * time.Minute},
	{5 * time.Second, 10 * time.Minute},
	{time.Minute, 2 * time.Hour},
	{10 * time.Minute, Reach},
}

// Counts of requests that ended.
type Counts struct {
	Requests, Errors uint64
	// Latency to the last byte, and time to the first byte of the body of those that
	// streamed.
	Latency, FirstToken histogram.Counts
}

func (c *Counts) add(more *Counts) {
	c.Requests += more.Requests
	c.Errors += more.Errors
	c.Latency.Add(&more.Latency)
	c.FirstToken.Add(&more.FirstToken)
}

// since is what came to c after before; all of it when c began anew.
func (c *Counts) since(before *Counts) Counts {
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

// History of a region. It is not safe for concurrent use.
type History struct {
	deployments map[string]*deployment
	// told is what each gateway said last, by deployment.
	told map[string]map[string]Counts
}

type deployment struct {
	tiers [len(tiers)]map[int64]*Counts // by number of the slot
}

// New is a history of nothing.
func New() *History {
	return &History{deployments: map[string]*deployment{}, told: map[string]map[string]Counts{}}
}

// Joined notes that a gateway has begun: all that it will tell comes after this.
func (h *History) Joined(gateway string) {
	if h.told[gateway] == nil {
		h.told[gateway] = map[string]Counts{}
	}
}

// Left forgets a gateway.
func (h *History) Left(gateway string) { delete(h.told, gateway) }

// Tell takes what a gateway counted of deployments since its process began. The first counts of
// a gateway that has not joined here are only where counting begins, because it is not known when
// they were counted.
func (h *History) Tell(gateway string, all map[string]Counts, now time.Time) {
	known, ok := h.told[gateway]
	if !ok {
		h.told[gateway] = maps.Clone(all)
		return
	}
	for id, counts := range all {
		before := known[id]
		if more := counts.since(&before); more.Requests > 0 {
			h.add(id, &more, now)
		}
		known[id] = counts
	}
}

func (h *History) add(id string, more *Counts, now time.Time) {
	d := h.deployments[id]
	if d == nil {
		d = &deployment{}
		h.deployments[id] = d
	}
	for i, t := range tiers {
		number := now.UnixNano() / int64(t.width)
		if d.tiers[i] == nil {
			d.tiers[i] = map[int64]*Counts{}
		}
		slot := d.tiers[i][number]
		if slot == nil {
			slot = &Counts{}
			d.tiers[i][number] = slot
			oldest := now.Add(-t.reach).UnixNano() / int64(t.width)
			maps.DeleteFunc(d.tiers[i], func(n int64, _ *Counts) bool { return n < oldest })
		}
		slot.add(more)
	}
}

// Look adds up what the deployment got within the window, up to now.
func (h *History) Look(id string, window time.Duration, now time.Time) (sum Counts) {
	d := h.deployments[id]
	if d == nil {
		return sum
	}
	i := slices.IndexFunc(tiers[:], func(t struct{ width, reach time.Duration }) bool { return window <= t.reach })
	if i < 0 {
		i = len(tiers) - 1
	}
	begin := now.Add(-window).UnixNano()
	for number, slot := range d.tiers[i] {
		if number*int64(tiers[i].width) >= begin {
			sum.add(slot)
		}
	}
	return sum
}

// Forget drops the deployments that are not to be kept.
func (h *History) Forget(keep func(deploymentID string) bool) {
	maps.DeleteFunc(h.deployments, func(id string, _ *deployment) bool { return !keep(id) })
	for _, all := range h.told {
		maps.DeleteFunc(all, func(id string, _ Counts) bool { return !keep(id) })
	}
}
