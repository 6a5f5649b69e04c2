package placement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNeeds(t *testing.T) {
	needs := func(servers []Server, models ...Model) map[App]Room {
		return Needs(noon, servers, models, Place(noon, servers, models))
	}
	base := App{"", "base"}

	t.Run("models that servers have, and models without room", func(t *testing.T) {
		servers := []Server{{App: "base", Index: 0, Memory: 10, Slots: 2}, {App: "other", Index: 0, Memory: 4}}
		firm := func(id string, memory int64) Model {
			return Model{ID: id, App: "base", Memory: memory, Replicas: 1, MinReplicas: 1}
		}
		got := needs(servers, firm("a", 6), firm("b", 6), firm("c", 3))
		require.Equal(t, map[App]Room{base: {Memory: 15, Models: 3}, {"", "other"}: {}}, got)
	})
	t.Run("not models that no server can hold", func(t *testing.T) {
		servers := []Server{{App: "base", Memory: 10}}
		got := needs(servers, Model{ID: "a", Requires: []string{"onnx"}, Memory: 1, Replicas: 1}, Model{ID: "b", App: "none", Memory: 1, Replicas: 1})
		require.Equal(t, map[App]Room{base: {}}, got)
		got = needs(servers, Model{ID: "a", Memory: 1, Replicas: 3})
		require.Equal(t, map[App]Room{base: {Memory: 1, Models: 1}}, got, "a replica more than servers")
		got = needs(servers, Model{ID: "a", Memory: 11, Replicas: 1})
		require.Equal(t, map[App]Room{base: {}}, got, "larger than a server")
	})
	t.Run("models that are loaded on request only while they are in use", func(t *testing.T) {
		servers := []Server{fullServer(0, 2, "a", "b")}
		got := needs(servers, onRequest("a", time.Minute), onRequest("b", time.Hour), requested("c", 0), onRequest("d", time.Hour))
		require.Equal(t, map[App]Room{base: {Models: 2}}, got)
	})
	t.Run("of each scope apart", func(t *testing.T) {
		servers := []Server{{App: "base", Index: 0, Scope: "x", Slots: 1}, {App: "base", Index: 1, Scope: "y", Slots: 1}}
		got := needs(servers, Model{ID: "a", Scope: "x", Replicas: 1}, Model{ID: "b", Scope: "x", Replicas: 1})
		require.Equal(t, map[App]Room{{"x", "base"}: {Models: 2}, {"y", "base"}: {}}, got)
	})
}
