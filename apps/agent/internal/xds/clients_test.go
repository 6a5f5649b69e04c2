package xds

import (
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func all(version string) told {
	return told{
		versions: map[string]string{resource.ClusterType: version, resource.EndpointType: version, resource.RouteType: version},
		clusters: []string{"dep_1"},
	}
}

// take has a stream acknowledge a version of a type.
func take(c *clients, id int64, typeURL, version string, names ...string) {
	c.request(id, "edge", request{typeURL: typeURL, names: names}, at)
	c.sent(id, typeURL, response{nonce: "n" + version, version: version, names: names})
	c.request(id, "edge", request{typeURL: typeURL, nonce: "n" + version, version: version, names: names}, at)
}

func TestWhoHasNotAcknowledgedIsWaitedForForTheGrace(t *testing.T) {
	c := newClients(time.Minute)
	ok, _, notes := c.serve(all("v1"), at)
	require.True(t, ok, "nobody is there")
	require.Empty(t, notes)

	take(c, 1, resource.ClusterType, "v1")
	take(c, 1, resource.EndpointType, "v1", "dep_1")
	ok, next, _ := c.serve(all("v1"), at)
	require.False(t, ok, "it may yet ask for routes")
	require.Equal(t, at.Add(arrival), next)
	ok, _, _ = c.serve(all("v1"), at.Add(arrival))
	require.True(t, ok, "it has its routes from elsewhere")

	ok, next, _ = c.serve(all("v2"), at.Add(arrival))
	require.False(t, ok)
	require.Equal(t, at.Add(arrival+time.Minute), next)
	ok, _, notes = c.serve(all("v2"), next)
	require.True(t, ok)
	require.Equal(t, []string{"Envoy edge has not acknowledged what it was sent since 12:00:05: nothing waits for it"}, notes)
	take(c, 1, resource.ClusterType, "v2")
	take(c, 1, resource.EndpointType, "v2", "dep_1")
	ok, _, notes = c.serve(all("v2"), next)
	require.True(t, ok)
	require.Empty(t, notes)
}

func TestAClusterThatIsNewIsNotServedBeforeItsEndpointsAre(t *testing.T) {
	c := newClients(time.Minute)
	for _, typeURL := range []string{resource.ClusterType, resource.RouteType} {
		take(c, 1, typeURL, "v1")
	}
	take(c, 1, resource.EndpointType, "v1", "dep_0")
	ok, _, _ := c.serve(all("v1"), at)
	require.False(t, ok)
	take(c, 1, resource.EndpointType, "v1", "dep_0", "dep_1")
	ok, _, _ = c.serve(all("v1"), at)
	require.True(t, ok)
}

func TestAnswersToOldResponsesSayNothing(t *testing.T) {
	c := newClients(time.Minute)
	take(c, 1, resource.ClusterType, "v1")
	c.sent(1, resource.ClusterType, response{nonce: "n2", version: "v2"})
	require.Empty(t, c.request(1, "edge", request{typeURL: resource.ClusterType, nonce: "nv1", refusal: "no"}, at))
	require.Equal(t, "v2", c.request(1, "edge", request{typeURL: resource.ClusterType, nonce: "n2", refusal: "no"}, at))
	_, _, notes := c.serve(all("v2"), at)
	require.Equal(t, []string{"Envoy edge refuses clusters: no"}, notes)
}

func TestANodeIsAwayWhenItsLastStreamHasEnded(t *testing.T) {
	c := newClients(time.Minute)
	c.request(1, "edge", request{typeURL: resource.ClusterType}, at)
	c.request(2, "edge", request{typeURL: resource.ClusterType}, at)
	c.closed(1, at)
	require.Empty(t, c.away)
	c.closed(2, at)
	c.closed(3, at) // none of ours
	ok, next, notes := c.serve(all("v1"), at.Add(time.Second))
	require.False(t, ok)
	require.Equal(t, at.Add(time.Minute), next)
	require.Equal(t, []string{"Envoy edge is away: it counts no more 1m0s after it went, at 12:00:00"}, notes)
	ok, _, notes = c.serve(all("v1"), next)
	require.True(t, ok)
	require.Empty(t, notes)
	require.False(t, c.anybody())
}
