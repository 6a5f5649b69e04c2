package api_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// losing is a store whose connection is lost during a commit. The transaction is durable, but its caller gets
// ErrOutcomeUnknown.
type losing struct {
	api.Store
	next *bool
}

func (l losing) Update(ctx context.Context, fn func(api.Tx) error) error {
	return l.lost(l.Store.Update(ctx, fn))
}

func (l losing) UpdateBatched(ctx context.Context, key, app string, fn func(api.Tx) (func() error, error)) error {
	return l.lost(l.Store.UpdateBatched(ctx, key, app, fn))
}

func (l losing) lost(err error) error {
	if err == nil && *l.next {
		*l.next = false
		return fmt.Errorf("commit: %w", model.ErrOutcomeUnknown)
	}
	return err
}

func TestCommit_OfUnknownOutcomeIsFoundByItsKey(t *testing.T) {
	lose := false
	w := setup(t, func(c *api.Config) { c.Store = losing{c.Store, &lose} })
	ctx := t.Context()

	lose = true
	_, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "one"})
	refused(t, err, connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "")
	require.Contains(t, detailOf(err).GetFix(), "idempotency key")

	lose = true
	res, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Mutation: keyed("k"), Name: "two"})
	require.NoError(t, err, "the record shows that the first call succeeded")
	require.Equal(t, w.app("two").GetId(), res.GetApp().GetId())

	lose = true
	deployed, err := w.tryDeploy("three", "k3")
	require.NoError(t, err)
	require.Equal(t, w.app("three").GetId(), deployed.GetAppId())
}

// counting counts the queries of reads.
type counting struct {
	api.Store
	calls *atomic.Int32
}

func (c counting) Snapshot(ctx context.Context, fn func(api.Tx) error) error {
	return c.Store.Snapshot(ctx, func(tx api.Tx) error { return fn(counted{tx, c.calls}) })
}

func (c counting) View(ctx context.Context, fn func(api.Tx) error) error {
	return c.Store.View(ctx, func(tx api.Tx) error { return fn(counted{tx, c.calls}) })
}

// counted counts calls of the methods that lists use.
type counted struct {
	api.Tx
	calls *atomic.Int32
}

func (c counted) GetApp(workspaceID, id string) (model.App, error) {
	c.calls.Add(1)
	return c.Tx.GetApp(workspaceID, id)
}

func (c counted) GetApps(ids []string) ([]model.App, error) {
	c.calls.Add(1)
	return c.Tx.GetApps(ids)
}

func (c counted) GetProject(workspaceID, id string) (model.Project, error) {
	c.calls.Add(1)
	return c.Tx.GetProject(workspaceID, id)
}

func (c counted) GetEnvironment(workspaceID, id string) (model.Environment, error) {
	c.calls.Add(1)
	return c.Tx.GetEnvironment(workspaceID, id)
}

func (c counted) GetDeployment(workspaceID, id string) (model.Deployment, error) {
	c.calls.Add(1)
	return c.Tx.GetDeployment(workspaceID, id)
}

func (c counted) GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error) {
	c.calls.Add(1)
	return c.Tx.GetDeploymentByVersion(workspaceID, appID, version)
}

func (c counted) GetDeployments(ids []string) ([]model.Deployment, error) {
	c.calls.Add(1)
	return c.Tx.GetDeployments(ids)
}

func (c counted) GetRollout(workspaceID, id string) (model.Rollout, error) {
	c.calls.Add(1)
	return c.Tx.GetRollout(workspaceID, id)
}

func (c counted) GetRegion(id string) (model.Region, error) {
	c.calls.Add(1)
	return c.Tx.GetRegion(id)
}

func (c counted) ListTopology(appIDs []string) ([]model.Topology, error) {
	c.calls.Add(1)
	return c.Tx.ListTopology(appIDs)
}

func (c counted) ListObserved(appIDs []string) ([]model.Observed, error) {
	c.calls.Add(1)
	return c.Tx.ListObserved(appIDs)
}

func (c counted) ListInstances(f model.InstanceFilter, p model.Page) ([]model.Instance, error) {
	c.calls.Add(1)
	return c.Tx.ListInstances(f, p)
}

func TestLists_NumberOfQueriesDoesNotDependOnTheLength(t *testing.T) {
	var calls atomic.Int32
	w := setup(t, func(c *api.Config) { c.Store = counting{c.Store, &calls} })
	ctx := t.Context()
	cost := map[string][]int32{}
	for _, app := range []string{"a", "b", "c", "d", "e", "f"} {
		made := w.deploy(app)
		w.settle(app)
		w.putInstance(made, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
		w.deploy(app, args("new")) // one version is live, one in flight
		for name, list := range map[string]func() error{
			"apps": func() error {
				_, err := w.apps(w.viewer).ListApps(ctx, &windlassv1.ListAppsRequest{})
				return err
			},
			"deployments": func() error {
				_, err := w.deployments(w.viewer).ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{})
				return err
			},
			"instances": func() error {
				_, err := w.deployments(w.viewer).ListInstances(ctx, &windlassv1.ListInstancesRequest{})
				return err
			},
		} {
			calls.Store(0)
			require.NoError(t, list())
			cost[name] = append(cost[name], calls.Load())
		}
	}
	for name, of := range cost {
		require.Equal(t, of[0], of[len(of)-1], "%s: %v", name, of)
	}
}
