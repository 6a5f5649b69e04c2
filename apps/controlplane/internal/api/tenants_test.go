package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func jsonField(t *testing.T, doc, field string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(doc), &fields), doc)
	return string(fields[field])
}

const (
	failed     = connect.CodeFailedPrecondition
	inUse      = windlassv1.ErrorReason_ERROR_REASON_IN_USE
	notFound   = windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND
	isDenied   = windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	existsName = windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS
)

func TestWorkspace_NewOneCanDeployAndEmptyOneCanBeDeleted(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made, err := w.workspaces(w.operator).CreateWorkspace(ctx, &windlassv1.CreateWorkspaceRequest{Name: "third"})
	require.NoError(t, err)
	key := made.GetApiKey()
	region, err := w.regionService(key).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "us-east-1"})
	require.NoError(t, err, "two workspaces may use the same name for a region")
	_, err = w.apps(key).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "chat"})
	require.NoError(t, err)
	own, err := w.workspaces(key).GetWorkspace(ctx, &windlassv1.GetWorkspaceRequest{})
	require.NoError(t, err)
	require.Equal(t, "third", own.GetWorkspace().GetName())
	renamed, err := w.workspaces(key).UpdateWorkspace(ctx, &windlassv1.UpdateWorkspaceRequest{
		Workspace: own.GetWorkspace().GetId(), Name: "drei", ResourceVersion: own.GetWorkspace().GetResourceVersion(),
	})
	require.NoError(t, err)
	require.Equal(t, "drei", renamed.GetWorkspace().GetName())

	remove := func() error {
		_, err := w.workspaces(w.operator).DeleteWorkspace(ctx, &windlassv1.DeleteWorkspaceRequest{Workspace: "drei"})
		return err
	}
	before := w.dump()
	refused(t, remove(), failed, inUse, "")
	require.Equal(t, before, w.dump())
	_, err = w.apps(key).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
	app, err := w.apps(key).GetApp(ctx, &windlassv1.GetAppRequest{App: "chat"})
	require.NoError(t, err)
	err = w.stepper.Step(ctx, app.GetApp().GetId())
	require.NoError(t, err)
	refused(t, remove(), failed, inUse, "")
	_, err = w.regionService(key).DeleteRegion(ctx, &windlassv1.DeleteRegionRequest{Region: region.GetRegion().GetId()})
	require.NoError(t, err)
	require.NoError(t, remove())
	_, err = w.access(key).WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "keys of a deleted workspace are not valid")
	list, err := w.workspaces(w.operator).ListWorkspaces(ctx, &windlassv1.ListWorkspacesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetWorkspaces(), 2)
}

func TestProject_WithAppsIsKept(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made, err := w.projects(w.owner).CreateProject(ctx, &windlassv1.CreateProjectRequest{Name: "lab"})
	require.NoError(t, err)
	_, err = w.environments(w.owner).CreateEnvironment(ctx, &windlassv1.CreateEnvironmentRequest{Project: "lab", Name: "staging"})
	require.NoError(t, err)
	_, err = w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "chat", Environment: "lab/staging"})
	require.NoError(t, err)
	require.Equal(t, "lab", w.app("lab/staging/chat").GetProjectName())
	list, err := w.environments(w.viewer).ListEnvironments(ctx, &windlassv1.ListEnvironmentsRequest{Project: made.GetProject().GetId()})
	require.NoError(t, err)
	require.Len(t, list.GetEnvironments(), 2)

	before := w.dump()
	_, err = w.projects(w.owner).DeleteProject(ctx, &windlassv1.DeleteProjectRequest{Project: "lab"})
	refused(t, err, failed, inUse, "")
	_, err = w.environments(w.owner).DeleteEnvironment(ctx, &windlassv1.DeleteEnvironmentRequest{Environment: "lab/staging"})
	refused(t, err, failed, inUse, "")
	require.Equal(t, before, w.dump(), "empty environments are not deleted either")

	_, err = w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "lab/staging/chat"})
	require.NoError(t, err)
	require.Nil(t, w.settle("lab/staging/chat"))
	_, err = w.projects(w.owner).DeleteProject(ctx, &windlassv1.DeleteProjectRequest{Project: "lab"})
	require.NoError(t, err)
	_, err = w.projects(w.viewer).GetProject(ctx, &windlassv1.GetProjectRequest{Project: "lab"})
	refused(t, err, connect.CodeNotFound, notFound, "project")
	_, err = w.environments(w.viewer).GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: list.GetEnvironments()[0].GetId()})
	refused(t, err, connect.CodeNotFound, notFound, "environment")
}

