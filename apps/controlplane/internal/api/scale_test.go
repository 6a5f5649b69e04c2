package api_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const conflict = windlassv1.ErrorReason_ERROR_REASON_CONFLICT

// scaleFrom scales the app if it currently has current replicas.
func (h *harness) scaleFrom(current, replicas int32, region string, edit ...func(*windlassv1.ScaleRequest)) error {
	req := &windlassv1.ScaleRequest{App: "chat", Replicas: replicas, Region: region, CurrentReplicas: &current}
	for _, f := range edit {
		f(req)
	}
	_, err := h.apps(h.deployer).Scale(h.t.Context(), req)
	return err
}

func TestScale_ComparesTheReplicas(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.deploy("chat", replicas(2))
		w.settle("chat")
		once := func(req *windlassv1.ScaleRequest) { req.Mutation = &windlassv1.Mutation{IdempotencyKey: "once"} }
		require.NoError(t, w.scaleFrom(2, 3, "eu-west-1", once))
		before := w.app("chat").GetResourceVersion()
		for region, number := range map[string]string{"eu-west-1": "3 in eu-west-1", "": "3 in eu-west-1"} {
			err := w.scaleFrom(2, 4, region)
			refused(t, err, connect.CodeAborted, conflict, "currentReplicas")
			require.ErrorContains(t, err, "app chat does not have 2 replicas, but "+number)
		}
		refused(t, w.scaleFrom(9, 3, "eu-west-1"), connect.CodeAborted, conflict, "currentReplicas")
		require.Equal(t, before, w.app("chat").GetResourceVersion())
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 3}, w.sizes("chat", 1))
		require.NoError(t, w.scaleFrom(2, 3, "eu-west-1", once), "a repeated call gets the first answer")
		require.NoError(t, w.scaleFrom(2, 3, "us-east-1"))
		require.NoError(t, w.scaleFrom(3, 0, ""), "each region has 3 replicas")
		refused(t, w.scaleFrom(3, 1, ""), connect.CodeAborted, conflict, "currentReplicas")
		require.NoError(t, w.scaleFrom(0, 1, ""), "zero is compared like other numbers")
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 1))
	})
}

func TestScale_OnlyOneOfManyCallsWithTheSameNumberSucceeds(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.deploy("chat", replicas(2))
		w.settle("chat")
		var done atomic.Int32
		var calls sync.WaitGroup
		for i := range int32(6) {
			calls.Go(func() {
				if err := w.scaleFrom(2, 10+i, "us-east-1"); err == nil {
					done.Add(1)
				} else if connect.CodeOf(err) != connect.CodeAborted {
					t.Errorf("scale: %v", err)
				}
			})
		}
		calls.Wait()
		require.EqualValues(t, 1, done.Load())
	})
}

func TestScale_ComparesBeforeAHold(t *testing.T) {
	w := setup(t)
	require.NoError(t, w.deployScaled(scalingPolicy()))
	w.settle("chat")
	held := func(req *windlassv1.ScaleRequest) { req.HoldFor = durationpb.New(time.Hour) }
	refused(t, w.scaleFrom(4, 5, "", held), connect.CodeAborted, conflict, "currentReplicas")
	require.Empty(t, w.getScaling().GetHolds())
	require.NoError(t, w.scaleFrom(1, 5, "", held))
	require.Len(t, w.getScaling().GetHolds(), 1)
	refused(t, w.scaleFrom(1, 0, "", func(req *windlassv1.ScaleRequest) { req.EndHold = true }), connect.CodeAborted, conflict, "currentReplicas")
	require.NoError(t, w.scaleFrom(5, 0, "", func(req *windlassv1.ScaleRequest) { req.EndHold = true }))
}

func TestScale_ComparesBothVersionsOfARollout(t *testing.T) {
	w := setup(t)
	policy := canary(&windlassv1.CanaryStep{Replicas: 1, Pause: "manual"})
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", policy, args(arg), replicas(3))
		require.NoError(t, err)
		w.settle("chat")
	}
	require.Equal(t, int32(1), w.app("chat").GetLiveVersion())
	refused(t, w.scaleFrom(2, 6, "eu-west-1"), connect.CodeAborted, conflict, "currentReplicas")
	require.NoError(t, w.scaleFrom(3, 6, "eu-west-1"))
	refused(t, w.scaleFrom(3, 7, "eu-west-1"), connect.CodeAborted, conflict, "currentReplicas")
	require.NoError(t, w.scaleFrom(6, 7, "eu-west-1"))
}

func TestScale_ComparesALaggingRegion(t *testing.T) {
	w := withLagging(t)
	require.NoError(t, w.scaleFrom(2, 5, "eu-west-1"))
	refused(t, w.scaleFrom(2, 6, "eu-west-1"), connect.CodeAborted, conflict, "currentReplicas")
	w.find()
	w.settle("chat")
	require.NoError(t, w.scaleFrom(5, 6, "eu-west-1"))
}
