package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// mover is an app that moves with one strategy, through all faults of the test.
type mover struct {
	app, id string
	policy  func() *windlassv1.RolloutPolicy
	// most is the maximum number of instances in a region, including instances that are being stopped, unless
	// stoppingApart is set. least is the minimum number of ready replicas in all regions together.
	most, least int
	live        int32
	versions    int
	// inPlace means that all versions use one workload, whose instances can be of any version.
	inPlace bool
	// stoppingApart means that an instance may start before earlier ones are gone, however many are being stopped.
	stoppingApart bool
}

// wanted is how many replicas each of the two regions has.
const wanted = 2

func movers() []*mover {
	waves := func(change func(*windlassv1.RolloutPolicy)) func() *windlassv1.RolloutPolicy {
		return func() *windlassv1.RolloutPolicy {
			p := euThenUs()
			p.MaxSurge = ""
			change(p)
			return p
		}
	}
	return []*mover{
		{app: "rolling", most: wanted + 1, least: 2 * wanted, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy, p.MaxSurge = windlassv1.RolloutPolicy_STRATEGY_ROLLING, "1"
		})},
		// One region after the other has no instance. When the rollout goes back, all regions have none at
		// once.
		{app: "recreate", most: wanted, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy = windlassv1.RolloutPolicy_STRATEGY_RECREATE
		})},
		{app: "canary", most: wanted + 1, least: 2 * wanted, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy, p.MaxSurge = windlassv1.RolloutPolicy_STRATEGY_CANARY, "1"
			p.Steps = []*windlassv1.CanaryStep{{Weight: 10, Pause: "500ms"}, {Replicas: 1, Pause: "500ms"}}
		})},
		{app: "blue-green", most: 2 * wanted, least: 2 * wanted, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy, p.InitialWeight, p.Retain = windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, 5, seconds(1)
		})},
		// One replica is replaced at a time. When the rollout goes back, one in each region at the same time.
		{app: "in-place", most: wanted, least: 2 * (wanted - 1), inPlace: true, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy = windlassv1.RolloutPolicy_STRATEGY_IN_PLACE
		})},
	}
}

// strategyStack is a stack on which the apps of all strategies move at the same time. Each fault hits all of
// them, at whatever step each one is.
type strategyStack struct {
	*stack
	movers []*mover
	// spec returns the spec of a version that needs few resources.
	spec func(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec
	// exist counts instances, including instances that are being stopped.
	exist func(ctx context.Context) (existing, error)

	mu     sync.Mutex
	broken []error
	looks  int
}

// existing counts instances, by app, region and deployment.
type existing map[string]map[string]map[string]instanceCount

// instanceCount counts the instances of a deployment. all includes the instances that are being stopped.
type instanceCount struct{ all, stopping int }

func (e existing) add(app, region, deployment string, stopping bool) {
	if e[app] == nil {
		e[app] = map[string]map[string]instanceCount{}
	}
	if e[app][region] == nil {
		e[app][region] = map[string]instanceCount{}
	}
	n := e[app][region][deployment]
	n.all++
	if stopping {
		n.stopping++
	}
	e[app][region][deployment] = n
}

func newFleet(s *stack) *strategyStack {
	f := &strategyStack{stack: s, movers: movers(), spec: spec, exist: s.processesByPlace}
	if s.cfg.runtime == "kubernetes" {
		f.spec, f.exist = podSpec, s.podsByPlace
		for _, m := range f.movers {
			if m.inPlace {
				// Kubernetes creates a pod while the earlier pod is still being stopped, and continues with
				// the next pod as soon as the new one is ready. If a newer version comes, pods of two earlier
				// versions may still be being stopped. The ReplicaSets of two versions change at the same time,
				// so one pod more may exist until the earlier ReplicaSet has deleted its pod.
				m.stoppingApart, m.most = true, m.most+1
				// No gateway sends to the pods, so Kubernetes replaces them by itself. If the template changes
				// again meanwhile, its controller may count a pod as available that is just being deleted, and
				// delete the other one. So a region may have no ready replica for a moment.
				m.least = 1
			}
		}
	}
	return f
}

func (s *stack) processesByPlace(context.Context) (existing, error) {
	out := existing{}
	for _, p := range instancesOf(s.dir) {
		out.add(p.app(), p.region(), p.deployment(), false)
	}
	return out, nil
}

// podsByPlace counts pods by the deployment for which they were created.
func (s *stack) podsByPlace(ctx context.Context) (existing, error) {
	out := existing{}
	for _, region := range s.cfg.regions {
		pods, err := s.cluster(s.t, region).list(ctx, "api/v1/pods", "app.kubernetes.io/managed-by=windlass")
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			if p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
				out.add(p.Metadata.Labels["app.kubernetes.io/name"], region, p.Metadata.Labels["windlass.run/made-for"], p.Metadata.DeletionTimestamp != "")
			}
		}
	}
	return out, nil
}

