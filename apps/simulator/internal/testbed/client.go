package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// Client is a user of the API.
type Client struct {
	Apps        windlassv1connect.AppServiceClient
	Deployments windlassv1connect.DeploymentServiceClient
	Rollouts    windlassv1connect.RolloutServiceClient
	Regions     windlassv1connect.RegionServiceClient
	Scaling     windlassv1connect.ScalingServiceClient
	Fleet       windlassv1connect.FleetServiceClient

	http *http.Client
}

// NewClient returns a client that calls the control plane at a URL with a key.
func NewClient(url, key string) *Client {
	c := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	options := rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return key }, UserAgent: "windlass-simulator"})
	return &Client{
		Apps:        windlassv1connect.NewAppServiceClient(c, url, options...),
		Deployments: windlassv1connect.NewDeploymentServiceClient(c, url, options...),
		Rollouts:    windlassv1connect.NewRolloutServiceClient(c, url, options...),
		Regions:     windlassv1connect.NewRegionServiceClient(c, url, options...),
		Scaling:     windlassv1connect.NewScalingServiceClient(c, url, options...),
		Fleet:       windlassv1connect.NewFleetServiceClient(c, url, options...),
		http:        c,
	}
}

// Close closes its idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Mutation returns a new idempotency key, so that a call may be repeated.
func Mutation() *windlassv1.Mutation {
	return &windlassv1.Mutation{IdempotencyKey: ident.New("sim")}
}

// persist bounds the time in which Persist repeats a call.
const persist = 2 * time.Minute

var retry = backoff.Policy{Min: 20 * time.Millisecond, Max: time.Second}

// Persist makes a call, and repeats it while the control plane is unavailable.
func Persist[Req, Resp any](ctx context.Context, call func(context.Context, *Req) (*Resp, error), req *Req) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, persist)
	defer cancel()
	for attempt := 0; ; attempt++ {
		resp, err := call(ctx, req)
		if err == nil || !Unavailable(err) {
			return resp, err
		}
		if sleep := backoff.Sleep(ctx, retry.Delay(attempt, nil)); sleep != nil {
			return nil, errors.Join(err, sleep)
		}
	}
}

// Unavailable reports whether the error only asks to try again.
func Unavailable(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeAborted:
		return true
	}
	return false
}

// Environment is the environment of every app.
const Environment = "default/production"

// App is an app to deploy.
type App struct {
	Name     string
	Regions  []string
	Replicas int
	// Version is a value in the spec: another value makes another version.
	Version string
	// Rollout is the app's policy. Nil: the default.
	Rollout *windlassv1.RolloutPolicy
	// Units is how many instances a replica has. If it is above 1, they are of the roles prefill and decode.
	Units int
}

// AtOnce returns the policy that moves all regions at the same time, with the new version next to the old one.
// It needs the least time and the most resources.
func AtOnce() *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{MaxSurge: "100%", Waves: []*windlassv1.Wave{{MaxParallel: 32}}}
}

// AppName returns the name of app n.
func AppName(n int) string { return fmt.Sprintf("app-%05d", n) }

// Path returns the path of an app in the API.
func Path(app string) string { return Environment + "/" + app }

// Spec returns the spec of the app.
func (a App) Spec() *windlassv1.DeploymentSpec {
	replicas := int32(a.Replicas)
	spec := &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Args: []string{"--model", "example", "--version", a.Version},
		Env:     map[string]string{"VERSION": a.Version},
		Regions: a.Regions, Replicas: &replicas, VersionLabel: a.Version,
	}
	if a.Units > 1 {
		decode := max(a.Units/4, 1)
		spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: int32(a.Units - decode)}, {Name: "decode", Instances: int32(decode), Entry: true}}
	}
	return spec
}

// Deploy makes one deploy call, and returns the deployment's id.
func (w *Testbed) Deploy(ctx context.Context, app App) (string, error) {
	resp, err := Persist(ctx, w.API.Apps.Deploy, &windlassv1.DeployRequest{Mutation: Mutation(), App: Path(app.Name), Spec: app.Spec(), Rollout: app.Rollout})
	if err != nil {
		return "", fmt.Errorf("deploy %s: %w", app.Name, err)
	}
	return resp.DeploymentId, nil
}

// Scale makes one scale call. An empty region means all regions.
func (w *Testbed) Scale(ctx context.Context, app, region string, replicas int) error {
	_, err := Persist(ctx, w.API.Apps.Scale, &windlassv1.ScaleRequest{
		Mutation: Mutation(), App: Path(app), Region: region, Replicas: int32(replicas),
	})
	if err != nil {
		return fmt.Errorf("scale %s: %w", app, err)
	}
	return nil
}

// DeployAll deploys apps, at most concurrency at a time. Once every call was answered, it returns the
// deployments' ids in the order of apps.
func (w *Testbed) DeployAll(ctx context.Context, apps []App, concurrency int) ([]string, error) {
	ids := make([]string, len(apps))
	err := InParallel(len(apps), concurrency, func(i int) (err error) {
		ids[i], err = w.Deploy(ctx, apps[i])
		return err
	})
	return ids, err
}

// InParallel calls do for 0 to n-1, at most concurrency at a time, until one fails.
func InParallel(n, concurrency int, do func(i int) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	slots := make(chan struct{}, max(concurrency, 1))
	for i := range n {
		slots <- struct{}{}
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(i); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// WaitReady waits until n deployments of a version are ready. A failed deployment is an error.
func (w *Testbed) WaitReady(ctx context.Context, version, n int) error {
	var ready, failed int64
	ask := func() (bool, error) {
		err := w.DB.QueryRowContext(ctx, "SELECT COALESCE(SUM(status = ?), 0), COALESCE(SUM(status = ?), 0) FROM deployments WHERE version = ?",
			int32(windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY), int32(windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED), version).Scan(&ready, &failed)
		if err == nil && failed > 0 {
			err = errors.New("a deployment failed")
		}
		return ready >= int64(n), err
	}
	return Until(ctx, 5*time.Millisecond, ask, func() string {
		return fmt.Sprintf("%d of %d deployments of v%d are ready, %d failed", ready, n, version, failed)
	})
}
