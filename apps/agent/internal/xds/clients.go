package xds

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// arrival is how long a stream is waited for to ask for all that an Envoy asks for. What it did
// not ask for by then, its operator has from elsewhere.
const arrival = 5 * time.Second

// clients knows what each Envoy has acknowledged. It is pure, and not safe for concurrent
// use.
type clients struct {
	grace time.Duration
	// streams by their number, of Envoys only.
	streams map[int64]*stream
	// away are nodes without a stream, since when.
	away map[string]time.Time
}

// stream is one Envoy's.
type stream struct {
	node  string
	since time.Time
	// asked are the types that it asked for; sent and acked the newest responses of each.
	asked       map[string]bool
	sent, acked map[string]response
	// refused is what it said of the newest responses that it does not take, by type.
	refused map[string]string
	// behind is since when it is; zero: it is not.
	behind time.Time
}

// response is one that was sent: to a request for names.
type response struct {
	nonce, version string
	names          []string
}

// told is what every Envoy that counts must acknowledge: versions by type, and the clusters.
type told struct {
	versions map[string]string
	clusters []string
}

func newClients(grace time.Duration) *clients {
	return &clients{grace: grace, streams: map[int64]*stream{}, away: map[string]time.Time{}}
}

// request is what an Envoy's request says.
type request struct {
	typeURL, nonce, version string
	names                   []string
	refusal                 string // why it does not take the response; "" when it does
}

// request takes one request. Of a refusal it returns the version that was refused, which must
// not be sent again.
func (c *clients) request(id int64, node string, r request, now time.Time) (refused string) {
	s := c.streams[id]
	if s == nil {
		s = &stream{
			node: node, since: now, asked: map[string]bool{}, sent: map[string]response{}, acked: map[string]response{}, refused: map[string]string{},
		}
		c.streams[id] = s
		delete(c.away, node)
	}
	s.asked[r.typeURL] = true
	last := s.sent[r.typeURL]
	switch {
	case r.nonce == "":
		// What it holds of a stream before this one.
		s.acked[r.typeURL] = response{version: r.version, names: r.names}
	case r.nonce != last.nonce:
		// An answer to what is not the newest.
	case r.refusal != "":
		s.refused[r.typeURL] = r.refusal
		return last.version
	default:
		s.acked[r.typeURL] = last
		delete(s.refused, r.typeURL)
	}
	return ""
}

// sent notes a response; streams of others are none of its business.
func (c *clients) sent(id int64, typeURL string, r response) {
	if s := c.streams[id]; s != nil {
		s.sent[typeURL] = r
	}
}

// closed notes the end of a stream. Its node is away when it has no other.
func (c *clients) closed(id int64, now time.Time) {
	s := c.streams[id]
	if s == nil {
		return
	}
	delete(c.streams, id)
	for _, other := range c.streams {
		if other.node == s.node {
			return
		}
	}
	c.away[s.node] = now
}

// anybody reports whether an Envoy is connected.
func (c *clients) anybody() bool { return len(c.streams) > 0 }

// state is what is served.
type state struct {
	// all: everybody who counts has acknowledged all that was told. If not, next is when
	// that may be so without a word of theirs.
	all  bool
	next time.Time
	// soon: somebody is connected who has yet to say whether it takes what it was told.
	soon bool
	// anybody is connected.
	anybody bool
	// notes are what people should know.
	notes []string
}

// serve tells what is served of what was told.
func (c *clients) serve(t told, now time.Time) state {
	out := state{all: true, anybody: c.anybody()}
	wait := func(until time.Time) {
		out.all = false
		if out.next.IsZero() || until.Before(out.next) {
			out.next = until
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[id]
		for _, typeURL := range slices.Sorted(maps.Keys(s.refused)) {
			out.notes = append(out.notes, fmt.Sprintf("Envoy %s refuses %s: %s", s.node, nameOf(typeURL), s.refused[typeURL]))
		}
		if s.has(t, now) {
			s.behind = time.Time{}
			continue
		}
		if s.behind.IsZero() {
			s.behind = now
		}
		if end := s.behind.Add(c.grace); now.Before(end) {
			wait(end)
			out.soon = out.soon || len(s.refused) == 0
			if arrived := s.since.Add(arrival); now.Before(arrived) {
				wait(arrived)
			}
			continue
		}
		out.notes = append(out.notes, fmt.Sprintf("Envoy %s has not acknowledged what it was sent since %s: nothing waits for it", s.node, s.behind.UTC().Format(time.TimeOnly)))
	}
	for _, node := range slices.Sorted(maps.Keys(c.away)) {
		end := c.away[node].Add(c.grace)
		if !now.Before(end) {
			delete(c.away, node)
			continue
		}
		wait(end)
		out.notes = append(out.notes, fmt.Sprintf("Envoy %s is away: it counts no more %s after it went, at %s", node, c.grace, c.away[node].UTC().Format(time.TimeOnly)))
	}
	return out
}

// has reports whether the stream has acknowledged all that it asks for.
func (s *stream) has(t told, now time.Time) bool {
	arrived := !now.Before(s.since.Add(arrival))
	for typeURL, version := range t.versions {
		if !s.asked[typeURL] {
			if !arrived {
				return false
			}
			continue
		}
		if s.acked[typeURL].version != version {
			return false
		}
	}
	if !s.asked[resource.ClusterType] || !s.asked[resource.EndpointType] {
		return true
	}
	// A cluster that is new is asked for after the rest was acknowledged.
	names := make(map[string]bool, len(t.clusters))
	for _, name := range s.acked[resource.EndpointType].names {
		names[name] = true
	}
	for _, name := range t.clusters {
		if !names[name] {
			return false
		}
	}
	return true
}

func nameOf(typeURL string) string {
	switch typeURL {
	case resource.ClusterType:
		return "clusters"
	case resource.EndpointType:
		return "endpoints"
	case resource.RouteType:
		return "routes"
	default:
		return typeURL
	}
}
