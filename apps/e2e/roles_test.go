package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRoles(t *testing.T) { //nolint:tparallel // its subtests share a stack
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true, regions: []string{us}})
	t.Run("groups are updated and scaled whole", func(t *testing.T) { testGroupsOfRoles(t, s) })
	t.Run("roles of a pool are updated and scaled separately", func(t *testing.T) { testPoolOfRoles(t, s) })
	t.Run("stable slots keep what instances stored", func(t *testing.T) { testStableSlots(t, s) })
	for _, kind := range []string{"nixl", "sglang"} {
		t.Run("gateways pair prefill and decode servers of "+kind, func(t *testing.T) { testPairs(t, s, kind) })
	}
	t.Run("updates in place set pairing, and change its engine", func(t *testing.T) { testPairingInPlace(t, s) })
	t.Run("a canary of pairs that is slow goes back", func(t *testing.T) { testCanaryOfPairs(t, s) })
	t.Run("roles of a pool go to zero and come back together", func(t *testing.T) { testPoolToZero(t, s) })
}

// testGroupsOfRoles tests replicas with several roles, which are groups. A group serves once all its
// instances are ready. It is updated and scaled as a whole. No request meets a prefill server and a decode
// server of different versions.
func testGroupsOfRoles(t *testing.T, s *stack) {
	const app = "pair"
	c := s.cli(t)
	pair := func(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
		sp := spec(append(change, regions(us))...)
		sp.Roles = []*windlassv1.RoleSpec{
			{Name: "prefill", Instances: 2},
			{Name: "decode", Entry: true, StartsAfter: []string{"prefill"}},
		}
		return sp
	}
	v1 := s.deployReady(t, app, pair(label("v1"), replicas(2)))
	s.waitGroups(t, app, 1, 2)
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)

	d := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{Deployment: v1.DeploymentId}).Deployment
	require.Len(t, d.Regions, 1)
	var told []string
	for _, r := range d.Regions[0].Roles {
		told = append(told, fmt.Sprintf("%s %d/%d %d %v", r.Role, r.Ready, r.Wanted, r.Instances, r.Entry))
	}
	require.Equal(t, []string{"prefill 4/4 4 false", "decode 2/2 2 true"}, told)
	status := c.ok("status", app)
	require.Regexp(t, `prefill\s+us-east-1\s+4/4\s+4`, status)
	require.Regexp(t, `decode \(entry\)\s+us-east-1\s+2/2\s+2`, status)
	listed := c.ok("list", "instances", app)
	for _, place := range []string{"prefill/0.0", "prefill/0.1", "decode/0.0", "prefill/1.0", "prefill/1.1", "decode/1.0"} {
		require.Contains(t, listed, place)
	}
	require.Contains(t, c.ok("history", app, "-o", "json"), "a replica is 2 prefill and 1 decode")

	load := s.callers(host)
	t.Cleanup(load.stop)
	answeredBy := func(version string) func(context.Context) error {
		return func(ctx context.Context) error {
			h, err := s.answer(ctx, host)
			if err == nil && (h.Get("X-Model-Role") != "decode" || h.Get("X-Prefill-Version") != version) {
				err = fmt.Errorf("role %q answers, after a prefill of %q", h.Get("X-Model-Role"), h.Get("X-Prefill-Version"))
			}
			return err
		}
	}
	s.eventually(t, "an answer of a pair of v1", answeredBy("v1"))

	s.deployReady(t, app, pair(label("v2"), replicas(2)))
	s.waitGone(t, v1.DeploymentId)
	s.waitGroups(t, app, 2, 2)
	s.eventually(t, "an answer of a pair of v2", answeredBy("v2"))
	load.requireNoneFailed(t, "an update")

	before := keysOf(s.runningOf(app))
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 3})
	s.waitGroups(t, app, 2, 3)
	require.Subset(t, keysOf(s.runningOf(app)), before, "scaling replaced instances")
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 2})
	s.waitGroups(t, app, 2, 2)
	load.requireNoneFailed(t, "scaling out and in")

	// A group that loses an instance gets no requests until it is complete again.
	for _, p := range s.runningOf(app) {
		if p.env["WINDLASS_ROLE"] == "prefill" {
			require.NoError(t, p.kill9())
			s.eventually(t, "the prefill server runs again", func(context.Context) error {
				if p.alive() {
					return fmt.Errorf("%s still runs", p)
				}
				return s.groupsAre(app, 2, 2)
			})
			break
		}
	}
	s.waitLive(t, app, 2)
	load.stop()
	load.requireFewFailed(t, 30, "a killed prefill server")

	// An error names the field and the fix.
	file := example(t, "prefill-decode.yaml")
	require.Contains(t, c.ok("plan", "-f", file), "a group of 3 instances: 2 prefill, 1 decode")
	require.Contains(t, c.ok("plan", "-f", example(t, "router.yaml")), "a group of 4 instances: 1 router, 2 decode, 1 prefill")
	pooled := pair()
	pooled.Layout, pooled.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: pooled})
	require.ErrorContains(t, err, "v2 has another layout")
	c.ok("delete", app, "--yes")
}

