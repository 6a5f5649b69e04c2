package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// changesPerPoll is the maximum number of rows per read. Further rows are read at once afterwards. 5,000 rows have
// less than a megabyte.
const changesPerPoll = 5000

// pollTimeout is the timeout for one round of the tailer.
const pollTimeout = 10 * time.Second

// Tailer follows the feeds of the regions that have a subscription.
type Tailer struct {
	store Store
	log   *slog.Logger
	beat  time.Duration
	rnd   func() float64
	nudge chan struct{} // buffer of one

	mu      sync.Mutex
	regions map[string]*tailed
	due     map[string]struct{} // regions to poll before the beat
	allDue  bool
	joins   int // number of times that a region got its first subscription
	// seen is the state up to which everything was published. Only Run uses it.
	seen published
}

// published is the sum of heads up to which everything was published to the regions that were followed at that time.
// A region that joined later began at its own head, which may be older than the sum.
type published struct {
	sum   model.HeadSum
	joins int
}

// tailed is a followed region.
type tailed struct {
	at   changefeed.Position // newest published position
	subs map[*subscription]struct{}
}

// subscription is one stream's view of its region's feed.
type subscription struct {
	tailer *Tailer
	region string
	signal chan struct{} // buffer of one

	mu     sync.Mutex
	cursor *changefeed.Cursor
	reset  bool
}

func newTailer(store Store, log *slog.Logger, beat time.Duration, rnd func() float64) *Tailer {
	return &Tailer{
		store: store, log: log, beat: beat, rnd: rnd,
		nudge:   make(chan struct{}, 1),
		regions: map[string]*tailed{},
		due:     map[string]struct{}{},
	}
}

// Nudge requests a poll of the regions at once, or of all regions if none are given. It never blocks. Regions without
// a subscription are ignored.
func (t *Tailer) Nudge(regions ...string) {
	t.mu.Lock()
	wanted := len(regions) == 0
	t.allDue = t.allDue || wanted
	for _, id := range regions {
		if t.regions[id] != nil {
			t.due[id] = struct{}{}
			wanted = true
		}
	}
	t.mu.Unlock()
	if !wanted {
		return
	}
	select {
	case t.nudge <- struct{}{}:
	default:
	}
}

// Run polls until ctx ends: all regions on each beat, and nudged regions at once. Nudges do not delay beats. If the
// database is unreachable, it retries with full jitter, and streams stay open.
func (t *Tailer) Run(ctx context.Context) error {
	policy := backoff.Policy{Min: t.beat, Max: 2 * time.Second}
	failures := 0
	timer := time.NewTimer(t.beat)
	defer timer.Stop()
	for {
		beat := false
		select {
		case <-ctx.Done():
			return nil
		case <-t.nudge:
		case <-timer.C:
			beat = true
		}
		only, all := t.takeDue()
		if beat || all {
			only = nil
		}
		err := t.pollRound(ctx, only)
		switch {
		case err != nil && ctx.Err() == nil:
			failures++
			wait := policy.Delay(failures, t.rnd)
			t.log.Warn("cannot read the change feed", "error", err, "retry_in", wait)
			// The next full poll includes these regions.
			timer.Reset(wait)
		case beat:
			failures = 0
			timer.Reset(t.beat)
		}
	}
}

// takeDue returns the regions that are due, and clears them.
func (t *Tailer) takeDue() (due map[string]struct{}, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due, all = t.due, t.allDue
	t.due, t.allDue = map[string]struct{}{}, false
	return due, all
}

// pollRound polls the regions. For nil, it polls all regions, unless no head has moved since everything was
// published.
//
// The sum is read before the heads. A commit between the two reads is published in this round, and the next round
// reads the heads once more without need. A commit after the heads were read is in the next sum. A failed round does
// not store its sum. So the stored sum is never ahead of the published changes. Because revisions only grow, it
// equals the database's sum only if nothing is missing.
func (t *Tailer) pollRound(ctx context.Context, only map[string]struct{}) (err error) {
	defer func() {
		if err != nil {
			t.seen = published{}
		}
	}()
	if only != nil {
		if only, err = t.publishNudged(ctx, only); err != nil || len(only) == 0 {
			return err
		}
		return t.pollRegions(ctx, only)
	}
	t.mu.Lock()
	now := published{joins: t.joins}
	followed := len(t.regions)
	t.mu.Unlock()
	if followed == 0 {
		return nil
	}
	if now.sum, err = t.readHeadSum(ctx); err != nil || now == t.seen {
		return err
	}
	if err = t.pollRegions(ctx, nil); err == nil {
		t.seen = now
	}
	return err
}

