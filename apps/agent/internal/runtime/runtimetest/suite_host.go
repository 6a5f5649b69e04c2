package runtimetest

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testLogs(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1))
	in := s.awaitReady(t, "dep_1", 1)[0]
	want := "workload starts, pid " + get(t, in, "/pid")
	read := func(n int) string {
		b, err := s.rt.Logs(t.Context(), in.ID, n)
		require.NoError(t, err)
		return strings.TrimSpace(string(b))
	}
	require.Equal(t, want, read(100))
	require.Empty(t, read(0))
	page := func(q runtime.LogQuery) runtime.LogPage {
		q.Limit = 64 << 10
		p, err := s.rt.ReadLog(t.Context(), in.ID, q)
		require.NoError(t, err)
		return p
	}
	first := page(runtime.LogQuery{Tail: -1})
	require.Len(t, first.Lines, 1)
	require.Equal(t, want, first.Lines[0].Text)
	require.Equal(t, first.Next.Offset, first.Lines[0].End)
	require.WithinDuration(t, time.Now(), first.Lines[0].At, time.Hour)
	require.Equal(t, first.Next.Offset, page(runtime.LogQuery{}).Next.Offset, "a query that returns only the position")
	s.reopenRuntime(t)
	s.apply(t, s.newAssignment("dep_1", 1))
	s.awaitReady(t, "dep_1", 1)
	require.Equal(t, want, read(1))
	behind := page(runtime.LogQuery{After: &first.Next})
	require.Empty(t, behind.Lines, "positions stay valid after a restart of the agent")
	require.Equal(t, first.Next.Offset, behind.Next.Offset)
	_, err := s.rt.Logs(t.Context(), "ins_unknown", 10)
	require.ErrorIs(t, err, runtime.ErrUnknownInstance)
	_, err = s.rt.ReadLog(t.Context(), "ins_unknown", runtime.LogQuery{Limit: 1 << 10})
	require.ErrorIs(t, err, runtime.ErrUnknownInstance)
}

func testRestarts(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 2))
	all := s.awaitReady(t, "dep_1", 2)
	pid := get(t, all[0], "/pid")
	require.NoError(t, s.rt.Restart(t.Context(), all[0].ID))
	again := s.awaitAnother(t, "dep_1", all[0], 2)
	require.NotEqual(t, pid, get(t, again, "/pid"))
	require.Contains(t, s.listInstances(t, "dep_1"), all[1], "the other instance is unchanged")
	if !s.Platform.ReplacesOnRestart {
		b, err := s.rt.Logs(t.Context(), again.ID, 100)
		require.NoError(t, err)
		require.Contains(t, string(b), TermWords, "the instance got SIGTERM before SIGKILL")
	}
	require.ErrorIs(t, s.rt.Restart(t.Context(), "ins_unknown"), runtime.ErrUnknownInstance)
}

func testGrace(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, withFault(FaultIgnoreTerm))
	const given = 1500 * time.Millisecond
	a.Deployment.Spec.TerminationGrace = durationpb.New(given)
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 1)
	told := time.Now()
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitInstances(t, "draining", "dep_1", everyInstance(1, hasStatus(draining, runtime.ReasonStopped)))
	s.awaitGone(t, "dep_1")
	require.GreaterOrEqual(t, time.Since(told), given)
	s.awaitNoLeftovers(t)
}

const secretValue = "correct-horse-battery-staple"

func withSecret(a *runtime.Assignment) {
	a.Deployment.Spec.Secrets = []*windlassv1.SecretReference{{EnvName: "API_KEY", Secret: "api-key"}}
	a.Secrets = map[string]string{"API_KEY": secretValue}
}

func testSecrets(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1, withSecret))
	in := s.awaitReady(t, "dep_1", 1)[0]
	require.Equal(t, secretValue, variableOf(t, in, "API_KEY"))
	require.NotContains(t, s.Stored(t), secretValue)
	require.NoError(t, s.rt.Restart(t.Context(), in.ID))
	require.Equal(t, secretValue, variableOf(t, s.awaitAnother(t, "dep_1", in, 1), "API_KEY"))
	require.NotContains(t, s.Stored(t), secretValue)
}

// secretsLeftOut checks that values of secrets in a program's output are in no message or log.
func secretsLeftOut(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1, withSecret, withFault(FaultLeak)))
	in := s.awaitReady(t, "dep_1", 1)[0]
	said, err := s.rt.Logs(t.Context(), in.ID, 10)
	require.NoError(t, err)
	tellInstance(t, in, "/exit?code=3")
	// The program's first line of output is also its last line.
	in = s.awaitInstances(t, "a message with the last output", "dep_1", func(all []runtime.Instance) bool {
		if everyInstance(1, isReady)(all) {
			tellInstance(t, all[0], "/exit?code=3") // the end of the instance was not observed
		}
		return everyInstance(1, func(in runtime.Instance) bool { return strings.Contains(in.Message, "last output") })(all)
	})[0]
	for _, text := range []string{in.Message, string(said)} {
		require.Contains(t, text, LeakWords+"*** ***")
		require.NotContains(t, text, secretValue)
		require.NotContains(t, text, base64.StdEncoding.EncodeToString([]byte(secretValue)))
	}
}