// testPoolOfRoles tests pools. If all roles of a pool change, every version that serves has instances of each
// role.
func testPoolOfRoles(t *testing.T, s *stack) {
	const app = "pool"
	c := s.cli(t)
	pool := func(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
		sp := spec(regions(us))
		sp.Layout, sp.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
		sp.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Entry: true, StartsAfter: []string{"prefill"}}}
		for _, f := range change {
			f(sp)
		}
		return sp
	}
	s.deployReady(t, app, pool(label("v1")))
	s.waitPool(t, app, 1, 2, 1)
	load := s.callers(s.host(t, app, windlassv1.Route_KIND_STABLE, 0))
	t.Cleanup(load.stop)

	// Scaling a role makes no version.
	before := keysOf(s.runningOf(app))
	c.ok("scale", app, "--role", "decode=2")
	s.waitPool(t, app, 1, 2, 2)
	require.Subset(t, keysOf(s.runningOf(app)), before, "scaling a role replaced instances")
	require.Regexp(t, `decode \(entry\)\s+us-east-1\s+2/2\s+2`, c.ok("status", app))
	require.Contains(t, c.ok("history", app, "-o", "json"), "role decode 1 -> 2 in each region")

	// Prefill servers are kept if only decode servers change.
	prefills := keysOf(s.role(app, "prefill"))
	again := pool(label("v1"), func(sp *windlassv1.DeploymentSpec) { sp.Roles[1].Env = map[string]string{"NOTE": "2"} })
	s.deployReady(t, app, again)
	s.waitPool(t, app, 2, 2, 2)
	require.ElementsMatch(t, prefills, keysOf(s.role(app, "prefill")), "prefill servers were replaced")
	load.requireNoneFailed(t, "an update of decode servers")

	s.deployReady(t, app, pool(label("v2")))
	s.waitPool(t, app, 3, 2, 2)
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Role: "prefill", Replicas: 1})
	s.waitPool(t, app, 3, 1, 2)
	load.stop()
	load.requireNoneFailed(t, "an update of all roles, and fewer prefill servers")

	// Decode servers are replaced first, and then prefill servers.
	ordered := pool(label("v3"), func(sp *windlassv1.DeploymentSpec) {
		sp.Roles[0].Instances = 0 // keep the present number, because an additional server would not wait for its turn
		sp.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL, Sequence: []string{"decode", "prefill"}}
	})
	of := func(role, version string) (n int) {
		for _, p := range s.role(app, role) {
			if p.env["WINDLASS_VERSION"] == version {
				n++
			}
		}
		return n
	}
	must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: ordered})
	s.eventually(t, "the prefill server of v4 starts", func(context.Context) error {
		if of("prefill", "4") == 0 {
			return errors.New("no prefill server of v4 runs")
		}
		return nil
	})
	require.Equal(t, 2, of("decode", "4"), "the prefill server was replaced before all decode servers were")
	s.waitPool(t, app, 4, 1, 2)
	require.Contains(t, c.ok("history", app, "-o", "json"), "replaces them in their places, in order sequential")
	c.ok("delete", app, "--yes")
}

