package api

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// follow starts a watcher until ctx ends, and returns the number of pictures that it took.
func follow(ctx context.Context, topic *topic) *atomic.Int32 {
	var taken atomic.Int32
	joined := time.Now()
	go func() {
		var last shown
		for ctx.Err() == nil {
			p, changed := topic.currentPicture(joined)
			if p != nil && p != last {
				last = p
				taken.Add(1)
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	return &taken
}

func TestHub_AppIsReadOnceForAllWatchersTenTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHub(100, 100, 100)
		var count atomic.Int32
		read := func(context.Context) (shown, error) {
			return &picture{view: &windlassv1.WatchAppResponse{App: &windlassv1.App{Message: fmt.Sprint(count.Add(1))}}}, nil
		}
		var leaves []func()
		var taken []*atomic.Int32
		for range 50 {
			topic, leave, err := h.joinTopic(caller{}, "app_1", ofApp, slog.New(slog.DiscardHandler), read)
			require.NoError(t, err)
			leaves = append(leaves, leave)
			taken = append(taken, follow(ctx, topic))
		}
		synctest.Wait()
		require.Equal(t, int32(1), count.Load())

		// One second with a thousand commits.
		for range 1000 {
			time.Sleep(time.Millisecond)
			h.notify([]string{"app_1", "app_2"})
		}
		synctest.Wait()
		require.InDelta(t, 11, count.Load(), 1)
		for _, n := range taken {
			require.Equal(t, count.Load(), n.Load(), "every watcher got every picture")
		}

		// A minute without commits has a read every two to four seconds.
		before := count.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.InDelta(t, 20, count.Load()-before, 10)

		for _, leave := range leaves {
			leave()
			leave()
		}
		before = count.Load()
		h.notify([]string{"app_1"})
		time.Sleep(time.Minute)
		require.Equal(t, before, count.Load(), "nothing is read without watchers")
		require.Zero(t, h.count())
		cancel()
	})
}

func TestHub_FirstPictureIsReadAfterTheWatcherJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(100, 100, 100)
		var message atomic.Value
		message.Store("old")
		read := func(context.Context) (shown, error) {
			return &picture{view: &windlassv1.WatchAppResponse{App: &windlassv1.App{Message: message.Load().(string)}}}, nil
		}
		_, leave, err := h.joinTopic(caller{}, "app_1", ofApp, slog.New(slog.DiscardHandler), read)
		require.NoError(t, err)
		defer leave()
		synctest.Wait()

		message.Store("new") // as by another process, without a notification
		time.Sleep(time.Millisecond)
		joined := time.Now()
		topic, leave, err := h.joinTopic(caller{}, "app_1", ofApp, slog.New(slog.DiscardHandler), read)
		require.NoError(t, err)
		defer leave()
		p, changed := topic.currentPicture(joined)
		require.Nil(t, p)
		<-changed
		p, _ = topic.currentPicture(joined)
		require.Equal(t, "new", p.(*picture).view.GetApp().GetMessage())
		require.LessOrEqual(t, time.Since(joined), minReadEvery)
	})
}

// An app of a workspace with many watchers is read less often, because each picture goes to all watchers.
func TestHub_PicturesPerWorkspaceAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHub(10_000, 10_000, 10_000)
		var count atomic.Int32
		read := func(context.Context) (shown, error) {
			return &picture{view: &windlassv1.WatchAppResponse{App: &windlassv1.App{Message: fmt.Sprint(count.Add(1))}}}, nil
		}
		var taken []*atomic.Int32
		sent := func() (sum int32) {
			for _, n := range taken {
				sum += n.Load()
			}
			return sum
		}
		crowd, single := caller{APIKey: model.APIKey{ID: "key_1", WorkspaceID: "ws_1"}}, caller{APIKey: model.APIKey{ID: "key_2", WorkspaceID: "ws_2"}}
		for i := range 2000 {
			topic, leave, err := h.joinTopic(crowd, fmt.Sprint("app_", i%4), ofApp, slog.New(slog.DiscardHandler), read)
			require.NoError(t, err)
			t.Cleanup(leave)
			taken = append(taken, follow(ctx, topic))
		}
		topic, leave, err := h.joinTopic(single, "app_other", ofApp, slog.New(slog.DiscardHandler), read)
		require.NoError(t, err)
		t.Cleanup(leave)
		other := follow(ctx, topic)
		time.Sleep(10 * time.Second)
		before, otherBefore := sent(), other.Load()
		for range 10_000 {
			time.Sleep(time.Millisecond)
			h.notify([]string{"app_0", "app_1", "app_2", "app_3", "app_other"})
		}
		synctest.Wait()
		require.InDelta(t, 10_000, sent()-before, 2_000)
		require.InDelta(t, 100, other.Load()-otherBefore, 2, "another workspace's app is read as often as before")
		cancel()
	})
}

