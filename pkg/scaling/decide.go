package scaling

import (
	"math"
	"slices"
	"time"
)

// Limit names the rule that made a decision differ from the number of replicas that the metrics want.
type Limit string

// The limits.
const (
	// None: the decision is the number that the metrics want.
	None Limit = ""
	// NoReport: the region has not reported its load for longer than Fresh.
	NoReport Limit = "NoReport"
	// WindowFilling: the samples since the start, or since the last gap, cover less than the window.
	WindowFilling Limit = "WindowFilling"
	// HighestInWindow: the metrics wanted more replicas within the window of Down.
	HighestInWindow Limit = "Window"
	// StepLimit: the change was cut to one step, or the last step was less than Every ago.
	StepLimit Limit = "Step"
	// StartingLimit: replicas are starting, and no replica is removed meanwhile.
	StartingLimit Limit = "Starting"
	// PanicLimit: the last tenth of Up's window wants twice the ready replicas, so no replica is removed.
	PanicLimit Limit = "Panic"
	// MetricMissing: a metric is missing, so no replica is removed.
	MetricMissing Limit = "MetricMissing"
	// Minimum and Maximum: min or max of the policy.
	Minimum Limit = "Minimum"
	Maximum Limit = "Maximum"
	// ScheduleLimit: min or max of an entry of the schedule.
	ScheduleLimit Limit = "Schedule"
	// Quota: the workspace's quota allows no more replicas.
	Quota Limit = "Quota"
	// QuotaBelowMinimum: the quota allows fewer replicas than min. Replicas that run stay.
	QuotaBelowMinimum Limit = "QuotaBelowMinimum"
	// Room: the region has no room for more replicas.
	Room Limit = "Room"
	// Rollout: a rollout is under way, and State.Floor keeps its replicas.
	Rollout Limit = "Rollout"
	// RegionClosed: the region takes no new replicas.
	RegionClosed Limit = "RegionClosed"
	// Ratio: the ratio to the instances of a coupled role requires more instances.
	Ratio Limit = "Ratio"
	// WakeTo: requests woke the app from zero, and Zero.WakeTo replicas are wanted at first.
	WakeTo Limit = "WakeTo"
	// HoldLimit: a person set the number, until the hold ends.
	HoldLimit Limit = "Hold"
)

// Tolerance is the share by which the load may differ from target times replicas without a change of replicas.
const Tolerance = 0.1

// missingNotice is the time for which a metric is missing before Want.Notice reports it.
const missingNotice = 5 * time.Minute

// State is the input of a decision besides the policy and the samples. Kept is from the previous decision.
type State struct {
	// Desired is the number of replicas that the region is assigned.
	Desired int
	// Raised is the number of replicas that the region runs because it raised Desired by itself, while it was cut off
	// from the control plane. 0 means that it did not.
	Raised int
	// Quota is the number of replicas that the workspace's quota allows in the region, including Desired. Nil means
	// no limit.
	Quota *int
	// Room is the number of replicas that the region has room for, including Desired. Nil means that it is not known.
	Room *int
	// Floor is the minimum number of replicas while a rollout is under way. 0 means that no rollout is under way.
	Floor int
	// Closed reports whether the region takes no new replicas.
	Closed bool
	// CannotWake reports whether requests do not start the app at zero. Then at least one replica is wanted, unless a
	// person's hold is in force.
	CannotWake bool
	// HoldUntil is when a person's hold ends. The zero time means no hold.
	HoldUntil time.Time
	// StartupBudget is how long a replica may take to start. 0 means 30 min.
	StartupBudget time.Duration

	Kept
}

// Kept is the state that a decision passes to the next decision. A process that has just started uses the zero Kept.
type Kept struct {
	LastUp, LastDown time.Time
	// StartingSince is when the newest starting replica was first seen.
	StartingSince time.Time
	Starting      int
	// AwakeSince is the time since which replicas have been wanted. It is the zero time while none are wanted. Earlier
	// samples, without requests, are no reason to go back to zero. ZeroSince is the time since which no replicas have
	// been wanted. It is the zero time while some are wanted.
	AwakeSince, ZeroSince time.Time
	// Woken reports whether the app was at zero before AwakeSince.
	Woken        bool
	MissingSince [MaxMetrics]time.Time
	peaks        peaks
}

