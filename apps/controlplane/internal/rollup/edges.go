package rollup

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// Edges reports whether a report changes a value that the planner reads, so that the app must be woken. All
// other changes (running counts, messages of progress) are for people and wake no app.
func Edges(old, now model.Observed) bool {
	switch {
	case old.AppliedEpoch != now.AppliedEpoch,
		old.AppliedGeneration != now.AppliedGeneration,
		old.Phase != now.Phase,
		old.Retryable != now.Retryable,
		old.Deleted != now.Deleted,
		old.CountsGeneration != now.CountsGeneration,
		old.ReadyReplicas != now.ReadyReplicas,
		old.Doomed != now.Doomed,
		(old.Fail == 0) != (now.Fail == 0),
		(old.Restarts == 0) != (now.Restarts == 0),
		(old.Instances() == 0) != (now.Instances() == 0):
		return true
	case now.Phase == phaseRejected && old.Code != now.Code,
		(old.Code == codeWoken) != (now.Code == codeWoken):
		return true
	}
	if reportsNoCapacity(old) != reportsNoCapacity(now) {
		return true
	}
	failing := now.Fail > 0 || now.Doomed > 0 || now.Restarts > 0
	return failing && old.Reason != now.Reason
}

// RouteEdges is Edges for the region's reports about the app's routes.
func RouteEdges(old, now model.RouteObserved) bool {
	return old.Epoch != now.Epoch || old.Generation != now.Generation || old.Phase != now.Phase
}

// RouteAcknowledged reports whether the region serves the app's current route. It returns true for an app
// that never had a route in the region.
func RouteAcknowledged(route model.Route, o model.RouteObserved, region model.Region) bool {
	return route.Generation == 0 ||
		(o.Phase == phaseApplied && o.Epoch == region.SessionEpoch && o.Generation >= route.Generation)
}
