package scaling

import (
	"math"
	"time"
)

// Limit names what kept a decision from the number that metrics want.
type Limit string

// The limits.
const (
	// None: the number is the one that metrics want.
	None Limit = ""
	// NoReport: the region has not reported its load for longer than Fresh.
	NoReport Limit = "NoReport"
	// WindowFilling: the window has been filling for less than its length, after a start or a gap.
	WindowFilling Limit = "WindowFilling"
	// HighestInWindow: more was wanted within the window of Down.
	HighestInWindow Limit = "Window"
	// StepLimit: the step is as large as it may be, or the one before was less than Every ago.
	StepLimit Limit = "Step"
	// StartingLimit: instances are starting, and nothing is taken away meanwhile.
	StartingLimit Limit = "Starting"
	// PanicLimit: a tenth of the window wants twice the ready replicas, so that nothing is taken away.
	PanicLimit Limit = "Panic"
	// MetricMissing: a metric is missing, so that nothing is taken away.
	MetricMissing Limit = "MetricMissing"
	// Minimum and Maximum are the policy's.
	Minimum Limit = "Minimum"
	Maximum Limit = "Maximum"
	// ScheduleLimit: min or max of an entry of the schedule.
	ScheduleLimit Limit = "Schedule"
	// Quota: the workspace's quota has room for no more.
	Quota Limit = "Quota"
	// QuotaBelowMinimum: the quota has no room for min. What runs stays.
	QuotaBelowMinimum Limit = "QuotaBelowMinimum"
	// Room: no more instances fit in the region.
	Room Limit = "Room"
	// RatioLimit: another role needs more of this one.
	RatioLimit Limit = "Ratio"
	// Rollout: a rollout is under way, during which nothing is taken away.
	Rollout Limit = "Rollout"
	// RegionClosed: the region takes nothing new.
	RegionClosed Limit = "RegionClosed"
	// HoldLimit: a person set the number, until the hold ends.
	HoldLimit Limit = "Hold"
)

// Tolerance is how far the load may be from target times replicas before the number changes.
const Tolerance = 0.1

// missingNotice is how long a metric is missing before people are told.
const missingNotice = 5 * time.Minute

// State is what a decision needs besides the policy and the samples. The caller sets the facts; Kept is what
// Decide returned before.
type State struct {
	// Desired is the number of replicas that the region has been told.
	Desired int
	// Quota is how many replicas the workspace's quota has room for here, those that there are included. nil:
	// it has no limit.
	Quota *int
	// Room is how many more replicas fit in the region, besides those that start. nil: unknown.
	Room *int
	// Floor is the least that a rollout under way leaves; 0: none is.
	Floor int
	// Closed: the region takes nothing new.
	Closed bool
	// HoldUntil is when a person's hold ends; the zero time for none.
	HoldUntil time.Time
	// StartupBudget is how long a replica may take to start. 0: 30 min.
	StartupBudget time.Duration

	Kept
}

// Kept is what Decide keeps from one decision to the next. The zero Kept is that of a process that has
// just started.
type Kept struct {
	LastUp, LastDown time.Time
	// StartingSince is when the newest of the replicas that are starting was first seen.
	StartingSince time.Time
	Starting      int
	MissingSince  [MaxMetrics]time.Time
	peaks         peaks
}

// Want is what one metric wants.
type Want struct {
	Metric Metric
	// Value is the total, or the mean of ready replicas, or seconds. Missing: there is none.
	Value    float64
	Replicas int
	Missing  bool
	// Since is when it was first missing.
	Since time.Time
}

// Notice reports whether people should be told that the metric is missing.
func (w Want) Notice(now time.Time) bool { return w.Missing && now.Sub(w.Since) >= missingNotice }