// Want is the number of replicas that one metric wants.
type Want struct {
	Metric Metric
	// Value is a total, a mean over ready replicas, or seconds. Missing reports whether the metric has no value.
	Value    float64
	Replicas int
	Missing  bool
	// Since is when the value was first missing.
	Since time.Time
}

// Notice reports whether the metric is missing for so long that people should know it.
func (w Want) Notice(now time.Time) bool { return w.Missing && now.Sub(w.Since) >= missingNotice }

// Decision is the result of Decide.
type Decision struct {
	At time.Time
	// Desired is the number of replicas before the decision, and Wanted the number after it.
	Desired, Wanted int
	// Unlimited is the highest number that a metric wants, before limits.
	Unlimited int
	Wants     []Want
	Limit     Limit
	Panic     bool
	Bounds    Bounds
	// Ready and Starting are from the newest sample.
	Ready, Starting int
	// Next is when to decide again without a new sample.
	Next time.Time
	// Kept is for the next decision if the caller stored Wanted. Unwritten is for the next decision if the caller
	// did not store Wanted, because of Advise or a conflict.
	Kept, Unwritten Kept
}

// maxPause is the longest time until the next decision.
const maxPause = 15 * time.Second

// Decide returns the number of replicas that the region should have.
func Decide(p *Policy, w *Window, st State, now time.Time) Decision {
	d := newDecider(p, w, st, now)
	d.decideNumber()
	return d.toDecision()
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

func newDecider(p *Policy, w *Window, st State, now time.Time) decider {
	d := decider{p: p, w: w, st: st, now: now, mem: st.Kept}
	d.out = Decision{At: now, Desired: st.Desired, Wanted: st.Desired, Unlimited: st.Desired, Bounds: p.Bounds(now), Next: now.Add(maxPause)}
	d.out.decideAgainAt(d.out.Bounds.Next)
	return d
}

// toDecision returns the decision, with the state for the next one.
func (d *decider) toDecision() Decision {
	d.out.Unwritten = d.mem
	switch {
	case d.out.Wanted > d.st.Desired:
		d.mem.LastUp = d.now
	case d.out.Wanted < d.st.Desired:
		d.mem.LastDown = d.now
		if d.out.Wanted == 0 {
			d.mem.ZeroSince, d.mem.AwakeSince = d.now, time.Time{} // a request may wake the app before the next decision
		}
	}
	d.out.Kept = d.mem
	return d.out
}

// decideAgainAt sets the time of the next decision to at, if at is in the future and before the time set so far.
func (d *Decision) decideAgainAt(at time.Time) {
	if at.After(d.At) && at.Before(d.Next) {
		d.Next = at
	}
}

// isUnsure reports whether a metric is missing that instances without requests would have. Without ready instances, only
// totals have values.
func (d *Decision) isUnsure() bool {
	return slices.ContainsFunc(d.Wants, func(w Want) bool { return w.Missing && (d.Ready > 0 || w.Metric.IsTotal()) })
}

// setWanted sets the wanted number, and the limit that explains it.
func (d *decider) setWanted(n int, limit Limit) { d.out.Wanted, d.out.Limit = n, limit }

func (d *decider) decideNumber() {
	d.newest = d.w.Newest(d.now)
	d.trackStarting()
	d.trackAwake()
	d.measureMetrics()
	if d.now.Before(d.st.HoldUntil) {
		d.out.decideAgainAt(d.st.HoldUntil)
		d.out.Limit = HoldLimit
		return
	}
	low := d.minimumReplicas()
	if d.st.Raised > d.st.Desired {
		d.adoptRaise(low)
		return
	}
	if low == 0 && d.st.Desired > 0 {
		// An idle app goes to zero at once: Zero.After replaces the window and the steps of Down.
		d.out.Wanted, d.out.Limit = d.clampTo(0, low)
		return
	}
	goal, limit := d.clampTo(d.out.Unlimited, low)
	switch {
	case d.newest == nil:
		d.out.Limit = NoReport
	case goal > d.st.Desired:
		d.scaleUp(goal)
	case goal < d.st.Desired:
		d.scaleDown(goal)
	}
	d.wakeFromZero()
	d.keepWoken()
	n, by := d.clampTo(d.out.Wanted, low)
	switch {
	case n != d.out.Wanted:
		d.setWanted(n, by)
	case by == QuotaBelowMinimum, d.out.Limit == None && n == goal:
		d.out.Limit = limit
	}
}

// adoptRaise takes over the number to which the region raised its replicas, as far as the limits allow. The window of Down
// then begins with this number, because the region saw load that the samples here do not have.
func (d *decider) adoptRaise(low int) {
	d.out.Wanted, d.out.Limit = d.clampTo(d.st.Raised, max(low, 1))
	d.mem.peaks.add(d.now, d.out.Wanted, d.out.Wanted, d.p.Down.Window)
}

// servingReplicas returns the number of ready replicas, at most Desired. During a rollout more are ready, because both versions
// have replicas, and some of them have no traffic.
func (d *decider) servingReplicas() int {
	if d.st.Desired == 0 {
		return d.newest.Ready
	}
	return min(d.newest.Ready, d.st.Desired)
}

// trackStarting records when the newest replicas began to start.
func (d *decider) trackStarting() {
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

// trackAwake updates AwakeSince, ZeroSince and Woken.
func (d *decider) trackAwake() {
	since, other := &d.mem.AwakeSince, &d.mem.ZeroSince
	switch {
	case d.st.Desired == 0:
		since, other = other, since
		d.mem.Woken = false
	case !d.mem.ZeroSince.IsZero():
		d.mem.Woken = true
	}
	*other = time.Time{}
	if since.IsZero() {
		*since = d.now
	}
}

// isStarting reports whether replicas are starting and may still become ready.
func (d *decider) isStarting() bool {
	budget := d.st.StartupBudget
	if budget <= 0 {
		budget = 30 * time.Minute
	}
	return d.newest.Starting > 0 && d.now.Sub(d.mem.StartingSince) < budget
}

// measureMetrics sets the number of replicas that each metric wants, and the highest of these numbers.
func (d *decider) measureMetrics() {
	most, peak, known := 0, 0, false
	for i, m := range d.p.Metrics {
		want, high := d.wantOf(m)
		if want.Missing {
			d.missing = true
			if d.mem.MissingSince[i].IsZero() {
				d.mem.MissingSince[i] = d.now
			}
			if d.newest != nil && d.st.Desired == 0 && d.newest.Ready == 0 {
				d.mem.MissingSince[i] = d.now // no instance runs that could have a value
			}
			want.Since, want.Replicas = d.mem.MissingSince[i], d.st.Desired
			if !want.Notice(d.now) {
				d.out.decideAgainAt(want.Since.Add(missingNotice))
			}
		} else {
			d.mem.MissingSince[i] = time.Time{}
			most, peak, known = max(most, want.Replicas), max(peak, high), true
		}
		d.out.Wants = append(d.out.Wants, want)
	}
	if known {
		d.out.Unlimited = most
		d.mem.peaks.add(d.now, max(most, peak), d.st.Desired, d.p.Down.Window)
	}
}

// wantOf returns the number of replicas that a metric wants. high is the number that delays scaling down. For a load
// it is the higher of two numbers: by the mean over the window, and by the mean over its last tenth.
func (d *decider) wantOf(m Metric) (want Want, high int) {
	want.Metric = m
	if d.newest == nil {
		want.Missing = true
		return want, 0
	}
	if m.Type.isTime() {
		return d.wantOfTime(m)
	}
	load := func(s *Sample) (float64, bool) {
		if d.st.Desired == 0 && m.Type == InFlight && s.Ready == 0 && s.InFlight != nil {
			return addLoads(nil, s.Queued, true) // instances that stop finish the requests in flight
		}
		return s.load(m)
	}
	long, ok := d.w.meanOver(load, d.p.Up.Window, d.now)
	if !ok {
		want.Missing = true
		return want, 0
	}
	want.Value = long
	if !m.IsTotal() {
		want.Value, _ = d.w.meanOver(func(s *Sample) (float64, bool) {
			v, ok := s.load(m)
			return v / float64(max(s.Ready, 1)), ok
		}, d.p.Up.Window, d.now)
	}
	if m.Up > 0 {
		want.Replicas = d.wantByThresholds(m, want.Value)
		return want, want.Replicas
	}
	short, _ := d.w.meanOver(load, d.p.Up.Window/10, d.now)
	n, burst := d.proportionalTo(long, m.Target), d.proportionalTo(short, m.Target)
	high = max(n, burst)
	switch {
	case burst >= 2*max(d.servingReplicas(), 1):
		d.out.Panic, n = true, high
	case n > d.st.Desired && burst < n:
		// The load has already fallen below its mean over the window.
		n = max(d.st.Desired, burst)
	}
	want.Replicas = n
	return want, high
}

// proportionalTo returns the number of replicas that a total load wants. Within the tolerance it returns Desired.
func (d *decider) proportionalTo(total, target float64) int {
	if have := target * float64(d.st.Desired); have > 0 && math.Abs(total/have-1) <= Tolerance+1e-9 {
		return d.st.Desired
	}
	return int(min(math.Ceil(total/target-1e-9), math.MaxInt32))
}

// wantByThresholds returns one replica more, one less, or the same number.
func (d *decider) wantByThresholds(m Metric, v float64) int {
	switch {
	case v > m.Up && d.newest.Starting == 0:
		return d.st.Desired + 1
	case v < m.Down:
		return max(d.st.Desired-1, 0)
	}
	return d.st.Desired
}

// wantOfTime is wantOf for a metric that is a time. The number grows by the ratio of value and target, to at most
// twice the ready replicas. It shrinks by one, because a time says little about the load.
func (d *decider) wantOfTime(m Metric) (want Want, high int) {
	want.Metric = m
	v, ok := d.newest.percentileOf(m)
	if !ok || d.newest.Ready == 0 {
		want.Missing = true
		return want, 0
	}
	want.Value = v
	switch {
	case m.Up > 0:
		want.Replicas = d.wantByThresholds(m, v)
	case v > m.Target*(1+Tolerance):
		// The ratio applies to ready replicas. Desired includes starting replicas.
		want.Replicas = max(d.st.Desired, int(math.Ceil(float64(d.servingReplicas())*min(v/m.Target, 2)-1e-9)))
	case v < m.Target/2:
		want.Replicas = max(d.st.Desired-1, 0)
	default:
		want.Replicas = d.st.Desired
	}
	return want, want.Replicas
}

// scaleUp raises the number toward goal, by at most one step. Unless there is a panic, it waits until the
// samples cover the window.
func (d *decider) scaleUp(goal int) {
	every := d.p.Up.Every
	if d.out.Panic {
		every /= 10
	} else if !d.w.Covers(d.p.Up.Window, d.now) {
		d.waitForWindow(d.p.Up.Window)
		return
	}
	if next := d.mem.LastUp.Add(every); d.now.Before(next) {
		d.out.decideAgainAt(next)
		d.out.Limit = StepLimit
		return
	}
	if most := d.st.Desired + d.p.Up.Step.Of(d.st.Desired); goal > most {
		d.out.decideAgainAt(d.now.Add(every))
		d.setWanted(most, StepLimit)
		return
	}
	d.out.Wanted = goal
}

// waitForWindow keeps the number until samples cover the window.
func (d *decider) waitForWindow(window time.Duration) {
	d.out.decideAgainAt(d.w.began.Add(window))
	d.out.Limit = WindowFilling
}

// scaleDown lowers the number toward goal, by at most one step, and not below the highest number that was
// wanted within the window.
func (d *decider) scaleDown(goal int) {
	most, expires := d.mem.peaks.highestIn(d.now)
	switch {
	case d.out.Panic:
		d.out.Limit = PanicLimit
	case d.missing:
		d.out.Limit = MetricMissing
	case !d.w.Covers(d.p.Down.Window, d.now):
		d.waitForWindow(d.p.Down.Window)
	case most >= d.st.Desired:
		d.out.decideAgainAt(expires)
		d.out.Limit = HighestInWindow
	case d.isStarting():
		d.out.Limit = StartingLimit
	case d.now.Before(d.mem.LastDown.Add(d.p.Down.Every)):
		d.out.decideAgainAt(d.mem.LastDown.Add(d.p.Down.Every))
		d.out.Limit = StepLimit
	default:
		least := d.st.Desired - d.p.Down.Step.Of(d.st.Desired)
		d.out.Wanted = max(most, least, goal)
		switch d.out.Wanted {
		case goal:
		case least:
			d.out.decideAgainAt(d.now.Add(d.p.Down.Every))
			d.out.Limit = StepLimit
		default:
			d.out.Limit = HighestInWindow
		}
	}
}

// wakeFromZero raises the number to Zero.WakeTo for an app at zero that has requests.
func (d *decider) wakeFromZero() {
	if d.newest == nil {
		return
	}
	if d.st.Desired == 0 && d.p.Zero != nil && d.newest.callsSince(d.mem.ZeroSince) && d.out.Wanted < d.p.Zero.WakeTo {
		d.setWanted(d.p.Zero.WakeTo, WakeTo)
	}
}

// wokenFor is the shortest time for which an app that woke has Zero.WakeTo replicas.
const wokenFor = time.Minute

// keepWoken raises the number to Zero.WakeTo for an app that woke within the window of Down, or within wokenFor if that
// is longer. The region starts a single replica by itself.
func (d *decider) keepWoken() {
	if d.p.Zero == nil || d.st.CannotWake || d.newest == nil || !d.mem.Woken || d.out.Wanted >= d.p.Zero.WakeTo {
		return
	}
	if end := d.mem.AwakeSince.Add(max(d.p.Down.Window, wokenFor)); d.now.Before(end) {
		d.out.decideAgainAt(end)
		d.setWanted(d.p.Zero.WakeTo, WakeTo)
	}
}

// minimumReplicas returns the minimum number of replicas. It is 0 only if a request can start the app, and the app is at zero
// or has been idle long enough to go to zero.
func (d *decider) minimumReplicas() int {
	if low := d.out.Bounds.Min; low > 0 || !d.st.CannotWake && (d.st.Desired == 0 || d.mayGoToZero()) {
		return low
	}
	return 1
}

// clampTo applies bounds, quota, room, a closed region and a rollout, in this order. limit names the last rule that
// changed the number. Quota, room and a closed region remove no replicas.
func (d *decider) clampTo(n, low int) (_ int, limit Limit) {
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
	if room := d.st.Room; room != nil && n > max(d.st.Desired, *room) {
		n, limit = max(d.st.Desired, *room), Room
	}
	if d.st.Closed && n > d.st.Desired {
		n, limit = d.st.Desired, RegionClosed
	}
	if floor := min(d.st.Floor, d.st.Desired); n < floor {
		n, limit = floor, Rollout
	}
	return n, limit
}

// mayGoToZero reports whether the app has been idle long enough to go to zero.
func (d *decider) mayGoToZero() bool {
	if d.p.Zero == nil || d.newest == nil || d.newest.Starting > 0 || d.out.isUnsure() {
		return false
	}
	idle, ok := d.w.Idle(d.now)
	idle = min(idle, d.now.Sub(d.mem.AwakeSince))
	if ok && idle < d.p.Zero.After {
		d.out.decideAgainAt(d.now.Add(d.p.Zero.After - idle))
	}
	return ok && idle >= d.p.Zero.After
}
