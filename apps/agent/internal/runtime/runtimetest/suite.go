package runtimetest

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	pending  = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	running  = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	draining = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	failed   = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
)

// Run tests the guarantees in parallel, each guarantee with its own harness.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for name, test := range map[string]func(*testing.T, *suite){
		"an applied deployment becomes ready":                        becomesReady,
		"an instance finds its identity in its environment":          testIdentity,
		"applying again changes nothing":                             applyAgain,
		"scaling adds and removes and touches nothing else":          testScaling,
		"another template replaces one ready instance at a time":     testReplacing,
		"a bad template takes one instance and no more":              badTemplate,
		"instances that were never ready are replaced at once":       brokenGivesWay,
		"a deployment with the same workload key adopts instances":   adoptByKey,
		"at most maxUnavailable instances are replaced at a time":    replacingSome,
		"a half replaced workload goes back to its template":         adoptAndBack,
		"removing leaves nothing":                                    testRemoving,
		"removing an unknown deployment is no error":                 removeUnknown,
		"removing while it starts leaves nothing":                    removeWhileStarting,
		"a removed deployment that is applied again runs again":      applyAfterRemove,
		"a bad command is reported and doomed":                       badCommand,
		"a crash loop is reported with exit code and last output":    crashLoop,
		"a short time of serving does not end a crash loop":          loopsServing,
		"an instance that never becomes ready has a startup timeout": neverReady,
		"lost health is reported, and regained without a restart":    healthRegained,
		"the health check uses its method and codes":                 methodAndCodes,
		"an instance that stays unhealthy is restarted":              healthLost,
		"an ended instance starts again under the same id":           startsAgain,
		"a restarted agent adopts and restarts nothing":              testReopened,
		"an end while the agent is down is reported after it starts": endedMeanwhile,
		"a removal continues after a restart of the agent":           removalGoesOn,
		"a spec that cannot run here gets a final rejection":         testUnsupported,
		"a refused assignment does not change the present one":       refusedLeaves,
		"output can be read, also after a restart of the agent":      testLogs,
		"a restart has a grace period and changes one instance":      testRestarts,
		"SIGKILL follows after the grace period":                     testGrace,
		"secrets reach the instance and are stored nowhere":          testSecrets,
		"secrets are left out of messages and logs":                  secretsLeftOut,
		"no instance starts without its secrets":                     secretsAwaited,
		"a GPU belongs to one instance at a time":                    testGPUs,
		"the usage of instances is measured":                         testUsage,
		"more GPUs than exist are refused, or wait for hosts":        tooManyGPUs,
		"a replica with several roles has an instance in each place": severalRoles,
		"a role that starts after another waits for it":              startsAfter,
		"a new template of one role keeps the other's instances":     oneRoleChanges,
		"groups are replaced one after the other, each as a whole":   groupsAreReplaced,
		"a group with an unready instance is removed first":          groupWithFailedRole,
		"roles of a pool are scaled and replaced separately":         pooledRoles,
		"roles of a pool are replaced in the order of the update":    orderedRoles,
		"roles of a pool wait for no role that stays":                stayingRole,
		"an old instance of a pool stops if a new one has no room":   fullPool,
		"several roles survive a restart of the agent at any step":   rolesReopened,
		"a deployment with several roles leaves nothing":             rolesLeaveNothing,
		"roles that cannot run here get a final rejection":           rolesRefused,
		"an instance is replaced in its stable slot":                 stableSlots,
		"a pool with stable slots replaces them one by one":          stablePool,
		"ranks of several hosts are one instance, and fail as one":   severalHosts,
	} {
		t.Run(name, func(t *testing.T) { test(t, setup(t, newHarness)) })
	}
}

