package api

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// minReadEvery bounds how often a picture is read while an app is busy. A person
	// sees no more than ten a second.
	minReadEvery = 100 * time.Millisecond
	// reread is when a picture is read though nobody said that it changed: commits
	// of other processes are not heard here. It is drawn between one and two times
	// this.
	reread = 2 * time.Second
	// readTimeout bounds one read.
	readTimeout = 5 * time.Second
)

// hub shares pictures of apps among those who watch them. An app is read once for
// all its watchers, so that their number costs the database nothing.
//
//	commit ─> notify ─> topic (one per watched app) ─> read ─> picture
//	                      ^ every 2-4 s                          │ if it differs
//	                                        watcher, watcher <───┘
//
// A watcher holds no queue: it takes the newest picture whenever it is ready for
// one, so a slow reader skips pictures and delays nobody. Its first one was read after it
// came, so that who changes an app and then watches it sees the change at once.
type hub struct {
	max     int
	stopped chan struct{}
	once    sync.Once

	mu       sync.Mutex
	watchers int
	topics   map[string]*topic
}

// picture is what a watcher is shown.
type picture struct {
	// What of the response is whole each time.
	view *windlassv1.WatchAppResponse
	// history is the newest part of it, the oldest entry first.
	history []*windlassv1.HistoryEntry
}

func (p *picture) same(other *picture) bool {
	return other != nil && proto.Equal(p.view, other.view) && newest(p.history) == newest(other.history)
}

func newest(entries []*windlassv1.HistoryEntry) string {
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].GetId()
}

func newHub(most int) *hub {
	return &hub{max: most, stopped: make(chan struct{}), topics: map[string]*topic{}}
}

func (h *hub) stop() { h.once.Do(func() { close(h.stopped) }) }

func (h *hub) count() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.watchers)
}

// notify tells topics that their apps changed. It does not block.
func (h *hub) notify(appIDs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range appIDs {
		if t := h.topics[id]; t != nil {
			t.stir()
		}
	}
}

// topic is one app that somebody watches.
type topic struct {
	watchers int
	dirty    chan struct{}
	cancel   context.CancelFunc

	mu      sync.Mutex
	latest  *picture
	begun   time.Time     // when the read of latest, or of the same, began
	changed chan struct{} // closed when an app was read
}

// stir has the app read again. It does not block.
func (t *topic) stir() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

// join watches an app until leave is called.
func (h *hub) join(appID string, log *slog.Logger, read func(context.Context) (*picture, error)) (t *topic, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers >= h.max {
		return nil, nil, rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Fix: "Ask with GetApp from time to time, or try again later.",
		}, "this server has as many watchers as it may have")
	}
	if t = h.topics[appID]; t != nil {
		t.stir() // for one that was read since
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		t = &topic{dirty: make(chan struct{}, 1), cancel: cancel, changed: make(chan struct{})}
		h.topics[appID] = t
		go t.run(ctx, log.With("app", appID), read)
	}
	t.watchers++
	h.watchers++
	return t, sync.OnceFunc(func() { h.leave(appID, t) }), nil
}

func (h *hub) leave(appID string, t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers--
	if t.watchers--; t.watchers == 0 {
		t.cancel()
		delete(h.topics, appID)
	}
}

// run keeps the picture current until ctx ends, with the last watcher.
func (t *topic) run(ctx context.Context, log *slog.Logger, read func(context.Context) (*picture, error)) {
	failing := false
	for {
		begin := time.Now()
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		p, err := read(reading)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failing = false
			t.publish(p, begin)
		case !failing:
			// Once, not with each try: watchers see no news meanwhile, and that is all.
			failing = true
			log.WarnContext(ctx, "cannot read a watched app", "error", err)
		}
		if !t.await(ctx, begin, failing) {
			return
		}
	}
}

// await returns when it is time to read again, or false when ctx ended.
func (t *topic) await(ctx context.Context, last time.Time, failing bool) bool {
	timer := time.NewTimer(reread + rand.N(reread))
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
	rest := time.NewTimer(minReadEvery - time.Since(last))
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-rest.C:
		return true
	}
}

func (t *topic) publish(p *picture, begun time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.same(t.latest) {
		t.latest = p
	}
	t.begun = begun
	close(t.changed)
	t.changed = make(chan struct{})
}

// current returns the newest picture, nil if none was read since the time given, and what
// is closed when there is a newer one.
func (t *topic) current(since time.Time) (*picture, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun.Before(since) {
		return nil, t.changed
	}
	return t.latest, t.changed
}
