package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Config of a Stepper.
type Config struct {
	Store  Store
	Images ImageResolver
	// Logins returns the values of those of the app's secrets, by name, that there
	// are: Docker configurations with which to pull its image. nil: there are none.
	Logins func(ctx context.Context, app model.App, names []string) ([]string, error)
	// Metrics measures what rollouts are held against, Hooks asks those who judge them;
	// nil: Unmeasured.
	Metrics, Hooks Measurer
	// Domain under which apps get their host names; empty means "windlass.local".
	Domain string
	// IsNotFound tells the store's "no such row" from other errors.
	IsNotFound func(error) bool
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Tracer     trace.Tracer
	// Random returns numbers in [0, 1) that spread polls; nil means math/rand.
	Random func() float64
}

// Stepper carries out plans. It is safe for concurrent use.
type Stepper struct {
	cfg     Config
	metrics *metrics
}

// NewStepper checks cfg.
func NewStepper(cfg Config) (*Stepper, error) {
	if cfg.Store == nil || cfg.Images == nil || cfg.IsNotFound == nil || cfg.Log == nil ||
		cfg.Registerer == nil || cfg.Tracer == nil {
		return nil, errors.New("rollout: Store, Images, IsNotFound, Log, Registerer and Tracer are required")
	}
	if cfg.Domain == "" {
		cfg.Domain = "windlass.local"
	}
	if cfg.Metrics == nil {
		cfg.Metrics = Unmeasured{}
	}
	if cfg.Hooks == nil {
		cfg.Hooks = Unmeasured{}
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	return &Stepper{cfg: cfg, metrics: newMetrics(cfg.Registerer)}, nil
}

// Step implements the type Step: a transaction that reads, plans and writes; and
// when the plan asks for an image, or for measurements, those and a second transaction.
// Nobody else is ever asked with a row locked. What was measured is written with what it
// means: a step that dies in between has measured nothing, and its next try does.
func (s *Stepper) Step(ctx context.Context, appID string) error {
	begin := time.Now()
	defer func() { s.metrics.step.Observe(time.Since(begin).Seconds()) }()
	d, err := s.decide(ctx, appID, plan.Input{})
	switch {
	case err != nil:
	case d.out.Resolve != "":
		_, err = s.decide(ctx, appID, plan.Input{Resolved: s.resolve(ctx, d, d.out.Resolve)})
	case len(d.out.Measure) > 0:
		_, err = s.decide(ctx, appID, plan.Input{Measurements: s.measure(ctx, d)})
	}
	if err != nil {
		return fmt.Errorf("step app %s: %w", appID, err)
	}
	return nil
}

// decision is one pass: what was found and what was made of it.
type decision struct {
	in  plan.Input
	out plan.Output
	at  int64
}

// decide plans once. answers are what the plan before it asked for.
func (s *Stepper) decide(ctx context.Context, appID string, answers plan.Input) (decision, error) {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	// One draw for all tries of the transaction, so that they plan alike.
	jitter := s.cfg.Random()
	var d decision
	var spans *stepSpans
	err := s.cfg.Store.Update(ctx, func(tx Tx) error {
		d = decision{at: nowMillis()}
		if err := tx.ClearWake(appID); err != nil {
			return err
		}
		in, err := s.read(tx, appID)
		if err != nil {
			return err
		}
		if in.App.ID == "" || in.App.DeletedAt != 0 {
			return nil
		}
		in.Resolved, in.Measurements, in.Jitter = answers.Resolved, answers.Measurements, jitter
		d.in, d.out = in, plan.Next(in, d.at)
		if spans == nil {
			spans = s.startSpans(ctx, d)
		}
		return s.write(tx, d, spans)
	})
	spans.end(err)
	if err != nil {
		return decision{}, err
	}
	s.tell(ctx, d)
	return d, nil
}

// read gathers the facts in a number of queries that depends on neither regions nor
// instances.
func (s *Stepper) read(tx Tx, appID string) (plan.Input, error) {
	app, err := tx.LockApp("", appID)
	if s.cfg.IsNotFound(err) {
		return plan.Input{}, nil
	} else if err != nil {
		return plan.Input{}, err
	}
	in := plan.Input{App: app, Hosts: []string{model.Host(app, s.cfg.Domain)}}
	if in.Topology, err = tx.LockTopology(appID); err != nil {
		return in, err
	}
	if app.Domains > 0 {
		domains, err := tx.DomainsOfApps([]string{appID})
		if err != nil {
			return in, err
		}
		for _, d := range domains {
			if d.VerifiedAt != 0 {
				in.Hosts = append(in.Hosts, d.Name)
			}
		}
	}
	if app.AppKeys > 0 {
		keys, err := tx.KeysOfApps([]string{appID})
		if err != nil {
			return in, err
		}
		in.Keys = model.EncodeKeys(keys)
	}
	if err := s.readFlight(tx, &in); err != nil {
		return in, err
	}
	if app.LatestVersion > 1 { // one version has nothing to be pinned beside
		if in.Pins, err = tx.ListPins([]string{appID}); err != nil {
			return in, err
		}
	}
	if in.Deployments, err = s.readDeployments(tx, in); err != nil {
		return in, err
	}
	if mayBeFrozen(in) {
		if in.Freezes, err = tx.ListFreezesFor(app.WorkspaceID, app.ID, ""); err != nil {
			return in, err
		}
	}
	apps := []string{appID}
	if len(in.Topology) > 0 { // else no region was ever told to report anything
		if in.Observed, err = tx.ListObserved(apps); err != nil {
			return in, err
		}
	}
	if in.Routes, err = tx.ListRoutes(apps); err != nil {
		return in, err
	}
	if len(in.Routes) > 0 {
		if in.RouteObserved, err = tx.ListRouteObserved(apps); err != nil {
			return in, err
		}
	}
	return in, s.readRegions(tx, &in)
}

// readFlight reads the app's rollout and its deployment, if there are any, and its staging.
func (s *Stepper) readFlight(tx Tx, in *plan.Input) error {
	app := in.App
	if app.RolloutID != "" {
		f, err := tx.GetFlight(app.WorkspaceID, app.RolloutID)
		if err == nil {
			in.Rollout, in.Deployments, in.Staging = &f.Rollout, []model.Deployment{f.Deployment}, f.Staging
			return nil
		} else if !s.cfg.IsNotFound(err) {
			return err
		}
		// A rollout whose deployment is forgotten is still one.
		r, err := tx.GetRollout(app.WorkspaceID, app.RolloutID)
		if err == nil {
			in.Rollout = &r
		} else if !s.cfg.IsNotFound(err) {
			return err
		}
	}
	stagings, err := tx.GetStagings([]string{app.ID})
	if err == nil && len(stagings) > 0 {
		in.Staging = &stagings[0]
	}
	return err
}

// mayBeFrozen: once a rollout has begun, and while there is none, no freeze matters.
func mayBeFrozen(in plan.Input) bool {
	return in.Rollout != nil && slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
		return d.ID == in.Rollout.DeploymentID && plan.MayBeFrozen(*in.Rollout, d)
	})
}

