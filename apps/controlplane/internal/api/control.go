package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// controlled is the result of a person's command to a rollout.
type controlled struct {
	rolloutID string
	// unchanged means that the command changed nothing. effect says what the command did, or why it did nothing.
	unchanged bool
	effect    string
}

// command is a person's command to the rollout in flight of an app.
type command struct {
	app string
	// rolloutID is the only rollout that the command is for. Empty: any.
	rolloutID string
	// why is the person's reason, for the history.
	why string
}

// sameRollout refuses a command for the rollout want, unless the app's rollout is that one. id is empty if the app has
// no rollout in flight. An empty want fits every rollout.
func sameRollout(app model.App, id, want string) error {
	if want == "" || id == want {
		return nil
	}
	now := "its rollout is " + id
	if id == "" {
		now = "it has no rollout in flight"
	}
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "rollout_id",
		Fix: "Read the app's rollout again (`windlass rollout status`), decide again, and repeat the call for that rollout.",
	}, fmt.Sprintf("rollout %s of app %s is not in flight: %s", want, app.Name, now))
}

// applyCommand applies a person's command to the staged rollout in flight. what is the command's name in the history. The
// function say changes the progress, and describes the change.
func (c rolloutMutation) applyCommand(by command, what string, say func(*model.Progress) (text string, err error)) (out controlled, err error) {
	app, err := c.lockedApp(by.app)
	if err != nil {
		return out, err
	}
	if err := requireNotDeleted(app); err != nil {
		return out, err
	}
	if err := sameRollout(app, app.RolloutID, by.rolloutID); err != nil {
		return out, err
	}
	f, err := c.versions().activeRolloutOf(app)
	if err != nil {
		return out, err
	}
	if f.rollout == nil {
		return out, apierr.NothingToDo(fmt.Sprintf("app %s has no rollout in flight", app.Name), "`windlass history` shows how the last rollout ended.")
	}
	s, err := c.versions().rolloutStateOf(app)
	if err != nil {
		return out, err
	}
	if !s.Progress.Active(app.RolloutID) {
		return out, apierr.NothingToDo(fmt.Sprintf("the rollout of app %s has no policy: it moves all regions at once", app.Name),
			"Cancel it, or wait until the app is live: its later rollouts have a policy.")
	}
	if f.rollout.CancelRequested {
		return out, apierr.NothingToDo("the rollout is being cancelled", "Wait until it is back, or deploy another version.")
	}
	before := s.Clone()
	text, err := say(s.Progress)
	if refusal, ok := errors.AsType[*plan.Refusal](err); ok {
		return out, apierr.NothingToDo(refusal.Message, refusal.Fix)
	}
	if refusal, ok := errors.AsType[*plan.GateRefusal](err); ok {
		return out, gateError(refusal)
	}
	if err != nil {
		return out, err
	}
	holds, err := c.remainingHolds(s.Progress, what)
	if err != nil {
		return out, err
	}
	if s.Progress.Equal(before.Progress) {
		return controlled{app.RolloutID, true, strings.Join(append([]string{sameAgain(s.Progress, what)}, holds...), "; ")}, nil
	}
	out = controlled{rolloutID: app.RolloutID, effect: strings.Join(append([]string{text}, holds...), "; ")}
	if by.why != "" {
		text += ": " + by.why
	}
	c.log(app, model.History{
		What: what, Why: text, RolloutID: f.rollout.ID, DeploymentID: f.rollout.DeploymentID, Version: f.rollout.Version,
	})
	if err := c.putRolloutState(s); err != nil {
		return out, err
	}
	if err := c.wake(app.ID); err != nil {
		return out, err
	}
	return out, c.auditChange("rollout", f.rollout.ID, progressProto(before.Progress), progressProto(s.Progress))
}

