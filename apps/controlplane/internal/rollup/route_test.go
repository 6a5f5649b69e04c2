package rollup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const host = "chat.example.com"

// routed is a host in two regions. sent says for each region whether its newest route has or lacks the host as wanted
// requires. done says whether the region acknowledged its newest route. Generations are as low as possible.
type routed struct {
	wanted, over bool
	sent, done   [2]bool
}

func (r routed) state() windlassv1.RouteState {
	var regions []*windlassv1.RegionRoute
	for n := range r.sent {
		p := RoutePlace{
			Route:    model.Route{Generation: 2, Hosts: []string{"another.example.com"}},
			Observed: model.RouteObserved{Phase: phaseApplied, Generation: 1},
		}
		if r.done[n] {
			p.Observed.Generation = 2
		}
		if r.sent[n] {
			p.Route.Hosts = append(p.Route.Hosts, host)
		} else if !r.wanted {
			p.Route.Hosts = nil
		}
		if s, _ := p.State(host, r.wanted && r.sent[n]); s != routePending {
			regions = append(regions, &windlassv1.RegionRoute{State: s})
		}
	}
	s, _ := RouteState(regions, r.over)
	return s
}

// next returns the states that follow when one fact changes.
func (r routed) next() []routed {
	var out []routed
	add := func(change func(*routed)) {
		n := r
		change(&n)
		out = append(out, n)
	}
	serves := r.sent[0] || r.sent[1]
	switch {
	case r.wanted && serves:
		add(func(n *routed) { n.wanted = false })
	case !r.wanted && !r.over:
		add(func(n *routed) { n.wanted = true })
	}
	if !r.over {
		add(func(n *routed) { n.over, n.wanted = true, false })
	}
	for i := range r.sent {
		if r.sent[i] != r.wanted || r.wanted { // a region with the host may also get another share, policy or key
			add(func(n *routed) { n.sent[i], n.done[i] = r.wanted, false })
		}
		add(func(n *routed) { n.done[i] = true })
	}
	return out
}

func TestRouteStatus_FollowsItsTable(t *testing.T) {
	moved := map[[2]windlassv1.RouteState]bool{}
	first := routed{done: [2]bool{true, true}}
	seen := map[routed]bool{first: true}
	for todo := []routed{first}; len(todo) > 0; todo = todo[1:] {
		for _, n := range todo[0].next() {
			if from, to := todo[0].state(), n.state(); from != to {
				require.True(t, model.CanMove(model.RouteMoves, from, to), "%v -> %v: %+v -> %+v", from, to, todo[0], n)
				moved[[2]windlassv1.RouteState{from, to}] = true
			}
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	for _, m := range model.TopologyMoves {
		state := func(status windlassv1.TopologyStatus) windlassv1.RouteState {
			region := PreviewState(Place{Row: model.Topology{Status: status}})
			over, _ := RouteState([]*windlassv1.RegionRoute{{State: region}}, false)
			require.Equal(t, region, over)
			return over
		}
		from, to := state(m.From), state(m.To)
		require.True(t, model.CanMove(model.RouteMoves, from, to), "%v -> %v of a preview", from, to)
		moved[[2]windlassv1.RouteState{from, to}] = true
	}
	for _, m := range model.RouteMoves {
		require.True(t, moved[[2]windlassv1.RouteState{m.From, m.To}], "nothing moves %v -> %v: %s", m.From, m.To, m.Cause)
	}
}

func TestRouteStatus_OverRegionsIsTheMostImportant(t *testing.T) {
	for _, c := range []struct {
		regions []windlassv1.RouteState
		ends    bool
		want    windlassv1.RouteState
		says    string
	}{
		{nil, false, routePending, "no region serves the host yet"},
		{nil, true, routeTerminated, ""},
		{[]windlassv1.RouteState{routeRunning, routeRunning}, false, routeRunning, ""},
		{[]windlassv1.RouteState{routeRunning, routeProvisioning}, false, routeProvisioning, "1 of 2 regions serve the newest route"},
		{[]windlassv1.RouteState{routeRunning, routeTerminating, routeTerminated}, false, routeRunning, ""},
		{[]windlassv1.RouteState{routeTerminating, routeTerminated}, false, routeTerminating, "1 region must still remove the host"},
		{[]windlassv1.RouteState{routeTerminated, routeTerminated}, false, routeTerminated, ""},
	} {
		var regions []*windlassv1.RegionRoute
		for _, s := range c.regions {
			regions = append(regions, &windlassv1.RegionRoute{State: s})
		}
		state, says := RouteState(regions, c.ends)
		require.Equal(t, c.want, state, "%v", c.regions)
		require.Equal(t, c.says, says, "%v", c.regions)
	}
}
