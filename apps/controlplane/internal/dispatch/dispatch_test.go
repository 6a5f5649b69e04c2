package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/dispatch"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/digest"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	region   = "reg_1"
	patience = time.Minute
)

type callerKey struct{}

// harness is a dispatcher over a store, served over real HTTP.
type harness struct {
	t       *testing.T
	db      *memory.Store
	svc     *dispatch.Service
	handler http.Handler
	client  agentv1connect.AgentServiceClient
}

type service struct {
	agentv1connect.UnimplementedAgentServiceHandler
	*dispatch.Service
}

func (s service) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	return s.Service.Watch(ctx, req, out)
}

func (s service) UploadLogs(ctx context.Context, req *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error) {
	return s.Service.UploadLogs(ctx, req)
}

func setup(t *testing.T, bookmark time.Duration, change ...func(*dispatch.Config)) *harness {
	db := memory.New(func() int64 { return time.Now().UnixMilli() })
	cfg := dispatch.Config{
		Store: store.Bind[dispatch.Tx](db),
		Caller: func(ctx context.Context) (string, int64, bool) {
			id, ok := ctx.Value(callerKey{}).(string)
			return id, 1, ok
		},
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Beat: 20 * time.Millisecond, Bookmark: bookmark,
	}
	for _, c := range change {
		c(&cfg)
	}
	svc, err := dispatch.New(cfg)
	require.NoError(t, err)
	db.OnCommit(func(c store.Commit) {
		if len(c.Revisions) > 0 {
			svc.Nudge()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	path, handler := agentv1connect.NewAgentServiceHandler(service{Service: svc})
	mux := http.NewServeMux()
	mux.Handle(path, rpc.WithWriteDeadline(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := region
		if other := r.Header.Get("Region"); other != "" {
			caller = other
		}
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		svc.Drain()
		cancel()
		require.NoError(t, <-done)
		server.CloseClientConnections()
		server.Close()
	})
	h := &harness{t: t, db: db, svc: svc, handler: mux, client: agentv1connect.NewAgentServiceClient(server.Client(), server.URL)}
	h.update(func(tx store.Tx) error {
		return errors.Join(
			tx.InsertWorkspace(model.Workspace{ID: "ws_1", Name: "w", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: region, WorkspaceID: "ws_1", Name: "us-east-1", ResourceVersion: 1}),
			tx.InsertApp(model.App{ID: "app_1", WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "a", ResourceVersion: 1}))
	})
	return h
}

func (h *harness) update(fn func(tx store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.db.Update(h.t.Context(), fn))
}

// deploy inserts or changes the row of a deployment in the region.
func (h *harness) deploy(id string, generation int64, status windlassv1.TopologyStatus) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		_, err := tx.GetDeployment("ws_1", id)
		if errors.Is(err, model.ErrNotFound) {
			var version int32
			if _, err = fmt.Sscanf(id, "dep_%d", &version); err != nil {
				return err
			}
			err = tx.InsertDeployment(model.Deployment{ID: id, WorkspaceID: "ws_1", AppID: "app_1", Version: version, Spec: &windlassv1.DeploymentSpec{Command: []string{id}}})
		}
		if err != nil {
			return err
		}
		tx.Change(region, model.KindDeployment, id, generation)
		return tx.PutTopology([]model.Topology{{
			WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: id, RegionID: region,
			Replicas: int32(generation), Generation: generation, Status: status,
		}})
	})
}

const (
	starting = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING
	stopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
)

// watcher is an agent that keeps received items, like an inbox.
type watcher struct {
	t      *testing.T
	frames chan *agentv1.WatchResponse
	done   chan error
	hello  *agentv1.Hello

	cursor    *agentv1.WatchRequest
	held      map[string]*agentv1.Item
	index     *digest.Index
	snapshots int
	// all has all frames, for recordings.
	all []*agentv1.WatchResponse
}

func newWatcher(t *testing.T, session string) *watcher {
	return &watcher{t: t, cursor: &agentv1.WatchRequest{SessionId: session, CountsAtEnd: true}, held: map[string]*agentv1.Item{}, index: digest.NewIndex()}
}