// remainingHolds returns texts for everything that still stops the rollout after a command that would move it.
func (c rolloutMutation) remainingHolds(progress *model.Progress, what string) (out []string, err error) {
	if what == "RolloutPaused" || what == "Approved" {
		return nil, nil
	}
	switch {
	case progress.Failed:
		out = append(out, "it stays paused because "+progress.PausedWhy+": retry or abort it")
	case progress.PausedAt != 0:
		out = append(out, progress.PausedBy+" has paused it: nothing moves until it is resumed")
	}
	names, err := c.regionNames(progress)
	if err != nil {
		return nil, err
	}
	closed, err := c.versions().closedHolds(progress)
	if err != nil {
		return nil, err
	}
	out = append(out, closed...)
	return append(out, plan.ShutGates(progress, func(id string) string { return names[id].ShownName() })...), nil
}

// sameAgain returns the reason why a command changed nothing.
func sameAgain(progress *model.Progress, what string) string {
	switch what {
	case "RolloutPaused":
		return cmp.Or(progress.PausedBy, "a failure") + " has paused it already"
	case "RolloutResumed":
		return "it is not paused: nothing to resume"
	case "RolloutRetried":
		return "no region of it failed: nothing to retry"
	case "BakeSkipped":
		return "its bake is skipped already"
	}
	return "the same command was given before"
}

// PauseRollout pauses the rollout in flight in its current state.
func (a rolloutService) PauseRollout(ctx context.Context, req *windlassv1.PauseRolloutRequest) (res *windlassv1.PauseRolloutResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.PauseRolloutResponse, error) {
		out, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetWhy()}, "RolloutPaused", func(progress *model.Progress) (string, error) {
			_, err := plan.Pause(progress, c.by.Name, req.GetWhy(), c.at)
			return "nothing starts or stops until it is resumed", err
		})
		return &windlassv1.PauseRolloutResponse{RolloutId: out.rolloutID, Unchanged: out.unchanged, Effect: out.effect}, err
	})
	return res, err
}

// ResumeRollout ends a person's pause.
func (a rolloutService) ResumeRollout(ctx context.Context, req *windlassv1.ResumeRolloutRequest) (res *windlassv1.ResumeRolloutResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ResumeRolloutResponse, error) {
		out, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetWhy()}, "RolloutResumed", func(progress *model.Progress) (string, error) {
			was, by := progress.PausedAt, progress.PausedBy
			_, err := plan.Resume(progress)
			return fmt.Sprintf("%s had paused it for %s", by, time.Duration(c.at-was)*time.Millisecond), err
		})
		return &windlassv1.ResumeRolloutResponse{RolloutId: out.rolloutID, Unchanged: out.unchanged, Effect: out.effect}, err
	})
	return res, err
}

// RetryRollout starts the failed regions again.
func (a rolloutService) RetryRollout(ctx context.Context, req *windlassv1.RetryRolloutRequest) (res *windlassv1.RetryRolloutResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RetryRolloutResponse, error) {
		if id, err := c.rollouts().retryLagging(req.GetApp(), req.GetRolloutId(), req.GetWhy()); id != "" || err != nil {
			return &windlassv1.RetryRolloutResponse{RolloutId: id, Effect: "regions that failed to catch up begin again"}, err
		}
		out, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetWhy()}, "RolloutRetried", func(progress *model.Progress) (string, error) {
			guards, err := c.rollouts().reportedGuards(progress)
			if err != nil {
				return "", err
			}
			_, err = plan.Retry(progress, guards, c.at)
			return "regions that failed begin again", err
		})
		return &windlassv1.RetryRolloutResponse{RolloutId: out.rolloutID, Unchanged: out.unchanged, Effect: out.effect}, err
	})
	return res, err
}

