package api_test

import (
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func keyed(key string) *windlassv1.Mutation { return &windlassv1.Mutation{IdempotencyKey: key} }

func TestIdempotencyKey_RepeatedReturnsTheFirstAnswer(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	req := &windlassv1.DeployRequest{Mutation: keyed("k1"), App: "chat", Spec: echo(args("a"))}
	first, err := w.apps(w.deployer).Deploy(ctx, req)
	require.NoError(t, err)
	w.settle("chat")
	w.deploy("chat", args("b"))
	before := w.dump()

	again, err := w.apps(w.deployer).Deploy(ctx, req)
	require.NoError(t, err)
	require.Equal(t, first.String(), again.String())
	require.Equal(t, before, w.dump())
}

func TestIdempotencyKey_IsForOneRequest(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	_, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Mutation: keyed("k1"), Name: "one"})
	require.NoError(t, err)
	before := w.dump()

	_, err = w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Mutation: keyed("k1"), Name: "two"})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, "mutation.idempotencyKey")
	_, err = w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{Mutation: keyed("k1"), App: "one"})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, "mutation.idempotencyKey")
	require.Equal(t, before, w.dump())

	// Another workspace's keys are its own.
	_, err = w.apps(w.rival).CreateApp(ctx, &windlassv1.CreateAppRequest{Mutation: keyed("k1"), Name: "three"})
	require.NoError(t, err)
}

func TestIdempotencyKey_ConcurrentCallsActOnce(t *testing.T) {
	w := setup(t)
	var mu sync.Mutex
	versions := map[int32]int{}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			// Each would make a version of its own: nothing but the key holds them back.
			res, err := w.environments(w.deployer).SetSecret(t.Context(), &windlassv1.SetSecretRequest{
				Mutation: keyed("set"), Environment: "default/production", Name: "token", Value: "v",
			})
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			versions[res.GetSecret().GetVersion()]++
		})
	}
	group.Wait()
	require.Equal(t, map[int32]int{1: 16}, versions)

	made := map[string]int{}
	for range 16 {
		group.Go(func() {
			res, err := w.apps(w.deployer).CreateApp(t.Context(), &windlassv1.CreateAppRequest{Mutation: keyed("make"), Name: "other"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				made[err.Error()]++
				return
			}
			made[res.GetApp().GetId()]++
		})
	}
	group.Wait()
	require.Len(t, made, 1, "a taken name is no error for who took it: %v", made)
}

func TestIdempotencyKey_MayBeRepeatedAfterAFailure(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	req := &windlassv1.CancelRequest{Mutation: keyed("c"), App: "chat"}
	_, err := w.apps(w.deployer).Cancel(ctx, req)
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	w.deploy("chat")
	_, err = w.apps(w.deployer).Cancel(ctx, req)
	require.NoError(t, err)
}

func TestValuesOfCredentialsAreNotReplayed(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	key := &windlassv1.CreateApiKeyRequest{Mutation: keyed("a"), Name: "ci", Role: windlassv1.Role_ROLE_VIEWER}
	token := &windlassv1.CreateJoinTokenRequest{Mutation: keyed("b"), Region: "us-east-1"}
	workspace := &windlassv1.CreateWorkspaceRequest{Mutation: keyed("c"), Name: "third"}
	var values []string
	for i := range 2 {
		k, err := w.access(w.owner).CreateApiKey(ctx, key)
		require.NoError(t, err)
		j, err := w.regionService(w.owner).CreateJoinToken(ctx, token)
		require.NoError(t, err)
		s, err := w.workspaces(w.operator).CreateWorkspace(ctx, workspace)
		require.NoError(t, err)
		require.NotEmpty(t, k.GetKey().GetId())
		require.NotZero(t, j.GetExpiresAt())
		require.NotEmpty(t, s.GetWorkspace().GetId())
		for _, v := range []string{k.GetValue(), j.GetToken(), s.GetApiKey()} {
			require.Equal(t, i == 1, v == "")
			if v != "" {
				values = append(values, v)
			}
		}
	}
	state := w.dump()
	for _, v := range values {
		require.NotContains(t, state, v)
	}
	err := w.store.View(ctx, func(tx store.Tx) error {
		for ws, k := range map[string]string{w.workspace + "/a": "a", w.workspace + "/b": "b", "/c": "c"} {
			record, err := tx.GetIdempotency(ws[:len(ws)-2], k)
			require.NoError(t, err)
			for _, v := range values {
				require.NotContains(t, string(record.Response), v)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

func TestIdempotencyKey_ConcurrentRestartsReachTheAgentOnce(t *testing.T) {
	w := setup(t)
	id := w.instance("chat")
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, nil }
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			_, err := w.deployments(w.deployer).RestartInstance(t.Context(), &windlassv1.RestartInstanceRequest{Mutation: keyed("r"), Instance: id})
			require.NoError(t, err)
		})
	}
	group.Wait()
	require.Equal(t, int32(1), w.agents.asked.Load())
}
