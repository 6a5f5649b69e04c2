package scaler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/histogram"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file stores the load on which decisions are made, so that people can simulate policies with it. No decision
// reads it. The proto documents storeFirst and storeEvery.

const (
	// chunkMinutes is the number of samples after which a chunk ends.
	chunkMinutes = 30
	// storeFirst is the time after which the first samples are stored. The time between two stores of a target is as many
	// minutes as its chunk has samples, but at most storeEvery.
	storeFirst = time.Minute
	storeEvery = 5 * time.Minute
	// gatherLoads is the time between two searches for targets to store, so that one transaction stores many targets.
	gatherLoads = 15 * time.Second
	// chunksAtOnce bounds the chunks of one transaction.
	chunksAtOnce = 500
	// storeLast bounds the store when the process stops.
	storeLast = 3 * time.Second
)

// minuteLoad is a sample of the log. Times are in seconds, and unknown numbers are below 0. It is small, because
// each app has a log in each region.
type minuteLoad struct {
	minute                                      int64 // since 1970
	span                                        time.Duration
	rate, inFlight, queued, firstToken, latency float32
	ready, starting, desired                    int32
	levels                                      [len(levelNames)]float32
	results                                     map[string]float32 // nil without queries
}

// levelNames are the names of levels that are stored.
var levelNames = [...]string{"kvCache", "cpu", "memory", "queue", "models"}

// loadLog has a target's samples that are not stored yet, and the stored samples of the chunk that still grows. The zero
// value is empty.
type loadLog struct {
	// chunk is the chunk that grows. stored is how many of its samples are stored.
	chunk  []minuteLoad
	stored int
	next   time.Time
	// last is the newest sample, which applies from lastAt on. now has the sums of the current minute.
	last    values
	lastAt  time.Time
	now     sums
	current minuteLoad
}

// values are the numbers of a sample that are averaged over a minute. Unknown numbers are below 0.
type values struct {
	rate, inFlight, queued, firstToken, latency float64
	levels                                      [len(levelNames)]float64
	results                                     map[string]float64
}

// sums are values times seconds, and the seconds in which each value was known.
type sums struct {
	values  [5 + len(levelNames)]float64
	seconds [5 + len(levelNames)]float64
	results map[string][2]float64
}

// add adds a sample. desired is the number of replicas, or of instances of a role, that the region is assigned.
func (l *loadLog) add(s *scaling.Sample, desired int, now time.Time) {
	if !l.lastAt.IsZero() {
		l.holdNewest(now)
	}
	l.last, l.lastAt = valuesOf(s), now
	if minute := minuteOf(now); l.current.span == 0 {
		l.current = minuteLoad{minute: minute}
	}
	l.current.ready, l.current.starting, l.current.desired = int32(s.Ready), int32(s.Starting), int32(desired)
}

// holdNewest counts the newest sample until now, but not longer than scaling.Fresh, and closes the minutes that have ended.
func (l *loadLog) holdNewest(now time.Time) {
	from, until := l.lastAt, now
	if limit := from.Add(scaling.Fresh); until.After(limit) {
		until = limit
	}
	for from.Before(until) {
		if minute := minuteOf(from); minute != l.current.minute {
			l.close()
			l.current.minute, l.current.span = minute, 0
		}
		end := time.Unix((l.current.minute+1)*60, 0)
		if end.After(until) {
			end = until
		}
		l.now.add(&l.last, end.Sub(from).Seconds())
		l.current.span += end.Sub(from)
		from = end
	}
	if minuteOf(now) != l.current.minute {
		l.close()
		l.current.minute, l.current.span = minuteOf(now), 0
	}
}

