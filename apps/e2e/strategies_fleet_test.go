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

// mover is an app that moves by one strategy, through everything that may befall it.
type mover struct {
	app, id string
	policy  func() *windlassv1.RolloutPolicy
	// most instances may exist in a region, those that are being stopped included, and
	// least replicas are ready in all.
	most, least int
	live        int32
	versions    int
	// inPlace: versions go on with one workload, whose instances are of whichever.
	inPlace bool
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
		// One region after the other has nothing; and, when it goes back, all at once.
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
		// One replica of each region at a time; and, when it goes back, of all at once.
		{app: "in-place", most: wanted, least: 2 * (wanted - 1), inPlace: true, policy: waves(func(p *windlassv1.RolloutPolicy) {
			p.Strategy = windlassv1.RolloutPolicy_STRATEGY_IN_PLACE
		})},
	}
}

// strategyStack is a stack on which every strategy goes through the same, side by side: what
// befalls one of them befalls all, at whatever step each is.
type strategyStack struct {
	*stack
	movers []*mover
	// spec of a version that is cheap to run.
	spec func(change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec
	// exist counts instances, those that are being stopped included.
	exist func(ctx context.Context) (existing, error)

	mu     sync.Mutex
	broken []error
	looks  int
}

// existing is how many instances exist, by app, region and deployment.
type existing map[string]map[string]map[string]int

func (e existing) add(app, region, deployment string) {
	if e[app] == nil {
		e[app] = map[string]map[string]int{}
	}
	if e[app][region] == nil {
		e[app][region] = map[string]int{}
	}
	e[app][region][deployment]++
}

func newFleet(s *stack) *strategyStack {
	f := &strategyStack{stack: s, movers: movers(), spec: spec, exist: s.processesByPlace}
	if s.cfg.runtime == "kubernetes" {
		f.spec, f.exist = podSpec, s.podsByPlace
		for _, m := range f.movers {
			if m.inPlace {
				// Kubernetes makes a pod while the one before is being stopped, and goes on to
				// the next as soon as it is ready: if no pod has to wait for what another has,
				// each may have the one before it at its side.
				m.most *= 2
			}
		}
	}
	return f
}

func (s *stack) processesByPlace(context.Context) (existing, error) {
	out := existing{}
	for _, p := range instancesOf(s.dir) {
		out.add(p.app(), p.region(), p.deployment())
	}
	return out, nil
}

// podsByPlace has pods under the deployment that they were made for.
func (s *stack) podsByPlace(ctx context.Context) (existing, error) {
	out := existing{}
	for _, region := range s.cfg.regions {
		pods, err := s.cluster(s.t, region).list(ctx, "api/v1/pods", "app.kubernetes.io/managed-by=windlass")
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			if p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
				out.add(p.Metadata.Labels["app.kubernetes.io/name"], region, p.Metadata.Labels["windlass.run/made-for"])
			}
		}
	}
	return out, nil
}

// watch looks, until it is stopped, at what exists, what is routed and what is said to be
// ready, all the time: of pods as often as leaves their API servers the time for what is tested.
// One look is at all apps, because listing processes or pods costs the same for one of them.
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
	require.Positive(t, f.looks, "there was no look")
}

// isIO reports whether a request got no answer, which says nothing about what exists.
func isIO(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// look once at every app.
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

// askEvery is how many looks there are for each question to the control plane. It changes its answer when an agent
// reports, which is much less often than there are looks at processes.
const askEvery = 4

// asksReady reports whether this look asks, too. Looks at pods are so few that each does.
func (f *strategyStack) asksReady() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg.runtime == "kubernetes" || f.looks%askEvery == 0
}

// checkReady holds how many replicas are said to be ready against the least of each app.
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

// check holds what is routed against what exists, by region. What is routed and does not exist counts
// when two looks in a row find it: the two are not read at the same moment.
func (m *mover) check(tables map[string]map[string]int32, exist map[string]map[string]int, suspect map[string]bool) error {
	found := map[string]bool{}
	for region, table := range tables {
		all, sum := 0, int32(0)
		for _, n := range exist[region] {
			all += n
		}
		for deployment, weight := range table {
			sum += weight
			if exist[region][deployment] == 0 && (!m.inPlace || all == 0) {
				found[fmt.Sprintf("%s routes %d%% to %s, of which nothing runs", region, weight, deployment)] = true
			}
		}
		switch {
		case all > m.most:
			return fmt.Errorf("%d instances exist in %s: %v", all, region, exist[region])
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

// deployed is a deployment of each mover, by app.
type deployed map[string]*windlassv1.DeployResponse

// move deploys a version of every app.
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

// arrive waits until what was deployed is live everywhere and nothing else is left.
// Where a version waits because an earlier one went back, somebody promotes it.
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

// settle waits until one deployment runs alone, in its size, and has all the traffic.
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
			if got := exist[m.app][region]; !maps.Equal(table, map[string]int32{deployment: 100}) || !maps.Equal(got, map[string]int{deployment: wanted}) {
				return fmt.Errorf("%s runs %v and routes %v, not %s", region, got, table, deployment)
			}
		}
		return nil
	})
}

// goneBack waits until what was deployed has ended so, for one of the reasons, and what
// was live before runs alone again.
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

// lives are the deployments that are live, by app.
func (f *strategyStack) lives(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range f.movers {
		out[m.app] = must(t, f.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(m.app)}).App.LiveDeploymentId
	}
	return out
}

// decisions counts what was decided about the apps.
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
			if err == nil && exist[m.app][region][of[m.app].DeploymentId] == 0 {
				err = fmt.Errorf("%v", exist[m.app])
			}
			return err
		})
	}
}

// promoteWaiting promotes what waits for that because an earlier version went back.
func (f *strategyStack) promoteWaiting(ctx context.Context, m *mover, r *windlassv1.Rollout) error {
	for _, w := range r.GetProgress().GetWaves() {
		if slices.ContainsFunc(w.Regions, func(g *windlassv1.RegionProgress) bool { return g.WaitsForPromotion }) {
			_, err := f.owner.rollouts.Promote(ctx, &windlassv1.PromoteRequest{Mutation: mutation(), App: named(m.app)})
			return err
		}
	}
	return nil
}