// Decision is what Decide came to.
type Decision struct {
	At time.Time
	// Desired is what there was, and Wanted what there should be.
	Desired, Wanted int
	// Unlimited is the most that any metric wants.
	Unlimited int
	Wants     []Want
	Limit     Limit
	Panic     bool
	Bounds    Bounds
	// Ready and Starting are those of the newest sample.
	Ready, Starting int
	// Next is when to decide again without a new sample.
	Next time.Time
	// Kept is for the next decision. It counts on Wanted being written; a caller that did not, as under
	// Advise or after a conflict, drops it and keeps Unwritten.
	Kept, Unwritten Kept
}

// lookAgain is when to decide again when nothing else calls for it.
const lookAgain = 15 * time.Second

// Decide returns how many replicas there should be.
func Decide(p *Policy, w *Window, st State, now time.Time) Decision {
	d := decider{p: p, w: w, st: st, now: now, mem: st.Kept}
	d.out = Decision{At: now, Desired: st.Desired, Wanted: st.Desired, Unlimited: st.Desired, Bounds: p.Bounds(now), Next: now.Add(lookAgain)}
	d.soon(d.out.Bounds.Next)
	d.decide()
	d.out.Unwritten = d.mem
	switch {
	case d.out.Wanted > st.Desired:
		d.mem.LastUp = now
	case d.out.Wanted < st.Desired:
		d.mem.LastDown = now
	}
	d.out.Kept = d.mem
	return d.out
}

type decider struct {
	p   *Policy
	w   *Window
	st  State
	now time.Time
	mem Kept
	out Decision

	newest  *Sample
	missing bool
}

// soon makes the caller decide again by then.
func (d *decider) soon(at time.Time) {
	if at.After(d.now) && at.Before(d.out.Next) {
		d.out.Next = at
	}
}

// set the number that is wanted, because of a limit.
func (d *decider) set(n int, limit Limit) { d.out.Wanted, d.out.Limit = n, limit }

func (d *decider) decide() {
	d.newest = d.w.Newest(d.now)
	d.watchStarts()
	d.measure()
	if d.now.Before(d.st.HoldUntil) {
		d.soon(d.st.HoldUntil)
		d.out.Limit = HoldLimit
		return
	}
	low := d.low()
	if low == 0 && d.st.Desired > 0 && d.newest.Alone == 0 {
		// Idle time takes the place of the window and steps of Down.
		d.out.Wanted, d.out.Limit = d.clamp(0, low)
		return
	}
	goal, limit := d.clamp(d.out.Unlimited, low)
	switch {
	case d.newest == nil:
		d.out.Limit = NoReport
	case goal > d.st.Desired:
		d.up(goal)
	case goal < d.st.Desired:
		d.down(goal)
	}
	d.adopt()
	n, by := d.clamp(d.out.Wanted, low)
	switch {
	case n != d.out.Wanted:
		d.set(n, by)
	case by == QuotaBelowMinimum, d.out.Limit == None && n == goal:
		d.out.Limit = limit
	}
}

// watchStarts follows since when replicas are starting.
func (d *decider) watchStarts() {
	if d.newest == nil {
		return
	}
	d.out.Ready, d.out.Starting = d.newest.Ready, d.newest.Starting
	switch {
	case d.newest.Starting == 0:
		d.mem.StartingSince = time.Time{}
	case d.newest.Starting > d.mem.Starting:
		d.mem.StartingSince = d.now
	}
	d.mem.Starting = d.newest.Starting
}

// starting reports whether replicas are starting that may still become ready.
func (d *decider) starting() bool {
	budget := d.st.StartupBudget
	if budget <= 0 {
		budget = 30 * time.Minute
	}
	return d.newest.Starting > 0 && d.now.Sub(d.mem.StartingSince) < budget
}

// measure finds what each metric wants, and the most of it.
func (d *decider) measure() {
	most, peak, told := 0, 0, false
	for i, m := range d.p.Metrics {
		want, high := d.want(m)
		if want.Missing {
			d.missing = true
			if d.mem.MissingSince[i].IsZero() {
				d.mem.MissingSince[i] = d.now
			}
			want.Since, want.Replicas = d.mem.MissingSince[i], d.st.Desired
			if !want.Notice(d.now) {
				d.soon(want.Since.Add(missingNotice))
			}
		} else {
			d.mem.MissingSince[i] = time.Time{}
			most, peak, told = max(most, want.Replicas), max(peak, high), true
		}
		d.out.Wants = append(d.out.Wants, want)
	}
	if told {
		d.out.Unlimited = most
		d.mem.peaks.add(d.now, max(most, peak), d.st.Desired, d.p.Down.Window)
	}
}

