package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// client has a client of every service, with one key.
type client struct {
	apps          windlassv1connect.AppServiceClient
	deployments   windlassv1connect.DeploymentServiceClient
	logs          windlassv1connect.LogServiceClient
	rollouts      windlassv1connect.RolloutServiceClient
	regions       windlassv1connect.RegionServiceClient
	environments  windlassv1connect.EnvironmentServiceClient
	projects      windlassv1connect.ProjectServiceClient
	history       windlassv1connect.HistoryServiceClient
	access        windlassv1connect.AccessServiceClient
	workspaces    windlassv1connect.WorkspaceServiceClient
	freezes       windlassv1connect.FreezeServiceClient
	notifications windlassv1connect.NotificationServiceClient
	routes        windlassv1connect.RouteServiceClient
	agent         agentv1connect.AgentServiceClient
}

func newClient(url, key string) *client {
	config, err := trust()
	if err != nil {
		panic(err) // TestMain has checked this
	}
	h := rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: config})
	options := rpc.ClientOptions(rpc.ClientConfig{
		Token: func() string { return key }, UserAgent: "windlass-e2e/1", Timeout: 20 * time.Second,
	})
	return &client{
		apps:          windlassv1connect.NewAppServiceClient(h, url, options...),
		deployments:   windlassv1connect.NewDeploymentServiceClient(h, url, options...),
		logs:          windlassv1connect.NewLogServiceClient(h, url, options...),
		rollouts:      windlassv1connect.NewRolloutServiceClient(h, url, options...),
		regions:       windlassv1connect.NewRegionServiceClient(h, url, options...),
		environments:  windlassv1connect.NewEnvironmentServiceClient(h, url, options...),
		projects:      windlassv1connect.NewProjectServiceClient(h, url, options...),
		history:       windlassv1connect.NewHistoryServiceClient(h, url, options...),
		access:        windlassv1connect.NewAccessServiceClient(h, url, options...),
		workspaces:    windlassv1connect.NewWorkspaceServiceClient(h, url, options...),
		freezes:       windlassv1connect.NewFreezeServiceClient(h, url, options...),
		notifications: windlassv1connect.NewNotificationServiceClient(h, url, options...),
		routes:        windlassv1connect.NewRouteServiceClient(h, url, options...),
		agent:         agentv1connect.NewAgentServiceClient(h, url, options...),
	}
}

// mutation returns a new idempotency key, so that a call may be repeated.
func mutation() *windlassv1.Mutation {
	return &windlassv1.Mutation{IdempotencyKey: ident.New("e2e")}
}

// env is the environment of all tests' apps.
const env = "default/production"

func named(app string) string { return env + "/" + app }

// unavailable reports whether the error only asks to try again.
func unavailable(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeAborted:
		return true
	}
	return false
}

// must makes the call, and repeats it with the same idempotency key while parts are unavailable.
func must[Req, Resp any](t *testing.T, call func(context.Context, *Req) (*Resp, error), req *Req) *Resp {
	t.Helper()
	resp, err := persist(t.Context(), call, req)
	require.NoError(t, err, "%T", req)
	return resp
}

func persist[Req, Resp any](ctx context.Context, call func(context.Context, *Req) (*Resp, error), req *Req) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		resp, err := call(ctx, req)
		if err == nil || !unavailable(err) {
			return resp, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// spec returns the spec of an app that needs few resources and becomes ready or fails quickly.
func spec(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	replicas := int32(1)
	s := &windlassv1.DeploymentSpec{
		Command:   []string{"modelserver"},
		Args:      []string{"--model", "echo", "--time-to-first-token", "0s", "--token-rate", "0", "--drain-timeout", "2s"},
		Resources: &windlassv1.Resources{CpuMillicores: 50, MemoryMib: 64},
		Ports:     []*windlassv1.Port{{Name: "http"}},
		HealthCheck: &windlassv1.HealthCheck{
			Interval: seconds(0.25), Timeout: seconds(5), UnhealthyThreshold: 8, HealthyThreshold: 1, StartupBudget: seconds(90),
		},
		TerminationGrace: seconds(15),
		ProgressDeadline: seconds(150),
		Regions:          []string{us, eu},
		Replicas:         &replicas,
		VersionLabel:     "v1",
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func seconds(s float64) *durationpb.Duration {
	return durationpb.New(time.Duration(s * float64(time.Second)))
}

func args(more ...string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Args = append(s.Args, more...) }
}

func replicas(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Replicas = &n }
}

func regions(names ...string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Regions = names }
}

