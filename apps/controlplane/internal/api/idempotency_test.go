package api_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
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

	// Another workspace may use the same key.
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
			// Without the key, each call would make a version.
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
	require.Len(t, made, 1, "all calls with the key have the same answer: %v", made)
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

func TestIdempotencyKey_ReplaysNoValueOfACredential(t *testing.T) {
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

func (h *harness) restart(ctx context.Context, key, id string) error {
	_, err := h.deployments(h.deployer).RestartInstance(ctx, &windlassv1.RestartInstanceRequest{Mutation: keyed(key), Instance: id})
	return err
}

// restarts returns how many restarts the history of the app has.
func (h *harness) restarts(app string) (n int) {
	h.t.Helper()
	for _, what := range h.said(app) {
		if what == "InstanceRestarted" {
			n++
		}
	}
	return n
}

func TestIdempotencyKey_RestartsOnceAcrossProcesses(t *testing.T) {
	for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(database, func(t *testing.T) {
			var cfg api.Config
			w := setupOn(t, open(t), func(c *api.Config) { cfg = *c })
			another := w.another(cfg)
			id := w.instance("chat")
			w.agents.answer = func(string, *agentv1.Request) ([]byte, error) {
				if w.agents.asked.Load() == 1 {
					// The same call reaches the other process while the agent works on the first.
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(another.restart(ctx, "r", id)), "the call waits for the outcome")
				}
				return nil, nil
			}
			require.NoError(t, w.restart(t.Context(), "r", id))
			require.NoError(t, another.restart(t.Context(), "r", id))
			require.Equal(t, int32(1), w.agents.asked.Load())
			require.Equal(t, 1, w.restarts("chat"))

			const rounds = 16 // in some rounds, a call looks for a claim when the previous call has just ended
			for n := range rounds {
				var group sync.WaitGroup
				for i := range 8 {
					group.Go(func() {
						require.NoError(t, []*harness{w, another}[i%2].restart(t.Context(), fmt.Sprint("s", n), id))
					})
				}
				group.Wait()
			}
			require.Equal(t, int32(1+rounds), w.agents.asked.Load())
			require.Equal(t, 1+rounds, w.restarts("chat"))
			refused(t, another.restart(t.Context(), "r", "ins_other"), connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, "mutation.idempotencyKey")
		})
	}
}

func TestIdempotencyKey_IsFreeAgainIfNothingWasRestarted(t *testing.T) {
	w := setup(t)
	id := w.instance("chat")
	for _, err := range []error{errors.New("this host has no such instance"), model.ErrAgentUnreachable} {
		w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, err }
		require.Error(t, w.restart(t.Context(), "r", id))
	}
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, nil }
	require.NoError(t, w.restart(t.Context(), "r", id))
	require.Equal(t, int32(3), w.agents.asked.Load())
	require.Equal(t, 1, w.restarts("chat"))
}

// If the outcome of a restart is unknown, a call with the same key does not send the request again.
func TestIdempotencyKey_StaysUsedIfTheOutcomeOfARestartIsUnknown(t *testing.T) {
	w := setup(t)
	id := w.instance("chat")
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, model.ErrNoAnswer }
	refused(t, w.restart(t.Context(), "r", id), connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, "instance")
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, nil }
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(w.restart(ctx, "r", id)), "the call waits for the outcome")
	refused(t, w.restart(t.Context(), "r", "ins_other"), connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, "mutation.idempotencyKey")

	w.update(func(tx store.Tx) error {
		claim, err := tx.GetIdempotency(w.workspace, "\x00restart\x00r")
		require.NoError(t, err)
		claim.CreatedAt -= time.Minute.Milliseconds()
		return errors.Join(tx.DeleteIdempotencyKey(w.workspace, claim.Key), tx.InsertIdempotency(claim))
	})
	refused(t, w.restart(t.Context(), "r", id), connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, "mutation.idempotencyKey")
	require.Equal(t, int32(1), w.agents.asked.Load())
	require.NoError(t, w.restart(t.Context(), "fresh", id))
	require.Equal(t, 1, w.restarts("chat"))
}

func TestIdempotencyKey_FindsTheRestartAfterTheCallerLeft(t *testing.T) {
	w := setup(t)
	id := w.instance("chat")
	asked, answers := make(chan struct{}), make(chan struct{})
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) {
		close(asked)
		<-answers
		return nil, nil
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- w.restart(ctx, "r", id) }()
	<-asked
	leave()
	require.Error(t, <-left)
	close(answers)
	require.NoError(t, w.restart(t.Context(), "r", id))
	require.Equal(t, int32(1), w.agents.asked.Load())
	require.Equal(t, 1, w.restarts("chat"))
}