// want returns what a metric wants. high is the most that it wanted of late, which counts for going down.
func (d *decider) want(m Metric) (want Want, high int) {
	want.Metric = m
	if d.newest == nil {
		want.Missing = true
		return want, 0
	}
	if m.Type.isTime() {
		return d.wantOfTime(m)
	}
	load := func(s *Sample) (float64, bool) { return s.load(m) }
	long, ok := d.w.mean(load, d.p.Up.Window, d.now)
	if !ok {
		want.Missing = true
		return want, 0
	}
	want.Value = long
	if !m.IsTotal() {
		want.Value, _ = d.w.mean(func(s *Sample) (float64, bool) {
			v, ok := s.load(m)
			return v / float64(max(s.Ready, 1)), ok
		}, d.p.Up.Window, d.now)
	}
	if m.Up > 0 {
		want.Replicas = d.wantByThresholds(m, want.Value)
		return want, want.Replicas
	}
	short, _ := d.w.mean(load, d.p.Up.Window/10, d.now)
	n, burst := d.proportional(long, m.Target), d.proportional(short, m.Target)
	high = max(n, burst)
	switch {
	case burst >= 2*max(d.newest.Ready, 1):
		d.out.Panic, n = true, high
	case n > d.st.Desired && burst < n:
		// The load was there and is gone.
		n = max(d.st.Desired, burst)
	}
	want.Replicas = n
	return want, high
}

// proportional returns how many replicas a total load wants: those that there are, while it is within the tolerance.
func (d *decider) proportional(total, target float64) int {
	if have := target * float64(d.st.Desired); have > 0 && math.Abs(total/have-1) <= Tolerance+1e-9 {
		return d.st.Desired
	}
	return int(min(math.Ceil(total/target-1e-9), math.MaxInt32))
}

func (d *decider) wantByThresholds(m Metric, v float64) int {
	switch {
	case v > m.Up && d.newest.Starting == 0:
		return d.st.Desired + 1
	case v < m.Down:
		return max(d.st.Desired-1, 0)
	}
	return d.st.Desired
}

// wantOfTime returns what a time that requests take wants. It says little of how much load there is, so that it
// adds replicas by the ratio, twice as many at the most, and takes one away at a time.
func (d *decider) wantOfTime(m Metric) (want Want, high int) {
	want.Metric = m
	v, ok := d.newest.seconds(m)
	if !ok || d.newest.Ready == 0 {
		want.Missing = true
		return want, 0
	}
	want.Value = v
	switch {
	case m.Up > 0:
		want.Replicas = d.wantByThresholds(m, v)
	case v > m.Target*(1+Tolerance):
		// Replicas that are starting count as had: the ratio is that of ready ones.
		want.Replicas = max(d.st.Desired, int(math.Ceil(float64(d.newest.Ready)*min(v/m.Target, 2)-1e-9)))
	case v < m.Target/2:
		want.Replicas = max(d.st.Desired-1, 0)
	default:
		want.Replicas = d.st.Desired
	}
	return want, want.Replicas
}

// up adds replicas up to goal: one step, not before the window is full.
func (d *decider) up(goal int) {
	every := d.p.Up.Every
	if d.out.Panic {
		every /= 10
	} else if !d.w.Covers(d.p.Up.Window, d.now) {
		d.out.Limit = WindowFilling
		return
	}
	if next := d.mem.LastUp.Add(every); d.now.Before(next) {
		d.soon(next)
		d.out.Limit = StepLimit
		return
	}
	if most := d.st.Desired + d.p.Up.Step.Of(d.st.Desired); goal > most {
		d.soon(d.now.Add(every))
		d.set(most, StepLimit)
		return
	}
	d.out.Wanted = goal
}

