// Package logrelay passes the output of instances from agents to readers.
//
//	reader ─> Join ─> feed (one per instance) <─ answer ─ Ask <─ pump (one per region)
//	reader ─> Next ──────┘                          v
//	                                    the region's agent, through peers
//
// A request to an agent names instances and a position for each. The answer has the output after these positions. The
// pump of a region has at most one running request, which serves all readers of this process. The minimum time between
// requests and the maximum size of an answer bound how much an agent reads and sends.
//
// A feed keeps its newest lines, and readers have no queues. A reader takes lines when it is ready. A slow reader
// loses lines, but delays neither agents nor other readers.
package logrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// pace is the minimum time between two requests. wait is how long a request waits for lines.
	pace = 500 * time.Millisecond
	wait = time.Second
	// patience is how long an answer may take in addition to wait.
	patience = 10 * time.Second
	// answerBytes is the limit on the lines of one answer. With pace, a region sends at most 1 MiB/s.
	answerBytes = 512 << 10
	// MaxInstances is the maximum number of instances in one request.
	MaxInstances = 200
	// feedBytes is the limit on the lines of a feed. maxFeeds is the maximum number of feeds. Together they allow 250
	// MiB.
	feedBytes = 256 << 10
	maxFeeds  = 1000
	// lineOverhead is the memory of a line in addition to its text.
	lineOverhead = 64
)

// ErrFull means that this process cannot follow further instances.
var ErrFull = errors.New("this server has reached its limit of instances whose logs are followed")

// Asker sends requests to agents. An error other than model.ErrAgentUnreachable comes from the agent.
type Asker interface {
	Ask(ctx context.Context, regionID string, req *agentv1.Request) ([]byte, error)
}

// Relay has the feeds of this process.
type Relay struct {
	asker   Asker
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	regions map[string]*region
	feeds   int
}

// New returns a relay without feeds.
func New(asker Asker, log *slog.Logger, registerer prometheus.Registerer) (*Relay, error) {
	r := &Relay{asker: asker, log: log, regions: map[string]*region{}}
	var err error
	r.metrics, err = newMetrics(registerer, r.count)
	return r, err
}

func (r *Relay) count() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return float64(r.feeds)
}

// region is a region with feeds.
type region struct {
	id     string
	feeds  map[string]*feed // by instance
	cancel context.CancelFunc
	// err is the error of the last request, nil if it succeeded.
	err error
	// next is the index at which the next request begins if one request cannot name all instances.
	next int
}

// feed is the recent output of one instance.
type feed struct {
	readers int
	// after is the position after the last line.
	after *windlassv1.LogPosition
	lines []line
	// first is the number of lines[0], counted from the first line of the feed.
	first int64
	// oldest is the offset up to which lines were dropped.
	oldest int64
	bytes  int
	gone   bool
}

// line is a line, or a gap with a number of lost lines.
type line struct {
	text *windlassv1.LogLine
	// end is the position at which the answer with this line ends.
	end *windlassv1.LogPosition
	// lost and lostMore describe a gap, which has no text.
	lost     int64
	lostMore bool
}

func (l line) sizeOf() int { return lineOverhead + len(l.text.GetText()) }

// Read requests the newest lines of instances, without waiting for further lines.
func (r *Relay) Read(ctx context.Context, regionID string, instances []*agentv1.FollowedInstance) ([]*agentv1.InstanceLog, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.askRegion(ctx, regionID, instances, 0)
}

func (r *Relay) askRegion(ctx context.Context, regionID string, instances []*agentv1.FollowedInstance, wait time.Duration) ([]*agentv1.InstanceLog, error) {
	data, err := r.asker.Ask(ctx, regionID, &agentv1.Request{Kind: &agentv1.Request_Follow{Follow: &agentv1.FollowRequest{
		Instances: instances, MaxBytes: answerBytes, Wait: durationpb.New(wait),
	}}})
	if err != nil {
		return nil, fmt.Errorf("request logs: %w", err)
	}
	var res agentv1.FollowResponse
	if err := proto.Unmarshal(data, &res); err != nil {
		return nil, fmt.Errorf("request logs: the agent's answer cannot be read: %w", err)
	}
	for _, l := range res.Logs {
		for _, line := range l.Lines {
			r.metrics.bytes.Add(float64(len(line.Text)))
		}
	}
	return res.Logs, nil
}

// Tap is one reader of a feed.
type Tap struct {
	relay    *Relay
	region   *region
	instance string
	feed     *feed
	// next is the number of the next line to read. after is the offset up to which the reader already has the lines.
	// Next skips these lines, because the feed may still be before that offset.
	next, after int64
	// missed is true if the feed has already dropped lines after that offset.
	missed, left bool
}

// Join begins to read the output of an instance after a position. The caller must call Leave.
func (r *Relay) Join(regionID, instance string, after *windlassv1.LogPosition) (*Tap, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.regions[regionID]
	var f *feed
	if in != nil {
		f = in.feeds[instance]
	}
	if f == nil {
		if r.feeds >= maxFeeds {
			return nil, ErrFull
		}
		f = &feed{after: after}
		r.feeds++
		if in == nil {
			ctx, cancel := context.WithCancel(context.Background())
			in = &region{id: regionID, feeds: map[string]*feed{}, cancel: cancel}
			r.regions[regionID] = in
			go r.pumpOutput(ctx, in)
		}
		in.feeds[instance] = f
	}
	f.readers++
	t := &Tap{relay: r, region: in, instance: instance, feed: f, next: f.first, after: after.GetOffset()}
	if f.first > 0 && f.oldest > t.after {
		t.missed = true
	}
	return t, nil
}

