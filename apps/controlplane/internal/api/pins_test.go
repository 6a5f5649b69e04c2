package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	pinIsLive    = windlassv1.ErrorReason_ERROR_REASON_PIN_IS_LIVE
	pinWeights   = windlassv1.ErrorReason_ERROR_REASON_PIN_WEIGHTS
	pinInRollout = windlassv1.ErrorReason_ERROR_REASON_PIN_IN_ROLLOUT
	notPinned    = windlassv1.ErrorReason_ERROR_REASON_NOT_PINNED
)

// versions deploys the app once for each name, with the name as argument, and lets it settle.
func (h *harness) versions(app string, names ...string) *windlassv1.App {
	h.t.Helper()
	var out *windlassv1.App
	for _, name := range names {
		h.deploy(app, args(name))
		out = h.settle(app)
	}
	return out
}

func (h *harness) pin(version, weight int32, edit ...func(*windlassv1.PinVersionRequest)) (*windlassv1.PinVersionResponse, error) {
	req := &windlassv1.PinVersionRequest{App: "chat", Version: version, Weight: weight, Why: "to compare"}
	for _, f := range edit {
		f(req)
	}
	return h.apps(h.deployer).PinVersion(h.t.Context(), req)
}

func (h *harness) unpin(version int32) (*windlassv1.UnpinVersionResponse, error) {
	return h.apps(h.deployer).UnpinVersion(h.t.Context(), &windlassv1.UnpinVersionRequest{App: "chat", Version: version, Why: "compared"})
}

func pinnedWith(replicas int32, regions ...string) func(*windlassv1.PinVersionRequest) {
	return func(r *windlassv1.PinVersionRequest) { r.Replicas, r.Regions = &replicas, regions }
}

// shares returns the weights of the app's route in the region, by version.
func (h *harness) shares(app *windlassv1.App, region string) map[int32]int32 {
	h.t.Helper()
	out := map[int32]int32{}
	require.NoError(h.t, h.store.Snapshot(h.t.Context(), func(tx store.Tx) error {
		items, err := tx.DesiredItems(model.KindRoutes, map[string][]string{h.regions[region]: {app.GetId()}})
		if err != nil {
			return err
		}
		for _, target := range model.Shares(items[0].Targets) {
			d, err := tx.GetDeployments([]string{target.DeploymentID})
			if err != nil {
				return err
			}
			out[d[0].Version] = target.Weight
		}
		return nil
	}))
	return out
}

