package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// control is a person's word about the staged rollout in flight. say changes the
// course, and returns what to tell about it, empty if it changes nothing.
func (c *change) control(ref, what, why string, say func(*model.Course) (text string, err error)) (rolloutID string, err error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return "", err
	}
	if err := alive(app); err != nil {
		return "", err
	}
	f, err := c.inFlight(app)
	if err != nil {
		return "", err
	}
	if f.rollout == nil {
		return "", nothingToDo(fmt.Sprintf("app %s has no rollout in flight", app.Name), "`windlass history` tells how the last one ended.")
	}
	s, err := c.stagingOf(app)
	if err != nil {
		return "", err
	}
	if !s.Course.Active(app.RolloutID) {
		return "", nothingToDo(fmt.Sprintf("the rollout of app %s goes by no policy: it moves all regions at once", app.Name),
			"Cancel it, or wait until the app is live: from then on its rollouts go by one.")
	}
	before := s.Clone()
	text, err := say(s.Course)
	if refusal, ok := errors.AsType[*plan.Refusal](err); ok {
		return "", nothingToDo(refusal.Message, refusal.Fix)
	}
	if refusal, ok := errors.AsType[*plan.GateRefusal](err); ok {
		return "", shut(refusal)
	}
	if err != nil {
		return "", err
	}
	if f.rollout.CancelRequested && text != "" {
		return "", nothingToDo("the rollout is being cancelled", "Wait until it is back, or deploy another version.")
	}
	if s.Course.Equal(before.Course) {
		return app.RolloutID, nil
	}
	if why != "" {
		text += ": " + why
	}
	c.log(app, model.History{
		What: what, Why: text, RolloutID: f.rollout.ID, DeploymentID: f.rollout.DeploymentID, Version: f.rollout.Version,
	})
	if err := c.putStaging(s); err != nil {
		return "", err
	}
	if err := c.wake(app.ID); err != nil {
		return "", err
	}
	return app.RolloutID, c.audit("rollout", f.rollout.ID, courseProto(before.Course), courseProto(s.Course))
}

// PauseRollout holds the rollout in flight where it is.
func (a *API) PauseRollout(ctx context.Context, req *windlassv1.PauseRolloutRequest) (res *windlassv1.PauseRolloutResponse, err error) {
	defer func() { a.counted("pause", err) }()
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.PauseRolloutResponse, error) {
		id, err := c.control(req.GetApp(), "RolloutPaused", req.GetWhy(), func(course *model.Course) (string, error) {
			_, err := plan.Pause(course, c.by.Name, req.GetWhy(), c.at)
			return "nothing starts or stops until it is resumed", err
		})
		return &windlassv1.PauseRolloutResponse{RolloutId: id}, err
	})
	return res, err
}

// ResumeRollout ends a person's pause.
func (a *API) ResumeRollout(ctx context.Context, req *windlassv1.ResumeRolloutRequest) (res *windlassv1.ResumeRolloutResponse, err error) {
	defer func() { a.counted("resume", err) }()
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.ResumeRolloutResponse, error) {
		id, err := c.control(req.GetApp(), "RolloutResumed", req.GetWhy(), func(course *model.Course) (string, error) {
			was, by := course.PausedAt, course.PausedBy
			_, err := plan.Resume(course)
			return fmt.Sprintf("%s had paused it for %s", by, time.Duration(c.at-was)*time.Millisecond), err
		})
		return &windlassv1.ResumeRolloutResponse{RolloutId: id}, err
	})
	return res, err
}

// RetryRollout has the regions that failed begin again.
func (a *API) RetryRollout(ctx context.Context, req *windlassv1.RetryRolloutRequest) (res *windlassv1.RetryRolloutResponse, err error) {
	defer func() { a.counted("retry", err) }()
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.RetryRolloutResponse, error) {
		if id, err := c.retryBehind(req.GetApp(), req.GetWhy()); id != "" || err != nil {
			return &windlassv1.RetryRolloutResponse{RolloutId: id}, err
		}
		id, err := c.control(req.GetApp(), "RolloutRetried", req.GetWhy(), func(course *model.Course) (string, error) {
			heard, err := c.heard(course)
			if err != nil {
				return "", err
			}
			_, err = plan.Retry(course, heard, c.at)
			return "regions that failed begin again", err
		})
		return &windlassv1.RetryRolloutResponse{RolloutId: id}, err
	})
	return res, err
}