// watch checks the existing instances, the routes and the ready replicas again and again, until stop is
// called. It lists pods less often, so that the API servers have time for their other work. One look covers
// all apps, because listing processes or pods costs the same for one app.
func (f *strategyStack) watch(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pause := 20 * time.Millisecond
	if f.cfg.runtime == "kubernetes" {
		pause = 200 * time.Millisecond
	}
	var done sync.WaitGroup
	done.Go(func() {
		suspects := map[string]map[string]bool{}
		for _, m := range f.movers {
			suspects[m.app] = map[string]bool{}
		}
		for ctx.Err() == nil {
			err := f.look(ctx, suspects)
			for again := 0; again < 2 && isIO(err); again++ {
				err = f.look(ctx, suspects)
			}
			f.mu.Lock()
			if f.looks++; err != nil && ctx.Err() == nil && len(f.broken) < 10 {
				f.broken = append(f.broken, fmt.Errorf("at %s: %w", time.Now().Format("15:04:05.000"), err))
			}
			f.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		done.Wait()
		f.requireUnbroken(t)
	}
}

func (f *strategyStack) requireUnbroken(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NoError(t, errors.Join(f.broken...), "of %d looks", f.looks)
	require.Positive(t, f.looks, "watch made no check")
}

// isIO reports whether a request got no answer, which says nothing about what exists.
func isIO(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// look checks every app once.
func (f *strategyStack) look(ctx context.Context, suspects map[string]map[string]bool) error {
	tables := map[string]map[string]map[string]int32{} // by app and region
	for _, m := range f.movers {
		tables[m.app] = map[string]map[string]int32{}
		for _, region := range f.cfg.regions {
			table, err := f.routed(region, m.id)
			if err != nil {
				return err
			}
			tables[m.app][region] = table
		}
	}
	exist, err := f.exist(ctx)
	if err != nil {
		return err
	}
	var wrong []error
	for _, m := range f.movers {
		if err := m.check(tables[m.app], exist[m.app], suspects[m.app]); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", m.app, err))
		}
	}
	if f.asksReady() {
		wrong = append(wrong, f.checkReady(ctx))
	}
	return errors.Join(wrong...)
}

// askEvery is the number of looks for each call of the control plane. It changes its answer when an agent
// reports, which is much less often than there are looks at processes.
const askEvery = 4

// asksReady reports whether this look also calls the control plane. Every look at pods does, because such
// looks are rare.
func (f *strategyStack) asksReady() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg.runtime == "kubernetes" || f.looks%askEvery == 0
}

// checkReady compares the ready replicas of each app with its minimum.
func (f *strategyStack) checkReady(ctx context.Context) error {
	got, err := f.owner.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Environment: env})
	if err != nil {
		return nil //nolint:nilerr // there is no answer while the control plane is away
	}
	ready := map[string]int{}
	for _, app := range got.Apps {
		ready[app.Name] = int(app.ReadyReplicas)
	}
	var wrong []error
	for _, m := range f.movers {
		if ready[m.app] < m.least {
			wrong = append(wrong, fmt.Errorf("%s: %d of at least %d replicas are ready", m.app, ready[m.app], m.least))
		}
	}
	return errors.Join(wrong...)
}

// check compares the routes with the existing instances, by region. A route without an instance counts only
// if two looks in a row find it, because routes and instances are not read at the same moment.
func (m *mover) check(tables map[string]map[string]int32, exist map[string]map[string]instanceCount, suspect map[string]bool) error {
	found := map[string]bool{}
	for region, table := range tables {
		all, counted, sum := 0, 0, int32(0)
		for _, n := range exist[region] {
			all += n.all
			if counted += n.all; m.stoppingApart {
				counted -= n.stopping
			}
		}
		for deployment, weight := range table {
			sum += weight
			if exist[region][deployment].all == 0 && (!m.inPlace || all == 0) {
				found[fmt.Sprintf("%s routes %d%% to %s, which has no instance", region, weight, deployment)] = true
			}
		}
		switch {
		case counted > m.most:
			return fmt.Errorf("%d instances exist in %s (all and stopping ones by deployment: %v)", counted, region, exist[region])
		case sum != 100 && (sum != 0 || m.least > 0):
			return fmt.Errorf("%s routes %v", region, table)
		}
	}
	for what := range found {
		if suspect[what] && m.least > 0 {
			return errors.New(what)
		}
	}
	clear(suspect)
	maps.Copy(suspect, found)
	return nil
}

// deployed has the new deployment of each mover, by app.
type deployed map[string]*windlassv1.DeployResponse