func becomesReady(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 2))
	o := s.observedOf(t, "dep_1")
	require.NotNil(t, o, "an assignment is reported as soon as Apply has returned")
	require.EqualValues(t, 1, o.Generation)
	require.Equal(t, "template-1", o.TemplateHash)

	all := s.awaitReady(t, "dep_1", 2)
	require.NotEqual(t, all[0].ID, all[1].ID)
	require.NotEqual(t, all[0].Address, all[1].Address)
	groups := []int{all[0].Group, all[1].Group}
	slices.Sort(groups)
	require.Equal(t, []int{0, 1}, groups)
	for _, in := range all {
		require.True(t, strings.HasPrefix(in.ID, "ins_"), in.ID)
		require.Equal(t, "main", in.Role)
		require.Equal(t, "template-1", in.TemplateHash)
		require.Empty(t, in.Reason)
		require.Zero(t, in.Restarts)
		require.False(t, in.Doomed)
		require.NotEmpty(t, in.RuntimeName)
		require.False(t, in.StartedAt.IsZero())
		require.False(t, in.ReadyAt.Before(in.StartedAt))
		_, port, err := net.SplitHostPort(in.Address)
		require.NoError(t, err)
		require.Equal(t, port, variableOf(t, in, "PORT"))
	}
}

func testIdentity(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, withEnv("COLOUR", "green"))
	a.Deployment.Spec.Args = []string{"$(COLOUR)", "$$(COLOUR)", "$(NO_SUCH)", "-$(WINDLASS_ROLE)-"}
	a.Deployment.Spec.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "extra-metrics"}}
	s.apply(t, a)
	in := s.awaitReady(t, "dep_1", 1)[0]
	for name, want := range map[string]string{
		"WINDLASS_APP": "echo", "WINDLASS_DEPLOYMENT_ID": "dep_1", "WINDLASS_VERSION": "3",
		"WINDLASS_INSTANCE_ID": in.ID, "WINDLASS_ROLE": "main", "WINDLASS_GROUP": "0", "WINDLASS_SLOT": "0",
		"WINDLASS_REPLICAS": "1", "COLOUR": "green", "PORT_HTTP": variableOf(t, in, "PORT"),
	} {
		require.Equal(t, want, variableOf(t, in, name), name)
	}
	require.NotEmpty(t, variableOf(t, in, "WINDLASS_REGION"))
	extra, err := strconv.Atoi(variableOf(t, in, "PORT_EXTRA_METRICS"))
	require.NoError(t, err)
	require.NotEqual(t, strconv.Itoa(extra), variableOf(t, in, "PORT"))
	args := strings.Split(strings.TrimSpace(get(t, in, "/args")), "\n")
	require.Equal(t, []string{"green", "$(COLOUR)", "$(NO_SUCH)", "-main-"}, args[len(args)-4:])
}

func applyAgain(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 2)
	s.apply(t, a)
	s.apply(t, next(a))
	s.awaitInstances(t, "the new generation", "dep_1", func([]runtime.Instance) bool { return s.observedOf(t, "dep_1").Generation == 2 })
	// When a later change has an effect, the runtime has also processed the earlier changes.
	s.apply(t, next(next(a), withReplicas(3)))
	after := s.awaitReady(t, "dep_1", 3)
	for _, in := range before {
		require.Contains(t, after, in)
	}
}

func testScaling(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	s.apply(t, a)
	first := s.awaitReady(t, "dep_1", 1)[0]
	a = next(a, withReplicas(3))
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 3)
	require.Contains(t, before, first)
	a = next(a, withReplicas(1))
	s.apply(t, a)
	left := s.awaitReady(t, "dep_1", 1)
	if s.Platform.ChoosesWhoGoes {
		require.Contains(t, before, left[0])
	} else {
		require.Equal(t, []runtime.Instance{first}, left, "the highest groups are removed")
	}
	a = next(a, withReplicas(0))
	s.apply(t, a)
	s.awaitInstances(t, "none", "dep_1", everyInstance(0, isReady))
	require.NotNil(t, s.observedOf(t, "dep_1"), "a deployment without replicas is not removed")
	s.awaitNoLeftovers(t)
	s.apply(t, next(a, withReplicas(1)))
	s.awaitReady(t, "dep_1", 1)
}

