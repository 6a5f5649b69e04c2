package xds

import (
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func all(version string) published {
	return published{
		versions: map[string]string{resource.ClusterType: version, resource.EndpointType: version, resource.RouteType: version},
		clusters: []string{"dep_1"},
	}
}

// take makes a stream acknowledge a version of a type.
func take(c *clients, id int64, typeURL, version string, names ...string) {
	c.handleRequest(id, "edge", request{typeURL: typeURL, names: names}, at)
	c.noteSent(id, typeURL, response{nonce: "n" + version, version: version, names: names})
	c.handleRequest(id, "edge", request{typeURL: typeURL, nonce: "n" + version, version: version, names: names}, at)
}

func TestAcknowledgement_IsAwaitedForTheGrace(t *testing.T) {
	c := newClients(time.Minute)
	is := c.serve(all("v1"), at)
	require.Equal(t, state{all: true}, is, "no Envoy is connected")

	take(c, 1, resource.ClusterType, "v1")
	take(c, 1, resource.EndpointType, "v1", "dep_1")
	require.Equal(t, state{next: at.Add(arrival), soon: true, anybody: true}, c.serve(all("v1"), at), "the Envoy may still ask for routes")
	require.Equal(t, state{all: true, anybody: true}, c.serve(all("v1"), at.Add(arrival)), "the Envoy has its routes from another source")

	next := at.Add(arrival + time.Minute)
	require.Equal(t, state{next: next, soon: true, anybody: true}, c.serve(all("v2"), at.Add(arrival)))
	is = c.serve(all("v2"), next)
	require.True(t, is.all)
	require.Equal(t, []string{"Envoy edge has not acknowledged its configuration since 12:00:05: routes do not wait for it"}, is.notes)
	take(c, 1, resource.ClusterType, "v2")
	take(c, 1, resource.EndpointType, "v2", "dep_1")
	require.Equal(t, state{all: true, anybody: true}, c.serve(all("v2"), next))
}

func TestCluster_IsServedAfterItsEndpoints(t *testing.T) {
	c := newClients(time.Minute)
	for _, typeURL := range []string{resource.ClusterType, resource.RouteType} {
		take(c, 1, typeURL, "v1")
	}
	take(c, 1, resource.EndpointType, "v1", "dep_0")
	require.False(t, c.serve(all("v1"), at).all)
	take(c, 1, resource.EndpointType, "v1", "dep_0", "dep_1")
	require.True(t, c.serve(all("v1"), at).all)
}

func TestAcknowledgement_OfAnOldResponseIsIgnored(t *testing.T) {
	c := newClients(time.Minute)
	take(c, 1, resource.ClusterType, "v1")
	c.noteSent(1, resource.ClusterType, response{nonce: "n2", version: "v2"})
	require.Empty(t, c.handleRequest(1, "edge", request{typeURL: resource.ClusterType, nonce: "nv1", refusal: "no"}, at))
	require.Equal(t, "v2", c.handleRequest(1, "edge", request{typeURL: resource.ClusterType, nonce: "n2", refusal: "no"}, at))
	is := c.serve(all("v2"), at)
	require.Equal(t, []string{"Envoy edge refuses clusters: no"}, is.notes)
	require.False(t, is.all)
	require.False(t, is.soon, "the Envoy has answered")
}

func TestNode_IsAwayAfterItsLastStream(t *testing.T) {
	c := newClients(time.Minute)
	c.handleRequest(1, "edge", request{typeURL: resource.ClusterType}, at)
	c.handleRequest(2, "edge", request{typeURL: resource.ClusterType}, at)
	c.noteClosed(1, at)
	require.Empty(t, c.away)
	c.noteClosed(2, at)
	c.noteClosed(3, at) // an unknown stream
	require.Equal(t, state{
		next: at.Add(time.Minute), notes: []string{"Envoy edge is away since 12:00:00: routes wait for it for 1m0s at most"},
	}, c.serve(all("v1"), at.Add(time.Second)))
	require.Equal(t, state{all: true}, c.serve(all("v1"), at.Add(time.Minute)))
}