// close adds the current minute to the chunk, if anything was measured in it.
func (l *loadLog) close() {
	if l.current.span > 0 {
		if len(l.chunk) >= 2*chunkMinutes { // stores have failed for a long time
			l.chunk, l.stored = l.chunk[1:], max(l.stored-1, 0)
		}
		l.now.setMeans(&l.current)
		l.chunk = append(l.chunk, l.current)
		l.current.results = nil
	}
	l.now = sums{}
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func valuesOf(s *scaling.Sample) values {
	v := values{rate: knownOrZero(s.Rate), inFlight: knownOrZero(s.InFlight), queued: knownOrZero(s.Queued), firstToken: p95Of(s.FirstToken), latency: p95Of(s.Latency), results: s.Results}
	for i, name := range levelNames {
		v.levels[i] = -1
		if level, ok := s.Levels[name]; ok {
			v.levels[i] = level
		}
	}
	return v
}

func knownOrZero(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

// p95Of returns the 95th percentile in seconds, or -1 if there is none.
func p95Of(counts *histogram.Counts) float64 {
	if counts == nil {
		return -1
	}
	d, ok := counts.Quantile(0.95)
	if !ok {
		return -1
	}
	return d.Seconds()
}

func (s *sums) add(v *values, seconds float64) {
	for i, x := range [...]float64{v.rate, v.inFlight, v.queued, v.firstToken, v.latency, v.levels[0], v.levels[1], v.levels[2], v.levels[3], v.levels[4]} {
		if x >= 0 {
			s.values[i] += x * seconds
			s.seconds[i] += seconds
		}
	}
	for query, x := range v.results {
		if s.results == nil {
			s.results = map[string][2]float64{}
		}
		sum := s.results[query]
		s.results[query] = [2]float64{sum[0] + x*seconds, sum[1] + seconds}
	}
}

// setMeans sets the averages of to.
func (s *sums) setMeans(to *minuteLoad) {
	at := func(i int) float32 {
		if s.seconds[i] == 0 {
			return -1
		}
		return float32(s.values[i] / s.seconds[i])
	}
	to.rate, to.inFlight, to.queued, to.firstToken, to.latency = at(0), at(1), at(2), at(3), at(4)
	for i := range levelNames {
		to.levels[i] = at(5 + i)
	}
	for query, sum := range s.results {
		if to.results == nil {
			to.results = map[string]float32{}
		}
		to.results[scaling.QueryKey(query)] = float32(sum[0] / sum[1])
	}
}

func (m *minuteLoad) toProto() *windlassv1.LoadSample {
	out := &windlassv1.LoadSample{
		At: m.minute * time.Minute.Milliseconds(), SpanMs: m.span.Milliseconds(), Ready: m.ready, Starting: m.starting, Desired: m.desired, Results: m.results,
		Rate: positiveOrNil(m.rate), InFlight: positiveOrNil(m.inFlight), Queued: positiveOrNil(m.queued), FirstTokenP95: positiveOrNil(m.firstToken), LatencyP95: positiveOrNil(m.latency),
	}
	for i, name := range levelNames {
		if m.levels[i] >= 0 {
			if out.Levels == nil {
				out.Levels = map[string]float32{}
			}
			out.Levels[name] = m.levels[i]
		}
	}
	return out
}

func positiveOrNil(v float32) *float32 {
	if v < 0 {
		return nil
	}
	return &v
}

// isDue reports whether samples must be stored now.
func (l *loadLog) isDue(now time.Time, last bool) bool {
	if len(l.chunk) == l.stored {
		return false
	}
	if l.next.IsZero() {
		l.next = time.Unix((l.chunk[0].minute+1)*60, 0).Add(storeFirst - time.Minute)
	}
	return last || len(l.chunk) >= chunkMinutes || !now.Before(l.next)
}

// unstored is a chunk to store, and its log.
type unstored struct {
	model.LoadChunk

	log     *loadLog
	samples []minuteLoad
}

// storeLoads stores the load of all targets until ctx ends, and then stores the remaining samples.
func (s *Service) storeLoads(ctx context.Context, apps Apps) {
	ticks := time.NewTicker(gatherLoads)
	defer ticks.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticks.C:
			s.storeOnce(ctx, apps, false)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLast)
	defer cancel()
	s.storeOnce(last, apps, true)
}

// storeOnce stores the targets that are due, or all targets. After a failure, a target is stored again after a minute,
// and a target with a full chunk at the next search.
func (s *Service) storeOnce(ctx context.Context, apps Apps, last bool) {
	all := s.unstoredChunks(time.Now(), last)
	for batch := range slices.Chunk(all, chunksAtOnce) {
		err := s.storeBatch(ctx, apps, batch)
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot store the load of scaled apps", "targets", len(batch), "error", err)
		}
		s.mu.Lock()
		now := time.Now()
		for _, c := range batch {
			c.log.next = now.Add(min(time.Duration(len(c.samples))*time.Minute, storeEvery))
			if err != nil {
				c.log.next = now.Add(readAgain)
				continue
			}
			c.log.noteStored(c.samples)
		}
		s.mu.Unlock()
	}
}

// noteStored records that samples are stored. A full chunk ends. close may have dropped samples meanwhile.
func (l *loadLog) noteStored(samples []minuteLoad) {
	newest := samples[len(samples)-1].minute
	l.stored = slices.IndexFunc(l.chunk, func(m minuteLoad) bool { return m.minute > newest })
	if l.stored < 0 {
		l.stored = len(l.chunk)
	}
	if l.stored >= chunkMinutes {
		l.chunk, l.stored = slices.Clone(l.chunk[l.stored:]), 0
	}
}

func (s *Service) storeBatch(ctx context.Context, apps Apps, batch []unstored) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	chunks := make([]model.LoadChunk, len(batch))
	for i, c := range batch {
		samples := make([]*windlassv1.LoadSample, len(c.samples))
		for i := range c.samples {
			samples[i] = c.samples[i].toProto()
		}
		var err error
		if c.Samples, err = model.EncodeLoads(samples); err != nil {
			return err
		}
		chunks[i] = c.LoadChunk
	}
	return apps.StoreLoads(ctx, chunks)
}

// unstoredChunks returns the chunks that are due. If last is set, it returns all chunks with samples that are not stored.
func (s *Service) unstoredChunks(now time.Time, last bool) (out []unstored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil {
			continue
		}
		add := func(role string, l *loadLog) {
			if l.isDue(now, last) {
				out = append(out, unstored{log: l, samples: slices.Clone(l.chunk), LoadChunk: model.LoadChunk{
					AppID: at.app, RegionID: at.region, Role: role, WorkspaceID: a.WorkspaceID, BeganAt: l.chunk[0].minute * time.Minute.Milliseconds(),
				}})
			}
		}
		add("", &t.log)
		for role, of := range t.roles {
			add(role, &of.log)
		}
	}
	slices.SortFunc(out, func(a, b unstored) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.Role, b.Role))
	})
	return out
}