// TestDeleteEnvironment_LeavesNoApp creates an app and deletes its environment at the same time. One of the two calls
// must be refused.
func TestDeleteEnvironment_LeavesNoApp(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	for i := range 40 {
		environment := fmt.Sprintf("default/e%d", i)
		_, err := w.environments(w.owner).CreateEnvironment(ctx, &windlassv1.CreateEnvironmentRequest{Project: "default", Name: environment[len("default/"):]})
		require.NoError(t, err)
		var made, deleted error
		var wg sync.WaitGroup
		wg.Go(func() {
			if i%2 == 0 {
				_, made = w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "chat", Environment: environment})
			} else {
				_, made = w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: environment + "/chat", Spec: echo()})
			}
		})
		wg.Go(func() {
			_, deleted = w.environments(w.owner).DeleteEnvironment(ctx, &windlassv1.DeleteEnvironmentRequest{Environment: environment})
		})
		wg.Wait()
		if made == nil {
			refused(t, deleted, failed, inUse, "")
		} else {
			require.NoError(t, deleted)
			require.Equal(t, connect.CodeNotFound, connect.CodeOf(made), made)
		}
	}
}

func TestPlatformRegion_IsUsedByGrant(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made, err := w.regionService(w.operator).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared", Platform: true})
	require.NoError(t, err)
	id := made.GetRegion().GetId()
	deploy := func() error {
		_, err := w.apps(w.rival).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(func(s *windlassv1.DeploymentSpec) {
			s.Regions = []string{"shared"}
		})})
		return err
	}
	refused(t, deploy(), connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "spec.regions[0]")
	_, err = w.regionService(w.rival).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: id})
	refused(t, err, connect.CodeNotFound, notFound, "region")

	for range 2 {
		_, err = w.regionService(w.operator).GrantRegion(ctx, &windlassv1.GrantRegionRequest{Region: "shared", Workspace: "rival"})
		require.NoError(t, err)
	}
	require.NoError(t, deploy())
	got, err := w.regionService(w.rival).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: id})
	require.NoError(t, err)
	require.Empty(t, got.GetRegion().GetWorkspaceId())
	// A workspace may use a granted region, but not manage it.
	_, err = w.regionService(w.rival).CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{Region: "shared"})
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	_, err = w.regionService(w.rival).ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: "shared"})
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	_, err = w.regionService(w.rival).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared"})
	refused(t, err, connect.CodeAlreadyExists, existsName, "name")

	// A workspace may not have two regions with the same name.
	_, err = w.regionService(w.owner).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared"})
	require.NoError(t, err)
	_, err = w.regionService(w.operator).GrantRegion(ctx, &windlassv1.GrantRegionRequest{Region: "shared", Workspace: "acme"})
	refused(t, err, connect.CodeAlreadyExists, existsName, "region")

	_, err = w.regionService(w.operator).RevokeGrant(ctx, &windlassv1.RevokeGrantRequest{Region: "shared", Workspace: "rival"})
	require.NoError(t, err)
	_, err = w.regionService(w.operator).RevokeGrant(ctx, &windlassv1.RevokeGrantRequest{Region: "shared", Workspace: "rival"})
	refused(t, err, failed, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
}

func TestApproveGateway_OperatorsApproveOneAddress(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	got, err := w.regionService(w.owner).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: "us-east-1"})
	require.NoError(t, err)
	id := got.GetRegion().GetId()
	tell := func(url string) {
		t.Helper()
		w.update(func(tx store.Tx) error {
			_, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{GatewayURL: url})
			return err
		})
	}
	approve := func(key, region, url string) error {
		_, err := w.regionService(key).ApproveGateway(ctx, &windlassv1.ApproveGatewayRequest{Region: region, GatewayUrl: url})
		return err
	}
	approved := func() bool {
		t.Helper()
		got, err := w.regionService(w.owner).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: id})
		require.NoError(t, err)
		return got.GetRegion().GetGatewayApproved()
	}
	waiting := func() (urls []string) {
		t.Helper()
		res, err := w.regionService(w.operator).ListGateways(ctx, &windlassv1.ListGatewaysRequest{Waiting: true})
		require.NoError(t, err)
		for _, g := range res.GetGateways() {
			require.Equal(t, id, g.GetRegion())
			require.Equal(t, "us-east-1", g.GetName())
			require.Equal(t, w.workspace, g.GetWorkspaceId())
			require.Equal(t, "acme", g.GetWorkspace())
			urls = append(urls, g.GetGatewayUrl()+" "+g.GetApprovedGatewayUrl())
		}
		return urls
	}
	require.Empty(t, waiting())
	tell("https://us.example.com")
	require.False(t, approved())
	require.Equal(t, []string{"https://us.example.com "}, waiting())
	_, err = w.regionService(w.owner).ListGateways(ctx, &windlassv1.ListGatewaysRequest{})
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	refused(t, approve(w.owner, id, "https://us.example.com"), connect.CodePermissionDenied, isDenied, "")
	refused(t, approve(w.operator, "us-east-1", "https://us.example.com"), connect.CodeNotFound, notFound, "region")
	refused(t, approve(w.operator, id, "https://us.example.org"), failed, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "gatewayUrl")
	require.NoError(t, approve(w.operator, id, "https://us.example.com"))
	require.True(t, approved())
	require.Empty(t, waiting())
	all, err := w.regionService(w.operator).ListGateways(ctx, &windlassv1.ListGatewaysRequest{})
	require.NoError(t, err)
	require.Len(t, all.GetGateways(), 1)
	log, err := w.history(w.operator).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(log.GetEntries(), func(e *windlassv1.AuditEntry) bool {
		return e.GetResourceId() == id && strings.Contains(e.GetAfter(), `"gateway_approved":true`)
	}))

	tell("http://127.0.0.1:9070")
	require.False(t, approved())
	require.Equal(t, []string{"http://127.0.0.1:9070 https://us.example.com"}, waiting())
	tell("https://us.example.com")
	require.True(t, approved())
	require.NoError(t, approve(w.operator, id, ""))
	require.False(t, approved())

	made, err := w.regionService(w.operator).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared", Platform: true})
	require.NoError(t, err)
	refused(t, approve(w.operator, made.GetRegion().GetId(), ""), failed, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
}

