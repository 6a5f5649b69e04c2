package rollup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Facts are the input of an app's status.
type Facts struct {
	// Deleting is true for an app that is being deleted. Live then has every place that has not stopped.
	Deleting bool
	// Target is the deployment of the rollout in flight, nil for none.
	Target       *model.Deployment
	TargetPlaces []Place
	// Progress describes a staged rollout. Empty: TargetPlaces are described.
	Progress string
	// AwaitsCapacity is true if the rollout should wait while there is no room for an instance.
	AwaitsCapacity bool
	// HasLive is true if a deployment is live. Live has its places.
	HasLive bool
	Live    []Place
	// Lagging describes regions that must still catch up with the live deployment, empty for none. CatchingUp
	// reports whether any of them is catching up.
	Lagging    string
	CatchingUp bool
	// Pins describes pinned versions that failed, empty for none.
	Pins string
	// Newest is the newest deployment, nil for none. It decides between idle and failed.
	Newest *model.Deployment
}

// Status returns an app's status, which only this function defines. It has a message for people unless the
// app is simply idle or ready.
func Status(f Facts) (windlassv1.AppStatus, string) {
	switch {
	case f.Deleting:
		return windlassv1.AppStatus_APP_STATUS_DELETING, Describe(f.Live, func(Place) bool { return true })
	case f.Target != nil:
		return windlassv1.AppStatus_APP_STATUS_PROGRESSING, progressText(f)
	case f.HasLive:
		return pinnedStatus(f)
	case f.Newest != nil && f.Newest.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED:
		return windlassv1.AppStatus_APP_STATUS_FAILED,
			fmt.Sprintf("v%d failed: %s", f.Newest.Version, f.Newest.Message)
	}
	return windlassv1.AppStatus_APP_STATUS_IDLE, ""
}

func progressText(f Facts) string {
	if f.Progress != "" {
		return f.Progress
	}
	v := fmt.Sprintf("v%d", f.Target.Version)
	switch f.Target.Status {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING:
		return v + ": resolving its image"
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING:
		if s := Describe(f.TargetPlaces, func(p Place) bool { return !p.Ready() }); s != "" {
			if f.AwaitsCapacity && slices.ContainsFunc(f.TargetPlaces, Place.LacksCapacity) {
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

// pinnedStatus returns the live deployment's status, unless pinned versions failed.
func pinnedStatus(f Facts) (windlassv1.AppStatus, string) {
	status, text := statusBehind(f)
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

// statusBehind returns the live deployment's status, unless lagging regions are worse.
func statusBehind(f Facts) (windlassv1.AppStatus, string) {
	status, text := liveStatus(f.Live)
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

func liveStatus(places []Place) (windlassv1.AppStatus, string) {
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

// maxDescribed is how many places a status line describes.
const maxDescribed = 3

// Describe describes, in one line, the places that which selects.
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