// readDeployments adds those that the plan speaks of, and the newest one, to what was
// read already.
func (s *Stepper) readDeployments(tx Tx, in plan.Input) ([]model.Deployment, error) {
	want := map[string]bool{}
	if in.App.LiveDeploymentID != "" {
		want[in.App.LiveDeploymentID] = true
	}
	if in.Rollout != nil {
		want[in.Rollout.DeploymentID] = true
	}
	for _, t := range in.Topology {
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			want[t.DeploymentID] = true
		}
	}
	for _, p := range in.Pins {
		want[p.DeploymentID] = true
	}
	for _, d := range in.Deployments {
		delete(want, d.ID)
	}
	others, err := tx.GetDeployments(sortedKeys(want))
	deployments := append(slices.Clip(in.Deployments), others...)
	if err != nil || in.App.LatestVersion == 0 || slices.ContainsFunc(deployments, func(d model.Deployment) bool {
		return d.Version == in.App.LatestVersion
	}) {
		return deployments, err
	}
	newest, err := tx.GetDeploymentByVersion(in.App.WorkspaceID, in.App.ID, in.App.LatestVersion)
	switch {
	case s.cfg.IsNotFound(err):
		return deployments, nil
	case err != nil:
		return nil, err
	}
	return append(deployments, newest), nil
}

func (s *Stepper) readRegions(tx Tx, in *plan.Input) (err error) {
	want := map[string]bool{}
	for _, t := range in.Topology {
		want[t.RegionID] = true
	}
	for _, r := range in.Routes {
		want[r.RegionID] = true
	}
	for _, p := range in.Pins {
		for _, r := range p.Regions {
			want[r.RegionID] = true
		}
	}
	if in.Staging != nil && in.Staging.Course != nil {
		for _, b := range in.Staging.Course.Behind {
			want[b.RegionID] = true
		}
	}
	if in.Staging != nil && in.Staging.Course.Active(in.App.RolloutID) {
		for _, w := range in.Staging.Course.Waves {
			for _, r := range w.Regions {
				want[r.RegionID] = true
			}
		}
	}
	if in.Regions, err = tx.GetRegions(sortedKeys(want)); err != nil {
		return err
	}
	in.RegionIDs = map[string]string{}
	named, err := tx.GetRegionsByName(in.App.WorkspaceID, regionsToName(*in))
	if err != nil {
		return err
	}
	for _, r := range named {
		in.RegionIDs[r.Name] = r.ID
		if !want[r.ID] {
			want[r.ID] = true
			in.Regions = append(in.Regions, r)
		}
	}
	return nil
}