// Watchers of an app without changes are not woken.
func TestHub_ReadWithoutAChangeWakesOnlyNewWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(100, 100, 100)
		var message atomic.Value
		message.Store("old")
		var reads atomic.Int32
		read := func(context.Context) (shown, error) {
			reads.Add(1)
			return &picture{view: &windlassv1.WatchAppResponse{App: &windlassv1.App{Message: message.Load().(string)}}}, nil
		}
		join := func() (*topic, time.Time) {
			joined := time.Now()
			topic, leave, err := h.joinTopic(caller{}, "app_1", ofApp, slog.New(slog.DiscardHandler), read)
			require.NoError(t, err)
			t.Cleanup(leave)
			return topic, joined
		}
		topic, joined := join()
		synctest.Wait()
		p, changed := topic.currentPicture(joined)
		require.NotNil(t, p)

		before := reads.Load()
		time.Sleep(time.Minute)
		_, joinedLater := join()
		// The read for the new watcher may have ended already.
		for p, changes := topic.currentPicture(joinedLater); p == nil; p, changes = topic.currentPicture(joinedLater) {
			<-changes
		}
		require.Greater(t, reads.Load(), before+10)
		select {
		case <-changed:
			t.Fatal("a watcher was woken without a change")
		default:
		}

		message.Store("new")
		h.notify([]string{"app_1"})
		<-changed
		p, _ = topic.currentPicture(joined)
		require.Equal(t, "new", p.(*picture).view.GetApp().GetMessage())
	})
}

func TestHub_RefusalHasARetryTime(t *testing.T) {
	h := newHub(100, 100, 1)
	h.countWatchers(caller{}, 1)
	limit := rpc.DetailOf(h.checkLimit(caller{})).GetLimit()
	require.GreaterOrEqual(t, limit.GetRetryAfterMs(), watchAgain.Milliseconds())
	require.Less(t, limit.GetRetryAfterMs(), 2*watchAgain.Milliseconds())
}

func TestHub_UnchangedPictureIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHub(100, 100, 100)
		var failing atomic.Bool
		var entries atomic.Int32
		entries.Store(1)
		topic, leave, err := h.joinTopic(caller{}, "app_1", ofApp, slog.New(slog.DiscardHandler), func(context.Context) (shown, error) {
			if failing.Load() {
				return nil, context.DeadlineExceeded
			}
			var history []*windlassv1.HistoryEntry
			for i := range entries.Load() {
				history = append(history, &windlassv1.HistoryEntry{Id: fmt.Sprint("hst_", i)})
			}
			return &picture{view: &windlassv1.WatchAppResponse{App: &windlassv1.App{Name: "chat"}}, history: history}, nil
		})
		require.NoError(t, err)
		taken := follow(ctx, topic)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, int32(1), taken.Load())

		// An unreachable database does not end a watch.
		failing.Store(true)
		time.Sleep(time.Minute)
		failing.Store(false)
		entries.Store(2)
		time.Sleep(2 * reread)
		synctest.Wait()
		require.Equal(t, int32(2), taken.Load())
		leave()
		cancel()
	})
}

func TestHub_SendsHistoryOnceEvenIfClocksDisagree(t *testing.T) {
	entries := func(ids ...string) *picture {
		p := &picture{view: &windlassv1.WatchAppResponse{}}
		for _, id := range ids {
			p.history = append(p.history, &windlassv1.HistoryEntry{Id: id})
		}
		return p
	}
	idsIn := func(r *windlassv1.WatchAppResponse) (ids []string) {
		for _, h := range r.GetHistory() {
			ids = append(ids, h.GetId())
		}
		return ids
	}
	first := entries("a", "c", "e")
	require.Equal(t, []string{"a", "c", "e"}, idsIn(first.changesSince(nil)))
	// d was written later, by a process whose clock is behind.
	second := entries("a", "c", "d", "e", "f")
	require.Equal(t, []string{"d", "f"}, idsIn(second.changesSince(first)))
	// Entries that left the window are not sent again as new.
	require.Equal(t, []string{"g"}, idsIn(entries("d", "e", "f", "g").changesSince(second)))
	require.Empty(t, idsIn(first.changesSince(first)))
	require.Equal(t, []string{"x"}, idsIn(entries("x").changesSince(entries())))
}

func TestHub_TopicsOfAKindAreLimited(t *testing.T) {
	h := newHub(100, 100, 100)
	kind := &topic{name: "series", most: 2, pace: ofSeries.pace}
	read := func(context.Context) (shown, error) { return &seriesPicture{}, nil }
	join := func(id string, kind *topic) (func(), error) {
		_, leave, err := h.joinTopic(caller{}, id, kind, slog.New(slog.DiscardHandler), read)
		return leave, err
	}
	_, err := join("series/1", kind)
	require.NoError(t, err)
	leave, err := join("series/2", kind)
	require.NoError(t, err)
	_, err = join("series/3", kind)
	require.Equal(t, "watched_series", rpc.DetailOf(err).GetLimit().GetName())
	_, err = join("series/1", kind)
	require.NoError(t, err, "more watchers of the same app are allowed")
	_, err = join("app_1", ofApp)
	require.NoError(t, err, "another kind has its own limit")
	leave()
	_, err = join("series/3", kind)
	require.NoError(t, err)

	kind = &topic{name: "other", most: 8, perWorkspace: 1, pace: ofSeries.pace}
	_, err = join("other/1", kind)
	require.NoError(t, err)
	_, err = join("other/2", kind)
	require.Equal(t, "watched_other_per_workspace", rpc.DetailOf(err).GetLimit().GetName())
	_, _, err = h.joinTopic(caller{APIKey: model.APIKey{WorkspaceID: "ws_2"}}, "other/2", kind, slog.New(slog.DiscardHandler), read)
	require.NoError(t, err, "another workspace can still begin a topic")
	h.stop()
}