func TestPin_ServesNextToTheLiveVersionUntilRemoved(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.versions("chat", "a", "b")
		used := w.usage()
		res, err := w.pin(1, 10)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 10}, []int32{res.GetPin().GetVersion(), res.GetPin().GetWeight()})
		require.Equal(t, used.Instances+4, w.usage().Instances, "two replicas in each of two regions, as before")
		again, err := w.pin(1, 10)
		require.NoError(t, err)
		require.True(t, again.GetUnchanged())

		app := w.settle("chat")
		require.Equal(t, []int32{2, 4, 4}, []int32{app.GetLiveVersion(), app.GetReplicas(), app.GetReadyReplicas()})
		require.Len(t, app.GetPins(), 1)
		pin := app.GetPins()[0]
		require.Equal(t, []string{w.version("chat", 1).GetCreatedBy(), "to compare"}, []string{pin.GetBy(), pin.GetWhy()})
		for i, name := range []string{"eu-west-1", "us-east-1"} {
			r := pin.GetRegions()[i]
			require.Equal(t, name, r.GetRegion())
			require.Equal(t, windlassv1.PinRegion_STATE_SERVING, r.GetState())
			require.Equal(t, []int32{2, 2, 10}, []int32{r.GetReplicas(), r.GetReady(), r.GetWeight()})
			require.Equal(t, map[int32]int32{2: 9000, 1: 1000}, w.shares(app, name))
		}
		require.Equal(t, int32(10), w.version("chat", 1).GetPinnedWeight())
		require.Zero(t, w.version("chat", 2).GetPinnedWeight())

		// A rollout does not change the pin, nor does scaling of the live version.
		w.versions("chat", "c")
		_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
		require.NoError(t, err)
		app = w.settle("chat")
		require.Equal(t, []int32{3, 6, 6}, []int32{app.GetLiveVersion(), app.GetReplicas(), app.GetReadyReplicas()})
		require.Equal(t, map[int32]int32{3: 9000, 1: 1000}, w.shares(app, "us-east-1"))
		require.Equal(t, []int32{2, 10}, w.rowsOf("chat", 1)["us-east-1"][:2])

		// Another weight, other replicas and other regions.
		_, err = w.pin(1, 25, pinnedWith(1, "us-east-1"))
		require.NoError(t, err)
		app = w.settle("chat")
		require.Equal(t, map[int32]int32{3: 7500, 1: 2500}, w.shares(app, "us-east-1"))
		require.Equal(t, map[int32]int32{3: 100}, w.shares(app, "eu-west-1"))
		require.Len(t, w.rowsOf("chat", 1), 1)
		require.Equal(t, used.Instances+2+1, w.usage().Instances)

		// A rollback to the pinned version makes a new version with its configuration, next to the pin.
		_, err = w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Version: 1})
		require.NoError(t, err)
		app = w.settle("chat")
		require.Equal(t, int32(4), app.GetLiveVersion())
		require.Equal(t, map[int32]int32{4: 7500, 1: 2500}, w.shares(app, "us-east-1"))

		gone, err := w.unpin(1)
		require.NoError(t, err)
		require.True(t, gone.GetPin().GetRemoving())
		_, err = w.unpin(1)
		require.NoError(t, err, "a repeated unpin is no error while the version still runs")
		app = w.settle("chat")
		require.Empty(t, app.GetPins())
		require.Empty(t, w.rowsOf("chat", 1))
		require.Equal(t, map[int32]int32{4: 100}, w.shares(app, "us-east-1"))
		require.Equal(t, used.Instances+2, w.usage().Instances)
		_, err = w.unpin(1)
		refused(t, err, connect.CodeFailedPrecondition, notPinned, "version")
		require.Subset(t, w.said("chat"), []string{"VersionPinned", "PinStarting", "PinServing", "PinChanged", "VersionUnpinned", "PinRemoved"})
	})
}

func TestPin_InvalidIsRefusedWithFigures(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", args("a"))
		_, err := w.pin(1, 10)
		refused(t, err, connect.CodeFailedPrecondition, pinIsLive, "version")
		w.settle("chat")
		w.versions("chat", "b", "c")
		_, err = w.pin(3, 10)
		refused(t, err, connect.CodeFailedPrecondition, pinIsLive, "version")
		require.ErrorContains(t, err, "v3 is live")
		_, err = w.pin(9, 10)
		refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "version")
		_, err = w.pin(1, 100)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
		_, err = w.pin(1, 10, pinnedWith(1, "us-east-1", "mars"))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "regions[1]")
		_, err = w.apps(w.viewer).PinVersion(t.Context(), &windlassv1.PinVersionRequest{App: "chat", Version: 1, Weight: 1})
		require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))

		_, err = w.pin(1, 60)
		require.NoError(t, err)
		_, err = w.pin(2, 40, pinnedWith(1, "us-east-1"))
		refused(t, err, connect.CodeFailedPrecondition, pinWeights, "weight")
		require.ErrorContains(t, err, "in region us-east-1, v2 with 40 % and the pinned versions v1 60 % add up to 100 %")
		require.Equal(t, "Pin it at 39 % or less, or unpin other versions first.", detailOf(err).GetFix())
		_, err = w.pin(2, 39, pinnedWith(1, "us-east-1"))
		require.NoError(t, err)
		app := w.settle("chat")
		require.Equal(t, map[int32]int32{3: 100, 1: 6000, 2: 3900}, w.shares(app, "us-east-1"))
		require.Len(t, app.GetPins(), 2)
		// Unpinning frees the share.
		_, err = w.unpin(1)
		require.NoError(t, err)
		_, err = w.pin(2, 99)
		require.NoError(t, err)

		// A version that a rollout still runs or leads to.
		w.deploy("chat", args("d"))
		require.NoError(t, w.stepper.Step(t.Context(), app.GetId()))
		_, err = w.pin(4, 10)
		refused(t, err, connect.CodeFailedPrecondition, pinIsLive, "version")
		_, err = w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat"})
		require.NoError(t, err)
		_, err = w.pin(4, 10)
		refused(t, err, connect.CodeFailedPrecondition, pinIsLive, "version")
	})
}