func TestRegion_InUseIsKept(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.deploy("chat")
	w.settle("chat")
	_, err := w.regionService(w.owner).DeleteRegion(ctx, &windlassv1.DeleteRegionRequest{Region: "us-east-1"})
	refused(t, err, failed, inUse, "")
	w.deploy("chat", func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"eu-west-1"} })
	w.settle("chat")
	_, err = w.regionService(w.owner).DeleteRegion(ctx, &windlassv1.DeleteRegionRequest{Region: "us-east-1"})
	require.NoError(t, err)
	list, err := w.regionService(w.viewer).ListRegions(ctx, &windlassv1.ListRegionsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetRegions(), 1)
	require.Equal(t, windlassv1.RegionStatus_REGION_STATUS_CONNECTED, list.GetRegions()[0].GetStatus())
	require.NotZero(t, list.GetRegions()[0].GetRevision())
}

func TestRevocation_EndsStreamsWithANewEpoch(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	head := func() (h model.Head) {
		require.NoError(t, w.store.View(ctx, func(tx store.Tx) error {
			heads, err := tx.GetHeads([]string{w.regions["us-east-1"]})
			h = heads[0]
			return err
		}))
		return h
	}
	before := head()
	res, err := w.regionService(w.owner).RevokeCredentials(ctx, &windlassv1.RevokeCredentialsRequest{Region: "us-east-1"})
	require.NoError(t, err)
	require.Zero(t, res.GetRevoked(), "no agent has joined")
	require.Equal(t, before.Epoch+1, head().Epoch)
	w.deploy("chat")
	w.settle("chat")
	res, err = w.regionService(w.owner).RevokeCredentials(ctx, &windlassv1.RevokeCredentialsRequest{Region: "us-east-1"})
	require.NoError(t, err)
	require.Equal(t, int32(1), res.GetRevoked())
	require.NoError(t, w.store.View(ctx, func(tx store.Tx) error {
		r, err := tx.GetRegion(w.regions["us-east-1"])
		require.NotZero(t, r.CredentialNotBefore)
		return err
	}))
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, w.settle("chat").GetStatus())
}

func TestPrune_ReleasesExactlyTheNamedWorkloads(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	region := w.regions["us-east-1"]
	w.update(func(tx store.Tx) error {
		return tx.SetQuarantine(region, []model.Quarantined{
			{RegionID: region, Key: "dep_a", Generation: 4, Instances: 1, Since: 1},
			{RegionID: region, Key: "dep_b", Generation: 7, Instances: 2, Since: 1},
		})
	})
	before := w.dump()
	_, err := w.regionService(w.owner).ApprovePrune(ctx, &windlassv1.ApprovePruneRequest{Region: "us-east-1", Keys: []string{"dep_a", "dep_c"}})
	refused(t, err, connect.CodeNotFound, notFound, "keys[1]")
	require.Equal(t, before, w.dump())

	res, err := w.regionService(w.owner).ApprovePrune(ctx, &windlassv1.ApprovePruneRequest{Region: "us-east-1", Keys: []string{"dep_b"}})
	require.NoError(t, err)
	require.Equal(t, int32(1), res.GetApproved())
	list, err := w.regionService(w.viewer).ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: "us-east-1"})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{list.GetWorkloads()[0].GetApproved(), list.GetWorkloads()[1].GetApproved()})
	require.NoError(t, w.store.View(ctx, func(tx store.Tx) error {
		changes, err := tx.Changes(map[string]int64{region: 0}, 10)
		require.Len(t, changes, 1)
		require.Equal(t, "dep_b", changes[0].Key)
		require.Equal(t, int64(8), changes[0].Generation)
		return err
	}))
}
