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
		"an instance finds its identity in its environment":          identity,
		"applying again changes nothing":                             applyAgain,
		"scaling adds and removes and touches nothing else":          scaling,
		"another template replaces one ready instance at a time":     replacing,
		"a bad template takes one instance and no more":              badTemplate,
		"instances that were never ready are replaced at once":       brokenGivesWay,
		"a deployment with the same workload key adopts instances":   adoptByKey,
		"at most maxUnavailable instances are replaced at a time":    replacingSome,
		"a half replaced workload goes back to its template":         adoptAndBack,
		"removing leaves nothing":                                    removing,
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
		"a restarted agent adopts and restarts nothing":              reopened,
		"an end while the agent is down is reported after it starts": endedMeanwhile,
		"a removal continues after a restart of the agent":           removalGoesOn,
		"a spec that cannot run here gets a final rejection":         unsupported,
		"a refused assignment does not change the present one":       refusedLeaves,
		"output can be read, also after a restart of the agent":      logs,
		"a restart has a grace period and changes one instance":      restarts,
		"SIGKILL follows after the grace period":                     grace,
		"secrets reach the instance and are stored nowhere":          secrets,
		"secrets are left out of messages and logs":                  secretsLeftOut,
		"no instance starts without its secrets":                     secretsAwaited,
		"a GPU belongs to one instance at a time":                    gpus,
		"the usage of instances is measured":                         usage,
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
	s.apply(t, s.assignment("dep_1", 2))
	o := s.observed(t, "dep_1")
	require.NotNil(t, o, "an assignment is reported as soon as Apply has returned")
	require.EqualValues(t, 1, o.Generation)
	require.Equal(t, "template-1", o.TemplateHash)

	all := s.ready(t, "dep_1", 2)
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
		require.Equal(t, port, variable(t, in, "PORT"))
	}
}

func identity(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1, env("COLOUR", "green"))
	a.Deployment.Spec.Args = []string{"$(COLOUR)", "$$(COLOUR)", "$(NO_SUCH)", "-$(WINDLASS_ROLE)-"}
	a.Deployment.Spec.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "extra-metrics"}}
	s.apply(t, a)
	in := s.ready(t, "dep_1", 1)[0]
	for name, want := range map[string]string{
		"WINDLASS_APP": "echo", "WINDLASS_DEPLOYMENT_ID": "dep_1", "WINDLASS_VERSION": "3",
		"WINDLASS_INSTANCE_ID": in.ID, "WINDLASS_ROLE": "main", "WINDLASS_GROUP": "0", "WINDLASS_SLOT": "0",
		"WINDLASS_REPLICAS": "1", "COLOUR": "green", "PORT_HTTP": variable(t, in, "PORT"),
	} {
		require.Equal(t, want, variable(t, in, name), name)
	}
	require.NotEmpty(t, variable(t, in, "WINDLASS_REGION"))
	extra, err := strconv.Atoi(variable(t, in, "PORT_EXTRA_METRICS"))
	require.NoError(t, err)
	require.NotEqual(t, strconv.Itoa(extra), variable(t, in, "PORT"))
	args := strings.Split(strings.TrimSpace(get(t, in, "/args")), "\n")
	require.Equal(t, []string{"green", "$(COLOUR)", "$(NO_SUCH)", "-main-"}, args[len(args)-4:])
}

func applyAgain(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 2)
	s.apply(t, a)
	before := s.ready(t, "dep_1", 2)
	s.apply(t, a)
	s.apply(t, next(a))
	s.until(t, "the new generation", "dep_1", func([]runtime.Instance) bool { return s.observed(t, "dep_1").Generation == 2 })
	// When a later change has an effect, the runtime has also processed the earlier changes.
	s.apply(t, next(next(a), replicas(3)))
	after := s.ready(t, "dep_1", 3)
	for _, in := range before {
		require.Contains(t, after, in)
	}
}