// move deploys a new version of every app.
func (f *strategyStack) move(t *testing.T, policy func(*windlassv1.RolloutPolicy), change ...func(*windlassv1.DeploymentSpec)) deployed {
	t.Helper()
	out := deployed{}
	for _, m := range f.movers {
		m.versions++
		p := m.policy()
		if policy != nil {
			policy(p)
		}
		out[m.app] = f.deployBy(t, m.app, f.spec(slices.Concat([]func(*windlassv1.DeploymentSpec){replicas(wanted), label(fmt.Sprint("v", m.versions))}, change)...), p)
	}
	return out
}

// arrive waits until the deployments are live everywhere and nothing else is left. It promotes a version that
// waits because an earlier version went back.
func (f *strategyStack) arrive(t *testing.T, to deployed) {
	t.Helper()
	for _, m := range f.movers {
		f.eventually(t, m.app+" has arrived", func(ctx context.Context) error {
			r, err := f.owner.rollouts.GetRollout(ctx, &windlassv1.GetRolloutRequest{Rollout: to[m.app].RolloutId})
			if err != nil {
				return err
			}
			switch status := r.Rollout.Status; {
			case status > windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED:
				return fatal{fmt.Errorf("%s: %s", status, r.Rollout.Message)}
			case status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING:
				return errors.Join(errors.New("it is under way"), f.promoteWaiting(ctx, m, r.Rollout))
			}
			return nil
		})
		m.live = f.waitLive(t, m.app, to[m.app].Version).LiveVersion
		f.settle(t, m, to[m.app].DeploymentId)
	}
}

// settle waits until only this deployment runs, with all its replicas and all the traffic.
func (f *strategyStack) settle(t *testing.T, m *mover, deployment string) {
	t.Helper()
	f.eventually(t, m.app+" runs and routes one version alone", func(ctx context.Context) error {
		exist, err := f.exist(ctx)
		if err != nil {
			return err
		}
		for _, region := range f.cfg.regions {
			table, err := f.routed(region, m.id)
			if err != nil {
				return err
			}
			if got := exist[m.app][region]; !maps.Equal(table, map[string]int32{deployment: 100}) || !maps.Equal(got, map[string]instanceCount{deployment: {all: wanted}}) {
				return fmt.Errorf("%s runs %v and routes %v, not %s", region, got, table, deployment)
			}
		}
		return nil
	})
}

// goneBack waits until the rollouts in from have ended with the status as and with one of the reasons, if any are
// given, and only the earlier live versions run.
func (f *strategyStack) goneBack(t *testing.T, from deployed, as windlassv1.RolloutStatus, before map[string]string, reasons ...string) {
	t.Helper()
	for _, m := range f.movers {
		f.eventually(t, m.app+" has gone back", func(context.Context) error {
			r := f.rolloutOf(t, from[m.app].RolloutId)
			switch {
			case r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING:
				return fmt.Errorf("it is at %v", r.GetProgress())
			case r.Status != as || len(reasons) > 0 && !slices.Contains(reasons, r.Reason):
				return fatal{fmt.Errorf("%s, %s: %s", r.Status, r.Reason, r.Message)}
			}
			return nil
		})
		f.waitLive(t, m.app, m.live)
		f.settle(t, m, before[m.app])
	}
}

// lives returns the live deployments, by app.
func (f *strategyStack) lives(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range f.movers {
		out[m.app] = must(t, f.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(m.app)}).App.LiveDeploymentId
	}
	return out
}

// decisions returns the number of history entries, by app.
func (f *strategyStack) decisions(t *testing.T) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, m := range f.movers {
		n, err := f.count(t.Context(), "SELECT COUNT(*) FROM history WHERE app_id = ?", m.id)
		require.NoError(t, err)
		out[m.app] = n
	}
	return out
}

// beginsIn waits until an instance of every deployment exists in the region.
func (f *strategyStack) beginsIn(t *testing.T, region string, of deployed) {
	t.Helper()
	for _, m := range f.movers {
		f.eventually(t, m.app+" starts in "+region, func(ctx context.Context) error {
			exist, err := f.exist(ctx)
			if err == nil && exist[m.app][region][of[m.app].DeploymentId].all == 0 {
				err = fmt.Errorf("%v", exist[m.app])
			}
			return err
		})
	}
}

// promoteWaiting promotes a rollout that waits for promotion because an earlier version went back.
func (f *strategyStack) promoteWaiting(ctx context.Context, m *mover, r *windlassv1.Rollout) error {
	for _, w := range r.GetProgress().GetWaves() {
		if slices.ContainsFunc(w.Regions, func(g *windlassv1.RegionProgress) bool { return g.WaitsForPromotion }) {
			_, err := f.owner.rollouts.Promote(ctx, &windlassv1.PromoteRequest{Mutation: mutation(), App: named(m.app)})
			return err
		}
	}
	return nil
}
