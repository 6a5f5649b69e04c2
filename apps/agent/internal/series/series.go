// Package series records the activity of apps in the last hour, for people: requests, errors,
// answer times, queues and replicas. No decision uses it.
//
//	gateways --Count--.
//	                  +--> Recorder --SeriesResponse--> control plane, while someone looks
//	Run ------Note----'
//
// A sample covers one Step. An app has at most one sample more than Kept has steps. That takes
// about 6 KiB, whatever its traffic is. At most MaxApps apps have samples. Nothing is stored on
// disk, so after a restart all series start again.
package series

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// Step is the time that one sample covers.
	Step = 30 * time.Second
	// Kept is how long samples are kept.
	Kept = time.Hour
	// Every is the time between two calls of Note.
	Every = 5 * time.Second
	// MaxApps is the maximum number of apps with samples, which limits the memory. Further apps
	// have no samples.
	MaxApps = 5000

	maxSamples = int(Kept/Step) + 1
)

// State is the state of an app at one moment.
type State struct {
	// Wanted and Ready are numbers of replicas. Replicas is false if they are not known.
	Wanted, Ready int
	Replicas      bool
	// Queued is the number of requests that wait at gateways. Nil: the number is not known.
	Queued *float64
}

// sample has the values of one step. Its flags say which values are known.
type sample struct {
	step                       int64 // number of the step since 1970
	requests, errors           uint64
	latency, firstToken        float32 // seconds, below 0: unknown
	queued                     float32
	wanted, ready              int32
	traffic, queue, hasReplica bool
}

// app has the samples of an app, sorted by step. The step of the last sample may not be over yet.
type app struct {
	samples []sample
	// latency and firstToken count the answers of the last sample. They are nil if there were no
	// requests.
	latency, firstToken *histogram.Counts
}

// Recorder is safe for concurrent use.
type Recorder struct {
	since time.Time

	mu   sync.Mutex
	apps map[string]*app
}

// New returns a Recorder without samples.
func New(now time.Time) *Recorder { return &Recorder{since: now, apps: map[string]*app{}} }

// Run calls Note with the region's state once per Every, until ctx ends. look returns ok false
// while the state is not known.
func (r *Recorder) Run(ctx context.Context, look func(now time.Time) (apps map[string]State, gateways bool, ok bool)) error {
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := time.Now()
		if apps, gateways, ok := look(now); ok {
			r.Note(apps, gateways, now)
		}
	}
}

// Count adds requests that ended.
func (r *Recorder) Count(appID string, more *traffic.Counts, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, s := r.open(appID, now)
	if s == nil {
		return
	}
	s.traffic = true
	s.requests += more.Requests
	s.errors += more.Errors
	a.latency, a.firstToken = sumCounts(a.latency, &more.Latency), sumCounts(a.firstToken, &more.FirstToken)
}

// Note adds the state of all apps of the region. gateways reports whether any gateway is connected,
// because without gateways, requests are not known.
func (r *Recorder) Note(apps map[string]State, gateways bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := stepOf(now.Add(-Kept))
	maps.DeleteFunc(r.apps, func(_ string, a *app) bool { return a.samples[len(a.samples)-1].step < oldest })
	for _, id := range slices.Sorted(maps.Keys(apps)) {
		_, s := r.open(id, now)
		if s == nil {
			continue
		}
		state := apps[id]
		s.traffic = s.traffic || gateways
		if state.Replicas {
			s.hasReplica, s.wanted, s.ready = true, int32(state.Wanted), int32(state.Ready)
		}
		if state.Queued != nil {
			s.queue, s.queued = true, max(s.queued, float32(*state.Queued))
		}
	}
}

// Answer returns the app's samples of the last hour that do not begin before the request's time.
func (r *Recorder) Answer(req *agentv1.SeriesRequest) *agentv1.SeriesResponse {
	return r.answerRequest(req, time.Now())
}

func (r *Recorder) answerRequest(req *agentv1.SeriesRequest, now time.Time) *agentv1.SeriesResponse {
	out := &agentv1.SeriesResponse{KeptSince: r.since.UnixMilli()}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.apps[req.GetAppId()]
	if a == nil {
		return out
	}
	oldest := stepOf(now.Add(-Kept))
	for i, s := range a.samples {
		if s.step < oldest || s.step*Step.Milliseconds() < req.GetSince() {
			continue
		}
		if i == len(a.samples)-1 {
			s.latency, s.firstToken = p95(a.latency), p95(a.firstToken)
		}
		out.Samples = append(out.Samples, s.toProto(now))
	}
	return out
}

// open returns the app and its sample of the present step, which it starts if necessary. It returns
// nil if there are too many apps, or if the clock was set back. The caller holds mu.
func (r *Recorder) open(id string, now time.Time) (*app, *sample) {
	a, step := r.apps[id], stepOf(now)
	if a == nil {
		if len(r.apps) >= MaxApps {
			return nil, nil
		}
		a = &app{}
		r.apps[id] = a
	}
	if n := len(a.samples); n > 0 {
		last := &a.samples[n-1]
		switch cmp.Compare(last.step, step) {
		case 0:
			return a, last
		case 1:
			if last.step-step <= int64(maxSamples) {
				return nil, nil
			}
			a.samples = nil // the clock was far ahead before
		default:
			last.latency, last.firstToken = p95(a.latency), p95(a.firstToken)
		}
		a.latency, a.firstToken = nil, nil
	}
	if len(a.samples) >= maxSamples {
		copy(a.samples, a.samples[1:])
		a.samples = a.samples[:maxSamples-1]
	}
	a.samples = append(a.samples, sample{step: step, latency: -1, firstToken: -1})
	return a, &a.samples[len(a.samples)-1]
}

func stepOf(t time.Time) int64 { return t.UnixMilli() / Step.Milliseconds() }

func sumCounts(to, more *histogram.Counts) *histogram.Counts {
	if more.Total() == 0 {
		return to
	}
	if to == nil {
		to = &histogram.Counts{}
	}
	to.Add(more)
	return to
}

// p95 returns the 95th percentile in seconds, or -1 if there are no counts.
func p95(c *histogram.Counts) float32 {
	if c == nil {
		return -1
	}
	d, ok := c.Quantile(0.95)
	if !ok {
		return -1
	}
	return float32(d.Seconds())
}

func (s *sample) toProto(now time.Time) *windlassv1.SeriesSample {
	at := s.step * Step.Milliseconds()
	out := &windlassv1.SeriesSample{At: at, SpanMs: min(max(now.UnixMilli()-at, 0), Step.Milliseconds())}
	if s.traffic {
		out.Requests, out.Errors = &s.requests, &s.errors
	}
	if s.latency >= 0 {
		out.LatencyP95 = roundedSeconds(s.latency)
	}
	if s.firstToken >= 0 {
		out.FirstTokenP95 = roundedSeconds(s.firstToken)
	}
	if s.queue {
		out.Queued = new(float64(s.queued))
	}
	if s.hasReplica {
		out.Wanted, out.Ready = &s.wanted, &s.ready
	}
	return out
}

// roundedSeconds returns v, rounded to 0.1 ms.
func roundedSeconds(v float32) *float64 { return new(math.Round(float64(v)*1e4) / 1e4) }