func (w *watcher) connect(h *harness) context.CancelFunc {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	stream, err := h.client.Watch(ctx, w.cursor)
	require.NoError(w.t, err)
	w.frames, w.done = make(chan *agentv1.WatchResponse, 1000), make(chan error, 1)
	frames, done := w.frames, w.done
	go func() {
		for stream.Receive() {
			frames <- stream.Msg()
		}
		done <- errors.Join(stream.Err(), stream.Close())
		close(frames)
	}()
	first := w.next()
	require.NotNil(w.t, first.GetHello(), "the first frame is Hello")
	w.hello = first.GetHello()
	return cancel
}

func (w *watcher) next() *agentv1.WatchResponse {
	w.t.Helper()
	select {
	case f, ok := <-w.frames:
		if !ok {
			require.NoError(w.t, <-w.done, "the stream ended before the frame")
			require.FailNow(w.t, "the stream ended before the frame, without an error")
		}
		w.all = append(w.all, f)
		return f
	case <-time.After(patience):
		require.FailNow(w.t, "no frame")
		return nil
	}
}

// step receives one frame and applies it like an inbox.
func (w *watcher) step() *agentv1.WatchResponse {
	w.t.Helper()
	f := w.next()
	switch frame := f.Frame.(type) {
	case *agentv1.WatchResponse_SnapshotBegin:
		w.snapshots++
		begin := frame.SnapshotBegin
		var items []*agentv1.Item
		for {
			f := w.next()
			if end := f.GetSnapshotEnd(); end != nil {
				require.Len(w.t, items, int(begin.Count+end.Count))
				require.False(w.t, begin.Count > 0 && end.Count > 0, "only one frame has the count")
				require.True(w.t, w.cursor.CountsAtEnd || end.Count == 0, "an agent of an earlier release gets the count at the beginning")
				break
			}
			items = append(items, f.GetSnapshotItems().GetItems()...)
		}
		if len(begin.Buckets) == 0 {
			clear(w.held)
			w.index = digest.NewIndex()
		}
		w.keep(items)
		w.cursor.Epoch, w.cursor.ReceivedRevision, w.cursor.Chain = begin.Epoch, begin.Revision, begin.Chain
	case *agentv1.WatchResponse_Delta:
		d := frame.Delta
		require.Equal(w.t, w.cursor.ReceivedRevision, d.After, "frames join without a gap")
		w.keep(d.Items)
		if d.Upto > d.After {
			w.cursor.ReceivedRevision, w.cursor.Chain = d.Upto, d.Chain
		}
	}
	return f
}

func (w *watcher) keep(items []*agentv1.Item) {
	for _, it := range items {
		w.held[it.Key] = it
		kind := int32(it.Kind)
		if it.GetDeployment().GetAction() == agentv1.DeploymentState_ACTION_APPLY || len(it.GetRoutes().GetTargets()) > 0 {
			w.index.Put(kind, it.Key, digest.Hash(kind, it.Key, it.Generation, it.SpecHash))
		} else {
			w.index.Delete(kind, it.Key)
		}
	}
}

// until steps until the watcher has the key at the generation.
func (w *watcher) until(key string, generation int64) {
	w.t.Helper()
	for w.held[key].GetGeneration() < generation {
		w.step()
	}
}

func (w *watcher) untilSentAway() {
	w.t.Helper()
	for away := false; !away; {
		away = w.step().GetGoAway() != nil
	}
}

// ended waits for the end of the stream, and requires code.
func (w *watcher) ended(code connect.Code) {
	w.t.Helper()
	select {
	case err := <-w.done:
		require.Equal(w.t, code, connect.CodeOf(err))
	case <-time.After(patience):
		require.FailNow(w.t, "the stream does not end")
	}
}