// label makes another version, because the label is also an argument.
func label(v string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.VersionLabel = v
		s.Args = append(s.Args, "--version-label", v)
	}
}

// deploy starts a rollout.
func (s *stack) deploy(t *testing.T, app string, spec *windlassv1.DeploymentSpec) *windlassv1.DeployResponse {
	t.Helper()
	return must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: spec})
}

// deployReady deploys a version and waits until it is live.
func (s *stack) deployReady(t *testing.T, app string, spec *windlassv1.DeploymentSpec) *windlassv1.DeployResponse {
	t.Helper()
	resp := s.deploy(t, app, spec)
	s.waitLive(t, app, resp.Version)
	return resp
}

// eventually waits until the condition returns nil. Its error says what is still missing. A fatal error ends
// the wait at once.
func (s *stack) eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.patience)
	defer cancel()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		var f fatal
		if errors.As(err, &f) || ctx.Err() != nil {
			require.Fail(t, "never came: "+what, "%v\n%s\nnever came: %s: %v", last, s.picture(), what, last)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fatal is the error of a condition that can no longer become true.
type fatal struct{ error }

// waitLive waits until the version is live and the app has all its wanted replicas.
func (s *stack) waitLive(t *testing.T, app string, version int32) *windlassv1.App {
	t.Helper()
	var got *windlassv1.App
	s.eventually(t, fmt.Sprintf("%s v%d live and ready", app, version), func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err != nil {
			return err
		}
		if got = resp.App; got.LiveVersion == version && got.Status == windlassv1.AppStatus_APP_STATUS_READY {
			return nil
		}
		d, err := s.owner.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{App: named(app), Version: version})
		if err == nil && d.Deployment.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED {
			return fatal{fmt.Errorf("v%d failed: %s: %s", version, d.Deployment.Reason, d.Deployment.Message)}
		}
		return fmt.Errorf("live is v%d, %s: %s", got.LiveVersion, got.Status, got.Message)
	})
	return got
}

// waitFailed waits until the version's rollout has failed and none of its instances runs.
func (s *stack) waitFailed(t *testing.T, app string, d *windlassv1.DeployResponse) *windlassv1.Deployment {
	t.Helper()
	var got *windlassv1.Deployment
	s.eventually(t, fmt.Sprintf("%s v%d failed", app, d.Version), func(ctx context.Context) error {
		resp, err := s.owner.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: d.DeploymentId})
		if err != nil {
			return err
		}
		got = resp.Deployment
		switch got.Status {
		case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED:
			return nil
		case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY:
			return fatal{errors.New("it is ready")}
		default:
			return fmt.Errorf("it is %s: %s", got.Status, got.Message)
		}
	})
	s.waitGone(t, d.DeploymentId)
	resp := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{Deployment: d.DeploymentId})
	return resp.Deployment
}

// waitGone waits until no instance of a deployment runs, and the API lists none.
func (s *stack) waitGone(t *testing.T, deployment string) {
	t.Helper()
	s.eventually(t, "nothing left of "+deployment, func(ctx context.Context) error {
		if left := s.instances(func(p process) bool { return p.deployment() == deployment }); len(left) > 0 {
			return fmt.Errorf("it still runs:\n%s", describe(left))
		}
		list, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{Deployment: deployment})
		if err != nil {
			return err
		}
		if len(list.Instances) > 0 {
			return fmt.Errorf("%d instances claim to exist: %v", len(list.Instances), list.Instances)
		}
		resp, err := s.owner.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: deployment})
		if err != nil {
			return err
		}
		for _, r := range resp.Deployment.Regions {
			if r.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				return fmt.Errorf("%s is %s", r.Region, r.Status)
			}
		}
		return nil
	})
}

// instances returns the instance processes of this stack that pass the filter.
func (s *stack) instances(keep func(process) bool) []process {
	return slices.DeleteFunc(instancesOf(s.dir), func(p process) bool { return !keep(p) })
}

// runningOf returns the processes of an app, of all versions.
func (s *stack) runningOf(app string) []process {
	return s.instances(func(p process) bool { return p.app() == app })
}

func (s *stack) waitConnected(names ...string) {
	s.t.Helper()
	s.eventually(s.t, "regions connected: "+strings.Join(names, ", "), func(ctx context.Context) error {
		for _, name := range names {
			resp, err := s.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: name})
			if err != nil {
				return err
			}
			if resp.Region.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
				return fmt.Errorf("%s is %s", name, resp.Region.Status)
			}
		}
		return nil
	})
}
