package scaler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// lastingLimit returns the limit if people may have to act on it, and None for limits that are part of normal scaling.
func lastingLimit(l scaling.Limit) scaling.Limit {
	switch l {
	case scaling.HighestInWindow, scaling.StepLimit, scaling.StartingLimit, scaling.PanicLimit, scaling.WindowFilling, scaling.MetricMissing,
		scaling.NoReport, scaling.Minimum, scaling.HoldLimit, scaling.ScheduleLimit, scaling.Ratio, scaling.WakeTo, scaling.None:
		return scaling.None
	case scaling.Maximum, scaling.Quota, scaling.QuotaBelowMinimum, scaling.Room, scaling.Rollout, scaling.RegionClosed:
	}
	return l
}

// showRole returns the decision for a role of a pool as a message of the API.
func showRole(d scaling.Decision, region, role string, couple *scaling.Couple) *windlassv1.RegionScaling {
	out := showDecision(d, region)
	out.Role = role
	if couple != nil && (d.Limit == scaling.Ratio || len(d.Wants) == 0) {
		out.Why += fmt.Sprintf("; coupled to %s: %g to %g for each instance of it", couple.Role, couple.Low, couple.High)
	}
	out.Why = "role " + role + ": " + strings.ReplaceAll(out.Why, "replicas", "instances")
	return out
}

// poolWhy returns why a role of a pool has its number, if the pool is at zero, goes to zero or comes back. shown is the
// role's decision. For other pools, it returns the decision's own text.
func poolWhy(shown *windlassv1.RegionScaling, in scaling.Pool, decided scaling.PoolDecision, role int) string {
	name, limit := in.Roles[role].Name, decided.Roles[role].Limit
	switch {
	case decided.AtZero && in.AtZero:
		text := fmt.Sprintf("role %s: 0 instances: the pool is at zero, and ", name)
		if limit == scaling.RegionClosed {
			text += "no request starts it"
		} else {
			text += fmt.Sprintf("a request starts %d", decided.Counts[role])
		}
		if limit != scaling.None {
			text += fmt.Sprintf("; %s: %s", limit, strings.ReplaceAll(limits[limit], "replicas", "instances"))
		}
		return text
	case decided.AtZero:
		return shown.GetWhy() + "; the pool goes to zero, because " + decided.Why
	case in.AtZero:
		return fmt.Sprintf("role %s: %s instead of 0: the pool comes back from zero, because %s", name, plural.Count(decided.Counts[role], "instance"), decided.Why)
	}
	return shown.GetWhy()
}

// showDecision returns the decision as a message of the API.
func showDecision(d scaling.Decision, region string) *windlassv1.RegionScaling {
	out := &windlassv1.RegionScaling{
		Region: region, At: d.At.UnixMilli(), Replicas: int32(d.Desired), Wanted: int32(d.Wanted), Unlimited: int32(min(d.Unlimited, 1<<30)),
		Limit: string(d.Limit), Why: whyText(d), Next: d.Next.UnixMilli(), Min: int32(d.Bounds.Min), Max: int32(d.Bounds.Max),
		Ready: int32(d.Ready), Starting: int32(d.Starting),
	}
	for _, want := range d.Wants {
		m := &windlassv1.MetricWant{
			Metric:   &windlassv1.ScalingMetric{Type: want.Metric.Type.Proto(), Target: amountText(want.Metric, want.Metric.Target), Query: want.Metric.Query},
			Replicas: int32(min(want.Replicas, 1<<30)),
		}
		if want.Missing {
			m.MissingSince = want.Since.UnixMilli()
		} else {
			m.Value = &want.Value
		}
		out.Wants = append(out.Wants, m)
	}
	return out
}

// amountText formats a value of the metric.
func amountText(m scaling.Metric, v float64) string {
	if m.Type == scaling.FirstToken || m.Type == scaling.Latency {
		return time.Duration(v * float64(time.Second)).Round(time.Millisecond).String()
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

// limits describes each limit.
var limits = map[scaling.Limit]string{
	scaling.NoReport:          "the region has not reported its load",
	scaling.WindowFilling:     "the load has not been watched for long enough",
	scaling.HighestInWindow:   "more replicas were wanted a moment ago",
	scaling.StepLimit:         "the number changes step by step",
	scaling.StartingLimit:     "replicas are starting",
	scaling.PanicLimit:        "the load needs twice the ready replicas",
	scaling.MetricMissing:     "a metric is missing",
	scaling.Minimum:           "it is the minimum",
	scaling.Maximum:           "it is the maximum",
	scaling.ScheduleLimit:     "the schedule says so",
	scaling.Quota:             "the workspace's quota allows no more replicas",
	scaling.QuotaBelowMinimum: "the workspace's quota allows fewer replicas than the minimum",
	scaling.Room:              "the region has no room for more replicas",
	scaling.Rollout:           "a rollout is under way",
	scaling.RegionClosed:      "the region takes no new replicas",
	scaling.Ratio:             "the ratio to the instances of a coupled role wants more replicas",
	scaling.WakeTo:            "this many are wanted once a request woke the app",
	scaling.HoldLimit:         "a person set the number for a time",
}

// whyText returns the decision as a sentence, with its figures.
func whyText(d scaling.Decision) string {
	wants := slices.Clone(d.Wants)
	slices.SortStableFunc(wants, func(a, b scaling.Want) int { return b.Replicas - a.Replicas })
	var parts []string
	for _, want := range wants {
		if want.Missing {
			parts = append(parts, fmt.Sprintf("%s is missing", want.Metric.Type))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s of %s wants %d", want.Metric.Type, amountText(want.Metric, want.Value), amountText(want.Metric, want.Metric.Target), want.Replicas))
	}
	text := plural.Count(d.Wanted, "replica")
	if d.Wanted != d.Desired {
		text += fmt.Sprintf(" instead of %d", d.Desired)
	}
	if len(parts) == 0 { // a role that follows another one
		parts = append(parts, "no metric")
	}
	text += ": " + strings.Join(parts, ", ")
	if d.Limit != scaling.None {
		text += fmt.Sprintf("; %s: %s", d.Limit, limits[d.Limit])
	}
	return text
}