func scaling(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	s.apply(t, a)
	first := s.ready(t, "dep_1", 1)[0]
	a = next(a, replicas(3))
	s.apply(t, a)
	before := s.ready(t, "dep_1", 3)
	require.Contains(t, before, first)
	a = next(a, replicas(1))
	s.apply(t, a)
	left := s.ready(t, "dep_1", 1)
	if s.Platform.ChoosesWhoGoes {
		require.Contains(t, before, left[0])
	} else {
		require.Equal(t, []runtime.Instance{first}, left, "the highest groups are removed")
	}
	a = next(a, replicas(0))
	s.apply(t, a)
	s.until(t, "none", "dep_1", every(0, isReady))
	require.NotNil(t, s.observed(t, "dep_1"), "a deployment without replicas is not removed")
	require.Empty(t, s.Leftovers(t))
	s.apply(t, next(a, replicas(1)))
	s.ready(t, "dep_1", 1)
}

func replacing(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 3)
	s.apply(t, a)
	before := s.ready(t, "dep_1", 3)
	s.apply(t, next(a, template("template-2"), env("COLOUR", "blue")))
	after := s.until(t, "all replaced", "dep_1", func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, "two of three serve at every moment:\n%s", describe(all))
		require.LessOrEqual(t, len(s.places(all)), 3, "no instance is added meanwhile:\n%s", describe(all))
		return count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-2" }) == 3
	})
	for _, in := range after {
		require.Equal(t, "blue", variable(t, in, "COLOUR"))
		require.False(t, slices.ContainsFunc(before, func(b runtime.Instance) bool { return b.ID == in.ID }), "a replaced instance has a new id")
	}
}

func badTemplate(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 3)
	s.apply(t, a)
	s.ready(t, "dep_1", 3)
	s.apply(t, next(a, template("template-2"), fault(FaultExit)))
	serving := func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, describe(all))
		return true
	}
	s.until(t, "a doomed instance", "dep_1", func(all []runtime.Instance) bool {
		return serving(all) && count(all, func(in runtime.Instance) bool { return in.Doomed && in.TemplateHash == "template-2" }) == 1
	})
	s.apply(t, next(next(a), template("template-3")))
	s.until(t, "the repair", "dep_1", func(all []runtime.Instance) bool {
		return serving(all) && count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-3" }) == 3
	})
}

func brokenGivesWay(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 2, fault(FaultNeverReady))
	s.apply(t, a)
	s.until(t, "two instances that are not ready", "dep_1", every(2, hasStatus(running, runtime.ReasonNotReady)))
	s.apply(t, next(a, template("template-2"), fault("")))
	s.ready(t, "dep_1", 2)
}

func adoptByKey(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 2)
	s.apply(t, a)
	before := s.ready(t, "dep_1", 2)
	b := s.assignment("dep_2", 2)
	b.WorkloadKey = a.WorkloadKey
	s.apply(t, b)
	require.Equal(t, before, s.ready(t, "dep_2", 2), "the newer deployment has the instances of the older one, unchanged")
	require.Empty(t, s.instances(t, "dep_1"))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.gone(t, "dep_1")
	s.reopen(t)
	require.Equal(t, before, s.ready(t, "dep_2", 2))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	s.gone(t, "dep_2")
	require.Empty(t, s.Leftovers(t))
}

func removing(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 2))
	s.apply(t, s.assignment("dep_2", 1))
	s.ready(t, "dep_1", 2)
	other := s.ready(t, "dep_2", 1)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	if o := s.observed(t, "dep_1"); o != nil {
		require.True(t, o.Removing)
	}
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"), "removing twice is no error")
	s.gone(t, "dep_1")
	require.Equal(t, other, s.ready(t, "dep_2", 1))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	s.gone(t, "dep_2")
	require.Empty(t, s.Leftovers(t))
}

func removeUnknown(t *testing.T, s *suite) {
	require.NoError(t, s.rt.Remove(t.Context(), "dep_9"))
	require.Nil(t, s.observed(t, "dep_9"))
}

func removeWhileStarting(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 3, fault(FaultNeverReady)))
	s.until(t, "an instance", "dep_1", func(all []runtime.Instance) bool { return len(all) > 0 })
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.gone(t, "dep_1")
	require.Empty(t, s.Leftovers(t))
}

