package api

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// minReadEvery is the minimum time between two reads of a picture while an app changes often. People cannot
	// follow more than ten pictures a second.
	minReadEvery = 100 * time.Millisecond
	// reread is the minimum time after which a picture is read without a notification, because a notification of
	// another process may be lost. The actual time is random, up to twice as long.
	reread = 2 * time.Second
	// watchAgain is the minimum time after which a refused watcher may try again.
	watchAgain = 5 * time.Second
	// readTimeout bounds one read.
	readTimeout = 5 * time.Second
	// perWatcher times the number of the workspace's watchers is the minimum time between two reads, because each
	// picture may go to all of them. So a workspace gets at most 1,000 pictures a second.
	perWatcher = time.Millisecond
)

// ofApp is the kind of topics that show one app.
var ofApp = &topic{pace: pace{least: minReadEvery, reread: reread}}

// hub shares pictures of apps among their watchers. An app is read once for all its watchers, so that more watchers
// do not load the database.
//
//	commit ─> notify ─> topic (one per watched app) ─> read ─> picture
//	                      ^ every 2-4 s                          │ if it differs
//	                                        watcher, watcher <───┘
//
// A watcher has no queue. When it is ready, it takes the newest picture, so that a slow watcher skips pictures and
// does not delay other watchers. The first picture of a watcher is read after it joined, so that a caller who changes
// an app and then watches it sees the change at once.
type hub struct {
	// max limits all watchers, perKey the watchers of one key, and perWorkspace the watchers of one workspace.
	max, perKey, perWorkspace int

	stopped chan struct{}
	once    sync.Once

	mu       sync.Mutex
	watchers int
	// of counts the watchers of each key and workspace, by their ids.
	of     map[string]int
	topics map[string]*topic // by the id of the app, or of the fleet
	wide   map[*topic]bool   // topics that show many apps
}

// shown is the picture that a topic shows to its watchers.
type shown interface {
	// sameAs reports whether a watcher that has seen other would see nothing new. other may be nil.
	sameAs(other shown) bool
}

// picture is the picture of one app.
type picture struct {
	// view is the part of the response that is always sent as a whole.
	view *windlassv1.WatchAppResponse
	// history is the newest part of the app's history, the oldest entry first.
	history []*windlassv1.HistoryEntry
}

func (p *picture) sameAs(other shown) bool {
	o, ok := other.(*picture)
	return ok && proto.Equal(p.view, o.view) && newestEntryID(p.history) == newestEntryID(o.history)
}

// newestEntryID returns the id of the last entry, or "" without entries.
func newestEntryID(entries []*windlassv1.HistoryEntry) string {
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].GetId()
}

func newHub(most, perKey, perWorkspace int) *hub {
	return &hub{
		max: most, perKey: perKey, perWorkspace: perWorkspace,
		stopped: make(chan struct{}), of: map[string]int{}, topics: map[string]*topic{}, wide: map[*topic]bool{},
	}
}

func (h *hub) stop() { h.once.Do(func() { close(h.stopped) }) }

func (h *hub) count() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.watchers)
}

// notify wakes the topics of apps that changed. It does not block.
func (h *hub) notify(appIDs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range appIDs {
		if t := h.topics[id]; t != nil {
			t.requestRead()
		}
	}
	for t := range h.wide {
		if slices.ContainsFunc(appIDs, t.concerns) {
			t.requestRead()
		}
	}
}

// pace configures how often a topic is read.
type pace struct {
	// least is the shortest time between two reads. reread is the time until a read without a notification, random
	// between one and two times this value.
	least, reread time.Duration
	// share limits the fraction of time that is spent on reads. The time between the starts of two reads is at least
	// share times the duration of the first read. 0: no limit.
	share int
}

// topic is a watched app, or a watched fleet of a workspace.
type topic struct {
	// name is the kind's name. most is the maximum number of topics of the kind. perWorkspace is the maximum number
	// of topics of the kind that callers of one workspace began. 0: no limit.
	name         string
	most         int
	perWorkspace int
	workspace    string
	pace         pace
	watchers     int
	dirty        chan struct{}
	cancel       context.CancelFunc
	// concerns reports whether a topic of many apps shows the app. nil: the topic shows one app. concerns is called
	// while the hub is locked, and must not block.
	concerns func(appID string) bool

	mu      sync.Mutex
	latest  shown
	begun   time.Time     // start of the last read that returned latest or an equal picture
	changed chan struct{} // closed when latest changes
	read    chan struct{} // closed after the next read
}

// requestRead requests another read. It does not block.
func (t *topic) requestRead() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

// checkLimit returns the error of join if the caller may not have another watcher.
func (h *hub) checkLimit(by caller) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fullError(by)
}

// fullError returns an error if the caller may not have another watcher, else nil.
func (h *hub) fullError(by caller) error {
	var text, name string
	var used, most int
	switch {
	case h.of[by.ID] >= h.perKey:
		text, name, used, most = "your key has reached its limit of watchers on this server", "watchers_per_key", h.of[by.ID], h.perKey
	case h.of[by.WorkspaceID] >= h.perWorkspace:
		text, name, used, most = "your workspace has reached its limit of watchers on this server", "watchers_per_workspace", h.of[by.WorkspaceID], h.perWorkspace
	case h.watchers >= h.max:
		text, name, used, most = "this server has reached its limit of watchers", "watchers", h.watchers, h.max
	default:
		return nil
	}
	return refusedWatcher(text, name, used, most)
}

