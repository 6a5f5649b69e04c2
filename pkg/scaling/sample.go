package scaling

import (
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
)

// Sample is the report of one region about one app at one time. An unknown figure is nil, and never 0.
type Sample struct {
	// At is a time of the deciding process's clock.
	At time.Time
	// Ready and Starting are numbers of replicas. Replicas in a crash loop are neither.
	Ready, Starting int
	// InFlight is the number of requests at instances, and Queued is the number of requests that wait at gateways.
	// Rate is in requests a second. They are totals of all replicas.
	InFlight, Queued, Rate *float64
	// Levels are means over the ready instances whose level is known: "kvCache", "cpu", "memory", "queue", "models".
	Levels map[string]float64
	// FirstToken and Latency count requests of the last 30 s by the time that they took.
	FirstToken, Latency *histogram.Counts
	// Results are the values of Prometheus queries, by query.
	Results map[string]float64
}

// mayBeBusy reports whether the app has requests or starting replicas, or may have requests because InFlight is
// unknown.
func (s *Sample) mayBeBusy() bool {
	return s.InFlight == nil || *s.InFlight > 0 || s.Queued != nil && *s.Queued > 0 || s.Rate != nil && *s.Rate > 0 || s.Starting > 0
}

// stopsWithin is the time within which instances cease to be ready after their app went to zero. They stay ready for
// longer only if gateways cannot hold the app's requests. Then they serve these requests.
const stopsWithin = time.Minute

// callsSince reports whether an app that has been at zero since the given time has requests that need instances. These are
// requests that wait at gateways, and requests at instances that are still ready although they should have stopped.
// Requests that instances finish while they stop do not need instances.
func (s *Sample) callsSince(since time.Time) bool {
	switch {
	case !s.At.After(since):
		return false // the sample is from before the app went to zero
	case s.Ready == 0:
		return s.Queued != nil && *s.Queued > 0
	}
	return s.At.After(since.Add(stopsWithin)) && (s.InFlight != nil && *s.InFlight > 0 || s.Queued != nil && *s.Queued > 0)
}

// load returns the total value of a metric over all replicas. ok is false if the value is missing. A metric that
// is a time has no load: see percentileOf.
func (s *Sample) load(m Metric) (v float64, ok bool) {
	switch m.Type {
	case InFlight:
		// Requests that wait at gateways are load, too, because instances may limit their number of requests.
		return addLoads(s.InFlight, s.Queued, s.InFlight != nil)
	case RequestsPerSecond:
		return addLoads(s.Rate, nil, s.Rate != nil)
	case Queue:
		engines, known := s.levelTotal("queue")
		if !known {
			return addLoads(s.Queued, nil, s.Queued != nil)
		}
		return addLoads(&engines, s.Queued, true)
	case KVCache, CPU, Memory, Models:
		return s.levelTotal(string(m.Type))
	case Prometheus:
		v, ok = s.Results[m.Query]
		if !m.Total {
			return v * float64(s.Ready), ok && s.Ready > 0
		}
		return v, ok
	case FirstToken, Latency:
	}
	return 0, false
}

func addLoads(a, b *float64, ok bool) (v float64, _ bool) {
	if !ok {
		return 0, false
	}
	if a != nil {
		v = *a
	}
	if b != nil {
		v += *b
	}
	return v, true
}

// levelTotal returns a level's mean over ready instances, times the number of ready replicas.
func (s *Sample) levelTotal(name string) (v float64, ok bool) {
	v, ok = s.Levels[name]
	return v * float64(s.Ready), ok && s.Ready > 0
}

// percentileOf returns the percentile of a metric that is a time. It is 0 for an idle app.
func (s *Sample) percentileOf(m Metric) (v float64, ok bool) {
	counts := s.Latency
	if m.Type == FirstToken {
		counts = s.FirstToken
	}
	if counts != nil {
		if d, ok := counts.Quantile(m.Percentile / 100); ok {
			return d.Seconds(), true
		}
	}
	idle := s.InFlight != nil && s.Rate != nil && *s.InFlight == 0 && *s.Rate == 0 && (s.Queued == nil || *s.Queued == 0)
	return 0, idle
}