func TestStream_WithoutACursorGetsASnapshotAndDeltas(t *testing.T) {
	h := setup(t, time.Minute)
	h.deploy("dep_1", 1, starting)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	defer cancel()
	w.step()
	require.Equal(t, 1, w.snapshots)
	require.Equal(t, []string{"dep_1"}, w.held["dep_1"].GetDeployment().GetDeployment().GetSpec().GetCommand())

	h.deploy("dep_2", 1, starting)
	h.deploy("dep_1", 2, stopping)
	w.until("dep_2", 1)
	w.until("dep_1", 2)
	require.Equal(t, int32(2), w.held["dep_1"].GetDeployment().GetDeployment().GetReplicas()+2*int32(w.held["dep_1"].GetDeployment().GetAction()-agentv1.DeploymentState_ACTION_APPLY))
	require.Equal(t, 1, w.snapshots)
}

func TestSnapshot_OfManyPagesIsCompleteAndInOrder(t *testing.T) {
	h := setup(t, time.Hour)
	const (
		applies = iota
		routes
		deletes
	)
	const n = 2300 // several pages, the last of which is not full
	h.update(func(tx store.Tx) error {
		var rows []model.Topology
		for i := range n {
			id, status := fmt.Sprintf("dep_%05d", i), starting
			if i%100 == 0 {
				status = stopping
			}
			err := tx.InsertDeployment(model.Deployment{ID: id, WorkspaceID: "ws_1", AppID: "app_1", Version: int32(i + 1), Spec: &windlassv1.DeploymentSpec{}})
			if err != nil {
				return err
			}
			tx.Change(region, model.KindDeployment, id, 1)
			rows = append(rows, model.Topology{WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: id, RegionID: region, Replicas: 1, Generation: 1, Weight: 1, Status: status})
		}
		tx.Change(region, model.KindRoutes, "app_1", 1)
		return errors.Join(tx.PutTopology(rows), tx.PutRoutes([]model.Route{{WorkspaceID: "ws_1", AppID: "app_1", RegionID: region, Hosts: []string{"a.windlass.local"}, Generation: 1}}))
	})
	for _, atEnd := range []bool{true, false} {
		w := newWatcher(t, "session-1")
		w.cursor.CountsAtEnd = atEnd
		disconnect := w.connect(h)
		w.step()
		require.Len(t, w.held, n+1)
		var order []int
		for _, f := range w.all {
			for _, it := range f.GetSnapshotItems().GetItems() {
				switch {
				case it.GetRoutes() != nil:
					require.Len(t, it.GetRoutes().GetTargets(), n)
					order = append(order, routes)
				case it.GetDeployment().GetAction() == agentv1.DeploymentState_ACTION_DELETE:
					order = append(order, deletes)
				default:
					order = append(order, applies)
				}
			}
		}
		require.Len(t, order, n+1)
		require.True(t, slices.IsSorted(order), "applies, routes, deletes")
		disconnect()
	}
}

func TestStream_ResumesAtItsPosition(t *testing.T) {
	h := setup(t, time.Minute)
	h.deploy("dep_1", 1, starting)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	w.step()
	fence := w.hello.Fence
	cancel()
	w.ended(connect.CodeCanceled)

	for g := int64(2); g < 50; g++ {
		h.deploy("dep_1", g, starting)
	}
	h.deploy("dep_2", 1, starting)
	cancel = w.connect(h)
	defer cancel()
	require.True(t, w.hello.Resumed)
	require.Equal(t, fence, w.hello.Fence)
	w.until("dep_1", 49)
	w.until("dep_2", 1)
	require.Equal(t, 1, w.snapshots, "no second snapshot")
}

func TestFence_OfANewSessionEndsTheOld(t *testing.T) {
	h := setup(t, time.Minute)
	first, second := newWatcher(t, "session-1"), newWatcher(t, "session-2")
	cancelFirst := first.connect(h)
	defer cancelFirst()
	cancelSecond := second.connect(h)
	defer cancelSecond()
	require.Greater(t, second.hello.Fence, first.hello.Fence)
	require.False(t, second.hello.Resumed)
	first.ended(connect.CodeAborted)
}