func applyAfterRemove(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	s.apply(t, a)
	s.ready(t, "dep_1", 1)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.apply(t, next(a))
	// The instance that is being removed may still be reported as ready.
	s.until(t, "an instance that answers", "dep_1", func(all []runtime.Instance) bool {
		return every(1, isReady)(all) && answers(t, all[0])
	})
	require.False(t, s.observed(t, "dep_1").Removing)
}

func badCommand(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	a.Deployment.Spec.Command = []string{"/no/such/program"}
	s.apply(t, a)
	in := s.until(t, "a bad command", "dep_1", every(1, hasStatus(failed, runtime.ReasonBadCommand)))[0]
	require.True(t, in.Doomed)
	require.Contains(t, in.Message, "/no/such/program")
	require.Empty(t, in.Address)
}

func crashLoop(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 1, fault(FaultExit)))
	in := s.until(t, "a crash loop", "dep_1", every(1, func(in runtime.Instance) bool { return in.Reason == runtime.ReasonCrashLoop }))[0]
	require.True(t, in.Doomed)
	require.GreaterOrEqual(t, in.Restarts, 2)
	require.Contains(t, in.Message, strconv.Itoa(ExitCode))
	require.Contains(t, in.Message, LastWords)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.gone(t, "dep_1")
	require.Empty(t, s.Leftovers(t))
}

func loopsServing(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	// With a slow health check, the reason is the end of the run, and not the failed check.
	a.Deployment.Spec.HealthCheck.UnhealthyThreshold = 60
	s.apply(t, a)
	agree := func(all []runtime.Instance) {
		require.Zero(t, count(all, func(in runtime.Instance) bool { return in.Doomed != (in.Reason == runtime.ReasonCrashLoop) }),
			"exactly the instances in a crash loop are doomed:\n%s", describe(all))
	}
	for n := range runtime.LoopAfter {
		in := s.until(t, "a run that serves", "dep_1", func(all []runtime.Instance) bool {
			agree(all)
			return every(1, func(in runtime.Instance) bool { return isReady(in) && in.Restarts == n })(all)
		})[0]
		tell(t, in, "/exit?code=3")
	}
	in := s.until(t, "a crash loop", "dep_1", func(all []runtime.Instance) bool {
		agree(all)
		if every(1, isReady)(all) && all[0].Restarts >= runtime.LoopAfter {
			tell(t, all[0], "/exit?code=3") // the instance was ready again before the next observation
		}
		return count(all, func(in runtime.Instance) bool { return in.Doomed }) == 1
	})[0]
	require.Contains(t, in.Message, "times in a row")
}

func neverReady(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1, fault(FaultNeverReady))
	a.Deployment.Spec.HealthCheck.StartupBudget = durationpb.New(time.Second)
	s.apply(t, a)
	in := s.until(t, "a startup timeout", "dep_1", every(1, func(in runtime.Instance) bool {
		return in.Reason == runtime.ReasonStartupTimeout && in.Doomed
	}))[0]
	require.Contains(t, in.Message, "1s")
}

func healthRegained(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	// With this threshold, the instance is healthy again before a repair would restart it.
	a.Deployment.Spec.HealthCheck.Interval = durationpb.New(2 * time.Second)
	s.apply(t, a)
	in := s.ready(t, "dep_1", 1)[0]
	tell(t, in, "/sick")
	sick := s.until(t, "lost health", "dep_1", every(1, hasStatus(running, runtime.ReasonHealthCheckFailed)))[0]
	require.Contains(t, sick.Message, "503")
	tell(t, in, "/well")
	requireUntouched(t, in, s.ready(t, "dep_1", 1)[0])
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
	a := s.assignment("dep_1", 1, fault(FaultNeverReady))
	h := a.Deployment.Spec.HealthCheck
	h.Method, h.ExpectedCodes, h.Interval = "HEAD", []string{"404", "500-503"}, durationpb.New(2*time.Second)
	s.apply(t, a)
	in := s.ready(t, "dep_1", 1)[0]
	tell(t, in, "/well")
	sick := s.until(t, "lost health", "dep_1", every(1, hasStatus(running, runtime.ReasonHealthCheckFailed)))[0]
	require.Contains(t, sick.Message, "HEAD /health answered 200 OK")
	tell(t, in, "/sick")
	requireUntouched(t, in, s.ready(t, "dep_1", 1)[0])
}

