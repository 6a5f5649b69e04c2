package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestInstances_AreKeptIfOnlyRoutingChanges asserts that no model is loaded again if a version changes
// only a CORS header. This holds for each strategy, for rollouts and for rollbacks.
func TestInstances_AreKeptIfOnlyRoutingChanges(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true})
	canary := euThenUs()
	canary.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	canary.Steps = []*windlassv1.CanaryStep{{Weight: 10, Pause: "manual"}}
	for _, k := range []*keeper{
		{stack: s, app: "kept-rolling", policy: euThenUs()},
		{stack: s, app: "kept-canary", policy: canary, steps: true},
	} {
		t.Run(k.app, func(t *testing.T) {
			t.Parallel()
			k.run(t)
		})
	}
}

// keeper is an app whose versions differ in the origin that may call it.
type keeper struct {
	*stack
	app, host string
	policy    *windlassv1.RolloutPolicy
	// steps means that each region waits for a promotion.
	steps   bool
	origins map[int32]string
	before  []process
}

func (k *keeper) run(t *testing.T) {
	k.origins = map[int32]string{}
	first := k.deploy(t, "https://one.test")
	k.waitLive(t, k.app, first.Version)
	k.host = k.stack.host(t, k.app, windlassv1.Route_KIND_STABLE, 0)
	k.before = k.runningOf(k.app)
	require.Len(t, k.before, 4)
	k.requireServed(t, first.Version, first.Version)

	second := k.deploy(t, "https://two.test")
	k.move(t, second.RolloutId, first.Version, second.Version)
	k.waitLive(t, k.app, second.Version)
	k.requireServed(t, second.Version, second.Version)

	back := must(t, k.owner.apps.Rollback, &windlassv1.RollbackRequest{Mutation: mutation(), App: named(k.app), WithSteps: k.steps})
	k.origins[back.Version] = k.origins[first.Version]
	k.move(t, back.RolloutId, second.Version, back.Version)
	k.waitLive(t, k.app, back.Version)
	k.requireServed(t, back.Version, back.Version)

	if k.steps {
		// After an abort in the middle, the region has its earlier version.
		third := k.deploy(t, "https://three.test")
		k.waitPromotion(t, third.RolloutId, eu)
		k.requireServed(t, third.Version, back.Version)
		must(t, k.owner.apps.Cancel, &windlassv1.CancelRequest{Mutation: mutation(), App: named(k.app), Why: "second thoughts"})
		k.eventually(t, "the rollout is over", func(context.Context) error {
			if r := k.rolloutOf(t, third.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
				return fmt.Errorf("it is %s: %s", r.Status, r.Message)
			}
			return nil
		})
		k.waitLive(t, k.app, back.Version)
		k.requireServed(t, back.Version, back.Version)
	}

	// A change that instances see replaces them, as usual.
	other := k.deployBy(t, k.app, spec(replicas(2), label("other")), euThenUs())
	k.waitLive(t, k.app, other.Version)
	k.eventually(t, "all are replaced", func(context.Context) error {
		for _, p := range k.runningOf(k.app) {
			if p.deployment() != other.DeploymentId {
				return fmt.Errorf("still there: %s", p)
			}
		}
		return nil
	})
}

func (k *keeper) deploy(t *testing.T, origin string) *windlassv1.DeployResponse {
	t.Helper()
	resp := k.deployBy(t, k.app, spec(replicas(2), func(s *windlassv1.DeploymentSpec) {
		s.Routing = &windlassv1.RoutingPolicy{Cors: &windlassv1.Cors{AllowedOrigins: []string{origin}}}
	}), k.policy)
	k.origins[resp.Version] = origin
	return resp
}

// move promotes a rollout region by region, if the app has steps.
func (k *keeper) move(t *testing.T, rollout string, from, to int32) {
	t.Helper()
	if !k.steps {
		return
	}
	k.waitPromotion(t, rollout, eu)
	k.requireServed(t, to, from)
	promote := func() {
		must(t, k.owner.rollouts.Promote, &windlassv1.PromoteRequest{Mutation: mutation(), App: named(k.app)})
	}
	promote()
	k.waitPromotion(t, rollout, us)
	k.requireServed(t, to, to)
	promote()
}

// requireServed asserts that the gateways of each region allow the origin of the region's version, and that
// the processes and the ids of instances are the same as before.
func (k *keeper) requireServed(t *testing.T, inEU, inUS int32) {
	t.Helper()
	for region, version := range map[string]int32{eu: inEU, us: inUS} {
		k.eventually(t, fmt.Sprintf("%s serves as v%d says", region, version), func(ctx context.Context) error {
			for of, origin := range k.origins {
				allowed, err := allows(ctx, k.gateways[region], k.host, origin)
				if err != nil {
					return err
				}
				if wanted := origin == k.origins[version]; allowed != wanted {
					return fmt.Errorf("it lets %s of v%d in: %t", origin, of, allowed)
				}
			}
			return complete(ctx, k.gateways[region], k.host)
		})
	}
	requireSame(t, k.before, k.runningOf(k.app), "a version that differs in routing alone replaced instances")
	k.eventually(t, "the API lists the running instances", func(ctx context.Context) error {
		list, err := k.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(k.app)})
		if err != nil {
			return err
		}
		var said, run []string
		for _, i := range list.Instances {
			if want := map[string]int32{eu: inEU, us: inUS}[i.Region]; i.Version != want {
				return fmt.Errorf("%s in %s is of v%d, want v%d", i.Id, i.Region, i.Version, want)
			}
			said = append(said, i.Id)
		}
		for _, p := range k.before {
			run = append(run, p.instance())
		}
		slices.Sort(said)
		slices.Sort(run)
		if !slices.Equal(said, run) {
			return fmt.Errorf("the API lists %v, and %v run", said, run)
		}
		return nil
	})
}

// allows reports whether the gateway answers a page of the origin.
func allows(ctx context.Context, gateway, host, origin string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/health", nil)
	if err != nil {
		return false, err
	}
	req.Host = host
	req.Header.Set("Origin", origin)
	resp, err := caller.Do(req)
	if err != nil {
		return false, err
	}
	return resp.Header.Get("Access-Control-Allow-Origin") == origin, resp.Body.Close()
}
