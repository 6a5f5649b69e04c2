package model

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type status interface {
	comparable
	protoreflect.Enum
}

// requireTable requires that the table has every value of its enum except the zero value, that each value
// can be reached from first, and that ends are exactly the values without a move.
func requireTable[S status](t *testing.T, table []Move[S], first S, ends ...S) {
	t.Helper()
	next := map[S][]S{}
	for _, m := range table {
		require.NotEqual(t, m.From, m.To, "staying is no move")
		require.NotEmpty(t, m.Cause)
		require.NotContains(t, next[m.From], m.To, "%v -> %v is stated twice", m.From, m.To)
		next[m.From] = append(next[m.From], m.To)
	}
	reached := map[S]bool{first: true}
	for todo := []S{first}; len(todo) > 0; todo = todo[1:] {
		for _, to := range next[todo[0]] {
			if !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	values := first.Descriptor().Values()
	for i := range values.Len() {
		v := values.Get(i)
		var found bool
		for s := range maps.Keys(reached) {
			found = found || s.Number() == v.Number()
		}
		require.Equal(t, v.Number() != 0, found, "%s", v.Name())
	}
	for s := range reached {
		require.Equal(t, slices.Contains(ends, s), Terminal(table, s), "%v", s)
		for to := range reached {
			require.Equal(t, slices.Contains(next[s], to), CanMove(table, s, to))
		}
	}
}

func TestStates_TablesCoverEveryStatusAndEndWhereStated(t *testing.T) {
	requireTable(t, DeploymentMoves, depPending, depFailed, depSuperseded, depStopped)
	requireTable(t, TopologyMoves, topStarting)
	requireTable(t, RouteMoves, rtePending)
	requireTable(t, InstanceMoves, insPending, insTerminated)
	requireTable(t, RolloutMoves, rolRunning, rolSucceeded, rolFailed, rolCancelled, rolSuperseded)
	requireTable(t, AppMoves, appIdle, appDeleting)
}

func TestStates_DeploymentPassesAllOnItsWayToReady(t *testing.T) {
	way := []windlassv1.DeploymentStatus{depPending, depBuilding, depDeploying, depNetwork, depReady}
	for i, from := range way {
		for j, to := range way {
			short := from == depPending && to == depDeploying
			require.Equal(t, j == i+1 || short, CanMove(DeploymentMoves, from, to), "%v -> %v", from, to)
		}
	}
}

func TestStates_StoppedComesOnlyAfterStopping(t *testing.T) {
	for _, m := range TopologyMoves {
		if m.To == topStopped {
			require.Equal(t, topStopping, m.From)
		}
	}
}
