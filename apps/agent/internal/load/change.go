package load

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const (
	// tolerance is the largest relative difference from the last reported value that needs no new
	// report.
	tolerance = 0.05
	// repeatAfter is the time after which an unchanged load is reported again.
	repeatAfter = 30 * time.Second
)

// quantiles are the quantiles that timesChanged compares.
var quantiles = [...]float64{0.5, 0.9, 0.95, 0.99}

// Due returns the reports in now that must be sent, sorted by app. answered has the last answered
// report of each app, and is empty after a reconnect.
func Due(answered, now map[string]*agentv1.LoadReport) []*agentv1.LoadReport {
	var out []*agentv1.LoadReport
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if before := answered[id]; before == nil || reportChanged(before, now[id]) {
			out = append(out, now[id])
		}
	}
	return out
}

// reportChanged reports whether a load differs from its last report, or whether that report is too
// old.
func reportChanged(before, now *agentv1.LoadReport) bool {
	if now.At < before.At || now.At-before.At >= repeatAfter.Milliseconds() {
		return true
	}
	return differMuch(before.Queued, now.Queued) || !maps.Equal(before.Problems, now.Problems) ||
		!slices.EqualFunc(before.Deployments, now.Deployments, func(a, b *agentv1.DeploymentLoad) bool { return !deploymentChanged(a, b) })
}

func deploymentChanged(a, b *agentv1.DeploymentLoad) bool {
	return a.DeploymentId != b.DeploymentId || a.Ready != b.Ready || a.Starting != b.Starting ||
		a.RaisedTo != b.RaisedTo || a.RaisedGeneration != b.RaisedGeneration ||
		differMuch(a.InFlight, b.InFlight) || differMuch(a.Rate, b.Rate) ||
		!maps.EqualFunc(a.Levels, b.Levels, func(x, y float64) bool { return !exceedsTolerance(x, y) }) ||
		timesChanged(a.FirstToken, b.FirstToken) || timesChanged(a.Latency, b.Latency) ||
		!slices.EqualFunc(a.Roles, b.Roles, func(x, y *agentv1.RoleLoad) bool { return !roleChanged(x, y) })
}

func roleChanged(a, b *agentv1.RoleLoad) bool {
	return a.Role != b.Role || a.Ready != b.Ready || a.Starting != b.Starting ||
		!maps.EqualFunc(a.Levels, b.Levels, func(x, y float64) bool { return !exceedsTolerance(x, y) })
}

// differMuch reports whether a figure changed by more than the tolerance, or became known or unknown.
func differMuch(a, b *float64) bool {
	if a == nil || b == nil {
		return a != b
	}
	return exceedsTolerance(*a, *b)
}

// exceedsTolerance reports whether two figures differ by more than the tolerance.
func exceedsTolerance(a, b float64) bool {
	return math.Abs(a-b) > tolerance*max(math.Abs(a), math.Abs(b))
}

// timesChanged reports whether a quantile changed. It does not compare counts, because they change with every request.
func timesChanged(a, b []uint64) bool {
	before, now := histogram.Unpack(a), histogram.Unpack(b)
	for _, q := range quantiles {
		x, knownBefore := before.Quantile(q)
		y, knownNow := now.Quantile(q)
		if knownBefore != knownNow || exceedsTolerance(x.Seconds(), y.Seconds()) {
			return true
		}
	}
	return false
}
