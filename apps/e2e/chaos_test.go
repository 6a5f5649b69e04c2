package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Users change the chaosApps all the time, two users for each app. chaosPool is a pool.
const (
	chaosApps, chaosUsers = 4, 8
	chaosPool             = "chaos-3"
)

// chaosSpec returns a version of one of the apps. Versions of the pool differ in all roles, or in one.
func chaosSpec(app string, rnd *rand.Rand, change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	if app != chaosPool {
		return spec(change...)
	}
	s := spec(change...)
	if at := slices.Index(s.Args, "--version-label"); at >= 0 && rnd.IntN(2) == 0 {
		s.VersionLabel, s.Args[at+1] = "steady", "steady"
	}
	s.Layout, s.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	s.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_Order(rnd.IntN(len(windlassv1.PoolUpdate_Order_name)))}
	together := rnd.IntN(4) == 0
	s.Roles = []*windlassv1.RoleSpec{
		{Name: "prefill", Instances: 1 + rnd.Int32N(2), Together: together},
		{Name: "decode", Entry: true, StartsAfter: []string{"prefill"}, Together: together, Env: map[string]string{"NOTE": fmt.Sprint(rnd.IntN(3))}},
	}
	return s
}

// TestKills_AtRandom kills parts and instances at random while users change apps. Then all parts run again,
// and soon everything is as requested: the API and the running instances agree, no rollout is stuck, and
// nothing runs twice.
func TestKills_AtRandom(t *testing.T) {
	t.Parallel()
	duration := time.Duration(envInt(t, "WINDLASS_CHAOS_SECONDS", 60)) * time.Second
	seed := uint64(envInt(t, "WINDLASS_CHAOS_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("WINDLASS_CHAOS_SEED=%d WINDLASS_CHAOS_SECONDS=%.0f", seed, duration.Seconds())
	s := newStack(t, stackConfig{})
	s.deployReady(t, "calm", spec(replicas(2)))
	calm := &survivors{s: s, app: "calm", alive: map[string]process{}}
	for _, p := range s.runningOf("calm") {
		calm.alive[p.key()] = p
	}

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var wg sync.WaitGroup
	counts := make([]map[string]int, chaosUsers)
	for i := range chaosUsers {
		rnd := rand.New(rand.NewPCG(seed, uint64(i+1)))
		wg.Go(func() { counts[i] = s.user(ctx, fmt.Sprint("chaos-", i%chaosApps), rnd, int32(i%2), 6*time.Second) })
	}
	faults := s.causeFaults(ctx, t, rand.New(rand.NewPCG(seed, 0)), calm)
	wg.Wait()
	require.False(t, t.Failed())
	for i, c := range counts {
		t.Logf("user %d: %v", i, c)
	}
	t.Logf("faults: %v", faults)

	// An instance that was killed often waits for up to a minute before it is started again.
	s.patience = 5 * time.Minute
	healed := time.Now()
	s.waitConnected(s.cfg.regions...)
	s.waitAgree(t)
	t.Logf("settled %s after the last fault", time.Since(healed).Round(time.Millisecond))
	calm.require(t)
	// The stack works: every app can be changed once more.
	for i := range chaosApps {
		d := s.deploy(t, fmt.Sprint("chaos-", i), chaosSpec(fmt.Sprint("chaos-", i), rand.New(rand.NewPCG(seed, 0)), label("last"), replicas(2)))
		if !d.Unchanged && !d.Scaled {
			s.waitLive(t, fmt.Sprint("chaos-", i), d.Version)
		}
	}
	s.waitAgree(t)
	calm.require(t)
}

func envInt(t *testing.T, name string, fallback int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "%s is a number", name)
	return n
}

// survivors are the processes of an app that is not changed, without the processes that the test itself
// killed.
type survivors struct {
	s     *stack
	app   string
	alive map[string]process
}

func (v *survivors) require(t *testing.T) {
	t.Helper()
	for _, p := range v.alive {
		require.True(t, p.alive(), "the test did not kill this process, and it has ended: %s", p)
	}
}

// causeFaults causes faults at random and mends each after a while, until ctx ends. When it returns, every part
// runs. It returns the number of faults by kind.
func (s *stack) causeFaults(ctx context.Context, t *testing.T, rnd *rand.Rand, calm *survivors) map[string]int {
	faults := map[string]int{}
	mends := map[string]mend{} // by part
	for ctx.Err() == nil && !t.Failed() {
		for _, name := range s.order {
			if m, ok := mends[name]; ok && time.Now().After(m.at) {
				m.do()
				delete(mends, name)
			}
		}
		pause(ctx, time.Duration(rnd.IntN(2000))*time.Millisecond)
		pick, freeze, wait := rnd.IntN(len(s.order)+2), rnd.IntN(4) == 0, time.Duration(rnd.IntN(4000))*time.Millisecond
		if pick >= len(s.order) {
			if what := s.killInstance(rnd, calm, pick == len(s.order)); what != "" {
				faults[what]++
			}
			continue
		}
		name := s.order[pick]
		if _, ok := mends[name]; ok {
			continue
		}
		require.False(t, ended(s.parts[name].now), "%s ended by itself", name)
		if freeze {
			// A stopped process is worse than an ended one, because it later continues where it was.
			faults["freeze "+name]++
			require.NoError(t, syscall.Kill(s.pid(name), syscall.SIGSTOP))
			mends[name] = mend{time.Now().Add(2 * wait), func() { _ = syscall.Kill(s.pid(name), syscall.SIGCONT) }}
			continue
		}
		faults["kill "+name]++
		s.kill9(name)
		mends[name] = mend{time.Now().Add(wait), func() { s.launch(name) }}
	}
	for _, name := range s.order {
		if m, ok := mends[name]; ok {
			m.do()
		}
	}
	require.False(t, t.Failed(), "a part did not start again")
	return faults
}

// mend undoes a fault.
type mend struct {
	at time.Time
	do func()
}

func ended(p server) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// killInstance kills an instance or its shim, and returns the name of the killed process.
func (s *stack) killInstance(rnd *rand.Rand, calm *survivors, killShim bool) string {
	victims := instancesOf(s.dir)
	if len(victims) == 0 {
		return ""
	}
	slices.SortFunc(victims, func(a, b process) int { return a.pid - b.pid })
	victim := victims[rnd.IntN(len(victims))]
	delete(calm.alive, victim.key())
	what := "kill instance"
	if shim, ok := shimOf(s.dir, victim.instance()); ok && killShim {
		what, victim = "kill shim", shim
	}
	if victim.kill9() != nil {
		return ""
	}
	return what
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// user changes one app at random until ctx ends, and returns the number of changes by kind. Between two
// changes it rests for at most rest. It repeats each call until it is answered, and accepts only answers that
// make sense. It deploys versions that crash only if fewest is above 0, because without replicas a bad
// version would go live untested.
func (s *stack) user(ctx context.Context, app string, rnd *rand.Rand, fewest int32, rest time.Duration) map[string]int {
	done := map[string]int{}
	for n := 1; ctx.Err() == nil; n++ {
		var what string
		var err error
		switch rnd.IntN(8) {
		case 0, 1, 2:
			what = "deploy"
			_, err = persist(ctx, s.owner.apps.Deploy, &windlassv1.DeployRequest{
				Mutation: mutation(), App: named(app), Spec: chaosSpec(app, rnd, label(fmt.Sprint("r", n)), replicas(1+rnd.Int32N(2))),
			})
		case 3:
			what = "deploy a bad one"
			bad := args("--load-time", "1m", "--fault-crash-after", "200ms")
			if fewest == 0 {
				what, bad = "deploy a slow one", args("--load-time", "2s")
			}
			_, err = persist(ctx, s.owner.apps.Deploy, &windlassv1.DeployRequest{
				Mutation: mutation(), App: named(app), Spec: chaosSpec(app, rnd, label(fmt.Sprint("r", n)), bad),
			})
		case 4:
			what = "scale"
			req := &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: fewest + rnd.Int32N(3-fewest)}
			if app == chaosPool {
				what, req.Role, req.Replicas = "scale a role", []string{"prefill", "decode"}[rnd.IntN(2)], max(req.Replicas, 1)
			}
			_, err = persist(ctx, s.owner.apps.Scale, req)
		case 5:
			what = "roll back"
			_, err = persist(ctx, s.owner.apps.Rollback, &windlassv1.RollbackRequest{Mutation: mutation(), App: named(app)})
		case 6:
			what = "cancel"
			_, err = persist(ctx, s.owner.apps.Cancel, &windlassv1.CancelRequest{Mutation: mutation(), App: named(app)})
		case 7:
			what = "set variables"
			_, err = persist(ctx, s.owner.apps.SetEnvironment, &windlassv1.SetEnvironmentRequest{
				Mutation: mutation(), App: named(app), Set: map[string]string{"ROUND": fmt.Sprint(n)},
			})
		}
		switch {
		case err == nil:
			done[what]++
		case ctx.Err() != nil:
		case sensible(err):
			done[what+": "+reasonOf(err).String()]++
		default:
			s.t.Errorf("%s %s: %v", what, app, err)
			return done
		}
		pause(ctx, time.Duration(rnd.Float64()*float64(rest)))
	}
	return done
}

// sensible reports whether the error only says that there was nothing to act on.
func sensible(err error) bool {
	if _, ok := errors.AsType[*connect.Error](err); !ok {
		return false
	}
	reason := reasonOf(err)
	return reason == windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO || reason == windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND
}