// Fresh is how long a sample counts as current. Agents send a sample at least every 30 s.
const Fresh = 45 * time.Second

// reportInterval is the time within which agents report a changed load.
const reportInterval = 5 * time.Second

// maxSamples bounds a window.
const maxSamples = 48

// Window keeps the samples of one app in one region, oldest first, in bounded memory. The zero value is empty.
type Window struct {
	samples []Sample
	began   time.Time
	// idleSince is zero while the app is busy.
	idleSince time.Time
}

// Add adds a sample, unless it is older than the newest one. span is the time for which samples are needed: the
// window of the policy's Up.
func (w *Window) Add(s Sample, span time.Duration) {
	if n := len(w.samples); n > 0 {
		last := &w.samples[n-1]
		if s.At.Before(last.At) {
			return
		}
		// Percentiles are read from the newest sample only.
		last.FirstToken, last.Latency = nil, nil
		if s.At.Sub(last.At) > Fresh {
			w.samples, w.began, w.idleSince = w.samples[:0], s.At, time.Time{}
		}
	} else {
		w.began = s.At
	}
	switch {
	case s.mayBeBusy():
		w.idleSince = time.Time{}
	case w.idleSince.IsZero():
		w.idleSince = s.At
	}
	if n := len(w.samples); n >= 2 && s.At.Sub(w.samples[n-2].At) < span/(maxSamples/2) {
		w.samples[n-1] = s
		return
	}
	first := 0
	for first < len(w.samples) && (s.At.Sub(w.samples[first].At) > span+Fresh || len(w.samples)-first >= maxSamples) {
		first++
	}
	w.samples = append(w.samples[:0], w.samples[first:]...)
	w.samples = append(w.samples, s)
}

// Newest returns the newest sample, or nil if there is none or it is older than Fresh.
func (w *Window) Newest(now time.Time) *Sample {
	if n := len(w.samples); n > 0 && now.Sub(w.samples[n-1].At) <= Fresh {
		return &w.samples[n-1]
	}
	return nil
}

// Covers reports whether samples cover the span before now without a gap.
func (w *Window) Covers(span time.Duration, now time.Time) bool {
	return w.Newest(now) != nil && now.Sub(w.began) >= span
}

// Idle returns the time for which the app has had no request and no starting replica. ok is false if the app is not
// idle, or if that is unknown.
func (w *Window) Idle(now time.Time) (d time.Duration, ok bool) {
	if w.Newest(now) == nil || w.idleSince.IsZero() {
		return 0, false
	}
	return now.Sub(w.idleSince), true
}

// meanOver returns the mean of load over the span before now. The value of a sample holds until the next sample.
// ok is false if the newest sample has no value.
func (w *Window) meanOver(load func(*Sample) (float64, bool), span time.Duration, now time.Time) (v float64, ok bool) {
	newest := w.Newest(now)
	if newest == nil {
		return 0, false
	}
	current, ok := load(newest)
	if !ok {
		return 0, false
	}
	from, until := now.Add(-span), now
	var sum, weight float64
	for i := len(w.samples) - 1; i >= 0 && until.After(from); i-- {
		s := &w.samples[i]
		// Agents report a change within reportInterval, so a sample also holds for that time before it.
		begin := s.At.Add(-reportInterval)
		if i == 0 || begin.Before(w.samples[i-1].At) {
			begin = s.At
			if i > 0 {
				begin = w.samples[i-1].At
			}
		}
		if begin.Before(from) {
			begin = from
		}
		if d := until.Sub(begin).Seconds(); d > 0 {
			if v, ok := load(s); ok {
				sum, weight = sum+v*d, weight+d
			}
			until = begin
		}
	}
	if weight == 0 {
		return current, true
	}
	return sum / weight, true
}
