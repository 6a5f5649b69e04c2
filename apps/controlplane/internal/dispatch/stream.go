package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/digest"
	"github.com/windlass-run/windlass/pkg/neighbours"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// Limits on a frame, so that it can be sent before the write deadline on a slow connection, and needs no large
	// buffer.
	maxFrameItems = 500
	maxFrameBytes = 1 << 20
	// readTimeout is the timeout for one read of items.
	readTimeout = 30 * time.Second
)

// kinds are the kinds of items, in the order in which they are read.
var kinds = [...]model.ChangeKind{model.KindDeployment, model.KindRoutes}

var (
	errReplaced = errors.New("another stream of the region replaced this one")
	errDrift    = errors.New("the revision is too old to continue from")
)

// stream is one agent's Watch.
type stream struct {
	svc     *Service
	region  string
	session string
	// countsAtEnd means that the agent reads the number of a snapshot's items from its end.
	countsAtEnd bool
	out         *connect.ServerStream[agentv1.WatchResponse]
	sub         *subscription
	// published is the position after which sub gets changes.
	published changefeed.Position
	// early is a reading that began while the session opened. The first read uses it.
	early *reading
	ended chan struct{}
	cause error

	// index has the region's desired state as of indexAt, if complete is set.
	index    *digest.Index
	complete bool
	indexAt  int64
	requests chan *agentv1.Request
	// due signals that a bookmark is due, buffer of one. dueAt is the time of the next bookmark. The service's mutex
	// guards dueAt.
	due   chan struct{}
	dueAt time.Time
	// away ends the stream, so that its agent connects to another process, buffer of one. leaving means that away was
	// sent a value. The service's mutex guards leaving.
	away    chan goAway
	leaving bool
	// around signals that the region's picture has changed, buffer of one. told is the picture that the agent has.
	around chan struct{}
	told   *neighbours.Picture
}

func newStream(s *Service, region string, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) *stream {
	return &stream{
		svc: s, region: region, session: req.SessionId, countsAtEnd: req.CountsAtEnd, out: out,
		ended:    make(chan struct{}),
		index:    digest.NewIndex(),
		requests: make(chan *agentv1.Request, 16),
		due:      make(chan struct{}, 1),
		away:     make(chan goAway, 1),
		around:   make(chan struct{}, 1),
	}
}

// endStream ends the stream from another goroutine. The caller must hold the service's mutex.
func (st *stream) endStream(cause error) {
	select {
	case <-st.ended:
	default:
		st.cause = cause
		close(st.ended)
	}
}

// sendUntilEnd sends changes when they come, and bookmarks while there are none.
func (st *stream) sendUntilEnd(ctx context.Context) error {
	for {
		// Changes are sent before all other frames.
		if err := st.sendOwed(ctx); err != nil {
			return goAwayFor(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-st.svc.draining:
			return goAway{errLeaving, st.svc.returnSpread()}
		case away := <-st.away:
			return away
		case <-st.ended:
			return rpc.Error(connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "", st.cause.Error())
		case <-st.sub.signal:
		case <-st.around:
			if err := st.lookAround(ctx); err != nil {
				return err
			}
		case req := <-st.requests:
			err := st.sendFrame(ctx, "request", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Request{Request: req}})
			if err != nil {
				return err
			}
		case <-st.due:
			if err := st.sendBookmark(ctx); err != nil {
				return goAwayFor(err)
			}
		}
	}
}

// goAwayFor returns a goAway for errors after which a new stream can continue, and other errors unchanged.
func goAwayFor(err error) error {
	if errors.Is(err, errDrift) {
		return goAway{errDrift, minSpread}
	}
	return err
}