func TestPin_ChangeOfAnOutdatedPinIsRefused(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.versions("chat", "a", "b")
		read := func(version int64) func(*windlassv1.PinVersionRequest) {
			return func(r *windlassv1.PinVersionRequest) { r.ResourceVersion = &version }
		}
		unpin := func(version int64) error {
			_, err := w.apps(w.deployer).UnpinVersion(t.Context(), &windlassv1.UnpinVersionRequest{App: "chat", Version: 1, ResourceVersion: &version})
			return err
		}
		_, err := w.pin(1, 10, read(7))
		refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		require.ErrorContains(t, err, "v1 of app chat is no longer pinned")

		// Two people read that the version is not pinned. The second one does not overwrite the pin of the first.
		res, err := w.pin(1, 10, read(0))
		require.NoError(t, err)
		first := res.GetPin().GetResourceVersion()
		_, err = w.pin(1, 20, read(0))
		refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		require.ErrorContains(t, err, res.GetPin().GetBy()+" has pinned v1 of app chat at 10 % of the traffic since you read it")
		require.Contains(t, detailOf(err).GetFix(), "windlass pins")

		// What the control plane does meanwhile is no change of the pin.
		pin := w.settle("chat").GetPins()[0]
		require.Equal(t, windlassv1.PinRegion_STATE_SERVING, pin.GetRegions()[0].GetState())
		require.Equal(t, first, pin.GetResourceVersion())
		res, err = w.pin(1, 30, read(first))
		require.NoError(t, err)
		second := res.GetPin().GetResourceVersion()
		require.Greater(t, second, first)
		_, err = w.pin(1, 40, read(first))
		refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		refused(t, unpin(first), connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		require.Equal(t, int32(30), w.settle("chat").GetPins()[0].GetWeight())

		require.NoError(t, unpin(second))
		_, err = w.pin(1, 40, read(second))
		refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		require.ErrorContains(t, err, "has unpinned v1 of app chat since you read it")
		// A pin that was removed and set again is another one.
		require.Empty(t, w.settle("chat").GetPins())
		refused(t, unpin(second), connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
		res, err = w.pin(1, 10, read(0))
		require.NoError(t, err)
		require.NotContains(t, []int64{first, second}, res.GetPin().GetResourceVersion())
	})
}

func TestPin_FreezeRefusesAPinButNotItsRemoval(t *testing.T) {
	w := setup(t)
	w.versions("chat", "a", "b")
	_, err := w.pin(1, 10)
	require.NoError(t, err)
	w.freeze("quarter", hold)
	_, err = w.pin(1, 20)
	refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
	_, err = w.pin(1, 10)
	require.NoError(t, err, "a pin without a change passes")
	override := &windlassv1.PinVersionRequest{App: "chat", Version: 1, Weight: 20, OverrideFreeze: "incident 4711"}
	_, err = w.apps(w.deployer).PinVersion(t.Context(), override)
	refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	_, err = w.apps(w.owner).PinVersion(t.Context(), override)
	require.NoError(t, err)
	require.Contains(t, w.said("chat"), "FreezeOverridden")
	require.Equal(t, int32(20), w.app("chat").GetPins()[0].GetWeight())
	_, err = w.unpin(1)
	require.NoError(t, err)
	require.Empty(t, w.settle("chat").GetPins())
}