func testReplacing(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 3)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 3)
	s.apply(t, next(a, withTemplate("template-2"), withEnv("COLOUR", "blue")))
	after := s.awaitInstances(t, "all replaced", "dep_1", func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, "two of three serve at every moment:\n%s", describeInstances(all))
		require.LessOrEqual(t, len(s.countedInstances(all)), 3, "no instance is added meanwhile:\n%s", describeInstances(all))
		return count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-2" }) == 3
	})
	for _, in := range after {
		require.Equal(t, "blue", variableOf(t, in, "COLOUR"))
		require.False(t, slices.ContainsFunc(before, func(b runtime.Instance) bool { return b.ID == in.ID }), "a replaced instance has a new id")
	}
}

func badTemplate(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 3)
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 3)
	s.apply(t, next(a, withTemplate("template-2"), withFault(FaultExit)))
	serving := func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, describeInstances(all))
		return true
	}
	s.awaitInstances(t, "a doomed instance", "dep_1", func(all []runtime.Instance) bool {
		return serving(all) && count(all, func(in runtime.Instance) bool { return in.Doomed && in.TemplateHash == "template-2" }) == 1
	})
	s.apply(t, next(next(a), withTemplate("template-3")))
	s.awaitInstances(t, "the repair", "dep_1", func(all []runtime.Instance) bool {
		return serving(all) && count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-3" }) == 3
	})
}

func brokenGivesWay(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, withFault(FaultNeverReady))
	s.apply(t, a)
	s.awaitInstances(t, "two instances that are not ready", "dep_1", everyInstance(2, hasStatus(running, runtime.ReasonNotReady)))
	s.apply(t, next(a, withTemplate("template-2"), withFault("")))
	s.awaitReady(t, "dep_1", 2)
}

func adoptByKey(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 2)
	b := s.newAssignment("dep_2", 2)
	b.WorkloadKey = a.WorkloadKey
	s.apply(t, b)
	require.Equal(t, before, s.awaitReady(t, "dep_2", 2), "the newer deployment has the instances of the older one, unchanged")
	require.Empty(t, s.listInstances(t, "dep_1"))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.reopenRuntime(t)
	require.Equal(t, before, s.awaitReady(t, "dep_2", 2))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	s.awaitGone(t, "dep_2")
	s.awaitNoLeftovers(t)
}

func testRemoving(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 2))
	s.apply(t, s.newAssignment("dep_2", 1))
	s.awaitReady(t, "dep_1", 2)
	other := s.awaitReady(t, "dep_2", 1)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	if o := s.observedOf(t, "dep_1"); o != nil {
		require.True(t, o.Removing)
	}
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"), "removing twice is no error")
	s.awaitGone(t, "dep_1")
	require.Equal(t, other, s.awaitReady(t, "dep_2", 1))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	s.awaitGone(t, "dep_2")
	s.awaitNoLeftovers(t)
}

func removeUnknown(t *testing.T, s *suite) {
	require.NoError(t, s.rt.Remove(t.Context(), "dep_9"))
	require.Nil(t, s.observedOf(t, "dep_9"))
}

func removeWhileStarting(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 3, withFault(FaultNeverReady)))
	s.awaitInstances(t, "an instance", "dep_1", func(all []runtime.Instance) bool { return len(all) > 0 })
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func applyAfterRemove(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 1)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.apply(t, next(a))
	// The instance that is being removed may still be reported as ready.
	s.awaitInstances(t, "an instance that answers", "dep_1", func(all []runtime.Instance) bool {
		return everyInstance(1, isReady)(all) && isAnswering(t, all[0])
	})
	require.False(t, s.observedOf(t, "dep_1").Removing)
}

func badCommand(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	a.Deployment.Spec.Command = []string{"/no/such/program"}
	s.apply(t, a)
	in := s.awaitInstances(t, "a bad command", "dep_1", everyInstance(1, hasStatus(failed, runtime.ReasonBadCommand)))[0]
	require.True(t, in.Doomed)
	require.Contains(t, in.Message, "/no/such/program")
	require.Empty(t, in.Address)
}

