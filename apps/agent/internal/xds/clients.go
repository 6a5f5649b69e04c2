package xds

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// arrival is how long a new Envoy stream may take to ask for all types. The Envoy's operator
// configures the types that it has not asked for by then.
const arrival = 5 * time.Second

// clients records what each Envoy has acknowledged. It is pure, and not safe for concurrent use.
type clients struct {
	grace time.Duration
	// streams has the streams of Envoys, by number. It has no streams of other clients.
	streams map[int64]*stream
	// away has the nodes without a stream, and the time since when they have none.
	away map[string]time.Time
}

// stream is the stream of one Envoy.
type stream struct {
	node  string
	since time.Time
	// asked has the types that the Envoy has asked for. sent and acked have the newest responses of
	// each type.
	asked       map[string]bool
	sent, acked map[string]response
	// refused has the Envoy's reasons for refusing the newest responses, by type.
	refused map[string]string
	// behind is the time since when the Envoy has not acknowledged everything. Zero: it has
	// acknowledged everything.
	behind time.Time
}

// response is a sent response, with the resource names of its request.
type response struct {
	nonce, version string
	names          []string
}

// published has what every Envoy that counts must acknowledge: versions by type, and the clusters.
type published struct {
	versions map[string]string
	clusters []string
}

func newClients(grace time.Duration) *clients {
	return &clients{grace: grace, streams: map[int64]*stream{}, away: map[string]time.Time{}}
}

// request is the content of an Envoy's request.
type request struct {
	typeURL, nonce, version string
	names                   []string
	refusal                 string // why the Envoy refuses the response; "" if it does not
}

// handleRequest handles one request. If the request refuses a response, it returns the refused version,
// which must not be sent again.
func (c *clients) handleRequest(id int64, node string, r request, now time.Time) (refused string) {
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
		// The Envoy still has this version from an earlier stream.
		s.acked[r.typeURL] = response{version: r.version, names: r.names}
	case r.nonce != last.nonce:
		// The request answers a response that is not the newest.
	case r.refusal != "":
		s.refused[r.typeURL] = r.refusal
		return last.version
	default:
		s.acked[r.typeURL] = last
		delete(s.refused, r.typeURL)
	}
	return ""
}

// noteSent records a response. It ignores streams of other clients.
func (c *clients) noteSent(id int64, typeURL string, r response) {
	if s := c.streams[id]; s != nil {
		s.sent[typeURL] = r
	}
}

// noteClosed records the end of a stream. If its node has no other stream, the node is away.
func (c *clients) noteClosed(id int64, now time.Time) {
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

// hasClients reports whether an Envoy is connected.
func (c *clients) hasClients() bool { return len(c.streams) > 0 }

// state says what the Envoys serve.
type state struct {
	// all means that all Envoys that count have acknowledged everything in told. Otherwise, next is
	// when that may change without an acknowledgement.
	all  bool
	next time.Time
	// soon means that a connected Envoy still has to acknowledge or refuse a response.
	soon bool
	// anybody means that an Envoy is connected.
	anybody bool
	// notes are notes for people.
	notes []string
}

// serve returns how much of told the Envoys serve.
func (c *clients) serve(t published, now time.Time) state {
	out := state{all: true, anybody: c.hasClients()}
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
		if s.hasAcknowledged(t, now) {
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
		out.notes = append(out.notes, fmt.Sprintf("Envoy %s has not acknowledged its configuration since %s: routes do not wait for it", s.node, s.behind.UTC().Format(time.TimeOnly)))
	}
	for _, node := range slices.Sorted(maps.Keys(c.away)) {
		end := c.away[node].Add(c.grace)
		if !now.Before(end) {
			delete(c.away, node)
			continue
		}
		wait(end)
		out.notes = append(out.notes, fmt.Sprintf("Envoy %s is away since %s: routes wait for it for %s at most", node, c.away[node].UTC().Format(time.TimeOnly), c.grace))
	}
	return out
}

// hasAcknowledged reports whether the Envoy has acknowledged everything that it asks for.
func (s *stream) hasAcknowledged(t published, now time.Time) bool {
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
	// An Envoy asks for a new cluster only after it has acknowledged the other types.
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