func TestFork_RestoredBackupStartsANewEpoch(t *testing.T) {
	h := setup(t, time.Minute)
	h.deploy("dep_1", 1, starting)
	backup := h.db.Clone()
	h.deploy("dep_1", 7, starting)
	h.deploy("dep_2", 1, starting)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	w.step()
	epoch := w.hello.Epoch
	cancel()
	w.ended(connect.CodeCanceled)

	woken := make(chan string, 10)
	h.db.Restore(backup)
	h.db.OnCommit(func(c store.Commit) {
		for id := range c.Woken {
			woken <- id
		}
	})
	h.deploy("dep_1", 2, starting)
	cancel = w.connect(h)
	defer cancel()
	require.Greater(t, w.hello.Epoch, epoch)
	require.False(t, w.hello.Resumed, "reports that the lost history had must be sent again")
	require.Equal(t, "app_1", <-woken)
	w.step()
	require.Equal(t, 2, w.snapshots)
	require.Equal(t, int64(2), w.held["dep_1"].Generation)
	require.Equal(t, w.hello.Epoch, w.held["dep_1"].Epoch)
	require.NotContains(t, w.held, "dep_2")
}

func TestRestore_WhileAnAgentWatches(t *testing.T) {
	for range 10 {
		// Without a beat and a nudge, the tailer does not see the restored history before the second agent comes.
		h := setup(t, time.Minute, func(c *dispatch.Config) { c.Beat = time.Hour })
		h.deploy("dep_1", 1, starting)
		backup := h.db.Clone()
		for g := int64(2); g <= 7; g++ {
			h.deploy("dep_1", g, starting)
		}
		old, fresh := newWatcher(t, "session-1"), newWatcher(t, "session-2")
		old.connect(h)
		old.until("dep_1", 7)
		h.db.Restore(backup)
		for fresh.snapshots == 0 {
			fresh.connect(h)
			away := false
			for fresh.snapshots == 0 && !away {
				away = fresh.step().GetGoAway() != nil
			}
		}
		require.Equal(t, int64(1), fresh.held["dep_1"].Generation)
	}
}

func TestBookmark_BadBucketIsSentAgain(t *testing.T) {
	h := setup(t, 20*time.Millisecond)
	for i := 1; i <= 20; i++ {
		h.deploy(fmt.Sprintf("dep_%d", i), 1, starting)
	}
	h.deploy("dep_3", 2, stopping)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	for {
		if b := w.step().GetBookmark(); b != nil {
			sums := w.index.Sums()
			require.Equal(t, sums.Total(), b.Digest)
			require.Equal(t, w.cursor.ReceivedRevision, b.Revision)
			break
		}
	}
	cancel()
	w.ended(connect.CodeCanceled)

	// The agent's disk lost one item. After it resumes, the first bookmark shows the difference.
	delete(w.held, "dep_5")
	w.index.Delete(int32(agentv1.ItemKind_ITEM_KIND_DEPLOYMENT), "dep_5")
	cancel = w.connect(h)
	for {
		if b := w.step().GetBookmark(); b != nil {
			sums := w.index.Sums()
			require.NotEqual(t, sums.Total(), b.Digest)
			break
		}
	}
	cancel()
	w.ended(connect.CodeCanceled)

	sums := w.index.Sums()
	w.cursor.BucketSums = sums[:]
	cancel = w.connect(h)
	defer cancel()
	w.until("dep_5", 1)
	for {
		if b := w.step().GetBookmark(); b != nil {
			sums := w.index.Sums()
			require.Equal(t, sums.Total(), b.Digest)
			break
		}
	}
}

func TestDrain_EndsStreams(t *testing.T) {
	h := setup(t, time.Minute)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	defer cancel()
	h.svc.Drain()
	w.untilSentAway()
}

func TestEpoch_NewEndsStreams(t *testing.T) {
	h := setup(t, time.Minute)
	h.deploy("dep_1", 1, starting)
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	defer cancel()
	w.step()
	h.update(func(tx store.Tx) error {
		_, err := tx.BumpEpoch(region, []byte("salt"))
		return err
	})
	w.untilSentAway()
}