// fullOf returns an error if the hub may not have another topic of the kind, else nil.
func (h *hub) fullOf(kind *topic, workspace string) error {
	if kind.most == 0 {
		return nil
	}
	used, own := 0, 0
	for _, t := range h.topics {
		if t.name != kind.name {
			continue
		}
		if used++; t.workspace == workspace {
			own++
		}
	}
	switch {
	case kind.perWorkspace > 0 && own >= kind.perWorkspace:
		return refusedWatcher(fmt.Sprintf("your workspace has reached its limit of apps whose %s are watched on this server", kind.name), "watched_"+kind.name+"_per_workspace", own, kind.perWorkspace)
	case used < kind.most:
		return nil
	}
	return refusedWatcher(fmt.Sprintf("this server has reached its limit of apps whose %s are watched", kind.name), "watched_"+kind.name, used, kind.most)
}

func refusedWatcher(text, limit string, used, most int) error {
	wait := watchAgain + rand.N(watchAgain)
	return rpc.TooFast(wait, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Fix: "End other watchers, or try again later.",
		Limit: &windlassv1.LimitDetail{Name: limit, Max: int64(most), Used: int64(used), Asked: 1, RetryAfterMs: wait.Milliseconds()},
	}, text)
}

// enterWithoutTopic counts a watcher without a topic until leave is called.
func (h *hub) enterWithoutTopic(by caller) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fullError(by); err != nil {
		return nil, err
	}
	h.countWatchers(by, 1)
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.countWatchers(by, -1)
	}), nil
}

// countWatchers adds n to the numbers of watchers of the caller.
func (h *hub) countWatchers(by caller, n int) {
	h.watchers += n
	for _, id := range []string{by.ID, by.WorkspaceID} {
		if h.of[id] += n; h.of[id] == 0 {
			delete(h.of, id)
		}
	}
}

// joinTopic watches the app or the fleet with the id until leave is called.
func (h *hub) joinTopic(by caller, id string, kind *topic, log *slog.Logger, read func(context.Context) (shown, error)) (t *topic, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fullError(by); err != nil {
		return nil, nil, err
	}
	if t = h.topics[id]; t == nil {
		if err := h.fullOf(kind, by.WorkspaceID); err != nil {
			return nil, nil, err
		}
	}
	if t != nil {
		t.requestRead() // the watcher's first picture must be read after this moment
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		t = &topic{
			name: kind.name, workspace: by.WorkspaceID, pace: kind.pace, concerns: kind.concerns,
			dirty: make(chan struct{}, 1), cancel: cancel, changed: make(chan struct{}), read: make(chan struct{}),
		}
		h.topics[id] = t
		if t.concerns != nil {
			h.wide[t] = true
		}
		go t.run(ctx, log.With("watched", id), read, func() time.Duration { return h.leastFor(by.WorkspaceID) })
	}
	t.watchers++
	h.countWatchers(by, 1)
	return t, sync.OnceFunc(func() { h.leaveTopic(by, id, t) }), nil
}

// leastFor returns the minimum time between two reads of a topic that the workspace watches.
func (h *hub) leastFor(workspaceID string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Duration(h.of[workspaceID]) * perWatcher
}

func (h *hub) leaveTopic(by caller, id string, t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.countWatchers(by, -1)
	if t.watchers--; t.watchers == 0 {
		t.cancel()
		delete(h.topics, id)
		delete(h.wide, t)
	}
}

// run keeps the picture current until ctx ends, when the last watcher leaves. leastNow returns the minimum time
// between two reads for the current number of watchers.
func (t *topic) run(ctx context.Context, log *slog.Logger, read func(context.Context) (shown, error), leastNow func() time.Duration) {
	failing := false
	for {
		begin := time.Now()
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		p, err := read(reading)
		cancel()
		took := time.Since(begin)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failing = false
			t.publish(p, begin)
		case !failing:
			// Logged once, not at each try, because the failure only delays pictures.
			failing = true
			log.WarnContext(ctx, "cannot read a watched object", "error", err)
		}
		if !t.awaitRead(ctx, begin, max(t.pace.least, time.Duration(t.pace.share)*took, leastNow()), failing) {
			return
		}
	}
}

// awaitRead returns true when it is time to read again, and false when ctx ends. last is the time at which the last read
// began. least is the minimum time from then to the next read.
func (t *topic) awaitRead(ctx context.Context, last time.Time, least time.Duration, failing bool) bool {
	timer := time.NewTimer(max(least, t.pace.reread+rand.N(t.pace.reread)))
	defer timer.Stop()
	dirty := t.dirty
	if failing {
		dirty = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-dirty:
	}
	rest := time.NewTimer(least - time.Since(last))
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-rest.C:
		return true
	}
}

// publish stores the picture p. If p shows nothing new, publish wakes only watchers that have no picture yet.
func (t *topic) publish(p shown, begun time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.sameAs(t.latest) {
		t.latest = p
		close(t.changed)
		t.changed = make(chan struct{})
	}
	t.begun = begun
	close(t.read)
	t.read = make(chan struct{})
}

// currentPicture returns the newest picture, and a channel that is closed when there is a newer picture. The picture is nil
// if no read began after since.
func (t *topic) currentPicture(since time.Time) (shown, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun.Before(since) {
		return nil, t.read
	}
	return t.latest, t.changed
}