// catchUp marks the changes between the agent's cursor and the position after which the tailer publishes. A request
// with bucket sums means that the agent's inbox differs from the digest. Then the differing buckets are sent
// completely.
func (st *stream) catchUp(ctx context.Context, req *agentv1.WatchRequest) error {
	after := req.ReceivedRevision
	for after < st.published.Revision {
		var changes []model.Change
		err := st.svc.cfg.Store.View(ctx, func(tx Tx) (err error) {
			changes, err = tx.Changes(map[string]int64{st.region: after}, changesPerPoll)
			return err
		})
		if err != nil {
			return fmt.Errorf("read changes after %d: %w", after, err)
		}
		if len(changes) == 0 || changes[0].Revision != after+1 {
			// The changes were compacted meanwhile.
			return st.sendSnapshot(ctx, "compacted", nil)
		}
		last := changes[len(changes)-1]
		st.sub.withCursor(func(c *changefeed.Cursor) {
			c.Mark(changes, changefeed.Position{Epoch: st.published.Epoch, Revision: last.Revision, Chain: last.Chain})
		})
		after = last.Revision
	}
	if len(req.BucketSums) == digest.Buckets {
		return st.sendSnapshot(ctx, "repair", req)
	}
	return nil
}

// sendSnapshot sends the state at one revision. With repair, it sends only the differing buckets, and does not move
// the cursor, because changes of other buckets up to the snapshot's revision are still unsent.
func (st *stream) sendSnapshot(ctx context.Context, cause string, repair *agentv1.WatchRequest) error {
	all, err := st.beginReading(ctx)
	if err != nil {
		return err
	}
	defer all.stop()
	begin := &agentv1.SnapshotBegin{Epoch: all.at.Epoch, Revision: all.at.Revision, Chain: all.at.Chain}
	// A repair, and an agent that reads the count from the beginning, need all items before the first frame.
	var known []wired
	if repair != nil || !st.countsAtEnd {
		if known, err = all.remainingItems(ctx); err != nil {
			return err
		}
	}
	if repair != nil {
		st.takeIndex(all)
		sums := st.index.Sums()
		begin.Buckets = sums.Differing(repair.BucketSums)
		begin.Revision, begin.Chain = repair.ReceivedRevision, repair.Chain
		known = slices.DeleteFunc(known, func(it wired) bool {
			_, differs := slices.BinarySearch(begin.Buckets, int32(digest.Bucket(it.key)))
			return !differs
		})
		if len(begin.Buckets) == 0 {
			return nil
		}
		st.svc.cfg.Log.WarnContext(ctx, "an agent's inbox differs from the database: sending the buckets again",
			"region", st.region, "buckets", len(begin.Buckets), "items", len(known))
	}
	begin.Count = int64(len(known))
	st.svc.metrics.snapshots.WithLabelValues(cause).Inc()
	if err := st.sendFrame(ctx, "snapshot_begin", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_SnapshotBegin{SnapshotBegin: begin}}); err != nil {
		return err
	}
	count, err := st.sendItems(ctx, known, all)
	if err != nil {
		return err
	}
	if repair == nil {
		st.takeIndex(all)
		st.sub.withCursor(func(c *changefeed.Cursor) { c.Sent(all.at) })
	}
	end := &agentv1.SnapshotEnd{}
	if begin.Count == 0 {
		end.Count = count
	}
	return st.sendFrame(ctx, "snapshot_end", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_SnapshotEnd{SnapshotEnd: end}})
}

// sendItems sends a snapshot's items: first known items, and then items as they are read. Applies come first, then
// routes, then deletes, which wait until all other items are sent.
func (st *stream) sendItems(ctx context.Context, known []wired, all *reading) (count int64, err error) {
	var deletes []wired
	for page := known; ; {
		count += int64(len(page))
		for _, it := range page {
			if it.rank == rankDelete {
				deletes = append(deletes, it)
			}
		}
		page = slices.DeleteFunc(page, func(it wired) bool { return it.rank == rankDelete })
		if err := st.sendPage(ctx, page); err != nil {
			return 0, err
		}
		if page, err = all.nextPage(ctx); err != nil {
			return 0, err
		}
		if page == nil {
			return count, st.sendPage(ctx, deletes)
		}
	}
}

func (st *stream) sendPage(ctx context.Context, page []wired) error {
	for _, part := range splitFrames(page) {
		st.svc.metrics.items.Add(float64(len(part)))
		frame := &agentv1.SnapshotItems{}
		carryItems(frame, fieldItems, part)
		if err := st.sendFrame(ctx, "snapshot_items", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_SnapshotItems{SnapshotItems: frame}}); err != nil {
			return err
		}
	}
	return nil
}