func healthLost(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 1))
	in := s.ready(t, "dep_1", 1)[0]
	tell(t, in, "/sick")
	again := s.until(t, "a restart", "dep_1", every(1, func(now runtime.Instance) bool {
		return isReady(now) && now.Restarts == 1
	}))[0]
	require.Equal(t, in.ID, again.ID)
}

func startsAgain(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 1))
	in := s.ready(t, "dep_1", 1)[0]
	pid := get(t, in, "/pid")
	tell(t, in, "/exit?code=3")
	s.until(t, "its end", "dep_1", every(1, func(now runtime.Instance) bool { return !isReady(now) || now.Restarts > 0 }))
	again := s.ready(t, "dep_1", 1)[0]
	require.Equal(t, in.ID, again.ID)
	require.Equal(t, 1, again.Restarts)
	require.NotEqual(t, pid, get(t, again, "/pid"))
}

func reopened(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 2)
	s.apply(t, a)
	before := s.ready(t, "dep_1", 2)
	pids := []string{get(t, before[0], "/pid"), get(t, before[1], "/pid")}
	for range 3 {
		s.reopen(t)
		require.Equal(t, before, s.ready(t, "dep_1", 2), "unchanged, without Apply")
		s.apply(t, a)
	}
	after := s.ready(t, "dep_1", 2)
	require.Equal(t, before, after)
	now := []string{get(t, after[0], "/pid"), get(t, after[1], "/pid")}
	require.Equal(t, pids, now)
}

func endedMeanwhile(t *testing.T, s *suite) {
	// On a host, the instance cannot start again without its secrets, so its end can be observed.
	a := s.assignment("dep_1", 1, withSecret)
	s.apply(t, a)
	in := s.ready(t, "dep_1", 1)[0]
	s.Shut(t)
	tell(t, in, "/exit?code=23")
	s.reopen(t)
	if !s.Platform.KeepsSecrets {
		seen := s.until(t, "its end", "dep_1", every(1, hasStatus(pending, runtime.ReasonSecretUnavailable)))[0]
		require.Equal(t, in.ID, seen.ID)
		require.Contains(t, seen.Message, "23")
	}
	s.apply(t, a)
	again := s.until(t, "ready again", "dep_1", every(1, func(now runtime.Instance) bool { return isReady(now) && now.Restarts == 1 }))[0]
	require.Equal(t, in.ID, again.ID)
}

func removalGoesOn(t *testing.T, s *suite) {
	s.apply(t, s.assignment("dep_1", 2))
	s.ready(t, "dep_1", 2)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.reopen(t)
	s.gone(t, "dep_1")
	require.Empty(t, s.Leftovers(t))
}

func unsupported(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	a.Deployment.Spec = s.Unsupported
	rej := refused(t, s, a)
	require.Equal(t, runtime.ReasonUnsupported, rej.Code)
	require.NotEmpty(t, rej.Message)
	require.Nil(t, s.observed(t, "dep_1"))
}

// refused requires a final rejection.
func refused(t *testing.T, s *suite, a runtime.Assignment) *runtime.Rejection {
	t.Helper()
	err := s.rt.Apply(t.Context(), a)
	var rej *runtime.Rejection
	require.ErrorAs(t, err, &rej)
	require.False(t, rej.Retryable)
	return rej
}

func refusedLeaves(t *testing.T, s *suite) {
	a := s.assignment("dep_1", 1)
	s.apply(t, a)
	before := s.ready(t, "dep_1", 1)
	b := next(a)
	b.Deployment.Spec = s.Unsupported
	_ = refused(t, s, b)
	require.Equal(t, before, s.ready(t, "dep_1", 1))
	require.EqualValues(t, 1, s.observed(t, "dep_1").Generation)
}
