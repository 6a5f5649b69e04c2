package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func newMutation() *windlassv1.Mutation { return testbed.Mutation() }

// user changes apps at random. Its connection goes through the balancer to any replica.
type user struct {
	api     *testbed.Client
	checker *checker
	history *history
	regions []string
	rnd     *rand.Rand

	mu    *sync.Mutex
	calls map[string]int
}

// The first apps have a fixed number of replicas, so that the checker knows what ready means for them. Users change
// the other apps in every way.
const (
	fixedApps     = 2
	fixedReplicas = 2
	looseApps     = 5
	// The apps from scaledApp up to serversApp scale. Those after the first one get requests.
	scaledApp = fixedApps + looseApps
	zeroApp   = scaledApp + 1
	poolApp   = scaledApp + 2
	// The app serversApp has servers of models, and the apps after it are the models.
	serversApp = scaledApp + 3
	allApps    = serversApp + 1 + modelApps
)

func appName(i int) string {
	switch {
	case i < fixedApps:
		return "fixed-" + strconv.Itoa(i)
	case i == scaledApp:
		return scaledName
	case i == zeroApp:
		return zeroName
	case i == poolApp:
		return poolName
	case i == serversApp:
		return serversName
	case i > serversApp:
		return modelName(i - serversApp - 1)
	}
	return "loose-" + strconv.Itoa(i-fixedApps)
}

// callTimeout is short, so that a user continues when a replica is frozen.
const callTimeout = 5 * time.Second

// makeCalls makes calls until ctx ends. Between two calls it rests for up to rest.
func (u *user) makeCalls(ctx context.Context, rest time.Duration) {
	for ctx.Err() == nil {
		u.makeCall(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(u.rnd.Float64() * float64(rest))):
		}
	}
}

func (u *user) makeCall(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	i := u.rnd.IntN(allApps)
	app := appName(i)
	what := u.rnd.IntN(10)
	if i < fixedApps {
		// These calls change neither the number of replicas nor whether the app runs.
		what = []int{0, 1, 2, 6, 7, 8}[u.rnd.IntN(6)]
	}
	if i >= scaledApp && what == 9 || i > scaledApp && what == 4 || i == poolApp && what == 5 {
		what = 0 // it is not deleted, its requests can be served, and no person takes it to zero
	}
	if i == serversApp && what == 5 || i > serversApp && what == 6 {
		what = 0 // there are enough servers, and models have no variables
	}
	path := testbed.Path(app)
	var did string
	var err error
	switch what {
	case 0, 1, 2, 3:
		did, err = u.deployApp(ctx, i, app, "good")
	case 4:
		did, err = u.deployApp(ctx, i, app, crashes)
	case 5:
		n := u.rnd.Int32N(4)
		if i > serversApp {
			n = 1 + n%mostModel
		}
		did = fmt.Sprintf("scale to %d", n)
		req := &windlassv1.ScaleRequest{Mutation: newMutation(), App: path, Replicas: n}
		roleScale(app, req, u.rnd)
		_, err = u.api.Apps.Scale(ctx, req)
		if i >= scaledApp && i < serversApp && err == nil {
			u.checker.recordViolationf(scaledByHand, app, place{}, "to %d replicas", n)
		}
	case 6:
		n := u.rnd.IntN(1000)
		did = fmt.Sprintf("set N=%d", n)
		var resp *windlassv1.SetEnvironmentResponse
		resp, err = u.api.Apps.SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{Mutation: newMutation(), App: path, Set: map[string]string{"N": strconv.Itoa(n)}})
		u.recordAnswer(app, resp.GetDeploymentId())
	case 7:
		did = "roll back"
		var resp *windlassv1.RollbackResponse
		resp, err = u.api.Apps.Rollback(ctx, &windlassv1.RollbackRequest{Mutation: newMutation(), App: path})
		u.recordAnswer(app, resp.GetDeploymentId())
	case 8:
		did = "cancel"
		_, err = u.api.Apps.Cancel(ctx, &windlassv1.CancelRequest{Mutation: newMutation(), App: path})
	case 9:
		did = "delete"
		_, err = u.api.Apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{Mutation: newMutation(), App: path})
	}
	u.countCall(app, did, err)
}

// crashes is the label of versions whose instances never become ready.
const crashes = "crashes"

func (u *user) deployApp(ctx context.Context, i int, app, label string) (string, error) {
	spec := testbed.App{Name: app, Version: strconv.Itoa(u.rnd.IntN(1_000_000)), Regions: u.placesOf(i), Replicas: fixedReplicas}.Spec()
	spec.VersionLabel = label
	req := &windlassv1.DeployRequest{Mutation: newMutation(), App: testbed.Path(app), Spec: spec}
	switch {
	case i >= serversApp:
		req.Spec = modelSpec(app, spec, u.rnd)
		req.Rollout = modelRollout(app, u.rnd)
		spec = req.Spec
	case i >= scaledApp:
		scaleSpec(app, spec)
		req.Scaling = scalingPolicy(app)
	case i >= fixedApps:
		n := 1 + u.rnd.Int32N(3)
		spec.Replicas = &n
		req.Rollout = roleSpec(app, spec, u.rnd)
	}
	did := fmt.Sprintf("deploy a version that is %s, %d each in %v", label, spec.GetReplicas(), spec.Regions)
	resp, err := u.api.Apps.Deploy(ctx, req)
	u.recordAnswer(app, resp.GetDeploymentId())
	return did, err
}

// placesOf returns the regions of an app. Fixed and scaled apps stay in the same regions. Apps that get requests are
// in the regions that have gateways.
func (u *user) placesOf(i int) []string {
	n := len(u.regions)
	if i > scaledApp { // also servers and models
		return gatewayRegions(u.regions)
	}
	if i < fixedApps || i == scaledApp {
		return []string{u.regions[i%n], u.regions[(i+n/2)%n]}[:min(n, 2)]
	}
	var out []string
	for _, k := range u.rnd.Perm(n)[:1+u.rnd.IntN(min(n, 4))] {
		out = append(out, u.regions[k])
	}
	return out
}

// gatewayRegions returns the regions that have gateways.
func gatewayRegions(regions []string) []string { return []string{regions[0], regions[len(regions)/2]} }

func (u *user) recordAnswer(app, deployment string) {
	if deployment != "" {
		u.checker.recordDeployment(app, deployment)
	}
}

// countCall counts a call. An answer that makes no sense is a violation.
func (u *user) countCall(app, did string, err error) {
	code := connect.CodeOf(err)
	said := "done"
	if err != nil {
		said = err.Error()
	}
	u.history.add(event{part: "user", app: app, text: did + ": " + said})
	u.mu.Lock()
	switch {
	case err == nil:
		u.calls["done"]++
	case testbed.Unavailable(err) || code == connect.CodeCanceled || code == connect.CodeUnknown:
		u.calls["unavailable"]++
	default:
		u.calls[rpc.ReasonOf(err).String()]++
	}
	u.mu.Unlock()
	if err != nil && (code == connect.CodeInternal || code == connect.CodeInvalidArgument || code == connect.CodeUnauthenticated) {
		u.checker.recordViolationf("the API fails", app, place{}, "%s: %v", did, err)
	}
}
