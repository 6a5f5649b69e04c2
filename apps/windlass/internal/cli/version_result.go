package cli

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// versionResult is the result of a call that requests a version of an app.
type versionResult struct {
	appID, deploymentID, rolloutID string
	version, fromVersion, ended    int32
	effect                         windlassv1.VersionEffect
	straight, overridden           bool
	scalingChanged                 bool
	hold                           *windlassv1.FreezeHold
	warnings                       []string
	answer                         proto.Message
}

// effectOf returns the effect of a deploy. It derives the effect if an older control plane does not send it.
func effectOf(resp *windlassv1.DeployResponse) windlassv1.VersionEffect {
	switch {
	case resp.Effect != windlassv1.VersionEffect_VERSION_EFFECT_UNSPECIFIED:
		return resp.Effect
	case resp.Scaled:
		return windlassv1.VersionEffect_VERSION_EFFECT_SCALED
	case resp.Unchanged && resp.RolloutId == "":
		return windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY
	case resp.Unchanged:
		return windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY
	}
	return windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION
}

// finishVersion prints the result of the call. Then it waits until the work that the call started is over.
func (a *app) finishVersion(ctx context.Context, name string, x versionResult, w waitFlags) error {
	a.printVersion(name, x)
	return a.waitVersion(ctx, x, w)
}

// printVersion prints the result of the call, for people.
func (a *app) printVersion(name string, x versionResult) {
	a.infof("%s: %s", name, x.textOf())
	for _, text := range x.warnings {
		a.infof("%s", text)
	}
}

// waitVersion waits until the work that the call started is over.
func (a *app) waitVersion(ctx context.Context, x versionResult, w waitFlags) error {
	s := startedWork{app: x.appID, rolloutID: x.rolloutID, deploymentID: x.deploymentID, answer: x.answer, done: readyLine}
	switch x.effect {
	case windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY:
		s.rolloutID = ""
		s.judge = func(*windlassv1.WatchAppResponse) verdict { return verdict{over: true, outcome: outcomeUnchanged} }
		s.done = isLive
	case windlassv1.VersionEffect_VERSION_EFFECT_SCALED:
		if s.rolloutID != "" {
			break // follow the rollout in flight
		}
		seen := false
		s.done = isScaled
		s.judge = func(r *windlassv1.WatchAppResponse) verdict { return judgeSize(r, "", -1, &seen) }
	case windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK:
		s.backIsGood, s.done = true, isLive
		s.deploymentID = ""
		s.judge = func(r *windlassv1.WatchAppResponse) verdict { return judgeLive(r, x.deploymentID) }
	case windlassv1.VersionEffect_VERSION_EFFECT_RETAINED:
		s.rolloutID = ""
		s.judge = func(r *windlassv1.WatchAppResponse) verdict { return judgeLive(r, x.deploymentID) }
	case windlassv1.VersionEffect_VERSION_EFFECT_UNSPECIFIED, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION,
		windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY:
	}
	return a.finishWork(ctx, s, w)
}

// unchangedText returns the beginning of the text for a call that created no version.
func (x versionResult) unchangedText() string {
	if x.scalingChanged {
		return "its scaling changed, "
	}
	return "nothing changed, "
}

// textOf describes the result for people.
func (x versionResult) textOf() string {
	v := versionText(x.version)
	switch x.effect {
	case windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY:
		return x.unchangedText() + v + " stays live"
	case windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK:
		text := v + " stays live"
		if x.ended != 0 {
			text += ", the rollout of " + versionText(x.ended) + " is aborted"
		}
		return text
	case windlassv1.VersionEffect_VERSION_EFFECT_SCALED:
		return "scaling " + v
	case windlassv1.VersionEffect_VERSION_EFFECT_RETAINED:
		return v + " was retained and is live again"
	case windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY:
		switch {
		case x.hold != nil:
			return x.unchangedText() + v + " is " + holdText(x.hold)
		case x.overridden:
			return v + " is on its way, and no freeze holds it"
		}
		return x.unchangedText() + v + " is on its way already"
	case windlassv1.VersionEffect_VERSION_EFFECT_UNSPECIFIED, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION:
	}
	text := "rolling out " + v
	if x.hold != nil {
		text = v + " is accepted, and " + holdText(x.hold)
	}
	if x.fromVersion != 0 {
		text += ", with the configuration of " + versionText(x.fromVersion)
	}
	if x.straight {
		text += ", straight back"
	}
	if x.ended != 0 {
		text += "; the rollout of " + versionText(x.ended) + " ends"
	}
	return text
}

// isLive returns the last line for a version that was live before and stays live.
func isLive(last *windlassv1.WatchAppResponse, _ time.Duration) string {
	app := last.GetApp()
	return fmt.Sprintf("%s %s is live: %s ready", app.GetName(), versionText(app.GetLiveVersion()), readyText(last))
}

// isScaled returns the last line for an app whose replicas are ready, whatever their version.
func isScaled(last *windlassv1.WatchAppResponse, after time.Duration) string {
	text := readyLine(last, after)
	if ro := last.GetRollout(); ro.GetId() != "" && ro.GetFinishedAt() == 0 {
		text += "; the rollout of " + versionText(ro.GetVersion()) + " goes on"
	}
	return text
}
