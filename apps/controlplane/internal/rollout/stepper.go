package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Config configures a Stepper.
type Config struct {
	Store  Store
	Images ImageResolver
	// Logins returns the values of the app's secrets with these names, without secrets that do not exist. They are
	// Docker configurations (config.json) for pulling its image. nil: the app has no secrets.
	Logins func(ctx context.Context, app model.App, names []string) ([]string, error)
	// Metrics reads the figures of rollouts' checks. Hooks calls the webhooks that judge rollouts. nil: Unmeasured.
	Metrics, Hooks Measurer
	// Domain is the domain of the apps' host names. Empty means "windlass.local".
	Domain     string
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
	groups  *groups
}

// NewStepper checks cfg.
func NewStepper(cfg Config) (*Stepper, error) {
	if cfg.Store == nil || cfg.Images == nil || cfg.Log == nil ||
		cfg.Registerer == nil || cfg.Tracer == nil {
		return nil, errors.New("rollout: Store, Images, Log, Registerer and Tracer are required")
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
	s := &Stepper{cfg: cfg, metrics: newMetrics(cfg.Registerer)}
	s.groups = newGroups(s.decideGroup, s.metrics.countCommitted)
	return s, nil
}

// Step implements the type Step. It runs a transaction that reads, plans and writes, shared with other steps
// that arrived by then. If the plan requests an image or measurements, Step gets those and runs a second
// transaction. It sends no request while a row is locked. A measurement is written together with its verdict:
// if a step dies in between, its next try measures again.
func (s *Stepper) Step(ctx context.Context, appID string) error {
	begin := time.Now()
	defer func() { s.metrics.step.Observe(time.Since(begin).Seconds()) }()
	d, err := s.decideApp(ctx, appID, plan.Input{})
	switch {
	case err != nil:
	case d.out.Resolve != "":
		_, err = s.decideApp(ctx, appID, plan.Input{Resolved: s.resolveImage(ctx, d, d.out.Resolve)})
	case len(d.out.Measure) > 0:
		_, err = s.decideApp(ctx, appID, plan.Input{Measurements: s.takeMeasurements(ctx, d)})
	}
	if err != nil {
		return fmt.Errorf("step app %s: %w", appID, err)
	}
	return nil
}

// decision is one pass: its input and its plan.
type decision struct {
	in  plan.Input
	out plan.Output
	at  int64
}

// write stores the plans and the next wake-ups in the same transaction. It begins with the fence, so that a
// step that was stalled since its read fails.
func (s *Stepper) write(tx Tx, all []*member) error {
	var steps []model.AppStep
	var deployments []model.Deployment
	var rollouts []model.Rollout
	var moves []topology.Move
	var history []model.History
	next, regions := map[string]int64{}, map[string]bool{}
	for _, m := range all {
		d := m.decision
		step := model.AppStep{App: d.in.App}
		if d.out.App != nil {
			step = model.AppStep{App: *d.out.App, Changed: true}
		}
		steps = append(steps, step)
		deployments = append(deployments, d.out.Deployments...)
		if r := rolloutToWrite(d); r != nil {
			rollouts = append(rollouts, *r)
		}
		move := topology.Move{
			Have: topology.State{Rows: d.in.Topology, Routes: d.in.Routes},
			Want: topology.State{Rows: m.spans.stampRows(d), Routes: d.out.Routes},
		}
		moves = append(moves, move)
		for _, t := range move.Want.Rows {
			regions[t.RegionID] = true
		}
		for _, r := range move.Want.Routes {
			regions[r.RegionID] = true
		}
		for _, h := range d.out.History {
			h.ID = ident.New("hst")
			history = append(history, h)
		}
		if d.out.Next != 0 {
			next[d.in.App.ID] = d.out.Next
		}
	}
	if len(all) > 1 && len(regions) > plan.MaxRegions {
		return errTooWide
	}
	if err := tx.StepApps(steps); err != nil {
		return err
	}
	if len(deployments) > 0 {
		if err := tx.UpdateDeployment(deployments...); err != nil {
			return err
		}
	}
	if len(rollouts) > 0 {
		if err := tx.UpdateRollout(rollouts...); err != nil {
			return err
		}
	}
	for _, m := range all {
		if err := writeRolloutState(tx, m.decision); err != nil {
			return err
		}
	}
	if err := topology.WriteAll(tx, moves); err != nil {
		return err
	}
	if len(history) > 0 {
		if err := tx.InsertHistory(history); err != nil {
			return err
		}
	}
	if len(next) == 0 {
		return nil
	}
	return tx.WakeAt(next, all[0].decision.at)
}

// errTooWide means that the apps of a group change more regions than one transaction may.
var errTooWide = errors.New("the steps change too many regions together")

// writeRolloutState writes the rollout state and the pins of a plan.
func writeRolloutState(tx Tx, d decision) error {
	if d.out.RolloutState != nil {
		if err := tx.PutRolloutState(*d.out.RolloutState); err != nil {
			return err
		}
	}
	for _, p := range d.out.Pins {
		if err := tx.PutPin(p); err != nil {
			return err
		}
	}
	for _, id := range d.out.Unpinned {
		if err := tx.DeletePin(d.in.App.ID, id); err != nil {
			return err
		}
	}
	return nil
}

// rolloutToWrite returns the rollout to store, nil for none. It counts a step that found nothing to do.
func rolloutToWrite(d decision) *model.Rollout {
	if d.out.Rollout != nil {
		return d.out.Rollout
	}
	if !wasPoll(d) {
		return nil
	}
	r := *d.in.Rollout
	r.Attempts++
	return &r
}

// wasPoll reports whether a rollout is under way and the step found nothing to do.
func wasPoll(d decision) bool {
	return d.in.Rollout != nil && len(d.out.History) == 0 && d.out.Resolve == "" &&
		d.in.Rollout.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING
}

// recordDecision logs and counts a decision, once it is durable.
func (s *Stepper) recordDecision(ctx context.Context, d decision) {
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

// Ended counts a rollout whose end is durable, and writes its span. Code that ends a rollout
// outside of a step calls it, once.
func (s *Stepper) Ended(r model.Rollout) {
	s.metrics.countFinished(r)
	s.writeSpan(r)
}

func (s *Stepper) resolveImage(ctx context.Context, d decision, image string) *plan.Resolution {
	ctx, span := s.cfg.Tracer.Start(underRollout(ctx, d.in.Rollout), "deployment.build")
	defer span.End()
	begin := time.Now()
	digested, err := s.digestOf(ctx, d, image)
	s.metrics.build.Observe(time.Since(begin).Seconds())
	if err != nil {
		span.RecordError(err)
		if refused, ok := errors.AsType[*registryError](err); ok {
			s.cfg.Log.InfoContext(ctx, "cannot resolve an image", "app", d.in.App.ID, "image", image, "error", fmt.Sprintf("%.500s", refused.cause))
		}
		var final *FinalError
		return &plan.Resolution{Image: image, Message: err.Error(), Final: errors.As(err, &final)}
	}
	return &plan.Resolution{Image: image, Digested: digested}
}

func (s *Stepper) digestOf(ctx context.Context, d decision, image string) (string, error) {
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
