package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/logs"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// frames handles the frames of one stream, in order.
type frames struct {
	session    *Session
	cancel     context.CancelCauseFunc
	reporter   bool
	reporting  chan struct{} // closed when the reporter has ended
	retryAfter time.Duration
	// held is closed at the end of the snapshot that the reporter waits for. Nil: the reporter does
	// not wait.
	held chan struct{}
	// answers counts the requests that are being answered. There are at most maxAnswers.
	answers sync.WaitGroup
	slots   chan struct{}

	snapshot *agentv1.SnapshotBegin
	staged   *inbox.Staged
}

func (f *frames) handle(ctx context.Context, msg *agentv1.WatchResponse) error {
	s := f.session
	if msg.GetHello() == nil && !f.reporter && msg.GetGoAway() == nil {
		return errors.New("a stream must begin with a hello")
	}
	if f.snapshot != nil && msg.GetSnapshotItems() == nil && msg.GetSnapshotEnd() == nil && msg.GetGoAway() == nil && msg.GetRequest() == nil {
		return errors.New("a snapshot was interrupted by another frame")
	}
	switch frame := msg.Frame.(type) {
	case *agentv1.WatchResponse_Hello:
		return f.startReports(ctx, frame.Hello)
	case *agentv1.WatchResponse_SnapshotBegin:
		f.snapshot, f.staged = frame.SnapshotBegin, s.cfg.Inbox.Stage(frame.SnapshotBegin)
	case *agentv1.WatchResponse_SnapshotItems:
		if f.snapshot == nil {
			return errors.New("snapshot items without a snapshot")
		}
		f.staged.Add(frame.SnapshotItems.Items)
		if announced := f.snapshot.Count; announced > 0 && int64(f.staged.Count()) > announced {
			return fmt.Errorf("a snapshot that announced %d items has %d so far", f.snapshot.Count, f.staged.Count())
		}
	case *agentv1.WatchResponse_SnapshotEnd:
		if f.snapshot == nil {
			return errors.New("the end of a snapshot without its beginning")
		}
		changed, err := f.staged.Commit(max(f.snapshot.Count, frame.SnapshotEnd.Count))
		if err != nil {
			return err
		}
		s.cfg.Log.InfoContext(ctx, "snapshot received", "items", f.staged.Count(), "changed", len(changed), "revision", f.snapshot.Revision, "epoch", f.snapshot.Epoch)
		f.snapshot, f.staged = nil, nil
		s.cfg.Changed(changed...)
		if f.held != nil {
			close(f.held)
			f.held = nil
		}
	case *agentv1.WatchResponse_Delta:
		changed, err := s.cfg.Inbox.Delta(frame.Delta)
		if err != nil {
			return err
		}
		s.cfg.Changed(changed...)
	case *agentv1.WatchResponse_Bookmark:
		return f.compareBookmark(frame.Bookmark)
	case *agentv1.WatchResponse_Request:
		select {
		case f.slots <- struct{}{}:
			f.answers.Go(func() {
				defer func() { <-f.slots }()
				f.answerRequest(ctx, frame.Request)
			})
		default:
			// The request stays unanswered, because desired state must not wait for an answer. The
			// caller gives up at its deadline.
			s.cfg.Log.WarnContext(ctx, "too many requests at once: one is left unanswered", "request", frame.Request.Id)
		}
	case *agentv1.WatchResponse_Neighbours:
		if s.cfg.Neighbours != nil {
			s.cfg.Neighbours(frame.Neighbours)
		}
	case *agentv1.WatchResponse_GoAway:
		f.retryAfter = min(max(frame.GoAway.RetryAfter.AsDuration(), 0), maxRetryAfter)
		return goAway{reason: frame.GoAway.Reason}
	default:
		if msg.Required {
			return errors.New("the control plane sent a required frame of an unknown kind: update the agent")
		}
	}
	return nil
}

// startReports starts the session's reports.
func (f *frames) startReports(ctx context.Context, h *agentv1.Hello) error {
	if f.reporter {
		return errors.New("a second hello")
	}
	s := f.session
	s.connected.Store(true)
	s.gauge.Set(1)
	s.cfg.Log.InfoContext(ctx, "connected to the control plane", "epoch", h.Epoch, "fence", h.Fence, "resumed", h.Resumed, "server", h.ServerVersion)
	f.reporter = true
	select {
	case s.back <- struct{}{}:
	default:
	}
	if !s.cfg.Inbox.Synced() {
		f.held = make(chan struct{})
	}
	held := f.held
	go func() {
		defer close(f.reporting)
		err := s.cfg.Reporter.Run(ctx, report.Session{
			ID: s.id, Epoch: h.Epoch, Fence: h.Fence, Resumed: h.Resumed,
			LeaseTTL: h.LeaseTtl.AsDuration(), Limits: h.Limits, Held: held,
		})
		if err == nil {
			err = errors.New("the reporter ended")
		}
		f.cancel(err) // the first cause stays; it is nil if the stream ended before
	}()
	return nil
}

// compareBookmark compares the agent's cursor and digest with the control plane's.
func (f *frames) compareBookmark(b *agentv1.Bookmark) error {
	in := f.session.cfg.Inbox
	if c := in.Cursor(); b.Epoch != c.Epoch || b.Revision != c.Revision {
		return fmt.Errorf("%w: bookmark at %d of epoch %d, cursor %d of epoch %d", inbox.ErrGap, b.Revision, b.Epoch, c.Revision, c.Epoch)
	}
	if sums := in.Sums(); sums.Total() != b.Digest {
		return errRepair
	}
	if in.Asked() {
		return errSnapshotNeeded
	}
	f.session.cfg.Reporter.Heard()
	return nil
}

// answerRequest answers one request. It is best effort: an error is returned to the caller of the request,
// and does not end the session.
func (f *frames) answerRequest(ctx context.Context, req *agentv1.Request) {
	ctx, cancel := context.WithDeadline(ctx, time.UnixMilli(req.Deadline))
	defer cancel()
	s := f.session
	var data []byte
	var err error
	switch kind := req.Kind.(type) {
	case *agentv1.Request_Logs:
		data, err = s.cfg.Instances.Logs(ctx, kind.Logs.InstanceId, int(kind.Logs.TailLines))
	case *agentv1.Request_Restart:
		err = s.cfg.Instances.Restart(ctx, kind.Restart.InstanceId)
	case *agentv1.Request_Traffic:
		data, err = proto.Marshal(s.cfg.Traffic(kind.Traffic))
	case *agentv1.Request_Series:
		data, err = proto.Marshal(s.cfg.Series(kind.Series))
	case *agentv1.Request_Follow:
		var answer *agentv1.FollowResponse
		if answer, err = logs.Follow(ctx, s.cfg.Instances, kind.Follow); err == nil {
			data, err = proto.Marshal(answer)
		}
	default:
		err = errors.New("this agent does not know that request: update the agent")
	}
	for err == nil && len(data) > uploadChunk {
		_, err = s.cfg.Client.UploadLogs(ctx, &agentv1.UploadLogsRequest{RequestId: req.Id, Data: data[:uploadChunk]})
		data = data[uploadChunk:]
	}
	last := &agentv1.UploadLogsRequest{RequestId: req.Id, Data: data, End: true}
	if err != nil {
		last.Data, last.Error = nil, err.Error()
	}
	if _, err := s.cfg.Client.UploadLogs(ctx, last); err != nil && ctx.Err() == nil {
		s.cfg.Log.WarnContext(ctx, "cannot answer a request", "request", req.Id, "error", err)
	}
}