func TestPin_CountsInTheQuotaAndNeedsRoom(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.connected(16)
		for _, name := range []string{"a", "b"} {
			v, err := w.deployBy("chat", nil, h100s(2), args(name))
			require.NoError(t, err)
			w.moves(v.GetAppId(), map[string]int32{v.GetDeploymentId(): 1})
		}
		require.Equal(t, int32(2), w.app("chat").GetLiveVersion())
		w.connected(3)
		before := w.dump()
		_, err := w.pin(1, 10)
		refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
		require.ErrorContains(t, err, "region eu-west-1 needs 4 more GPUs of pool h100 and has 3 free; region us-east-1 needs 4 more")
		require.Equal(t, before, w.dump(), "the refused pin left something")

		gpus := w.usage().GPUs
		_, err = w.setQuota(w.operator, &windlassv1.Limits{Gpus: new(gpus + 3)})
		require.NoError(t, err)
		_, err = w.pin(1, 10, pinnedWith(1))
		refused(t, err, connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, "")
		_, err = w.pin(1, 10, pinnedWith(1, "us-east-1"))
		require.NoError(t, err)
		require.Equal(t, gpus+2, w.usage().GPUs)
		app := w.settle("chat")
		require.Equal(t, map[int32]int32{2: 9000, 1: 1000}, w.shares(app, "us-east-1"))

		// A plan includes the pinned version.
		p := w.planned("chat", nil, h100s(1), args("c"))
		for _, r := range p.GetRegions() {
			pinned := map[string]int32{"us-east-1": 1}[r.GetRegion()]
			require.Equal(t, []int32{2 + pinned, 2 + pinned}, []int32{r.GetReplicasNow(), r.GetReplicasAfter()}, r.GetRegion())
			require.Equal(t, 2+2*pinned, r.GetGpusAfter(), r.GetRegion())
		}
	})
}

func TestPin_OfARetainedVersionKeepsItsReplicas(t *testing.T) {
	w := switched(t)
	before := w.rowsOf("chat", 1)
	_, err := w.pin(1, 30)
	require.NoError(t, err)
	app := w.settle("chat")
	require.Equal(t, windlassv1.PinRegion_STATE_SERVING, app.GetPins()[0].GetRegions()[0].GetState())
	for region, was := range before {
		require.Equal(t, []int32{was[0], 30, was[2]}, w.rowsOf("chat", 1)[region], "no instance starts or stops")
		require.Equal(t, map[int32]int32{2: 7000, 1: 3000}, w.shares(app, region))
	}
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, w.version("chat", 1).GetStatus())
	// A pinned version is no longer retained, so a rollback to it makes a new version.
	res, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.False(t, res.GetRetained())
}

func TestPin_IsRefusedForTheVersionOfALaggingRegion(t *testing.T) {
	w := withLagging(t)
	_, err := w.pin(1, 10)
	refused(t, err, connect.CodeFailedPrecondition, pinInRollout, "version")
	w.find()
	w.settle("chat")
	_, err = w.pin(1, 10)
	require.NoError(t, err)
}

func TestPins_EndWithTheirApp(t *testing.T) {
	w := setup(t)
	w.versions("chat", "a", "b")
	_, err := w.pin(1, 10)
	require.NoError(t, err)
	app := w.settle("chat")
	_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
	_, err = w.unpin(1)
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_APP_DELETING, "app")
	w.moves(app.GetId(), nil)
	require.NoError(t, w.store.View(t.Context(), func(tx store.Tx) error {
		pins, err := tx.ListPins([]string{app.GetId()})
		require.Empty(t, pins)
		return err
	}))
	require.Zero(t, w.usage().Instances)
}

func TestPin_CanWaitForCapacity(t *testing.T) {
	w := setup(t)
	w.connected(16)
	policy := &windlassv1.RolloutPolicy{WaitForCapacity: durationpb.New(time.Hour)}
	for _, name := range []string{"a", "b"} {
		v, err := w.deployBy("chat", policy, h100s(2), args(name))
		require.NoError(t, err)
		w.moves(v.GetAppId(), map[string]int32{v.GetDeploymentId(): 1})
	}
	w.connected(0)
	_, err := w.pin(1, 10)
	require.NoError(t, err)
}