// reportedGuards returns the guards that regions reported for the version of progress, by region.
func (c rolloutMutation) reportedGuards(progress *model.Progress) (map[string]model.Guard, error) {
	rollouts, err := c.GetRollouts([]string{progress.RolloutID})
	if err != nil {
		return nil, fmt.Errorf("read rollout %s: %w", progress.RolloutID, err)
	}
	guards := map[string]model.Guard{}
	for _, r := range rollouts {
		observed, err := c.ListObserved([]string{r.AppID})
		if err != nil {
			return nil, fmt.Errorf("list observed states of app %s: %w", r.AppID, err)
		}
		for _, o := range observed {
			if o.DeploymentID == r.DeploymentID {
				guards[o.RegionID] = o.Guard
			}
		}
	}
	return guards, nil
}

// retryLagging restarts lagging regions that failed to catch up. It returns the id of the rollout that they missed.
// The id is empty if there are no such regions, or a rollout is in flight. want is the only rollout that the call is for.
// Empty: any.
func (c rolloutMutation) retryLagging(ref, want, why string) (rolloutID string, err error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return "", err
	}
	if err := requireNotDeleted(app); err != nil {
		return "", err
	}
	s, err := c.versions().rolloutStateOf(app)
	if err != nil || app.RolloutID != "" || s.Progress == nil {
		return "", err
	}
	before := s.Clone()
	s.Progress = before.Clone().Progress
	if plan.RetryLagging(s.Progress, c.at) == 0 {
		return "", nil
	}
	if err := sameRollout(app, s.Progress.RolloutID, want); err != nil {
		return "", err
	}
	text := "regions that failed to catch up begin again"
	if why != "" {
		text += ": " + why
	}
	c.log(app, model.History{What: "RolloutRetried", Why: text, RolloutID: s.Progress.RolloutID, DeploymentID: app.LiveDeploymentID})
	if err := c.putRolloutState(s); err != nil {
		return "", err
	}
	if err := c.wake(app.ID); err != nil {
		return "", err
	}
	return s.Progress.RolloutID, c.auditChange("rollout", s.Progress.RolloutID, progressProto(before.Progress), progressProto(s.Progress))
}

// Promote moves regions that wait at a step to the next step. With full, it moves all regions past the remaining
// steps.
func (a rolloutService) Promote(ctx context.Context, req *windlassv1.PromoteRequest) (res *windlassv1.PromoteResponse, err error) {
	what := "Promoted"
	if req.GetFull() {
		what = "PromotedInFull"
	}
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.PromoteResponse, error) {
		out, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetWhy()}, what, func(progress *model.Progress) (string, error) {
			paused, failed := progress.PromotionPaused, progress.Failed
			if err := c.versions().maySkip(progress); req.GetFull() && err != nil {
				return "", err
			}
			waves, err := plan.Promote(progress, c.by.Name, req.GetFull(), c.at)
			var text []string
			if req.GetFull() {
				text = append(text, "no pause of a step, analysis or bake time holds it any more")
			}
			if failed && !progress.Failed {
				text = append(text, "regions that failed their analysis are accepted")
			}
			if len(waves) > 0 {
				text = append(text, "regions that wait go on, in wave "+strings.Join(waves, ", "))
			}
			if paused {
				text = append(text, "promotions are automatic again")
			}
			return strings.Join(text, "; "), err
		})
		return &windlassv1.PromoteResponse{RolloutId: out.rolloutID, Unchanged: out.unchanged, Effect: out.effect}, err
	})
	return res, err
}

// SkipBake ends the bake time of the wave that is baking.
func (a rolloutService) SkipBake(ctx context.Context, req *windlassv1.SkipBakeRequest) (res *windlassv1.SkipBakeResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SkipBakeResponse, error) {
		out, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetWhy()}, "BakeSkipped", func(progress *model.Progress) (string, error) {
			if err := c.versions().maySkip(progress); err != nil {
				return "", err
			}
			wave, err := plan.SkipBake(progress, c.by.Name)
			return "wave " + wave + " bakes no longer", err
		})
		return &windlassv1.SkipBakeResponse{RolloutId: out.rolloutID, Unchanged: out.unchanged, Effect: out.effect}, err
	})
	return res, err
}
