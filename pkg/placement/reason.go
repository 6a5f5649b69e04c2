package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/pkg/plural"
)

// Reason is why a server does not hold a model. A server counts for the first reason that applies.
type Reason int

// The reasons, in the order of the filters. A server with a later reason is nearer to a fit.
const (
	// OtherScope means that the server has another scope than the model.
	OtherScope Reason = iota + 1
	// OtherApp means that the model names another app.
	OtherApp
	// LacksCapability means that the server lacks a required capability.
	LacksCapability
	// Quarantined means that the model has killed servers of this app.
	Quarantined
	// FailedToLoad means that the model failed to load on the server and is not tried again yet.
	FailedToLoad
	// Draining means that the server is going to stop, or is not ready.
	Draining
	// HasReplica means that the server holds a replica, or still unloads one.
	HasReplica
	// OtherVersion means that the server holds another model of the same name.
	OtherVersion
	// NoSlot means that the server holds as many models as it may.
	NoSlot
	// NoMemory means that the server has too little free memory.
	NoMemory
)

// permitReason returns why a server must not hold a model, without regard to other models. 0 means that it may.
func permitReason(s *Server, m *Model) Reason {
	switch {
	case m.Scope != s.Scope:
		return OtherScope
	case m.App != "" && m.App != s.App:
		return OtherApp
	case missingCapability(s, m) != "":
		return LacksCapability
	case slices.Contains(m.Quarantined, s.App):
		return Quarantined
	}
	return 0
}

// missingCapability returns the first required capability that a server lacks.
func missingCapability(s *Server, m *Model) string {
	for _, c := range m.Requires {
		if !slices.Contains(s.Capabilities, c) {
			return c
		}
	}
	return ""
}

// refusalReason returns why a server cannot take a replica of a model now. 0 means that it can.
func (r *candidate) refusalReason(m *Model) Reason {
	if reason := permitReason(r.server, m); reason != 0 {
		return reason
	}
	_, holds := r.holds[m.ID]
	switch {
	case slices.Contains(m.Failed, r.server.Key()):
		return FailedToLoad
	case r.server.Draining:
		return Draining
	case holds || r.assigned[m.ID]:
		return HasReplica
	case m.Name != "" && r.names[m.Name] != "":
		return OtherVersion
	case min(r.slots, r.comingSlots) <= 0: // free room may be promised to another model
		return NoSlot
	case min(r.free, r.comingFree) < max(0, m.Memory):
		return NoMemory
	}
	return 0
}

// Refused counts why servers do not hold a model.
type Refused struct {
	// App is the app whose servers the model requires. Empty means any.
	App string
	// Servers is how many servers have the model's scope.
	Servers int
	// Counts has the number of servers by reason.
	Counts map[Reason]int
	// Capabilities has the number of servers by the first capability that they lack.
	Capabilities map[string]int
	// Needed is the model's memory in bytes. Lacking has the missing memory of each server, the smallest first.
	Needed  int64
	Lacking []int64
	// Nearest is the server that is nearest to a fit, with its reason. Its App is empty if there is no server.
	Nearest       Key
	NearestReason Reason
}

// explainRefusal counts the reasons of all servers.
func (p *placement) explainRefusal(m *Model) Refused {
	f := Refused{App: m.App, Counts: map[Reason]int{}, Capabilities: map[string]int{}, Needed: max(0, m.Memory)}
	var nearestLack int64
	for _, r := range p.candidates {
		reason := r.refusalReason(m)
		if reason == OtherScope {
			continue
		}
		f.Servers++
		f.Counts[reason]++
		var lack int64
		switch reason {
		case LacksCapability:
			f.Capabilities[missingCapability(r.server, m)]++
		case NoMemory:
			lack = saturatingSubtract(f.Needed, r.free)
			if r.free < 0 {
				lack = f.Needed // The server holds more than its memory, but this model lacks no more than it needs.
			}
			f.Lacking = append(f.Lacking, lack)
		default: // The other reasons have no amount.
		}
		// A server that has a replica does not count as near to a fit.
		if reason != HasReplica && (f.Nearest.App == "" || reason > f.NearestReason || reason == f.NearestReason && lack < nearestLack) {
			f.Nearest, f.NearestReason, nearestLack = r.server.Key(), reason, lack
		}
	}
	slices.Sort(f.Lacking)
	return f
}

// String says why a model has no further server, with the number of servers for each reason.
func (f Refused) String() string {
	if f.Servers == 0 {
		return "there is no server for models"
	}
	var parts []string
	say := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 server "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d servers %s", n, many))
		}
	}
	say(f.Counts[OtherApp], "is of another app than "+f.App+", which the model requires", "are of other apps than "+f.App+", which the model requires")
	names := make([]string, 0, len(f.Capabilities))
	for name := range f.Capabilities {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		say(f.Capabilities[name], "lacks capability "+name, "lack capability "+name)
	}
	say(f.Counts[Quarantined], "is of an app whose servers the model has killed", "are of apps whose servers the model has killed")
	say(f.Counts[FailedToLoad], "failed to load the model", "failed to load the model")
	say(f.Counts[Draining], "drains or is not ready", "drain or are not ready")
	say(f.Counts[HasReplica], "has a replica already", "have a replica already")
	say(f.Counts[OtherVersion], "has another version of the model", "have another version of the model")
	say(f.Counts[NoSlot], "has no free slot", "have no free slot")
	if n := len(f.Lacking); n > 0 {
		say(n, "lacks "+lacksText(f.Lacking, f.Needed), "lack "+lacksText(f.Lacking, f.Needed))
	}
	return strings.Join(parts, "; ")
}

// lacksText lists up to three amounts. Of more amounts, it names only the smallest.
func lacksText(amounts []int64, needed int64) string {
	of := " of the " + formatBytes(needed) + " needed"
	if len(amounts) > 3 {
		return "memory, at least " + formatBytes(amounts[0]) + of
	}
	texts := make([]string, len(amounts))
	for i, a := range amounts {
		texts[i] = formatBytes(a)
	}
	last := len(texts) - 1
	if last == 0 {
		return texts[0] + of
	}
	return strings.Join(texts[:last], ", ") + " and " + texts[last] + of
}

// formatBytes formats an amount with one decimal, rounded up, so that a lack is never 0.
func formatBytes(n int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n < unit.size {
			continue
		}
		whole, rest := n/unit.size, n%unit.size
		tenths := (rest*10 + unit.size - 1) / unit.size
		if tenths == 10 {
			whole, tenths = whole+1, 0
		}
		if tenths == 0 {
			return fmt.Sprintf("%d %s", whole, unit.name)
		}
		return fmt.Sprintf("%d.%d %s", whole, tenths, unit.name)
	}
	return plural.Count(n, "byte")
}