func crashLoop(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1, withFault(FaultExit)))
	in := s.awaitInstances(t, "a crash loop", "dep_1", everyInstance(1, func(in runtime.Instance) bool { return in.Reason == runtime.ReasonCrashLoop }))[0]
	require.True(t, in.Doomed)
	require.GreaterOrEqual(t, in.Restarts, 2)
	require.Contains(t, in.Message, strconv.Itoa(ExitCode))
	require.Contains(t, in.Message, LastWords)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func loopsServing(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	// With a slow health check, the reason is the end of the run, and not the failed check.
	a.Deployment.Spec.HealthCheck.UnhealthyThreshold = 60
	s.apply(t, a)
	agree := func(all []runtime.Instance) {
		require.Zero(t, count(all, func(in runtime.Instance) bool { return in.Doomed != (in.Reason == runtime.ReasonCrashLoop) }),
			"exactly the instances in a crash loop are doomed:\n%s", describeInstances(all))
	}
	for n := range runtime.LoopAfter {
		in := s.awaitInstances(t, "a run that serves", "dep_1", func(all []runtime.Instance) bool {
			agree(all)
			return everyInstance(1, func(in runtime.Instance) bool { return isReady(in) && in.Restarts == n })(all)
		})[0]
		tellInstance(t, in, "/exit?code=3")
	}
	in := s.awaitInstances(t, "a crash loop", "dep_1", func(all []runtime.Instance) bool {
		agree(all)
		if everyInstance(1, isReady)(all) && all[0].Restarts >= runtime.LoopAfter {
			tellInstance(t, all[0], "/exit?code=3") // the instance was ready again before the next observation
		}
		return count(all, func(in runtime.Instance) bool { return in.Doomed }) == 1
	})[0]
	require.Contains(t, in.Message, "times in a row")
}

func neverReady(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, withFault(FaultNeverReady))
	a.Deployment.Spec.HealthCheck.StartupBudget = durationpb.New(time.Second)
	s.apply(t, a)
	in := s.awaitInstances(t, "a startup timeout", "dep_1", everyInstance(1, func(in runtime.Instance) bool {
		return in.Reason == runtime.ReasonStartupTimeout && in.Doomed
	}))[0]
	require.Contains(t, in.Message, "1s")
}

func healthRegained(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	// With this threshold, the instance is healthy again before a repair would restart it.
	a.Deployment.Spec.HealthCheck.Interval = durationpb.New(2 * time.Second)
	s.apply(t, a)
	in := s.awaitReady(t, "dep_1", 1)[0]
	tellInstance(t, in, "/sick")
	sick := s.awaitInstances(t, "lost health", "dep_1", everyInstance(1, hasStatus(running, runtime.ReasonHealthCheckFailed)))[0]
	require.Contains(t, sick.Message, "503")
	tellInstance(t, in, "/well")
	requireUntouched(t, in, s.awaitReady(t, "dep_1", 1)[0])
}

// requireUntouched checks that both are the same instance and that it was not started again.
func requireUntouched(t *testing.T, before, after runtime.Instance) {
	t.Helper()
	require.Equal(t, before.ID, after.ID)
	require.Equal(t, before.Restarts, after.Restarts)
	require.Equal(t, before.StartedAt, after.StartedAt)
}

// methodAndCodes tests a health check that sends HEAD, passes with a code that fails by default,
// and fails with a code that passes by default.
func methodAndCodes(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, withFault(FaultNeverReady))
	h := a.Deployment.Spec.HealthCheck
	h.Method, h.ExpectedCodes, h.Interval = "HEAD", []string{"404", "500-503"}, durationpb.New(2*time.Second)
	s.apply(t, a)
	in := s.awaitReady(t, "dep_1", 1)[0]
	tellInstance(t, in, "/well")
	sick := s.awaitInstances(t, "lost health", "dep_1", everyInstance(1, hasStatus(running, runtime.ReasonHealthCheckFailed)))[0]
	require.Contains(t, sick.Message, "HEAD /health answered 200 OK")
	tellInstance(t, in, "/sick")
	requireUntouched(t, in, s.awaitReady(t, "dep_1", 1)[0])
}