// publishNudged publishes the changes of nudged regions, and returns the regions whose heads must be read. If the
// first change follows the published position and continues its chain, the head is on that chain in the same epoch,
// and need not be read. Otherwise there may be a new epoch, rows may be compacted, or the database was restored.
func (t *Tailer) publishNudged(ctx context.Context, nudged map[string]struct{}) (rest map[string]struct{}, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	ids, at := t.followedRegions(nudged)
	after := make(map[string]int64, len(ids))
	for _, id := range ids {
		after[id] = at[id].Revision
	}
	if len(after) == 0 {
		return nil, nil
	}
	var changes []model.Change
	err = t.store.View(ctx, func(tx Tx) error {
		changes, err = tx.Changes(after, changesPerPoll)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	if len(changes) == changesPerPoll {
		rest = nudged // some regions have more changes
	} else {
		rest = map[string]struct{}{}
	}
	byRegion := byRegion(changes)
	for _, id := range ids {
		news, was := byRegion[id], at[id]
		if len(news) == 0 || !isNextChange(news[0], was) {
			rest[id] = struct{}{}
			continue
		}
		last := news[len(news)-1]
		now := model.Head{RegionID: id, Epoch: was.Epoch, Revision: last.Revision, Chain: last.Chain}
		t.publishChanges(now, news)
		// If no other head moves, the next beat finds this sum.
		t.seen.sum = t.seen.sum.Without(model.Head{Epoch: was.Epoch, Revision: was.Revision, Chain: was.Chain}).With(now)
	}
	return rest, nil
}

// isNextChange reports whether the change directly follows the position in the same history.
func isNextChange(c model.Change, at changefeed.Position) bool {
	return c.Revision == at.Revision+1 && bytes.Equal(c.Chain, changefeed.Chain(at.Chain, c.ID))
}

func byRegion(changes []model.Change) map[string][]model.Change {
	out := map[string][]model.Change{}
	for _, c := range changes {
		out[c.RegionID] = append(out[c.RegionID], c)
	}
	return out
}

func (t *Tailer) readHeadSum(ctx context.Context) (sum model.HeadSum, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	err = t.store.View(ctx, func(tx Tx) error {
		sum, err = tx.SumHeads()
		return err
	})
	return sum, err
}

// pollRegions publishes the changes of the regions, or of all followed regions for nil.
func (t *Tailer) pollRegions(ctx context.Context, only map[string]struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	for {
		more, err := t.pollOnce(ctx, only)
		if err != nil || !more {
			return err
		}
	}
}

// pollOnce publishes the next changes, and reports whether there are more.
func (t *Tailer) pollOnce(ctx context.Context, only map[string]struct{}) (more bool, err error) {
	ids, positions := t.followedRegions(only)
	if len(ids) == 0 {
		return false, nil
	}
	var heads []model.Head
	var changes []model.Change
	behind := map[string]model.Head{}
	err = t.store.View(ctx, func(tx Tx) error {
		clear(behind)
		if heads, err = tx.GetHeads(ids); err != nil {
			return fmt.Errorf("read heads: %w", err)
		}
		after := map[string]int64{}
		for _, h := range heads {
			at := positions[h.RegionID]
			if h.Epoch == at.Epoch && h.Revision > at.Revision {
				after[h.RegionID] = at.Revision
				behind[h.RegionID] = h
			}
		}
		if len(after) == 0 {
			return nil
		}
		if changes, err = tx.Changes(after, changesPerPoll); err != nil {
			return fmt.Errorf("read changes: %w", err)
		}
		return nil
	})
	if err != nil {
		return false, err
	}

	byRegion := byRegion(changes)
	for _, h := range heads {
		switch at := positions[h.RegionID]; {
		case h.Epoch != at.Epoch || h.Revision < at.Revision || h.Revision == at.Revision && !bytes.Equal(h.Chain, at.Chain):
			// There is a new epoch, or the database was restored: the region's agent must watch again, and its
			// position is judged against the current history.
			t.resetRegion(h, at)
		case len(byRegion[h.RegionID]) > 0:
			t.publishChanges(h, byRegion[h.RegionID])
		}
	}
	return len(changes) == changesPerPoll, nil
}

// followedRegions returns the regions of only that have a subscription, with their positions. nil: all followed
// regions.
func (t *Tailer) followedRegions(only map[string]struct{}) (ids []string, at map[string]changefeed.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at = map[string]changefeed.Position{}
	add := func(id string) {
		if r := t.regions[id]; r != nil {
			ids = append(ids, id)
			at[id] = r.at
		}
	}
	if only != nil {
		for id := range only {
			add(id)
		}
	} else {
		for id := range t.regions {
			add(id)
		}
	}
	slices.Sort(ids)
	return ids, at
}

func (t *Tailer) publishChanges(h model.Head, changes []model.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.regions[h.RegionID]
	if r == nil || r.at.Epoch != h.Epoch {
		return
	}
	// If the last stream left and another joined during the read, the region's position may be ahead of these
	// changes.
	for len(changes) > 0 && changes[0].Revision <= r.at.Revision {
		changes = changes[1:]
	}
	if len(changes) == 0 {
		return
	}
	// Changes are gap-free. A gap means that rows were compacted meanwhile. Another chain means that the database was
	// restored and has already passed the region's position.
	if !isNextChange(changes[0], r.at) {
		t.resetLocked(r, h)
		return
	}
	last := changes[len(changes)-1]
	r.at = changefeed.Position{Epoch: h.Epoch, Revision: last.Revision, Chain: last.Chain}
	for sub := range r.subs {
		sub.mu.Lock()
		sub.cursor.Mark(changes, r.at)
		sub.mu.Unlock()
		sub.wakeUp()
	}
}

// resetRegion sends the region's streams away, unless the region's position has changed since judged was read.
func (t *Tailer) resetRegion(h model.Head, judged changefeed.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.regions[h.RegionID]; r != nil && r.at.Epoch == judged.Epoch && r.at.Revision == judged.Revision {
		t.resetLocked(r, h)
	}
}

func (t *Tailer) resetLocked(r *tailed, h model.Head) {
	r.at = changefeed.Position{Epoch: h.Epoch, Revision: h.Revision, Chain: h.Chain}
	for sub := range r.subs {
		sub.mu.Lock()
		sub.reset = true
		sub.mu.Unlock()
		sub.wakeUp()
	}
}

// subscribeAgent follows the region for an agent that has everything up to its position. head is the region's current
// head. Changes are published after the returned position. The stream itself must read the changes between the two
// positions.
func (t *Tailer) subscribeAgent(region string, agent changefeed.Position, head model.Head) (*subscription, changefeed.Position) {
	sub := &subscription{
		tailer: t, region: region,
		signal: make(chan struct{}, 1),
		cursor: changefeed.NewCursor(agent),
	}
	at, fromHead := t.addSubscription(sub, head)
	if fromHead {
		// No nudge came for a commit after the head was read and before this subscription.
		t.Nudge(region)
	}
	return sub, at
}

// addSubscription adds a subscription. fromHead reports whether the region is followed from head on: it had no
// subscription, or its other subscriptions follow an earlier epoch.
func (t *Tailer) addSubscription(sub *subscription, head model.Head) (at changefeed.Position, fromHead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.regions[sub.region]
	switch {
	case r == nil:
		fromHead = true
		r = &tailed{
			at:   changefeed.Position{Epoch: head.Epoch, Revision: head.Revision, Chain: head.Chain},
			subs: map[*subscription]struct{}{},
		}
		t.regions[sub.region] = r
		t.joins++
	case r.at.Epoch < head.Epoch:
		fromHead = true
		t.resetLocked(r, head)
	case r.at.Epoch > head.Epoch:
		sub.reset = true // a new epoch began after the head was read
	}
	r.subs[sub] = struct{}{}
	return r.at, fromHead
}

func (s *subscription) close() {
	t := s.tailer
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.regions[s.region]; r != nil {
		delete(r.subs, s)
		if len(r.subs) == 0 {
			delete(t.regions, s.region)
		}
	}
}

func (s *subscription) wakeUp() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// withCursor runs fn on the cursor.
func (s *subscription) withCursor(fn func(*changefeed.Cursor)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.cursor)
}

func (s *subscription) takeBatch() (b changefeed.Batch, ok, reset bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reset {
		return changefeed.Batch{}, false, true
	}
	b, ok = s.cursor.Take()
	return b, ok, false
}