// takeIndex takes the index of a reading that has ended.
func (st *stream) takeIndex(all *reading) {
	st.index, st.complete, st.indexAt = all.index, true, all.at.Revision
}

func (st *stream) currentEpoch() (epoch int64) {
	st.sub.withCursor(func(c *changefeed.Cursor) { epoch = c.At().Epoch })
	return epoch
}

// sendOwed sends all changes of the cursor.
func (st *stream) sendOwed(ctx context.Context) error {
	for {
		batch, ok, reset := st.sub.takeBatch()
		if reset {
			return errDrift
		}
		if !ok {
			return nil
		}
		if err := st.sendBatch(ctx, batch); err != nil {
			return err
		}
	}
}

// sendBatch sends one batch. Only its last frame moves the agent's cursor. If the stream breaks before that frame,
// the agent resumes from the beginning of the batch.
func (st *stream) sendBatch(ctx context.Context, b changefeed.Batch) error {
	var items []wired
	slices.SortFunc(b.Keys, func(a, b changefeed.Key) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	for part := range slices.Chunk(b.Keys, maxFrameItems) {
		rows, err := st.svc.reader.readItems(ctx, st.region, part)
		if err != nil {
			return err
		}
		more, err := encodeAll(rows, b.Upto.Epoch, st.svc.cfg.sendingLimits())
		if err != nil {
			return err
		}
		items = append(items, more...)
	}
	for i := range items {
		updateIndex(st.index, &items[i])
	}
	st.svc.metrics.lag.Observe(float64(b.Upto.Revision - b.After))
	st.svc.metrics.items.Add(float64(len(items)))

	parts := splitFrames(sortByRank(items))
	if len(parts) == 0 {
		parts = [][]wired{nil}
	}
	for i, part := range parts {
		d := &agentv1.Delta{Epoch: b.Upto.Epoch, After: b.After, Upto: b.After}
		carryItems(d, fieldDelta, part)
		if i == len(parts)-1 {
			d.Upto, d.Chain = b.Upto.Revision, b.Upto.Chain
		}
		if err := st.sendFrame(ctx, "delta", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Delta{Delta: d}}); err != nil {
			return err
		}
	}
	return nil
}

// sendBookmark sends the position of the stream and the digest that the agent's inbox should have. A resumed stream
// reads the whole desired state once, at its first bookmark.
func (st *stream) sendBookmark(ctx context.Context) error {
	if !st.complete {
		all, err := st.beginReading(ctx)
		if err != nil {
			return err
		}
		defer all.stop()
		if err := all.waitEnd(ctx); err != nil {
			return err
		}
		st.takeIndex(all)
		// Unsent changes up to the index's position are already in the index.
		if err := st.sendOwed(ctx); err != nil {
			return err
		}
	}
	var at changefeed.Position
	var idle bool
	st.sub.withCursor(func(c *changefeed.Cursor) { at, idle = c.At(), c.Idle() })
	if !idle || at.Revision < st.indexAt {
		return nil
	}
	sums := st.index.Sums()
	return st.sendFrame(ctx, "bookmark", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{
		Epoch: at.Epoch, Revision: at.Revision, Chain: at.Chain,
		Digest: sums.Total(), Count: int64(st.index.Len()),
	}}})
}

func (st *stream) goAway(ctx context.Context, reason string, spread time.Duration) error {
	return st.sendFrame(ctx, "go_away", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_GoAway{GoAway: &agentv1.GoAway{
		RetryAfter: durationpb.New(spread), Reason: reason,
	}}})
}

// sendFrame writes one frame under the write deadline.
func (st *stream) sendFrame(ctx context.Context, kind string, frame *agentv1.WatchResponse) error {
	rpc.SetWriteDeadline(ctx, time.Now().Add(st.svc.cfg.SendTimeout))
	if err := st.out.Send(frame); err != nil {
		return fmt.Errorf("send %s to region %s: %w", kind, st.region, err)
	}
	st.svc.metrics.frames.WithLabelValues(kind).Inc()
	return nil
}
