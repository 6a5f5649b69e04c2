package rollup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Facts are what an app's status is made of.
type Facts struct {
	// Deleting, with every place that has not stopped yet in Live.
	Deleting bool
	// Target of the rollout in flight, nil for none.
	Target       *model.Deployment
	TargetPlaces []Place
	// Progress of a staged rollout in words; empty: it is told by TargetPlaces.
	Progress string
	// AwaitsRoom: the rollout is to wait where there is no room for an instance.
	AwaitsRoom bool
	// HasLive with the places of the live deployment.
	HasLive bool
	Live    []Place
	// Lagging tells of regions that have yet to catch up with the live deployment, empty for
	// none; CatchingUp reports whether any of them is on its way.
	Lagging    string
	CatchingUp bool
	// Pins tells of pinned versions that failed, empty for none.
	Pins string
	// Newest deployment of all, nil for none: it tells idle from failed.
	Newest *model.Deployment
}

// Status is the one definition of an app's status, with a message for people
// when it is not simply idle or ready.
func Status(f Facts) (windlassv1.AppStatus, string) {
	switch {
	case f.Deleting:
		return windlassv1.AppStatus_APP_STATUS_DELETING, Describe(f.Live, func(Place) bool { return true })
	case f.Target != nil:
		return windlassv1.AppStatus_APP_STATUS_PROGRESSING, progress(f)
	case f.HasLive:
		return pinned(f)
	case f.Newest != nil && f.Newest.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED:
		return windlassv1.AppStatus_APP_STATUS_FAILED,
			fmt.Sprintf("v%d failed: %s", f.Newest.Version, f.Newest.Message)
	}
	return windlassv1.AppStatus_APP_STATUS_IDLE, ""
}

func progress(f Facts) string {
	if f.Progress != "" {
		return f.Progress
	}
	v := fmt.Sprintf("v%d", f.Target.Version)
	switch f.Target.Status {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING:
		return v + ": resolving its image"
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING:
		if s := Describe(f.TargetPlaces, func(p Place) bool { return !p.Ready() }); s != "" {
			if f.AwaitsRoom && slices.ContainsFunc(f.TargetPlaces, Place.LacksRoom) {
				return v + " waits for room: " + s
			}
			return v + ": " + s
		}
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK:
		return v + ": ready, its routes are being published"
	default:
	}
	return v + ": about to start"
}

// pinned is live's status, unless versions that are pinned beside it failed.
func pinned(f Facts) (windlassv1.AppStatus, string) {
	status, text := behind(f)
	switch {
	case f.Pins == "":
		return status, text
	case status == windlassv1.AppStatus_APP_STATUS_READY:
		status = windlassv1.AppStatus_APP_STATUS_DEGRADED
	}
	if text != "" {
		text += "; "
	}
	return status, text + f.Pins
}

// behind is live's status, unless regions that are behind are worse.
func behind(f Facts) (windlassv1.AppStatus, string) {
	status, text := live(f.Live)
	switch {
	case f.Lagging == "":
		return status, text
	case text != "":
		text += "; "
	}
	switch {
	case status == windlassv1.AppStatus_APP_STATUS_READY && f.CatchingUp:
		status = windlassv1.AppStatus_APP_STATUS_PROGRESSING
	case status == windlassv1.AppStatus_APP_STATUS_READY || status == windlassv1.AppStatus_APP_STATUS_PROGRESSING && !f.CatchingUp:
		status = windlassv1.AppStatus_APP_STATUS_DEGRADED
	}
	return status, text + f.Lagging
}

func live(places []Place) (windlassv1.AppStatus, string) {
	var wanted, ready int32
	unreachable, failing, all := false, false, true
	for _, p := range places {
		wanted += p.Row.Replicas
		ready += min(p.Observed.ReadyReplicas, p.Row.Replicas)
		unreachable = unreachable || p.Unreachable()
		failing = failing || (!p.Settled() && p.Failing())
		all = all && p.Settled()
	}
	bad := Describe(places, func(p Place) bool { return !p.Settled() || p.Unreachable() })
	switch {
	case all && !unreachable:
		return windlassv1.AppStatus_APP_STATUS_READY, ""
	case unreachable:
		return windlassv1.AppStatus_APP_STATUS_DEGRADED, bad
	case failing && ready == 0 && wanted > 0:
		return windlassv1.AppStatus_APP_STATUS_FAILED, bad
	case failing:
		return windlassv1.AppStatus_APP_STATUS_DEGRADED, bad
	}
	return windlassv1.AppStatus_APP_STATUS_PROGRESSING, bad
}

// maxDescribed places are spelled out; a status line is no report.
const maxDescribed = 3

// Describe joins the places that which selects into one line.
func Describe(places []Place, which func(Place) bool) string {
	var parts []string
	var more int
	for _, p := range places {
		switch {
		case !which(p):
		case len(parts) == maxDescribed:
			more++
		default:
			parts = append(parts, p.String())
		}
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}