// testStableSlots asserts that a successor finds what its predecessor stored, also in the next version and after a crash,
// and that a slot that goes leaves nothing.
func testStableSlots(t *testing.T, s *stack) {
	const app = "slots"
	c := s.cli(t)
	stable := func(version string) *windlassv1.DeploymentSpec {
		sp := spec(regions(us), label(version), replicas(2))
		sp.Roles = []*windlassv1.RoleSpec{{Name: "server", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
		return sp
	}
	deploy := func(version string) {
		policy := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
		res := must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: stable(version), Rollout: policy})
		s.waitLive(t, app, res.Version)
	}
	starts := func() map[string]string {
		out := map[string]string{}
		for _, p := range s.runningOf(app) {
			text, err := os.ReadFile(filepath.Join(p.env["WINDLASS_SLOT_DIR"], "starts"))
			require.NoError(t, err)
			out[p.env["WINDLASS_GROUP"]] = strings.TrimSpace(string(text))
		}
		return out
	}
	awaits := func(what string, want map[string]string) {
		s.eventually(t, what, func(context.Context) error {
			if got := starts(); !maps.Equal(got, want) {
				return fmt.Errorf("starts by slot: %v, want %v", got, want)
			}
			return nil
		})
	}
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: stable("v1")})
	require.ErrorContains(t, err, "strategy rolling starts new instances in other slots")
	deploy("v1")
	awaits("first starts", map[string]string{"0": "1", "1": "1"})
	load := s.callers(s.host(t, app, windlassv1.Route_KIND_STABLE, 0))
	t.Cleanup(load.stop)
	deploy("v2")
	awaits("successors in both slots", map[string]string{"0": "2", "1": "2"})
	load.stop()
	load.requireNoneFailed(t, "an update in stable slots")
	require.Contains(t, c.ok("history", app, "-o", "json"), "replaces them in their places")

	for _, p := range s.runningOf(app) {
		if p.env["WINDLASS_GROUP"] == "0" {
			require.NoError(t, p.kill9())
		}
	}
	awaits("a restart in its slot", map[string]string{"0": "3", "1": "2"})
	s.waitLive(t, app, 2)
	scale := func(n int32) {
		must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: n})
	}
	var highest string
	for _, p := range s.runningOf(app) {
		if p.env["WINDLASS_GROUP"] == "1" {
			highest = p.env["WINDLASS_SLOT_DIR"]
		}
	}
	require.DirExists(t, highest)
	scale(1)
	awaits("the highest slot gone", map[string]string{"0": "3"})
	// A slot that is wanted again before its directory is deleted keeps the directory.
	s.eventually(t, "the directory of the highest slot gone", func(context.Context) error {
		if _, err := os.Stat(highest); err == nil {
			return fmt.Errorf("%s is still there", highest)
		}
		return nil
	})
	scale(2)
	awaits("a new slot that is empty", map[string]string{"0": "3", "1": "1"})
	var dirs []string
	for _, p := range s.runningOf(app) {
		dirs = append(dirs, p.env["WINDLASS_SLOT_DIR"])
	}
	c.ok("delete", app, "--yes")
	for _, dir := range dirs {
		require.NoDirExists(t, dir)
	}
}

