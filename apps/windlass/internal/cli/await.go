package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// waitFlags has the flags of a command that waits until its work is over.
type waitFlags struct {
	wait     bool
	until    string
	patience time.Duration
}

func (w *waitFlags) addTo(c *cobra.Command, until bool) {
	c.Flags().BoolVar(&w.wait, "wait", true, "wait until the work is done or has failed")
	c.Flags().DurationVar(&w.patience, "patience", time.Hour, "how long to wait")
	if until {
		c.Flags().StringVar(&w.until, "until", "", "what to do when only people can continue the rollout: ready waits for them, promotion stops with exit code 0. Default: stop with exit code 5")
		mustSucceed(c.RegisterFlagCompletionFunc("until", cobra.FixedCompletions([]string{untilReady, untilPromotion}, cobra.ShellCompDirectiveNoFileComp)))
	}
}

func (w *waitFlags) checkUntil() error {
	switch w.until {
	case "", untilReady, untilPromotion:
		return nil
	}
	return fmt.Errorf("--until=%q: use %s or %s", w.until, untilReady, untilPromotion)
}

// startedWork describes the work that a command started.
type startedWork struct {
	app string // id or path
	// rolloutID is the rollout to follow to its end. If it is empty, judge decides when the work is over.
	rolloutID string
	// deploymentID is the only deployment to show. If empty, all are shown.
	deploymentID string
	// answer is the response of the call that started the work.
	answer proto.Message
	// backIsGood reports that the command asked for a rollback, so that a rolled-back rollout is no failure.
	backIsGood bool
	judge      func(*windlassv1.WatchAppResponse) verdict
	// done returns the line that reports success.
	done func(last *windlassv1.WatchAppResponse, after time.Duration) string
}

// finishWork waits until the work is over if w.wait is set, and shows the outcome.
func (a *app) finishWork(ctx context.Context, s startedWork, w waitFlags) error {
	p := &progress{app: a, started: time.Now(), live: a.isInteractive()}
	v := verdict{over: true, outcome: outcomeAccepted}
	var last *windlassv1.WatchAppResponse
	var err error
	switch {
	case w.wait:
		v, last, err = a.watchWork(ctx, p, s, w.until, w.patience)
	case a.output != "table":
		last, err = a.getState(ctx, s.app, s.rolloutID)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if s.backIsGood && (v.outcome == outcomeAborted || v.outcome == outcomeFailed) {
		v = verdict{over: true, outcome: outcomeAborted}
	}
	if a.output != "table" {
		return errors.Join(v.errorOf(), a.showOutcome(s.answer, v.outcome, last, rolloutWithID(last, s.rolloutID)))
	}
	if v.code != 0 {
		return v.errorOf()
	}
	if v.message != "" {
		a.infof("%s", v.message)
		return nil
	}
	fmt.Fprintln(a.Stdout, s.done(last, time.Since(p.started))) //nolint:errcheck // a closed stdout cannot be reported
	if text := behindText(rolloutWithID(last, s.rolloutID)); text != "" {
		a.infof("%s", text)
	}
	for _, url := range last.GetApp().GetUrls() {
		fmt.Fprintln(a.Stdout, url) //nolint:errcheck // a closed stdout cannot be reported
	}
	return nil
}

// watchWork shows the progress of the work until it is over or patience ends. It returns the
// verdict and the last state of the app. With patience <= 0 it stops at the first state. If
// patience ends before the first state arrives, it waits for that state, so that it can say what
// the work waits for.
func (a *app) watchWork(ctx context.Context, p *progress, s startedWork, until string, patience time.Duration) (v verdict, last *windlassv1.WatchAppResponse, err error) {
	once := patience <= 0
	if once {
		patience = statePatience
	}
	each := func(r *windlassv1.WatchAppResponse) (bool, error) {
		last = r
		if ro := rolloutWithID(r, s.rolloutID); s.backIsGood && ro.GetProgress() != nil {
			// The command asked for the rollback, which may not have begun yet.
			ro.Progress.GoingBack = true
		}
		p.showProgress(r, s.rolloutID, s.deploymentID)
		v = s.verdictOf(r, until)
		return v.over || once, nil
	}
	err = a.followApp(ctx, s.app, s.rolloutID, patience, each)
	if exit, cut := errors.AsType[*ExitError](err); cut && exit.Code == codePatience && last == nil && !once {
		once = true
		if a.followApp(ctx, s.app, s.rolloutID, statePatience, each) == nil && v.over {
			err = nil
		}
	}
	p.endLine()
	exit, cut := errors.AsType[*ExitError](err)
	if !cut && err == nil && !v.over {
		exit, cut = &ExitError{Code: codePatience, Message: "still under way at the end of the command's patience (--patience)"}, true
	}
	if cut {
		outcome := map[int]string{codePatience: outcomePatience, codeInterrupted: outcomeInterrupted}[exit.Code]
		v, err = verdict{over: true, outcome: outcome, code: exit.Code, message: exit.Message}, nil
		if exit.Code == codePatience {
			v.message += p.waitsFor(last, s.rolloutID)
		}
	}
	return v, last, err
}

// statePatience bounds a watch that needs only one state of the app.
const statePatience = 5 * time.Second

func (s startedWork) verdictOf(r *windlassv1.WatchAppResponse, until string) verdict {
	if r.GetDeleted() {
		return verdict{true, outcomeFailed, 1, "the app was deleted meanwhile"}
	}
	if s.rolloutID == "" {
		return s.judge(r)
	}
	ro := rolloutWithID(r, s.rolloutID)
	if ro == nil {
		return verdict{}
	}
	return judgeRollout(r.GetApp(), ro, until, time.Now())
}

// rolloutWithID returns the rollout with this id, or nil if the response does not contain it.
func rolloutWithID(r *windlassv1.WatchAppResponse, id string) *windlassv1.Rollout {
	for _, ro := range []*windlassv1.Rollout{r.GetRollout(), r.GetAskedRollout()} {
		if id != "" && ro.GetId() == id {
			return ro
		}
	}
	return nil
}

// readyLine returns the last line for a version that serves.
func readyLine(last *windlassv1.WatchAppResponse, after time.Duration) string {
	return fmt.Sprintf("%s %s is ready: %s in %s, after %s", last.GetApp().GetName(), versionText(last.GetApp().GetLiveVersion()),
		readyText(last), strings.Join(last.GetApp().GetRegions(), ", "), durationText(after))
}

// pollEvery is the minimum time between two polls. The maximum is twice as long.
const pollEvery = 2 * time.Second

// followApp calls the function each with every state of the app, until the function returns true or an error. The state
// contains the rollout with the id rolloutID. followApp reopens a stream that breaks, and polls if the limit of watchers
// is reached.
func (a *app) followApp(ctx context.Context, app, rolloutID string, patience time.Duration, each func(*windlassv1.WatchAppResponse) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	once := false
	for attempt := 0; ; attempt++ {
		stream, err := a.clients.apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: app, Rollout: rolloutID, Once: once})
		if err == nil {
			for stream.Receive() {
				attempt = 0
				done, err := each(stream.Msg())
				if done || err != nil {
					return errors.Join(err, stream.Close())
				}
			}
			err = stream.Err()
			_ = stream.Close()
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return &ExitError{Code: codePatience, Message: fmt.Sprintf("still under way after %s (--patience)", durationText(patience))}
		case ctx.Err() != nil:
			return &ExitError{Code: codeInterrupted, Message: "no longer watching: it goes on by itself"}
		case err != nil && isFinal(err):
			return err
		}
		wait := backoff.Policy{Max: 5 * time.Second}.Delay(attempt, nil)
		switch {
		case rpc.ReasonOf(err) == windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED && !once:
			once, wait = true, 0
		case err == nil && once:
			wait = pollEvery + rand.N(pollEvery)
		}
		if err := backoff.Sleep(ctx, wait); err != nil {
			continue
		}
	}
}