// Leave ends reading.
func (t *Tap) Leave() {
	r := t.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	if t.feed.readers--; t.feed.readers > 0 {
		return
	}
	delete(t.region.feeds, t.instance)
	r.feeds--
	if len(t.region.feeds) == 0 {
		t.region.cancel()
		delete(r.regions, t.region.id)
	}
}

// News is the output that a reader has not read yet.
type News struct {
	Lines []*windlassv1.LogLine
	// Lost is the number of lines that are missing before or among Lines. LostMore means that an unknown number of
	// further lines is missing.
	Lost     int64
	LostMore bool
	// After is the position at which Lines end, nil if there are none.
	After *windlassv1.LogPosition
	// Gone means that the region has no such instance. Lines has its last output.
	Gone bool
}

// Next returns the output since the last call, without waiting. Its lines must not be changed.
func (t *Tap) Next() (n News) {
	r := t.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	f := t.feed
	if t.next < f.first {
		n.Lost, t.next = f.first-t.next, f.first
		r.metrics.lost.WithLabelValues("reader").Add(float64(n.Lost))
	}
	if t.missed {
		t.missed, n.LostMore = false, true
	}
	for _, l := range f.lines[min(t.next-f.first, int64(len(f.lines))):] {
		t.next++
		if l.end.GetOffset() <= t.after || l.text != nil && l.text.Offset <= t.after {
			continue
		}
		n.After = l.end
		n.Lost += l.lost
		n.LostMore = n.LostMore || l.lostMore
		if l.text != nil {
			n.Lines = append(n.Lines, l.text)
		}
	}
	n.Gone = f.gone
	return n
}

// Err returns the error of the last request to the region, nil if it succeeded.
func (t *Tap) Err() error {
	t.relay.mu.Lock()
	defer t.relay.mu.Unlock()
	return t.region.err
}

// pumpOutput requests the output for the region's feeds until ctx ends. Leave cancels ctx when the last feed is
// gone.
func (r *Relay) pumpOutput(ctx context.Context, in *region) {
	for failures := 0; ctx.Err() == nil; {
		begun := time.Now()
		asked := r.toAsk(in)
		var logs []*agentv1.InstanceLog
		var err error
		if len(asked) > 0 {
			bounded, cancel := context.WithTimeout(ctx, wait+patience)
			logs, err = r.askRegion(bounded, in.id, asked, wait)
			cancel()
		}
		if ctx.Err() != nil {
			return
		}
		r.take(in, logs, err)
		delay := pace - time.Since(begun)
		failures++
		if err == nil {
			failures = 0
		} else if !errors.Is(err, model.ErrAgentUnreachable) {
			r.log.Warn("cannot get logs from an agent", "region", in.id, "error", err)
		}
		if failures > 0 {
			delay = pace + backoff.Policy{Max: 5 * time.Second}.Delay(failures, nil)
		}
		if backoff.Sleep(ctx, max(delay, 0)) != nil {
			return
		}
	}
}

// toAsk returns the instances of the next request. If one request cannot name all instances, they take turns.
func (r *Relay) toAsk(in *region) []*agentv1.FollowedInstance {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*agentv1.FollowedInstance
	for _, id := range sortedKeys(in.feeds) {
		if f := in.feeds[id]; !f.gone {
			all = append(all, &agentv1.FollowedInstance{InstanceId: id, After: f.after})
		}
	}
	if len(all) <= MaxInstances {
		in.next = 0
		return all
	}
	if in.next >= len(all) {
		in.next = 0
	}
	end := min(in.next+MaxInstances, len(all))
	asked := all[in.next:end]
	in.next = end
	return asked
}

// take adds an answer to the feeds.
func (r *Relay) take(in *region, logs []*agentv1.InstanceLog, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in.err = err
	for _, l := range logs {
		f := in.feeds[l.InstanceId]
		if f == nil {
			continue
		}
		f.gone = f.gone || l.Gone
		if l.Next == nil {
			continue
		}
		f.after = l.Next
		if l.Lost > 0 || l.LostMore {
			f.add(line{lost: l.Lost, lostMore: l.LostMore, end: l.Next})
			r.metrics.lost.WithLabelValues("instance").Add(float64(l.Lost))
		}
		for _, text := range l.Lines {
			text.Instance = l.InstanceId
			f.add(line{text: text, end: l.Next})
		}
	}
}

// add appends a line, and drops the oldest lines so that feedBytes is kept.
func (f *feed) add(l line) {
	f.lines = append(f.lines, l)
	f.bytes += l.sizeOf()
	for f.bytes > feedBytes && len(f.lines) > 1 {
		f.bytes -= f.lines[0].sizeOf()
		f.oldest = max(f.oldest, f.lines[0].text.GetOffset())
		f.lines[0] = line{}
		f.lines = f.lines[1:]
		f.first++
	}
}