func secretsAwaited(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, withSecret)
	s.apply(t, a)
	in := s.awaitReady(t, "dep_1", 1)[0]
	s.reopenRuntime(t)
	require.Equal(t, in, s.awaitReady(t, "dep_1", 1)[0], "a running instance needs no secrets")
	tellInstance(t, in, "/exit?code=1")
	if s.Platform.KeepsSecrets {
		s.awaitInstances(t, "the next run", "dep_1", everyInstance(1, func(in runtime.Instance) bool { return isReady(in) && in.Restarts == 1 }))
	} else {
		s.awaitInstances(t, "waiting for secrets", "dep_1", everyInstance(1, hasStatus(pending, runtime.ReasonSecretUnavailable)))
	}
	s.apply(t, a)
	again := s.awaitReady(t, "dep_1", 1)[0]
	require.Equal(t, in.ID, again.ID)
	require.Equal(t, secretValue, variableOf(t, again, "API_KEY"))
}

func (s *suite) withGPUs(n int) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) {
		a.Deployment.Spec.Resources.Gpu = &windlassv1.Gpu{Count: int32(n), Product: s.GPUProduct}
	}
}

func testGPUs(t *testing.T, s *suite) {
	if s.GPUs < 2 {
		t.Skip("this harness has fewer than two GPUs")
	}
	s.apply(t, s.newAssignment("dep_1", s.GPUs, s.withGPUs(1)))
	before := s.awaitReady(t, "dep_1", s.GPUs)
	owner := map[string]string{}
	for _, in := range before {
		if s.Platform.HidesGPUs {
			continue
		}
		require.Len(t, in.GPUs, 1)
		require.Empty(t, owner[in.GPUs[0]], "GPU %s has two owners", in.GPUs[0])
		owner[in.GPUs[0]] = in.ID
		require.Equal(t, in.GPUs[0], variableOf(t, in, "CUDA_VISIBLE_DEVICES"))
	}
	pool := s.gpuPool(t)
	require.EqualValues(t, s.GPUs, pool.Requested)
	require.Zero(t, pool.LargestFree)

	s.apply(t, s.newAssignment("dep_2", 1, s.withGPUs(1)))
	waits := s.awaitInstances(t, "an instance that does not fit", "dep_2", everyInstance(1, hasStatus(pending, runtime.ReasonUnschedulable)))[0]
	if s.Platform.HidesGPUs {
		require.Contains(t, waits.Message, "Insufficient nvidia.com/gpu")
	} else {
		require.Contains(t, waits.Message, fmt.Sprintf("0 of %d free", s.GPUs))
	}

	tellInstance(t, before[0], "/exit?code=1")
	s.awaitInstances(t, "a restart", "dep_1", func(all []runtime.Instance) bool {
		return count(all, isReady) == s.GPUs && count(all, func(in runtime.Instance) bool { return in.Restarts == 1 }) == 1
	})
	s.reopenRuntime(t)
	for _, in := range s.awaitReady(t, "dep_1", s.GPUs) {
		if !s.Platform.HidesGPUs {
			require.Equal(t, in.ID, owner[in.GPUs[0]], "a GPU stays with its instance")
		}
	}
	s.awaitInstances(t, "an instance that still does not fit", "dep_2", everyInstance(1, hasStatus(pending, runtime.ReasonUnschedulable)))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitReady(t, "dep_2", 1)
}

// gpuPool returns the pool of the harness's GPUs in the capacity.
func (s *suite) gpuPool(t *testing.T) *agentv1.GpuPool {
	t.Helper()
	o, err := s.rt.Observe(t.Context())
	require.NoError(t, err)
	i := slices.IndexFunc(o.Capacity.Gpus, func(p *agentv1.GpuPool) bool { return p.Product == s.GPUProduct })
	require.GreaterOrEqual(t, i, 0)
	return o.Capacity.Gpus[i]
}

func tooManyGPUs(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, s.withGPUs(s.GPUs+1))
	if s.Platform.Grows {
		s.apply(t, a)
		s.awaitInstances(t, "an instance that fits nowhere", "dep_1", everyInstance(1, hasStatus(pending, runtime.ReasonUnschedulable)))
		return
	}
	rej := requireRefused(t, s, a)
	require.Equal(t, runtime.ReasonUnschedulable, rej.Code)
	require.Nil(t, s.observedOf(t, "dep_1"))
}
