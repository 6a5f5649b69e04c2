package gateway_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func TestAffinity_SessionMovesToTheNewVersionOnce(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo()
		app.Targets = []*gatewayv1.Target{
			target("dep_1", 1, 100, instance(t, named("old")), instance(t, named("old"))),
			target("dep_2", 2, 0, instance(t, named("new"))),
		}
		app.Policy.Balancing = gatewayv1.Balancing_BALANCING_AFFINITY
		app.Policy.Affinity = &gatewayv1.RoutePolicy_AffinityHeader{AffinityHeader: "X-Session"}
		ask := func(session int) string {
			req := r.request(t, http.MethodGet, "/", "")
			req.Header.Set("X-Session", fmt.Sprint("session-", session))
			res, body := r.do(t, req)
			require.Equal(t, http.StatusOK, res.StatusCode, body)
			return body
		}
		const sessions = 100
		var at [sessions]string
		before := 0
		for n, weight := range []int32{0, 25, 50, 100} {
			app = proto.CloneOf(app)
			app.Generation = int64(2 + n)
			app.Targets[0].Weight, app.Targets[1].Weight = 100-weight, weight
			r.put(t, app)
			moved := 0
			for i := range at {
				now := ask(i)
				require.Equal(t, now, ask(i))
				require.False(t, at[i] == "new" && now == "old", "session %d went back at %d percent", i, weight)
				if now == "new" {
					moved++
				}
				at[i] = now
			}
			require.InDelta(t, weight, moved, 15)
			require.GreaterOrEqual(t, moved, before)
			before = moved
		}
	})
}