func healthLost(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1))
	in := s.awaitReady(t, "dep_1", 1)[0]
	tellInstance(t, in, "/sick")
	again := s.awaitInstances(t, "a restart", "dep_1", everyInstance(1, func(now runtime.Instance) bool {
		return isReady(now) && now.Restarts == 1
	}))[0]
	require.Equal(t, in.ID, again.ID)
}

func startsAgain(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 1))
	in := s.awaitReady(t, "dep_1", 1)[0]
	pid := get(t, in, "/pid")
	tellInstance(t, in, "/exit?code=3")
	s.awaitInstances(t, "its end", "dep_1", everyInstance(1, func(now runtime.Instance) bool { return !isReady(now) || now.Restarts > 0 }))
	again := s.awaitReady(t, "dep_1", 1)[0]
	require.Equal(t, in.ID, again.ID)
	require.Equal(t, 1, again.Restarts)
	require.NotEqual(t, pid, get(t, again, "/pid"))
}

func testReopened(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 2)
	pids := []string{get(t, before[0], "/pid"), get(t, before[1], "/pid")}
	for range 3 {
		s.reopenRuntime(t)
		require.Equal(t, before, s.awaitReady(t, "dep_1", 2), "unchanged, without Apply")
		s.apply(t, a)
	}
	after := s.awaitReady(t, "dep_1", 2)
	require.Equal(t, before, after)
	now := []string{get(t, after[0], "/pid"), get(t, after[1], "/pid")}
	require.Equal(t, pids, now)
}

func endedMeanwhile(t *testing.T, s *suite) {
	// On a host, the instance cannot start again without its secrets, so its end can be observed.
	a := s.newAssignment("dep_1", 1, withSecret)
	s.apply(t, a)
	in := s.awaitReady(t, "dep_1", 1)[0]
	s.Shut(t)
	tellInstance(t, in, "/exit?code=23")
	s.reopenRuntime(t)
	if !s.Platform.KeepsSecrets {
		seen := s.awaitInstances(t, "its end", "dep_1", everyInstance(1, hasStatus(pending, runtime.ReasonSecretUnavailable)))[0]
		require.Equal(t, in.ID, seen.ID)
		require.Contains(t, seen.Message, "23")
	}
	s.apply(t, a)
	again := s.awaitInstances(t, "ready again", "dep_1", everyInstance(1, func(now runtime.Instance) bool { return isReady(now) && now.Restarts == 1 }))[0]
	require.Equal(t, in.ID, again.ID)
}

func removalGoesOn(t *testing.T, s *suite) {
	s.apply(t, s.newAssignment("dep_1", 2))
	s.awaitReady(t, "dep_1", 2)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.reopenRuntime(t)
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func testUnsupported(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	a.Deployment.Spec = s.Unsupported
	rej := requireRefused(t, s, a)
	require.Equal(t, runtime.ReasonUnsupported, rej.Code)
	require.NotEmpty(t, rej.Message)
	require.Nil(t, s.observedOf(t, "dep_1"))
}

// requireRefused requires a final rejection.
func requireRefused(t *testing.T, s *suite, a runtime.Assignment) *runtime.Rejection {
	t.Helper()
	err := s.rt.Apply(t.Context(), a)
	var rej *runtime.Rejection
	require.ErrorAs(t, err, &rej)
	require.False(t, rej.Retryable)
	return rej
}

func refusedLeaves(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 1)
	b := next(a)
	b.Deployment.Spec = s.Unsupported
	_ = requireRefused(t, s, b)
	require.Equal(t, before, s.awaitReady(t, "dep_1", 1))
	require.EqualValues(t, 1, s.observedOf(t, "dep_1").Generation)
}
