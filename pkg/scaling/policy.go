// Package scaling decides how many replicas an app has in a region, from the load that the region reports.
//
// Decide is pure: it reads no clock and keeps nothing. Between two decisions, a caller keeps a Window of samples
// and the Kept of the last decision.
package scaling

import (
	"time"

	"github.com/robfig/cron/v3"
)

// MaxMetrics is the highest number of metrics of a policy.
const MaxMetrics = 8

// Policy is how one app scales in one region, with all defaults. New makes it.
type Policy struct {
	// Min is 0 only if Zero is set.
	Min, Max, Initial int
	Metrics           []Metric
	Up, Down          Pace
	// Zero is nil if the app never goes to zero.
	Zero     *Zero
	Schedule []Entry
	// Advise means that decisions are shown, but not carried out.
	Advise bool
	// Couple is nil for an app, and for a role that is not coupled to another role. With a Couple, Metrics may be
	// empty.
	Couple *Couple
}

// Couple bounds the ratio of a role's instances to those of another role.
type Couple struct {
	Role string
	// Low and High are numbers of instances for each instance of Role.
	Low, High float64
}

// MetricType is what a metric measures. Its values are the words of the app file.
type MetricType string

// The types of metrics.
const (
	InFlight          MetricType = "inFlight"
	RequestsPerSecond MetricType = "requestsPerSecond"
	Queue             MetricType = "queue"
	KVCache           MetricType = "kvCache"
	CPU               MetricType = "cpu"
	Memory            MetricType = "memory"
	FirstToken        MetricType = "firstToken"
	Latency           MetricType = "latency"
	Prometheus        MetricType = "prometheus"
	Models            MetricType = "models"
)

// Metric is one metric, with its target for one replica.
type Metric struct {
	Type MetricType
	// Target is in seconds for FirstToken and Latency.
	Target float64
	// Up and Down are thresholds that replace the target: a value above Up adds a replica, and a value below
	// Down removes a replica. They are 0 for a metric without thresholds.
	Up, Down float64
	// Percentile is the percentile of FirstToken and Latency, from 0 to 100.
	Percentile float64
	// Query is for Prometheus. Total reports whether the result of Query is a total of all replicas.
	Query string
	Total bool
}

// Pace is how fast replicas are added or removed: at most one Step in the time Every, by the load over Window.
type Pace struct {
	Window time.Duration
	Step   Step
	Every  time.Duration
}

// Step is a number of replicas, or a percentage of the current replicas if Percent is above 0.
type Step struct{ Percent, Count int }

// Of returns the number of replicas in one step from n replicas. It is at least 1.
func (s Step) Of(n int) int {
	if s.Percent > 0 {
		return max(1, s.Percent*n/100)
	}
	return max(1, s.Count)
}

// Zero has the idle time after which an app goes to zero, and the number of replicas that a request then starts.
type Zero struct {
	After  time.Duration
	WakeTo int
}

// Entry is an entry of a schedule.
type Entry struct {
	// Cron is the text of the schedule, for people.
	Cron string
	Zone *time.Location
	// For is 0 for an entry that is in force until another entry begins.
	For      time.Duration
	Min, Max *int

	times cron.Schedule
}

// Bounds are the bounds in force at one time. ScheduledMin and ScheduledMax report whether an entry of the schedule
// changed Min and Max.
type Bounds struct {
	Min, Max                   int
	ScheduledMin, ScheduledMax bool
	// Next is when an entry begins or ends. The zero time means never.
	Next time.Time
}

// Bounds returns the bounds in force.
func (p *Policy) Bounds(now time.Time) Bounds {
	b := Bounds{Min: p.Min, Max: p.Max}
	var in *Entry
	var began time.Time
	for i := range p.Schedule {
		e := &p.Schedule[i]
		at, ok := e.lastStart(now)
		b.setNext(e.times.Next(now.In(e.Zone)), now)
		if !ok {
			continue
		}
		if e.For > 0 {
			end := at.Add(e.For)
			if !end.After(now) {
				continue
			}
			b.setNext(end, now)
		}
		if in == nil || !at.Before(began) {
			in, began = e, at
		}
	}
	if in == nil {
		return b
	}
	if in.Min != nil {
		b.Min, b.ScheduledMin = *in.Min, *in.Min != p.Min
	}
	if in.Max != nil {
		b.Max, b.ScheduledMax = *in.Max, *in.Max != p.Max
	}
	return b
}

// setNext sets Next to at, if at is after now and before Next.
func (b *Bounds) setNext(at, now time.Time) {
	if at.After(now) && (b.Next.IsZero() || at.Before(b.Next)) {
		b.Next = at
	}
}

// horizons are the durations within which lastStart searches for a start. It tries the shortest duration first,
// because a frequent entry starts very often within a long time.
var horizons = []time.Duration{time.Hour, 25 * time.Hour, 8 * 24 * time.Hour, 32 * 24 * time.Hour, 367 * 24 * time.Hour, 8 * 366 * 24 * time.Hour}

// lastStart returns the last time at or before now at which the entry started.
func (e *Entry) lastStart(now time.Time) (at time.Time, ok bool) {
	for _, back := range horizons {
		t := e.times.Next(now.Add(-back).In(e.Zone))
		for !t.IsZero() && !t.After(now) {
			at, ok = t, true
			t = e.times.Next(t)
		}
		if ok {
			return at, true
		}
	}
	return time.Time{}, false
}