// isFinal reports whether the call would fail with the same error if it were repeated.
func isFinal(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	}
	return false
}

// liveVersionText says which version is live after a rollout that did not succeed.
func liveVersionText(app *windlassv1.App) string {
	if app.GetLiveVersion() == 0 {
		return "Nothing is live. `windlass history " + app.GetName() + "` shows what happened."
	}
	return fmt.Sprintf("%s is still live. `windlass history %s` shows what happened.", versionText(app.GetLiveVersion()), app.GetName())
}

// deploymentWithID returns the deployment with this id, or nil if the response does not contain it.
func deploymentWithID(r *windlassv1.WatchAppResponse, deploymentID string) *windlassv1.Deployment {
	for _, d := range r.GetDeployments() {
		if d.GetId() == deploymentID {
			return d
		}
	}
	return nil
}

// awaitDeleted waits until the app is completely gone.
func (a *app) awaitDeleted(ctx context.Context, name string, answer *windlassv1.DeleteAppResponse, patience time.Duration) error {
	p := &progress{app: a, started: time.Now(), live: a.isInteractive()}
	last := &windlassv1.WatchAppResponse{App: answer.App}
	err := a.followApp(ctx, answer.App.GetId(), "", patience, func(r *windlassv1.WatchAppResponse) (bool, error) {
		if !r.Deleted {
			last = r
			p.showProgress(r, "", "")
		}
		return r.Deleted, nil
	})
	p.endLine()
	// The app can be gone before the first call.
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return err
	}
	if a.output != "table" {
		return a.showOutcome(answer, outcomeDeleted, last, nil)
	}
	fmt.Fprintf(a.Stdout, "%s is deleted, after %s\n", name, durationText(time.Since(p.started))) //nolint:errcheck // a closed stdout cannot be reported
	return nil
}