// down takes replicas away down to goal: one step, down to the most that was wanted within the window.
func (d *decider) down(goal int) {
	most, expires := d.mem.peaks.most(d.now)
	switch {
	case d.out.Panic:
		d.out.Limit = PanicLimit
	case d.missing:
		d.out.Limit = MetricMissing
	case !d.w.Covers(d.p.Down.Window, d.now):
		d.out.Limit = WindowFilling
	case most >= d.st.Desired:
		d.soon(expires)
		d.out.Limit = HighestInWindow
	case d.starting():
		d.out.Limit = StartingLimit
	case d.now.Before(d.mem.LastDown.Add(d.p.Down.Every)):
		d.soon(d.mem.LastDown.Add(d.p.Down.Every))
		d.out.Limit = StepLimit
	default:
		least := d.st.Desired - d.p.Down.Step.Of(d.st.Desired)
		d.out.Wanted = max(most, least, goal)
		switch d.out.Wanted {
		case goal:
		case least:
			d.soon(d.now.Add(d.p.Down.Every))
			d.out.Limit = StepLimit
		default:
			d.out.Limit = HighestInWindow
		}
	}
}

// adopt takes on what the region did by itself, and wakes an app that is at zero.
func (d *decider) adopt() {
	if d.newest == nil {
		return
	}
	if d.newest.Alone > d.out.Wanted {
		d.set(d.newest.Alone, None)
	}
	if d.st.Desired == 0 && d.p.Zero != nil && (d.newest.demand() || d.newest.Alone > 0) && d.out.Wanted < d.p.Zero.WakeTo {
		d.set(d.p.Zero.WakeTo, None)
	}
}

// low returns the least replicas. It is 0 only for an app that is at zero, or idle for long enough to go there.
func (d *decider) low() int {
	if low := d.out.Bounds.Min; low > 0 || d.st.Desired == 0 || d.idle() {
		return low
	}
	return 1
}

// clamp applies bounds, quota, room and rollout, in this order, and names the last one that changed n. Quota and
// room take no replicas away.
func (d *decider) clamp(n, low int) (_ int, limit Limit) {
	b := d.out.Bounds
	switch {
	case n < low:
		n, limit = low, Minimum
		if b.ScheduledMin {
			limit = ScheduleLimit
		}
	case n > b.Max:
		n, limit = b.Max, Maximum
		if b.ScheduledMax {
			limit = ScheduleLimit
		}
	}
	if q := d.st.Quota; q != nil {
		most := max(d.st.Desired, *q)
		switch {
		case *q < low:
			n, limit = min(n, most), QuotaBelowMinimum
		case n > most:
			n, limit = most, Quota
		}
	}
	if r := d.st.Room; r != nil && n > d.st.Desired+max(*r, 0) {
		n, limit = d.st.Desired+max(*r, 0), Room
	}
	if d.st.Closed && n > d.st.Desired {
		n, limit = d.st.Desired, RegionClosed
	}
	if floor := min(d.st.Floor, d.st.Desired); n < floor {
		n, limit = floor, Rollout
	}
	return n, limit
}

// idle reports whether the app has been without requests for long enough to go to zero.
func (d *decider) idle() bool {
	if d.p.Zero == nil || d.newest == nil || d.newest.Starting > 0 || d.missing && d.newest.Ready > 0 {
		return false
	}
	idle, ok := d.w.Idle(d.now)
	if ok && idle < d.p.Zero.After {
		d.soon(d.now.Add(d.p.Zero.After - idle))
	}
	return ok && idle >= d.p.Zero.After
}

// Ratio returns how many replicas two roles get that want a and b, where a is from least to most times b. It
// raises the one that is short, and never lowers one.
func Ratio(a, b int, least, most float64) (int, int) {
	if low := int(math.Ceil(least*float64(b) - 1e-9)); a < low {
		a = low
	}
	if most > 0 && float64(a) > most*float64(b) {
		b = int(math.Ceil(float64(a)/most - 1e-9))
	}
	return a, b
}