// testPoolToZero asserts that all roles of a pool stop without requests, or by hand, and that a request starts all of
// them.
func testPoolToZero(t *testing.T, s *stack) {
	const app = "roles-zero"
	c := s.cli(t)
	sp := spec(regions(us), label("v1"))
	sp.Layout, sp.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	sp.Roles = []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode", Entry: true, StartsAfter: []string{"prefill"}}}
	sp.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{Hold: durationpb.New(time.Minute)}}
	must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: sp, Scaling: &windlassv1.ScalingPolicy{
		Zero: &windlassv1.ScaleToZero{After: durationpb.New(10 * time.Second)},
		Roles: []*windlassv1.RoleScaling{
			{Role: "prefill", Max: 2, Couple: &windlassv1.ScalingCouple{Role: "decode", Ratio: []float64{0.5, 2}}},
			{Role: "decode", Max: 4, Initial: new(int32(2)), Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}}},
		},
	}})
	s.waitPool(t, app, 1, 1, 2)
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)
	atZero := func() {
		t.Helper()
		s.eventually(t, "no role has an instance", func(context.Context) error {
			if left := s.runningOf(app); len(left) > 0 {
				return fmt.Errorf("%d instances run", len(left))
			}
			return nil
		})
	}
	wakes := func() {
		t.Helper()
		h, err := s.answer(t.Context(), host)
		require.NoError(t, err, "the first request waits, and is answered")
		require.Equal(t, []string{"decode", "v1"}, []string{h.Get("X-Model-Role"), h.Get("X-Prefill-Version")})
	}
	atZero()
	s.eventually(t, "status says that it is at zero", func(context.Context) error {
		if text := c.ok("status", app); !strings.Contains(text, "at zero: a request starts it") {
			return errors.New(text)
		}
		return nil
	})
	require.Contains(t, c.ok("scaling", "why", app, "--role", "prefill"), "the pool goes to zero, because there has been no request for")
	require.Regexp(t, `prefill\s+\d\s+\d\s+0`, c.ok("scaling", "status", app))
	wakes()
	s.waitPool(t, app, 1, 1, 2)
	require.Regexp(t, "comes back from zero|came while it was at zero: a whole pool", c.ok("history", app, "-o", "json"))
	atZero()
	wakes()
	s.waitPool(t, app, 1, 1, 2) // the control plane has answered the wake
	c.ok("scale", app, "--replicas", "0")
	atZero()
	c.ok("delete", app, "--yes")
}

// role returns the running processes of a role of the app.
func (s *stack) role(app, role string) []process {
	return s.instances(func(p process) bool { return p.app() == app && p.env["WINDLASS_ROLE"] == role })
}

// waitPool waits until the app's pool has exactly these instances, all decode servers are of the version, and no
// rollout is left.
func (s *stack) waitPool(t *testing.T, app string, version, prefill, decode int) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("a pool of %d and %d of v%d", prefill, decode, version), func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err != nil {
			return err
		}
		if got := resp.App; got.Status != windlassv1.AppStatus_APP_STATUS_READY || got.ReadyReplicas != 100 {
			return fmt.Errorf("%s, %d percent are ready: %s", got.Status, got.ReadyReplicas, got.Message)
		}
		if p, d := len(s.role(app, "prefill")), len(s.role(app, "decode")); p != prefill || d != decode {
			return fmt.Errorf("%d prefill and %d decode servers run", p, d)
		}
		for _, p := range s.role(app, "decode") {
			if p.env["WINDLASS_VERSION"] != fmt.Sprint(version) {
				return fmt.Errorf("another version runs: %s", p)
			}
		}
		return nil
	})
}

// answer returns the header of the app's answer to a completion.
func (s *stack) answer(ctx context.Context, host string) (http.Header, error) {
	body := `{"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateways[us]+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	resp, err := caller.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", resp.Status)
	}
	_ = resp.Body.Close()
	return resp.Header, err
}

// groupsAre returns an error unless exactly n groups of two prefill servers and a decode server of the version run.
func (s *stack) groupsAre(app string, version, n int) error {
	groups := map[string]map[string]int{}
	for _, p := range s.runningOf(app) {
		if p.env["WINDLASS_VERSION"] != fmt.Sprint(version) {
			return fmt.Errorf("another version runs: %s", p)
		}
		g := p.env["WINDLASS_GROUP"]
		if groups[g] == nil {
			groups[g] = map[string]int{}
		}
		groups[g][p.env["WINDLASS_ROLE"]]++
	}
	for g, roles := range groups {
		if !maps.Equal(roles, map[string]int{"prefill": 2, "decode": 1}) {
			return fmt.Errorf("group %s is %v", g, roles)
		}
	}
	if len(groups) != n {
		return fmt.Errorf("%d groups run: %v", len(groups), groups)
	}
	return nil
}

// waitGroups waits until exactly n groups of the version run and are ready.
func (s *stack) waitGroups(t *testing.T, app string, version, n int) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%d groups of v%d", n, version), func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err != nil {
			return err
		}
		if got := resp.App; got.ReadyReplicas != int32(n) || got.Replicas != int32(n) {
			return fmt.Errorf("%d of %d replicas are ready: %s", got.ReadyReplicas, got.Replicas, got.Message)
		}
		return s.groupsAre(app, version, n)
	})
}