func TestFork_UnderOpenStreamsEndsThem(t *testing.T) {
	for name, further := range map[string]int{"behind the streams": 0, "at the same revision": 1, "ahead of the streams": 3} {
		t.Run(name, func(t *testing.T) {
			h := setup(t, time.Minute)
			h.deploy("dep_1", 1, starting)
			restored := &harness{t: t, db: h.db.Clone()}
			for i := range further {
				restored.deploy(fmt.Sprintf("dep_%d", 10+i), 1, starting)
			}
			h.deploy("dep_2", 1, starting)
			w := newWatcher(t, "session-1")
			cancel := w.connect(h)
			defer cancel()
			w.until("dep_2", 1)
			epoch := w.hello.Epoch

			h.db.Restore(restored.db)
			h.svc.Nudge()
			w.untilSentAway()
			cancel()
			again := w.connect(h)
			defer again()
			require.Greater(t, w.hello.Epoch, epoch)
		})
	}
}

func TestRequest_ReachesTheAgentAndIsAnswered(t *testing.T) {
	h := setup(t, time.Minute)
	_, err := h.svc.Ask(t.Context(), region, &agentv1.Request{})
	require.ErrorIs(t, err, model.ErrAgentUnreachable)
	require.NotErrorIs(t, err, model.ErrNoAnswer, "the request was not sent")

	w := newWatcher(t, "session-1")
	disconnect := w.connect(h)
	defer disconnect()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type answer struct {
		data []byte
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		data, err := h.svc.Ask(ctx, region, &agentv1.Request{Kind: &agentv1.Request_Logs{Logs: &agentv1.LogsRequest{InstanceId: "ins_1"}}})
		got <- answer{data, err}
	}()
	var req *agentv1.Request
	for req == nil {
		req = w.step().GetRequest()
	}
	for _, piece := range []string{"one ", "two"} {
		_, err := h.client.UploadLogs(ctx, &agentv1.UploadLogsRequest{RequestId: req.Id, Data: []byte(piece), End: piece == "two"})
		require.NoError(t, err)
	}
	a := <-got
	require.NoError(t, a.err)
	require.Equal(t, "one two", string(a.data))

	asking, leave := context.WithCancel(t.Context())
	asking, ended := context.WithTimeout(asking, patience)
	defer ended()
	go func() {
		data, err := h.svc.Ask(asking, region, &agentv1.Request{Kind: &agentv1.Request_Restart{Restart: &agentv1.RestartRequest{InstanceId: "ins_1"}}})
		got <- answer{data, err}
	}()
	for req = nil; req == nil; {
		req = w.step().GetRequest()
	}
	leave()
	a = <-got
	require.ErrorIs(t, a.err, model.ErrNoAnswer, "the agent may still do it")
	require.ErrorIs(t, a.err, model.ErrAgentUnreachable)
}

// hasty is a store in which a row changes after the first snapshot was read, and before its session has begun.
type hasty struct {
	dispatch.Store
	read   chan struct{}
	change func()
}

func (s *hasty) Snapshot(ctx context.Context, fn func(dispatch.Tx) error) error {
	err := s.Store.Snapshot(ctx, fn)
	select {
	case s.read <- struct{}{}:
	default:
	}
	return err
}

func (s *hasty) Update(ctx context.Context, fn func(dispatch.Tx) error) error {
	err := s.Store.Update(ctx, fn)
	if change := s.change; change != nil {
		s.change = nil
		select {
		case <-s.read:
			change()
		case <-ctx.Done():
		}
	}
	return err
}

func TestSnapshot_MissesNoChangeBeforeItsSession(t *testing.T) {
	slow := &hasty{read: make(chan struct{}, 1)}
	h := setup(t, time.Hour, func(cfg *dispatch.Config) { slow.Store, cfg.Store = cfg.Store, slow })
	h.deploy("dep_1", 1, starting)
	slow.change = func() { h.deploy("dep_1", 2, starting) }
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	defer cancel()
	w.until("dep_1", 2)
	require.Nil(t, slow.change)
	require.Equal(t, 1, w.snapshots)
}