// regionsToName returns the names that the plan may need to turn into rows.
func regionsToName(in plan.Input) []string {
	if in.Rollout == nil {
		return nil
	}
	for _, d := range in.Deployments {
		if d.ID == in.Rollout.DeploymentID &&
			(d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING ||
				d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING) {
			return d.Spec.GetRegions()
		}
	}
	return nil
}

// fence moves the app's step number on, which a step that was stalled since cannot,
// and stores the app with it if that changed.
func (s *Stepper) fence(tx Tx, d decision) error {
	if d.out.App != nil {
		return tx.UpdateAppInStep(*d.out.App)
	}
	return tx.StepApp(d.in.App.ID, d.in.App.Step)
}

// write stores the plan, and asks for the next look in the same transaction.
func (s *Stepper) write(tx Tx, d decision, spans *stepSpans) error {
	out := d.out
	if err := s.fence(tx, d); err != nil {
		return err
	}
	for _, dep := range out.Deployments {
		if err := tx.UpdateDeployment(dep); err != nil {
			return err
		}
	}
	if r := rolloutToWrite(d); r != nil {
		if err := tx.UpdateRollout(*r); err != nil {
			return err
		}
	}
	if out.Staging != nil {
		if err := tx.PutStaging(*out.Staging); err != nil {
			return err
		}
	}
	for _, p := range out.Pins {
		if err := tx.PutPin(p); err != nil {
			return err
		}
	}
	for _, id := range out.Unpinned {
		if err := tx.DeletePin(d.in.App.ID, id); err != nil {
			return err
		}
	}
	have := topology.State{Rows: d.in.Topology, Routes: d.in.Routes}
	want := topology.State{Rows: spans.stamp(d), Routes: out.Routes}
	if err := topology.Write(tx, have, want); err != nil {
		return err
	}
	if len(out.History) > 0 {
		for i := range out.History {
			out.History[i].ID = ident.New("hst")
		}
		if err := tx.InsertHistory(out.History); err != nil {
			return err
		}
	}
	if out.Next == 0 {
		return nil
	}
	return tx.Wake([]string{d.in.App.ID}, out.Next, d.at)
}

// rolloutToWrite counts a look that found nothing to do.
func rolloutToWrite(d decision) *model.Rollout {
	if d.out.Rollout != nil {
		return d.out.Rollout
	}
	if !polled(d) {
		return nil
	}
	r := *d.in.Rollout
	r.Attempts++
	return &r
}

// polled tells whether a rollout is under way and the step found nothing to do
// for it.
func polled(d decision) bool {
	return d.in.Rollout != nil && len(d.out.History) == 0 && d.out.Resolve == "" &&
		d.in.Rollout.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING
}

// tell logs and counts what was decided, once it is durable.
func (s *Stepper) tell(ctx context.Context, d decision) {
	for _, finding := range plan.Lint(d.in, d.out) {
		s.metrics.broken.Inc()
		s.cfg.Log.ErrorContext(ctx, "a plan breaks a rule of staged rollouts: this is a bug", "app", d.in.App.ID, "finding", finding)
	}
	for _, h := range d.out.History {
		s.cfg.Log.InfoContext(ctx, "decided", "what", h.What, "app", h.AppID, "why", h.Why, "who", h.Who,
			"deployment", h.DeploymentID, "region", h.RegionID)
	}
	if r := d.out.Rollout; r != nil && r.FinishedAt != 0 && d.in.Rollout.FinishedAt == 0 {
		s.Ended(*r)
	}
}

// Ended counts a rollout whose end is durable, and writes its span. Whoever ends
// one elsewhere than in a step calls it, once.
func (s *Stepper) Ended(r model.Rollout) {
	s.metrics.finished(r)
	s.workflow(r)
}

func (s *Stepper) resolve(ctx context.Context, d decision, image string) *plan.Resolution {
	ctx, span := s.cfg.Tracer.Start(underRollout(ctx, d.in.Rollout), "deployment.build")
	defer span.End()
	begin := time.Now()
	digested, err := s.digest(ctx, d, image)
	s.metrics.build.Observe(time.Since(begin).Seconds())
	if err != nil {
		span.RecordError(err)
		var final *FinalError
		return &plan.Resolution{Image: image, Message: err.Error(), Final: errors.As(err, &final)}
	}
	return &plan.Resolution{Image: image, Digested: digested}
}

func (s *Stepper) digest(ctx context.Context, d decision, image string) (string, error) {
	var names, logins []string
	for _, dep := range d.in.Deployments {
		if dep.ID != d.in.Rollout.DeploymentID {
			continue
		}
		for _, ref := range dep.Spec.GetSecrets() {
			if ref.GetImagePull() {
				names = append(names, ref.GetSecret())
			}
		}
	}
	if len(names) > 0 && s.cfg.Logins != nil {
		var err error
		if logins, err = s.cfg.Logins(ctx, d.in.App, names); err != nil {
			return "", fmt.Errorf("read the secrets to pull %s with: %w", image, err)
		}
	}
	return s.cfg.Images.Resolve(ctx, image, logins)
}