// heard are the guards, by region, of what was reported of the version that the course is of.
func (c *change) heard(course *model.Course) (map[string]model.Guard, error) {
	rollouts, err := c.GetRollouts([]string{course.RolloutID})
	if err != nil {
		return nil, fmt.Errorf("read rollout %s: %w", course.RolloutID, err)
	}
	heard := map[string]model.Guard{}
	for _, r := range rollouts {
		observed, err := c.ListObserved([]string{r.AppID})
		if err != nil {
			return nil, fmt.Errorf("list what was observed of app %s: %w", r.AppID, err)
		}
		for _, o := range observed {
			if o.DeploymentID == r.DeploymentID {
				heard[o.RegionID] = o.Guard
			}
		}
	}
	return heard, nil
}

// retryBehind has the regions begin again that failed to catch up. It returns the id of
// the rollout that left them behind; empty, if none did or a rollout is in flight.
func (c *change) retryBehind(ref, why string) (rolloutID string, err error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return "", err
	}
	if err := alive(app); err != nil {
		return "", err
	}
	s, err := c.stagingOf(app)
	if err != nil || app.RolloutID != "" || s.Course == nil {
		return "", err
	}
	before := s.Clone()
	s.Course = before.Clone().Course
	if plan.RetryBehind(s.Course, c.at) == 0 {
		return "", nil
	}
	text := "regions that failed to catch up begin again"
	if why != "" {
		text += ": " + why
	}
	c.log(app, model.History{What: "RolloutRetried", Why: text, RolloutID: s.Course.RolloutID, DeploymentID: app.LiveDeploymentID})
	if err := c.putStaging(s); err != nil {
		return "", err
	}
	if err := c.wake(app.ID); err != nil {
		return "", err
	}
	return s.Course.RolloutID, c.audit("rollout", s.Course.RolloutID, courseProto(before.Course), courseProto(s.Course))
}

// Promote has the regions go on that wait at a step, or of all of them past all that is left.
func (a *API) Promote(ctx context.Context, req *windlassv1.PromoteRequest) (res *windlassv1.PromoteResponse, err error) {
	defer func() { a.counted("promote", err) }()
	what := "Promoted"
	if req.GetFull() {
		what = "PromotedInFull"
	}
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.PromoteResponse, error) {
		id, err := c.control(req.GetApp(), what, req.GetWhy(), func(course *model.Course) (string, error) {
			held, failed := course.Held, course.Failed
			waves, err := plan.Promote(course, c.by.Name, req.GetFull(), c.at)
			var text []string
			if req.GetFull() {
				text = append(text, "no step, pause, analysis or bake time holds it any more")
			}
			if failed && !course.Failed {
				text = append(text, "what failed by its analysis is accepted")
			}
			if len(waves) > 0 {
				text = append(text, "regions that wait go on, in wave "+strings.Join(waves, ", "))
			}
			if held {
				text = append(text, "promotions happen by themselves again")
			}
			if err != nil {
				return "", err
			}
			names, err := c.regionNames(course)
			text = append(text, plan.Awaited(course, func(id string) string { return orDefault(names[id].Name, id) })...)
			return strings.Join(text, "; "), err
		})
		return &windlassv1.PromoteResponse{RolloutId: id}, err
	})
	return res, err
}

// SkipBake ends the bake time of the wave that is baking.
func (a *API) SkipBake(ctx context.Context, req *windlassv1.SkipBakeRequest) (res *windlassv1.SkipBakeResponse, err error) {
	defer func() { a.counted("skip_bake", err) }()
	res, _, err = mutate(ctx, a, req, func(c *change) (*windlassv1.SkipBakeResponse, error) {
		id, err := c.control(req.GetApp(), "BakeSkipped", req.GetWhy(), func(course *model.Course) (string, error) {
			wave, err := plan.SkipBake(course, c.by.Name)
			return "wave " + wave + " need bake no longer", err
		})
		return &windlassv1.SkipBakeResponse{RolloutId: id}, err
	})
	return res, err
}
